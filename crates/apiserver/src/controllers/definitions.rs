//! The controllers of CustomResourceDefinitions: names, serving, finalization. Mirrors upstream's
//! naming, establishing and finalizing controllers.
//! In: writes of CustomResourceDefinitions and of their objects. Out: the catalog, and the status
//! of definitions.
//! Guarantees: before the response to a write of a definition is sent, its resource is served and
//! in discovery; a definition is deleted after all of its objects.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_crd as crd;
use bellerophon_crd::{CLEANUP_FINALIZER, Definition, Names, Termination};
use bellerophon_storage::{ObjectKey, Range};

use crate::{
    api::Api,
    managed_fields::Tracker,
    registry::Resource,
    write::{self, Change, DeleteOptions, Effects, Propagation, Written},
};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A work item of a definition.
enum Work {
    /// The definition of this name was created or changed.
    Written(String),
    /// This definition is deleted.
    Gone(Box<Object>),
}

/// Brings everything in line with a definition that was created or changed.
pub(crate) fn written<'a>(api: &'a Api, name: &str) -> Running<'a> {
    settle(api, Work::Written(name.to_owned()))
}

/// Stops serving what a definition defined, and lets others have its names.
pub(crate) fn deleted<'a>(api: &'a Api, gone: &Object) -> Running<'a> {
    settle(api, Work::Gone(Box::new(gone.clone())))
}

/// Removes the finalizer of a terminating definition when its last object is deleted. The cost does
/// not depend on the number of objects.
pub(crate) async fn instance_deleted(api: &Api, resource: &Resource) {
    if let Some(name) = terminating_definition(api, resource)
        && !instances_left(api, resource)
    {
        written(api, &name).await;
    }
}

/// Deletes an object that was made while the deletion of its definition began.
pub(crate) async fn instance_created(api: &Api, resource: &Resource) {
    if let Some(name) = terminating_definition(api, resource) {
        written(api, &name).await;
    }
}

/// The definition of a custom resource, if it is terminating: the request may have begun before.
fn terminating_definition(api: &Api, resource: &Resource) -> Option<String> {
    let catalog = api.registry.catalog();
    let current = catalog.find(&resource.group, &resource.version, &resource.plural)?;
    let custom = current.custom().filter(|custom| custom.terminating)?;
    Some(custom.definition.clone())
}

/// Processes work items of definitions, and those that follow from them, until none is left. The
/// writes made here trigger no further effects; what they lead to is queued, so the stack does not
/// grow with the number of definitions or objects.
fn settle(api: &Api, first: Work) -> Running<'_> {
    Box::pin(async move {
        let mut queue = VecDeque::from([first]);
        while let Some(work) = queue.pop_front() {
            match work {
                Work::Written(name) => queue.extend(settle_written(api, &name).await),
                Work::Gone(gone) => queue.extend(settle_gone(api, &gone)),
            }
        }
    })
}

/// Computes the status of a definition, serves it, and cleans up after it when it is deleted.
async fn settle_written(api: &Api, name: &str) -> Option<Work> {
    let object = definition(api, name)?;
    let definition = Definition::read(&object).ok()?;
    let status = crd::status(
        &object,
        &definition,
        &taken_names(api, &definition, name),
        api.clock.now(),
    );
    if status != definition.status {
        tracing::debug!(definition = name, "writing the status of a definition");
        return set_status(api, &object, &status).await;
    }
    serve(api, &object, &definition);
    tracing::debug!(definition = name, "definition served");
    if object.meta.deletion_timestamp.is_some() {
        return clean_up(api, &object, &definition).await;
    }
    None
}

/// Stops serving the resource of a deleted definition; definitions that waited for its names are
/// processed again.
fn settle_gone(api: &Api, gone: &Object) -> Vec<Work> {
    let Ok(definition) = Definition::read(gone) else {
        return Vec::new();
    };
    api.registry.update(|catalog| {
        catalog.with_custom(&definition.group, &definition.names.plural, Vec::new())
    });
    let waiting = definitions_of(api, &definition.group).into_iter();
    waiting
        .filter(|other| Definition::read(other).is_ok_and(|other| !other.is_true("NamesAccepted")))
        .map(|other| Work::Written(other.meta.name))
        .collect()
}

fn serve(api: &Api, object: &Object, definition: &Definition) {
    let resources = Resource::of_definition(object);
    api.registry.update(|catalog| {
        catalog.with_custom(&definition.group, &definition.names.plural, resources)
    });
}

