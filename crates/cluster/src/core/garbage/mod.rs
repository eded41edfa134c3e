//! Garbage collector: what belongs to an object goes when the object goes, or before, or is set free.
//!
//! In: metadata of every object of every kind. Out: deletions, and finalizers and owner references taken away.
//! Holds: nothing is deleted while an owner of it exists, asked of the server itself; every deletion names uid and version.

mod absent; // owners that were looked for and not found
mod apply; // what is read and written for one object
mod graph; // who names whom as owner
mod monitors; // one watch for every kind
mod plan; // what becomes of an object

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bellerophon::{
    Backoff, EventRecorder, EventType, FactoryOptions, HandlerOptions, Note, QueueOptions,
    RateLimit, SharedInformerFactory, TraceBus, WorkQueue,
};
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
    absent::AbsentOwners,
    graph::{Graph, Next, Observed, Uid},
    monitors::Monitors,
};
use super::kinds::{Kind, Kinds};
use crate::component::Component;
use crate::context::{BoxError, Context, Loop};
use crate::wake::Wake;

const NAME: &str = "garbage-collector-controller";

/// How many objects are looked at once, as upstream.
const WORKERS: usize = 20;

/// How often discovery is asked even if no definition changed, as upstream.
const RESYNC: Duration = Duration::from_secs(30);

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Examine(Uid),
    Orphan(Uid),
}

/// Owners, dependents, and what has to be done about them.
struct Collector {
    client: Client,
    graph: Mutex<Graph>,
    absent: Mutex<AbsentOwners>,
    /// What the server served when it was asked last.
    kinds: RwLock<Arc<Kinds>>,
    /// Its size is bounded by the number of objects.
    queue: WorkQueue<Task>,
    recorder: EventRecorder,
    trace: TraceBus,
}

/// The collector, ready to run.
pub(crate) fn collector(ctx: &Context) -> Loop {
    // Definitions come and go, and with them what there is to watch.
    let changed = Arc::new(Notify::new());
    ctx.informer::<PartialObjectMeta<CustomResourceDefinition>>()
        .add_handler(Wake(changed.clone()), HandlerOptions::default());
    let rate_limit = RateLimit {
        backoff: Some(Backoff::default()),
        bucket: None,
    };
    let queue = WorkQueue::new(QueueOptions {
        rate_limit,
        entropy: ctx.entropy.clone(),
        observer: Some(
            ctx.metrics
                .queue_observer("garbage_collector_attempt_to_delete"),
        ),
    });
    ctx.metrics
        .watch_queue("garbage_collector_attempt_to_delete", &queue);
    let client = ctx.client(Component::ControllerManager);
    let collector = Arc::new(Collector {
        client: client.clone(),
        graph: Mutex::default(),
        absent: Mutex::default(),
        kinds: RwLock::default(),
        queue,
        recorder: ctx.recorder(Component::ControllerManager, NAME),
        trace: ctx.trace.clone(),
    });
    let ready = ctx.awaited(NAME);
    let factory = SharedInformerFactory::new(
        client,
        FactoryOptions {
            entropy: ctx.entropy.clone(),
            ..FactoryOptions::default()
        },
    );
    Loop::background(NAME, move |stop| {
        collector.run(factory, changed, ready, stop)
    })
}

impl Collector {
    /// Watches, then works, until told to stop. All tasks have ended when this returns.
    async fn run(
        self: Arc<Self>,
        factory: SharedInformerFactory,
        changed: Arc<Notify>,
        ready: Arc<watch::Sender<bool>>,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let caches = CancellationToken::new();
        let watching = tokio::spawn({
            let factory = factory.clone();
            let caches = caches.clone();
            async move { factory.run(caches).await }
        });
        let mut workers = JoinSet::new();
        let mut monitors = Monitors::new(factory);
        let mut tick = interval(RESYNC);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = changed.notified() => {}
                _ = tick.tick() => {}
            }
            match Kinds::discover(&self.client).await {
                Err(error) => {
                    tracing::warn!(%error, "cannot find out which kinds are served, going on with those known");
                    continue;
                }
                Ok(kinds) => {
                    let kinds = Arc::new(kinds);
                    *self.kinds.write().unwrap_or_else(PoisonError::into_inner) = kinds.clone();
                    if stop
                        .run_until_cancelled(monitors.follow(&kinds, &self))
                        .await
                        .is_none()
                    {
                        break;
                    }
                }
            }
            // Nothing is judged before all kinds are known: an owner of a kind not yet listed would have to be asked for.
            while workers.len() < WORKERS {
                workers.spawn(self.clone().work(stop.clone()));
            }
            ready.send_replace(true);
        }
        while let Some(ended) = workers.join_next().await {
            ended?;
        }
        caches.cancel();
        watching.await??;
        Ok(())
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        while let Some(Some(item)) = stop.run_until_cancelled(self.queue.get()).await {
            let done = match item.key() {
                Task::Examine(uid) => self.examine(uid).await,
                Task::Orphan(uid) => self.orphan(uid).await,
            };
            match done {
                Ok(()) => self.queue.forget(item.key()),
                Err(why) => {
                    tracing::debug!(task = ?item.key(), %why, "trying again later");
                    self.queue.add_rate_limited(item.key().clone());
                }
            }
        }
    }

    fn applied(&self, kind: &Arc<Kind>, meta: &ObjectMeta) {
        let next = self.graph().applied(kind, meta);
        self.go_on(next);
    }

    fn deleted(&self, uid: &str) {
        let next = self.graph().deleted(uid);
        self.go_on(next);
    }

    fn forget_kind(&self, kind: &Kind) {
        let next = self.graph().forget_kind(kind);
        self.go_on(next);
    }

    fn go_on(&self, next: Vec<Next>) {
        for next in next {
            match next {
                Next::Examine(uid) => self.queue.add(Task::Examine(uid)),
                Next::Orphan(uid) => self.queue.add(Task::Orphan(uid)),
                Next::Absent(owner) => self.absent().insert(owner),
                Next::Report {
                    dependent,
                    reference,
                } => self.report(&dependent, &reference),
            }
        }
    }

    /// Tells people that an object names an owner of another namespace, where owners cannot be.
    fn report(&self, dependent: &Uid, reference: &OwnerReference) {
        let Some(Observed { kind, key, .. }) = self.graph().get(dependent).cloned() else {
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
            "ownerRef [{api_version}/{owner}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
        );
        let about = ObjectReference {
            api_version: Some(kind.resource.api_version.clone()),
            kind: Some(kind.resource.kind.clone()),
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name().to_owned()),
            uid: Some(dependent.to_string()),
            ..ObjectReference::default()
        };
        let reason = "OwnerRefInvalidNamespace".to_owned();
        self.recorder.event_about(
            about,
            Note {
                type_: EventType::Warning,
                reason,
                action: "GarbageCollect".into(),
                note,
            },
        );
    }

    fn kinds(&self) -> Arc<Kinds> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, AbsentOwners> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
