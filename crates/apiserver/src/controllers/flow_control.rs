//! FlowSchemas and PriorityLevelConfigurations as stored objects.
//! In: writes of these kinds. Out: the configuration in use, the condition `Dangling` of
//! FlowSchemas, and the objects of a new cluster, restored.
//! Guarantees: a write takes effect before its response is sent; conditions are written by one task
//! at a time.
//!
//! kube-apiserver restores its objects every minute. Here, a write after which an object must be
//! restored schedules that for the next full minute since the start, which has the same result:
//! only writes change these objects.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bellerophon_apimachinery::{error::ApiError, json_ext::JsonExt as _};
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::flow_control::{
    AUTO_UPDATE_ANNOTATION, DANGLING, default_objects,
};
use bellerophon_storage::{ObjectKey, Range};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    flow_control::{Action, Configuration, Upkeep, conditions_to_write, revisions},
    managed_fields::Tracker,
    registry::Resource,
    write::{self, Change, DeleteOptions},
};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const LEVELS: &str = "prioritylevelconfigurations";
const SCHEMAS: &str = "flowschemas";

/// The field managers of conditions and of restored objects.
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";
const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";

/// How often objects are restored.
const UPKEEP_PERIOD: Duration = Duration::from_secs(60);

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Allows another task to sync the configuration if this one is dropped before it is done.
struct Syncing<'a> {
    upkeep: &'a Upkeep,
    done: bool,
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.upkeep.writes.store(0, Ordering::Release);
        }
    }
}

/// Reconciles flow control with the stored objects, and the conditions of FlowSchemas with both.
/// Conditions are writes too, which this call then finds by itself.
pub(crate) fn written(api: &Api) -> Running<'_> {
    Box::pin(async move {
        let upkeep = &api.flow_control.upkeep;
        if upkeep.writes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut syncing = Syncing {
            upkeep,
            done: false,
        };
        while !syncing.done {
            let seen = upkeep.writes.load(Ordering::Acquire);
            sync_flow_control(api).await;
            let writes = &upkeep.writes;
            let unchanged = writes.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
            syncing.done = unchanged.is_ok();
        }
        if !flow_control_revisions(api).is_empty() {
            upkeep.due.notify_one();
        }
    })
}

async fn sync_flow_control(api: &Api) {
    let levels = flow_control_objects(api, LEVELS);
    let schemas = flow_control_objects(api, SCHEMAS);
    api.flow_control
        .configure(Configuration::compile(&levels, &schemas));
    for (name, condition) in conditions_to_write(&levels, &schemas, api.clock.now()) {
        let edit = |mut object: Object| {
            set_condition(&mut object, &condition);
            object
        };
        let resource = flow_control_resource(api, SCHEMAS);
        let written =
            edit_flow_control(api, &resource, &name, Change::status(), CONSUMER, edit).await;
        report(&resource, &name, written);
    }
}

/// Restores the objects of a new cluster whenever a write changed them, until `stop` is
/// cancelled.
pub(crate) async fn run_upkeep(api: Arc<Api>, stop: CancellationToken) {
    let started = api.flow_control.started;
    let due = async || {
        api.flow_control.upkeep.due.notified().await;
        let periods = started.elapsed().as_secs() / UPKEEP_PERIOD.as_secs() + 1;
        let next = started + Duration::from_secs(periods * UPKEEP_PERIOD.as_secs());
        tokio::time::sleep_until(next).await;
    };
    while stop.run_until_cancelled(due()).await.is_some() {
        for revision in flow_control_revisions(&api) {
            revise_flow_control(&api, revision).await;
        }
    }
}

/// The differences from the objects that the server maintains.
fn flow_control_revisions(api: &Api) -> Vec<Revision> {
    let maintained = default_objects(api.clock.now());
    [LEVELS, SCHEMAS]
        .iter()
        .flat_map(|plural| {
            let resource = flow_control_resource(api, plural);
            let stored = flow_control_objects(api, plural);
            let mut maintained: Vec<Object> = maintained
                .iter()
                .filter(|object| object.kind == resource.kind)
                .cloned()
                .collect();
            for object in &mut maintained {
                (resource.strategy.default)(object);
            }
            revisions(&maintained, &stored)
                .into_iter()
                .map(move |action| Revision {
                    resource: resource.clone(),
                    action,
                })
        })
        .collect()
}

