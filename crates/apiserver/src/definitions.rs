//! Definitions at work: accepting names, serving custom resources, and cleaning up after them.
//! In: writes of CustomResourceDefinitions and of their objects. Out: the catalog, and the status of definitions.
//! Holds: when a write of a definition is answered, what it defines is served and discovered; a definition that goes takes its objects along,
//! and stays until the last of them is gone.

use std::{future::Future, pin::Pin, sync::Arc};

use serde_json::Value;

use crate::{
    api::Api,
    crd::{self, CLEANUP_FINALIZER, Definition, Names, Termination},
    error::ApiError,
    object::Object,
    ownership::Tracker,
    registry::Resource,
    store::{ObjectKey, Range},
    write::{Change, DeleteOptions, Propagation},
};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Api {
    /// Brings everything in line with a definition that was created or changed.
    pub(crate) fn definition_written<'a>(&'a self, name: &'a str) -> Running<'a> {
        Box::pin(async move {
            let Some(object) = self.definition(name) else {
                return;
            };
            let Ok(definition) = Definition::read(&object) else {
                return;
            };
            let status = crd::status(
                &object,
                &definition,
                &self.taken_names(&definition, name),
                self.clock.now(),
            );
            if status != definition.status {
                // This write comes back here; it then finds the status as it should be.
                self.set_status(name, &status).await;
                return;
            }
            self.serve(&object, &definition);
            if object.meta.deletion_timestamp.is_some() {
                self.clean_up(&object, &definition).await;
            }
        })
    }

    /// Stops serving what a definition defined, and lets others have its names.
    pub(crate) fn definition_gone<'a>(&'a self, gone: &'a Object) -> Running<'a> {
        Box::pin(async move {
            let Ok(definition) = Definition::read(gone) else {
                return;
            };
            self.registry.update(|catalog| {
                catalog.with_custom(&definition.group, &definition.names.plural, Vec::new())
            });
            for other in self.definitions() {
                if Definition::read(&other)
                    .is_ok_and(|o| o.group == definition.group && !o.is_true("NamesAccepted"))
                {
                    self.definition_written(&other.meta.name).await;
                }
            }
        })
    }

    /// Lets a terminating definition go when its last object is gone.
    pub(crate) fn instance_gone<'a>(&'a self, resource: &'a Resource) -> Running<'a> {
        Box::pin(async move {
            let Some(name) = resource
                .custom()
                .filter(|c| c.terminating)
                .map(|c| c.definition.clone())
            else {
                return;
            };
            self.definition_written(&name).await;
        })
    }

    fn serve(&self, object: &Object, definition: &Definition) {
        let resources = Resource::of_definition(object);
        self.registry.update(|catalog| {
            catalog.with_custom(&definition.group, &definition.names.plural, resources)
        });
    }

    /// Deletes the objects of a definition that goes; when none is left, takes its finalizer away.
    async fn clean_up(&self, object: &Object, definition: &Definition) {
        if !object
            .meta
            .finalizers
            .iter()
            .any(|f| f == CLEANUP_FINALIZER)
        {
            return;
        }
        let catalog = self.registry.catalog();
        let version = definition
            .versions
            .iter()
            .find(|v| v.served)
            .map(|v| v.name.as_str())
            .unwrap_or_default();
        if let Some(resource) = catalog.find(&definition.group, version, &definition.names.plural) {
            self.delete_instances(&resource).await;
            if self.instances_left(&resource) {
                let status = crd::terminating(
                    &definition.status,
                    Termination::InProgress,
                    self.clock.now(),
                );
                if status != definition.status {
                    self.set_status(&object.meta.name, &status).await;
                }
                return;
            }
        }
        let name = object.meta.name.clone();
        let release = self.update_definition(&name, Change::whole, |mut object| {
            object.meta.finalizers.retain(|f| f != CLEANUP_FINALIZER);
            object
        });
        report(&name, release.await);
    }

    async fn delete_instances(&self, resource: &Arc<Resource>) {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let listing = self
            .store
            .list(&resource.shelf, &Range::default(), None)
            .expect("the newest state is always kept");
        for stored in listing
            .objects
            .iter()
            .filter(|o| resource.read(o).meta.deletion_timestamp.is_none())
        {
            match self.delete(resource, &stored.key, &options).await {
                Ok(_) | Err(ApiError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(object = %stored.key, error = %error.to_status(), "cannot delete a custom resource of a definition that goes")
                }
            }
        }
    }

    fn instances_left(&self, resource: &Resource) -> bool {
        !self
            .store
            .list(&resource.shelf, &Range::default(), None)
            .expect("the newest state is always kept")
            .objects
            .is_empty()
    }

    async fn set_status(&self, name: &str, status: &crd::Status) {
        let status = serde_json::to_value(status).expect("a status has string keys");
        let written = self.update_definition(
            name,
            |_| Change::status(),
            |mut object| {
                object.body.insert("status".into(), status.clone());
                object
            },
        );
        report(name, written.await);
    }

    async fn update_definition(
        &self,
        name: &str,
        change: fn(&Resource) -> Change,
        edit: impl Fn(Object) -> Object + Send + Sync,
    ) -> Result<(), ApiError> {
        let resource = self.definition_resource();
        let missing = || ApiError::NotFound {
            resource: resource.group_resource(),
            name: name.to_owned(),
        };
        let key = ObjectKey::new("", name);
        let tracker = Tracker {
            catalog: self.registry.catalog(),
            resource: &resource,
            part: "status",
            manager: "kube-apiserver".to_owned(),
            now: self.clock.now(),
        };
        let edited = |old: Option<&Object>| {
            let mut new = old.cloned().map(&edit).ok_or_else(missing)?;
            tracker.update(old, &mut new);
            Ok(new)
        };
        self.update(&resource, &key, change(&resource), false, None, edited)
            .await
            .map(|_| ())
    }

    fn definition_resource(&self) -> Arc<Resource> {
        self.registry
            .catalog()
            .find(GROUP, "v1", PLURAL)
            .expect("definitions are built in")
    }

    fn definition(&self, name: &str) -> Option<Object> {
        let resource = self.definition_resource();
        Some(resource.read(&*self.store.get(&resource.shelf, &ObjectKey::new("", name))?))
    }

    fn definitions(&self) -> Vec<Object> {
        let resource = self.definition_resource();
        let listing = self
            .store
            .list(&resource.shelf, &Range::default(), None)
            .expect("the newest state is always kept");
        listing
            .objects
            .iter()
            .map(|stored| resource.read(stored))
            .collect()
    }

    /// The names that others hold in the group of a definition.
    fn taken_names(&self, definition: &Definition, name: &str) -> Vec<Names> {
        let others = self
            .definitions()
            .into_iter()
            .filter(|o| o.meta.name != name)
            .filter_map(|o| Definition::read(&o).ok());
        others
            .filter(|o| o.group == definition.group)
            .map(|o| o.status.accepted_names)
            .collect()
    }
}

fn report(name: &str, outcome: Result<(), ApiError>) {
    match outcome {
        // Somebody else removed it meanwhile, which is what the caller wanted or will find out.
        Ok(()) | Err(ApiError::NotFound { .. }) => {}
        Err(error) => {
            tracing::error!(definition = name, error = %error.to_status(), "cannot update a definition")
        }
    }
}

/// Marks a definition whose deletion begins: its objects go first.
pub(crate) fn begin_deletion(object: &mut Object, now: crate::object::Time) {
    if !object
        .meta
        .finalizers
        .iter()
        .any(|f| f == CLEANUP_FINALIZER)
    {
        object.meta.finalizers.push(CLEANUP_FINALIZER.into());
    }
    if let Ok(definition) = Definition::read(object) {
        let status = crd::terminating(&definition.status, Termination::Pending, now);
        object.body.insert(
            "status".into(),
            serde_json::to_value(status).unwrap_or(Value::Null),
        );
    }
}
