//! Garbage collector: deletes or orphans the dependents of deleted owners.
//!
//! Input: metadata of all objects of all deletable resources. Output: deletions, and patches that
//! remove finalizers and owner references.
//! Guarantees: an object is deleted only after live reads showed that none of its owners exists;
//! every deletion has uid and resourceVersion preconditions.

mod absent_owner_cache; // owners known not to exist
mod graph; // owner references of all objects
mod monitors; // one informer per deletable resource
mod plan; // the action for one object
mod process; // the workers' requests for one object

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bellerophon::controller::BoxError;
use bellerophon::events::{Event, EventRecorder};
use bellerophon::informer::{InformerOptions, SharedInformerFactory};
use bellerophon::manager::Manager;
use bellerophon::queue::{Backoff, QueueOptions, RateLimit, WorkQueue};
use bellerophon::trace::Trace;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::core::PartialObjectMeta;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use self::{
    absent_owner_cache::AbsentOwnerCache,
    graph::{Graph, GraphAction, Node, Uid},
    monitors::Monitors,
};
use super::discovery::{ServedResource, ServedResources};
use crate::component::Component;
use crate::notify::NotifyOnChange;

const NAME: &str = "garbage-collector-controller";

/// Number of workers, as upstream.
const WORKERS: usize = 20;

/// Interval of discovery when no CustomResourceDefinition changes, as upstream.
const RESYNC: Duration = Duration::from_secs(30);

/// Item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WorkItem {
    AttemptToDelete(Uid),
    AttemptToOrphan(Uid),
}

struct GarbageCollector {
    client: Client,
    graph: Mutex<Graph>,
    absent_owners: Mutex<AbsentOwnerCache>,
    /// Result of the last successful discovery.
    served: RwLock<Arc<ServedResources>>,
    /// Its length is bounded by the number of objects.
    queue: WorkQueue<WorkItem>,
    recorder: EventRecorder,
    trace: Trace,
}

/// Adds the controller, under its upstream name. The receiver is true once every deletable resource
/// is observed.
pub(crate) fn setup(mgr: &mut Manager) -> watch::Receiver<bool> {
    // Custom resources start and end with their definitions.
    let changed = Arc::new(Notify::new());
    let definitions =
        mgr.informer::<PartialObjectMeta<CustomResourceDefinition>>(InformerOptions::default());
    definitions.add_event_handler(NotifyOnChange(changed.clone()));
    let rate_limit = RateLimit {
        backoff: Some(Backoff::default()),
        bucket: None,
    };
    let queue_options = QueueOptions {
        rate_limit,
        rng: mgr.rng().clone(),
        observer: None,
    };
    let collector = Arc::new(GarbageCollector {
        client: Component::ControllerManager.kube_client(mgr, NAME),
        graph: Mutex::default(),
        absent_owners: Mutex::default(),
        served: RwLock::default(),
        queue: mgr.work_queue("garbage_collector_attempt_to_delete", queue_options),
        recorder: Component::ControllerManager.recorder(mgr, NAME),
        trace: mgr.trace().clone(),
    });
    let (ready, is_ready) = watch::channel(false);
    let informers = mgr.informers();
    mgr.add(NAME, async move |stop| {
        collector.run(informers, changed, ready, stop).await
    });
    is_ready
}

impl GarbageCollector {
    /// Runs monitors and workers until `stop` is cancelled. No task is left when this returns.
    async fn run(
        self: Arc<Self>,
        informers: SharedInformerFactory,
        changed: Arc<Notify>,
        ready: watch::Sender<bool>,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut workers = JoinSet::new();
        let mut monitors = Monitors::new(informers);
        let mut tick = interval(RESYNC);
        // A slow discovery must not be followed by a burst of ticks.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // Without this the objects of a new custom resource would be collected only after
                // the next tick.
                () = changed.notified() => {}
                _ = tick.tick() => {}
            }
            match ServedResources::discover(&self.client).await {
                Err(error) => {
                    tracing::warn!(%error, "discovery failed, continuing with the known resources");
                    continue;
                }
                Ok(served) => {
                    let served = Arc::new(served);
                    *self.served.write().unwrap_or_else(PoisonError::into_inner) = served.clone();
                    if stop
                        .run_until_cancelled(monitors.sync(&served, &self))
                        .await
                        .is_none()
                    {
                        break;
                    }
                }
            }
            // Workers start once all monitors are synced. Before that most owners would be
            // unobserved, and each would cost a live read.
            while workers.len() < WORKERS {
                workers.spawn(self.clone().work(stop.clone()));
            }
            ready.send_replace(true);
        }
        while let Some(ended) = workers.join_next().await {
            ended?;
        }
        Ok(())
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        while let Some(Some(item)) = stop.run_until_cancelled(self.queue.get()).await {
            let result = match item.key() {
                WorkItem::AttemptToDelete(uid) => self.attempt_to_delete(uid).await,
                WorkItem::AttemptToOrphan(uid) => self.attempt_to_orphan(uid).await,
            };
            match result {
                Ok(()) => self.queue.forget(item.key()),
                Err(error) => {
                    tracing::debug!(item = ?item.key(), %error, "attempt failed, retrying");
                    self.queue.add_rate_limited(item.key().clone());
                }
            }
        }
    }

    fn applied(&self, resource: &Arc<ServedResource>, meta: &ObjectMeta) {
        // The guard is dropped before the actions run: they lock the queue and the absent owner
        // cache.
        let actions = self.graph().applied(resource, meta);
        self.execute(actions);
    }

    fn deleted(&self, uid: &str) {
        let actions = self.graph().deleted(uid);
        self.execute(actions);
    }

    fn remove_resource(&self, resource: &ServedResource) {
        let actions = self.graph().remove_resource(resource);
        self.execute(actions);
    }

    fn execute(&self, actions: Vec<GraphAction>) {
        for action in actions {
            match action {
                GraphAction::AttemptToDelete(uid) => {
                    self.queue.add(WorkItem::AttemptToDelete(uid));
                }
                GraphAction::AttemptToOrphan(uid) => {
                    self.queue.add(WorkItem::AttemptToOrphan(uid));
                }
                GraphAction::AbsentOwner(owner) => self.absent_owners().insert(owner),
                GraphAction::ReportInvalidNamespace {
                    dependent,
                    reference,
                } => self.report_invalid_namespace(&dependent, &reference),
            }
        }
    }

    /// Records an event: the owner reference names an owner that is in another namespace. Mirrors
    /// reportInvalidNamespaceOwnerRef.
    fn report_invalid_namespace(&self, dependent: &Uid, reference: &OwnerReference) {
        let Some(Node { resource, key, .. }) = self.graph().get(dependent).cloned() else {
            return;
        };
        let namespace = key.namespace().unwrap_or_default();
        let OwnerReference {
            api_version,
            kind: owner,
            name,
            uid,
            ..
        } = reference;
        let note = format!(
            "ownerRef [{api_version}/{owner}, namespace: {namespace}, name: {name}, uid: {uid}] \
                does not exist in namespace {namespace:?}"
        );
        let regarding = ObjectReference {
            api_version: Some(resource.api_resource.api_version.clone()),
            kind: Some(resource.api_resource.kind.clone()),
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name().to_owned()),
            uid: Some(dependent.to_string()),
            ..ObjectReference::default()
        };
        let event = Event::warning("OwnerRefInvalidNamespace", "GarbageCollect", note);
        self.recorder.event(regarding, event);
    }

    fn served(&self) -> Arc<ServedResources> {
        self.served
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent_owners(&self) -> MutexGuard<'_, AbsentOwnerCache> {
        self.absent_owners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