async fn revise_flow_control(api: &Api, revision: Revision) {
    let Revision { resource, action } = revision;
    let name = action.name().to_owned();
    let outcome = match action {
        Action::Create(mut object) => {
            tracker(api, &resource, "", PRODUCER).update(None, &mut object);
            write::create(api, &resource, *object, false, None)
                .await
                .map(|_| ())
        }
        Action::Update {
            spec, annotation, ..
        } => {
            let edit = |mut object: Object| {
                if let Some(spec) = &spec {
                    object.body.insert("spec".into(), spec.clone());
                }
                if let Some(value) = annotation {
                    let key = AUTO_UPDATE_ANNOTATION.to_owned();
                    object.meta.annotations.insert(key, value.to_string());
                }
                object
            };
            let change = Change::whole(&resource);
            edit_flow_control(api, &resource, &name, change, PRODUCER, edit).await
        }
        Action::Delete(name) => {
            let key = ObjectKey::new("", &name);
            write::delete(api, &resource, &key, &DeleteOptions::default())
                .await
                .map(|_| ())
        }
    };
    report(&resource, &name, outcome);
}

async fn edit_flow_control(
    api: &Api,
    resource: &Arc<Resource>,
    name: &str,
    change: Change,
    manager: &str,
    edit: impl Fn(Object) -> Object + Send + Sync,
) -> Result<(), ApiError> {
    let missing = || ApiError::NotFound {
        resource: resource.group_resource(),
        name: name.to_owned(),
    };
    let subresource = if manager == CONSUMER { "status" } else { "" };
    let tracker = tracker(api, resource, subresource, manager);
    let edited = |old: Option<&Object>| {
        let mut new = old.cloned().map(&edit).ok_or_else(missing)?;
        tracker.update(old, &mut new);
        Ok(new)
    };
    let key = ObjectKey::new("", name);
    write::update(api, resource, &key, change, false, None, edited)
        .await
        .map(|_| ())
}

fn tracker<'a>(
    api: &Api,
    resource: &'a Resource,
    subresource: &'a str,
    manager: &str,
) -> Tracker<'a> {
    Tracker {
        catalog: api.registry.catalog(),
        resource,
        subresource,
        manager: manager.to_owned(),
        now: api.clock.now(),
    }
}

fn flow_control_resource(api: &Api, plural: &str) -> Arc<Resource> {
    api.registry
        .catalog()
        .find(GROUP, "v1", plural)
        .expect("the kinds of flow control are built in")
}

fn flow_control_objects(api: &Api, plural: &str) -> Vec<Object> {
    let resource = flow_control_resource(api, plural);
    let listing = api
        .store
        .list(&resource.collection, &Range::default(), None)
        .expect("the newest state is always kept");
    listing
        .objects
        .iter()
        .map(|stored| resource.read(stored))
        .collect()
}

fn report(resource: &Resource, name: &str, outcome: Result<(), ApiError>) {
    match outcome {
        // Removed meanwhile, or restored by another client.
        Ok(()) | Err(ApiError::NotFound { .. } | ApiError::AlreadyExists { .. }) => {}
        Err(error) => {
            let kind = &resource.kind;
            tracing::error!(kind, name, error = %error.to_status(), "cannot write flow control");
        }
    }
}

/// Replaces the condition of the same type, or adds it.
fn set_condition(schema: &mut Object, condition: &Value) {
    let status = schema.section("status");
    let mut conditions: Vec<Value> = status
        .field("conditions")
        .as_array()
        .cloned()
        .unwrap_or_default();
    match conditions.iter_mut().find(|c| c.text("type") == DANGLING) {
        Some(found) => *found = condition.clone(),
        None => conditions.push(condition.clone()),
    }
    status.insert("conditions".into(), json!(conditions));
}

/// A change of an object that the server maintains.
struct Revision {
    resource: Arc<Resource>,
    action: Action,
}
