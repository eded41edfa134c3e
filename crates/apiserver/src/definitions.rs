//! Definitions at work: accepting names, serving custom resources, and cleaning up after them.
//! In: writes of CustomResourceDefinitions and of their objects. Out: the catalog, and the status of definitions.
//! Holds: when a write of a definition is answered, what it defines is served and discovered; a definition that goes takes its objects along,
//! and stays until the last of them is gone.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc};

use serde_json::Value;

use crate::{
    api::Api,
    crd::{self, CLEANUP_FINALIZER, Definition, Names, Termination},
    error::ApiError,
    object::Object,
    ownership::Tracker,
    registry::Resource,
    store::{ObjectKey, Range},
    write::{Change, DeleteOptions, Effects, Propagation, Written},
};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What is still to be done about definitions.
enum Work {
    /// The definition of this name was created or changed.
    Written(String),
    /// This definition is gone.
    Gone(Box<Object>),
}

impl Api {
    /// Brings everything in line with a definition that was created or changed.
    pub(crate) fn definition_written(&self, name: &str) -> Running<'_> {
        self.settle(Work::Written(name.to_owned()))
    }

    /// Stops serving what a definition defined, and lets others have its names.
    pub(crate) fn definition_gone(&self, gone: &Object) -> Running<'_> {
        self.settle(Work::Gone(Box::new(gone.clone())))
    }

    /// Lets a terminating definition go when its last object is gone. Costs the same however many
    /// objects are left.
    pub(crate) async fn instance_gone(&self, resource: &Resource) {
        if let Some(name) = self.terminating_definition(resource)
            && !self.instances_left(resource)
        {
            self.definition_written(&name).await;
        }
    }

    /// Deletes an object that was made while the deletion of its definition began.
    pub(crate) async fn instance_created(&self, resource: &Resource) {
        if let Some(name) = self.terminating_definition(resource) {
            self.definition_written(&name).await;
        }
    }

    /// The definition of a custom resource, if it is being deleted by now: the request may have
    /// begun before.
    fn terminating_definition(&self, resource: &Resource) -> Option<String> {
        let catalog = self.registry.catalog();
        let current = catalog.find(&resource.group, &resource.version, &resource.plural)?;
        let custom = current.custom().filter(|custom| custom.terminating)?;
        Some(custom.definition.clone())
    }

    /// Does work on definitions, and the work that follows from it, until there is none. The writes
    /// made here have no effects of their own: what they lead to is queued, so the stack does not
    /// grow with the number of definitions or objects.
    fn settle(&self, first: Work) -> Running<'_> {
        Box::pin(async move {
            let mut queue = VecDeque::from([first]);
            while let Some(work) = queue.pop_front() {
                match work {
                    Work::Written(name) => queue.extend(self.settle_written(&name).await),
                    Work::Gone(gone) => queue.extend(self.settle_gone(&gone)),
                }
            }
        })
    }

    /// Computes the status of a definition, serves it, and cleans up after it when it is deleted.
    async fn settle_written(&self, name: &str) -> Option<Work> {
        let object = self.definition(name)?;
        let definition = Definition::read(&object).ok()?;
        let status = crd::status(
            &object,
            &definition,
            &self.taken_names(&definition, name),
            self.clock.now(),
        );
        if status != definition.status {
            return self.set_status(&object, &status).await;
        }
        self.serve(&object, &definition);
        if object.meta.deletion_timestamp.is_some() {
            return self.clean_up(&object, &definition).await;
        }
        None
    }

    /// Stops serving what a definition defined; those that waited for its names are looked at
    /// again.
    fn settle_gone(&self, gone: &Object) -> Vec<Work> {
        let Ok(definition) = Definition::read(gone) else {
            return Vec::new();
        };
        self.registry.update(|catalog| {
            catalog.with_custom(&definition.group, &definition.names.plural, Vec::new())
        });
        let waiting = self.definitions_of(&definition.group).into_iter();
        waiting
            .filter(|other| {
                Definition::read(other).is_ok_and(|other| !other.is_true("NamesAccepted"))
            })
            .map(|other| Work::Written(other.meta.name))
            .collect()
    }

    fn serve(&self, object: &Object, definition: &Definition) {
        let resources = Resource::of_definition(object);
        self.registry.update(|catalog| {
            catalog.with_custom(&definition.group, &definition.names.plural, resources)
        });
    }

    /// Deletes the objects of a definition that goes; when none is left, takes its finalizer away.
    async fn clean_up(&self, object: &Object, definition: &Definition) -> Option<Work> {
        if !object
            .meta
            .finalizers
            .iter()
            .any(|f| f == CLEANUP_FINALIZER)
        {
            return None;
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
                if status == definition.status {
                    return None;
                }
                return self.set_status(object, &status).await;
            }
        }
        self.update_definition(object, Change::whole, |mut object| {
            object.meta.finalizers.retain(|f| f != CLEANUP_FINALIZER);
            object
        })
        .await
    }

    async fn delete_instances(&self, resource: &Arc<Resource>) {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            effects: Effects::Deferred,
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
        let first = Range {
            limit: Some(1),
            ..Range::default()
        };
        let listing = self
            .store
            .list(&resource.shelf, &first, None)
            .expect("the newest state is always kept");
        !listing.objects.is_empty()
    }

    async fn set_status(&self, object: &Object, status: &crd::Status) -> Option<Work> {
        let status = serde_json::to_value(status).expect("a status has string keys");
        self.update_definition(
            object,
            |_| Change::status(),
            |mut object| {
                object.body.insert("status".into(), status.clone());
                object
            },
        )
        .await
    }

    /// Changes a definition; the work that follows if it did change.
    async fn update_definition(
        &self,
        object: &Object,
        change: fn(&Resource) -> Change,
        edit: impl Fn(Object) -> Object + Send + Sync,
    ) -> Option<Work> {
        let name = &object.meta.name;
        let resource = self.definition_resource();
        let missing = || ApiError::NotFound {
            resource: resource.group_resource(),
            name: name.clone(),
        };
        let key = ObjectKey::new("", name);
        let change = Change {
            effects: Effects::Deferred,
            ..change(&resource)
        };
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
        let updated = self
            .update(&resource, &key, change, false, None, edited)
            .await;
        match updated.map(|updated| updated.written) {
            Ok(Written::Stored(stored))
                if stored.revision.to_string() == object.meta.resource_version =>
            {
                None
            }
            Ok(Written::Stored(_)) => Some(Work::Written(name.clone())),
            Ok(Written::Unstored(gone)) => Some(Work::Gone(gone)),
            // Somebody else removed it meanwhile, which is what the caller wanted or will find out.
            Err(ApiError::NotFound { .. }) => None,
            Err(error) => {
                tracing::error!(definition = %name, error = %error.to_status(), "cannot update a definition");
                None
            }
        }
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

    /// The definitions of a group, which their names end with: others need not be decoded.
    fn definitions_of(&self, group: &str) -> Vec<Object> {
        let resource = self.definition_resource();
        let listing = self
            .store
            .list(&resource.shelf, &Range::default(), None)
            .expect("the newest state is always kept");
        let of_group = |name: &str| name.split_once('.').is_some_and(|(_, g)| g == group);
        listing
            .objects
            .iter()
            .filter(|stored| of_group(stored.key.name()))
            .map(|stored| resource.read(stored))
            .collect()
    }

    /// The names that others hold in the group of a definition.
    fn taken_names(&self, definition: &Definition, name: &str) -> Vec<Names> {
        let others = self
            .definitions_of(&definition.group)
            .into_iter()
            .filter(|o| o.meta.name != name)
            .filter_map(|o| Definition::read(&o).ok());
        others.map(|o| o.status.accepted_names).collect()
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