/// Deletes the objects of a definition that goes; when none is left, takes its finalizer away.
async fn clean_up(api: &Api, object: &Object, definition: &Definition) -> Option<Work> {
    if !object
        .meta
        .finalizers
        .iter()
        .any(|f| f == CLEANUP_FINALIZER)
    {
        return None;
    }
    let catalog = api.registry.catalog();
    let version = definition
        .versions
        .iter()
        .find(|v| v.served)
        .map(|v| v.name.as_str())
        .unwrap_or_default();
    if let Some(resource) = catalog.find(&definition.group, version, &definition.names.plural) {
        delete_instances(api, &resource).await;
        if instances_left(api, &resource) {
            let status =
                crd::terminating(&definition.status, Termination::InProgress, api.clock.now());
            if status == definition.status {
                return None;
            }
            return set_status(api, object, &status).await;
        }
    }
    update_definition(api, object, Change::whole, |mut object| {
        object.meta.finalizers.retain(|f| f != CLEANUP_FINALIZER);
        object
    })
    .await
}

async fn delete_instances(api: &Api, resource: &Arc<Resource>) {
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        effects: Effects::Deferred,
        ..DeleteOptions::default()
    };
    let listing = api
        .store
        .list(&resource.collection, &Range::default(), None)
        .expect("the newest state is always kept");
    for stored in listing
        .objects
        .iter()
        .filter(|o| resource.read(o).meta.deletion_timestamp.is_none())
    {
        match write::delete(api, resource, &stored.key, &options).await {
            Ok(_) | Err(ApiError::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(object = %stored.key, error = %error.to_status(), "cannot delete a custom resource of a definition that goes")
            }
        }
    }
}

fn instances_left(api: &Api, resource: &Resource) -> bool {
    let first = Range {
        limit: Some(1),
        ..Range::default()
    };
    let listing = api
        .store
        .list(&resource.collection, &first, None)
        .expect("the newest state is always kept");
    !listing.objects.is_empty()
}

async fn set_status(api: &Api, object: &Object, status: &crd::Status) -> Option<Work> {
    let status = serde_json::to_value(status).expect("a status has string keys");
    update_definition(
        api,
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
    api: &Api,
    object: &Object,
    change: fn(&Resource) -> Change,
    edit: impl Fn(Object) -> Object + Send + Sync,
) -> Option<Work> {
    let name = &object.meta.name;
    let resource = definition_resource(api);
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
        catalog: api.registry.catalog(),
        resource: &resource,
        subresource: "status",
        manager: "kube-apiserver".to_owned(),
        now: api.clock.now(),
    };
    let edited = |old: Option<&Object>| {
        let mut new = old.cloned().map(&edit).ok_or_else(missing)?;
        tracker.update(old, &mut new);
        Ok(new)
    };
    let updated = write::update(api, &resource, &key, change, false, None, edited).await;
    match updated.map(|updated| updated.written) {
        Ok(Written::Stored(stored))
            if stored.revision.to_string() == object.meta.resource_version =>
        {
            None
        }
        Ok(Written::Stored(_)) => Some(Work::Written(name.clone())),
        Ok(Written::Unstored(gone)) => Some(Work::Gone(gone)),
        // Another client removed it meanwhile; the caller wanted that or gets an error later.
        Err(ApiError::NotFound { .. }) => None,
        Err(error) => {
            tracing::error!(definition = %name, error = %error.to_status(), "cannot update a definition");
            None
        }
    }
}

fn definition_resource(api: &Api) -> Arc<Resource> {
    api.registry
        .catalog()
        .find(GROUP, "v1", PLURAL)
        .expect("definitions are built in")
}

fn definition(api: &Api, name: &str) -> Option<Object> {
    let resource = definition_resource(api);
    Some(
        resource.read(
            &*api
                .store
                .get(&resource.collection, &ObjectKey::new("", name))?,
        ),
    )
}

/// The definitions of a group, which their names end with: others need not be decoded.
fn definitions_of(api: &Api, group: &str) -> Vec<Object> {
    let resource = definition_resource(api);
    let listing = api
        .store
        .list(&resource.collection, &Range::default(), None)
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
fn taken_names(api: &Api, definition: &Definition, name: &str) -> Vec<Names> {
    let others = definitions_of(api, &definition.group)
        .into_iter()
        .filter(|o| o.meta.name != name)
        .filter_map(|o| Definition::read(&o).ok());
    others.map(|o| o.status.accepted_names).collect()
}
