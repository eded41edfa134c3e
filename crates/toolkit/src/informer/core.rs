//! Core: what reflectors write, listers read and handlers are notified from.
//! In: batches of one reflector. Out: the store, then the handlers' queues.
//! Guarantees: handler queues receive transitions in the order of the store, each handler all of
//! them since it was added; the store has a change before a handler queue has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::core::ApiResource;
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    handler::{Handler, HandlerRegistration, Slot},
    handler_queue::HandlerQueue,
    status::{Status, SyncError},
    store::{IndexFn, IndexId, Store, Transition},
};
use crate::{
    cached::{CachedObject, DecodedLru},
    fifo::{Batch, Delta, KnownKeys},
    informer_stats::InformerStats,
    key::ObjectKey,
    list_watch::ListWatchError,
    locks::{Locks, Os},
    queue::CauseEvent,
    trace::{Trace, TraceEvent},
};

/// One namespace, or all of them.
pub(crate) type Scope = Option<String>;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) relists: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) undecodable: AtomicU64,
}

struct ScopeStatus {
    listed: bool,
    problem: Option<SyncError>,
    resource_version: Option<String>,
    /// When the server last sent an event, or when the reflector started.
    last_event: Instant,
}

impl ScopeStatus {
    fn new() -> Self {
        Self {
            listed: false,
            problem: None,
            resource_version: None,
            last_event: Instant::now(),
        }
    }

    fn blocking_error(&self) -> Option<SyncError> {
        self.problem.clone().filter(|_| !self.listed)
    }
}

struct Distribution {
    /// One for each scope that is watched.
    scopes: BTreeMap<Scope, ScopeStatus>,
    /// Handlers in the order they were added.
    slots: Vec<Arc<Slot>>,
    /// Those of `slots` that no task serves yet.
    unserved: Vec<Arc<Slot>>,
    /// The scopes were set at least once.
    started: bool,
    /// Why the scopes cannot be determined yet.
    blocked: Option<SyncError>,
    stopped: bool,
}

pub(crate) struct Core<L: Locks = Os> {
    /// The resource in messages: `pods`, `heroes.example.com`.
    pub(crate) name: String,
    /// The kind in traces: `Pod`, `Hero.example.com`.
    pub(crate) kind: Arc<str>,
    /// Which of the objects stay decoded.
    pub(crate) lru: Arc<DecodedLru>,
    store: L::RwLock<Store>,
    /// Locked before `store` by all writers, so that the order of handler queues is that of the
    /// store.
    distribution: L::Mutex<Distribution>,
    pub(crate) status: watch::Sender<Status>,
    /// Notified when a handler was added.
    pub(crate) handler_added: Notify,
    /// Notified, repeatedly, while a controller waits for what the store does not have yet.
    pub(crate) awaited: Arc<Notify>,
    /// Changes with the store, for those who wait for a condition of an object.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) counters: Counters,
    trace: Trace,
}

impl<L: Locks> Core<L> {
    pub(crate) fn new(resource: &ApiResource, lru: Arc<DecodedLru>, trace: Trace) -> Self {
        Self {
            name: resource_name(resource),
            kind: kind_name(resource),
            lru,
            store: L::rw_lock(Store::new()),
            distribution: L::mutex(Distribution {
                scopes: BTreeMap::new(),
                slots: Vec::new(),
                unserved: Vec::new(),
                started: false,
                blocked: None,
                stopped: false,
            }),
            status: watch::Sender::new(Status::default()),
            handler_added: Notify::new(),
            awaited: Arc::default(),
            changes: watch::Sender::new(0),
            counters: Counters::default(),
            trace,
        }
    }

    /// Applies a batch of one reflector and queues what it changed for every handler.
    pub(crate) fn apply(&self, scope: &Scope, batch: Batch) {
        let mut distribution = self.distribution();
        let is_list = batch.is_list;
        let version = batch.resource_version.clone();
        let transitions = self.write(batch);
        let status = distribution.scopes.get(scope);
        // A relist is not an initial list: handlers know the objects already.
        let first_list = is_list && status.is_some_and(|status| !status.listed);
        // The scope of a reflector that is being stopped is not watched any more.
        if let Some(status) = distribution.scopes.get_mut(scope) {
            self.counters
                .relists
                .fetch_add(u64::from(is_list), Ordering::Relaxed);
            status.listed |= is_list;
            status.last_event = Instant::now();
            // Only a complete list proves that the account may list; a bookmark does not.
            status.problem = status.problem.take().filter(|_| !is_list);
            status.resource_version = version.or(status.resource_version.take());
            self.record(&transitions, first_list, status.resource_version.as_ref());
        }
        distribution.notify(&transitions, first_list);
        if is_list {
            self.publish(&distribution);
        }
        drop(distribution);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Removes objects that no reflector follows any more.
    pub(crate) fn remove(&self, keys: KnownKeys) {
        let deltas = keys
            .into_iter()
            .map(|key| Delta::Deleted { key, object: None })
            .collect();
        let mut distribution = self.distribution();
        let transitions = self.write(Batch {
            deltas,
            resource_version: None,
            is_list: false,
        });
        distribution.notify(&transitions, false);
        drop(distribution);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn write(&self, batch: Batch) -> Vec<Transition> {
        // Readers continue while index functions run.
        let evaluated = self.store().evaluate(batch);
        self.store_mut().apply(evaluated)
    }

    fn record(&self, transitions: &[Transition], first_list: bool, version: Option<&String>) {
        let kind = &self.kind;
        if first_list {
            return self.trace.record(|| TraceEvent::Listed {
                kind: kind.clone(),
                objects: transitions.len(),
                resource_version: version.cloned(),
            });
        }
        for transition in transitions {
            self.trace.record(|| {
                let (key, object, event) = match transition {
                    Transition::Applied {
                        key,
                        before: None,
                        after,
                    } => (key, after, CauseEvent::Added),
                    Transition::Applied { key, after, .. } => (key, after, CauseEvent::Updated),
                    Transition::Deleted { key, last, .. } => (key, last, CauseEvent::Deleted),
                };
                TraceEvent::Cached {
                    kind: kind.clone(),
                    key: (**key).clone(),
                    resource_version: object.resource_version(),
                    event,
                }
            });
        }
    }

    /// Records why a reflector cannot list.
    pub(crate) fn failed(&self, scope: &Scope, error: &ListWatchError) {
        let problem = SyncError::from_list_watch(&self.name, scope.as_deref(), error);
        let mut distribution = self.distribution();
        if let Some(status) = distribution.scopes.get_mut(scope)
            && status.problem != problem
        {
            status.problem = problem;
            self.publish(&distribution);
        }
    }

    /// Sets the scopes that are watched from now on.
    pub(crate) fn set_scopes(&self, scopes: &BTreeSet<Scope>) {
        let mut distribution = self.distribution();
        distribution.started = true;
        distribution.blocked = None;
        distribution
            .scopes
            .retain(|scope, _| scopes.contains(scope));
        for scope in scopes {
            distribution
                .scopes
                .entry(scope.clone())
                .or_insert_with(ScopeStatus::new);
        }
        self.publish(&distribution);
    }

    pub(crate) fn block(&self, reason: SyncError) {
        let mut distribution = self.distribution();
        distribution.blocked = Some(reason);
        self.publish(&distribution);
    }

    /// Marks the informer as stopped.
    pub(crate) fn stop(&self) {
        let mut distribution = self.distribution();
        distribution.stopped = true;
        self.publish(&distribution);
    }

    /// Drops the handlers, which may hold handles to the informer themselves.
    pub(crate) fn drop_handlers(&self) {
        let mut distribution = self.distribution();
        let slots = std::mem::take(&mut distribution.slots);
        let unserved = std::mem::take(&mut distribution.unserved);
        drop(distribution);
        drop((slots, unserved));
    }

    /// Adds a handler; every cached object is its initial list.
    pub(crate) fn add_handler(
        &self,
        handler: Handler,
        resync_period: Option<Duration>,
        begun: CancellationToken,
    ) -> HandlerRegistration {
        let slot = Arc::new(Slot {
            handler,
            queue: HandlerQueue::new(),
            resync_period,
            begun,
            removed: CancellationToken::new(),
        });
        let registration = HandlerRegistration {
            name: self.name.clone(),
            status: self.status.subscribe(),
            synced: slot.queue.synced.subscribe(),
            depth: slot.queue.depth.clone(),
            removed: slot.removed.clone(),
        };
        let mut distribution = self.distribution();
        // Under the lock of the distribution: a change is either in this list or delivered later,
        // never both and never neither.
        let cached: Vec<_> = self
            .store()
            .entries()
            .map(|(key, after)| added(key, after))
            .collect();
        slot.queue.push(&cached, true);
        if distribution.status().synced {
            slot.queue.complete_initial_list();
        }
        distribution.slots.push(slot.clone());
        distribution.unserved.push(slot);
        drop(distribution);
        self.handler_added.notify_one();
        registration
    }

    /// Handlers that were added since the last call and have no task yet.
    pub(crate) fn unserved(&self) -> Vec<Arc<Slot>> {
        std::mem::take(&mut self.distribution().unserved)
    }

    /// Queues every cached object for a handler as an update without a change.
    pub(crate) fn resync(&self, slot: &Slot) {
        let _order = self.distribution();
        slot.queue.push_resync(self.store().entries());
    }

    /// Adds an index, or finds the one of the same name and function. Also returns whether another
    /// function has the name.
    pub(crate) fn index(&self, index_fn: IndexFn) -> (IndexId, bool) {
        let _order = self.distribution();
        let store = self.store();
        if let Some(index) = store.find_index(&index_fn) {
            return (index, false);
        }
        let conflicts = store.has_conflicting_index(&index_fn);
        // Built under the read lock, so readers continue while the function is called for every
        // object.
        let built = store.build_index(index_fn);
        drop(store);
        (self.store_mut().add_index(built), conflicts)
    }

    pub(crate) fn store(&self) -> impl Deref<Target = Store> {
        L::read(&self.store)
    }

    fn store_mut(&self) -> impl DerefMut<Target = Store> {
        L::write(&self.store)
    }

    /// The version of the collection up to which changes of this key are in the store.
    pub(crate) fn latest_version(&self, key: &ObjectKey) -> Option<String> {
        let distribution = self.distribution();
        let namespace = key.namespace().map(str::to_owned);
        let status = distribution.scopes.get(&namespace);
        // One reflector for all namespaces, unless the key has its own.
        let status = status.or_else(|| distribution.scopes.get(&None))?;
        status.resource_version.clone()
    }

    /// The newest resource version of all its reflectors.
    pub(crate) fn newest_version(&self) -> Option<u64> {
        let distribution = self.distribution();
        let versions = distribution.scopes.values();
        versions
            .filter_map(|status| status.resource_version.as_ref()?.parse().ok())
            .max()
    }

    pub(crate) fn stats(&self) -> InformerStats {
        let Counters {
            relists,
            watches,
            undecodable,
        } = &self.counters;
        let objects = self.store().len();
        let distribution = self.distribution();
        let served = || distribution.slots.iter().filter(|slot| slot.is_served());
        let silences = distribution
            .scopes
            .values()
            .map(|status| status.last_event.elapsed());
        InformerStats {
            relists: relists.load(Ordering::Relaxed),
            watches: watches.load(Ordering::Relaxed),
            undecodable: undecodable.load(Ordering::Relaxed),
            objects,
            backlog: served()
                .map(|slot| slot.queue.depth.load(Ordering::Relaxed))
                .sum(),
            lag: served()
                .map(|slot| slot.queue.lag())
                .max()
                .unwrap_or_default(),
            silence: silences.max().unwrap_or_default(),
        }
    }

    fn publish(&self, distribution: &Distribution) {
        let status = distribution.status();
        if status.synced {
            distribution
                .slots
                .iter()
                .for_each(|slot| slot.queue.complete_initial_list());
        }
        self.status.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
    }

    fn distribution(&self) -> impl DerefMut<Target = Distribution> {
        L::lock(&self.distribution)
    }
}

impl Distribution {
    /// Queues transitions for every handler.
    fn notify(&mut self, transitions: &[Transition], in_initial_list: bool) {
        self.slots.retain(|slot| !slot.removed.is_cancelled());
        self.slots
            .iter()
            .for_each(|slot| slot.queue.push(transitions, in_initial_list));
    }

    fn status(&self) -> Status {
        let problem = self.scopes.values().find_map(ScopeStatus::blocking_error);
        Status {
            // Without `started` an informer whose namespaces are not determined yet would count as
            // synced, because it has none.
            synced: self.started && self.scopes.values().all(|status| status.listed),
            problem: self.blocked.clone().or(problem),
            stopped: self.stopped,
        }
    }
}

fn added(key: &Arc<ObjectKey>, after: &CachedObject) -> Transition {
    Transition::Applied {
        key: key.clone(),
        before: None,
        after: after.clone(),
    }
}

/// A resource in messages: `pods`, `deployments.apps`.
pub(crate) fn resource_name(resource: &ApiResource) -> String {
    match resource.group.as_str() {
        "" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    }
}

/// A kind in causes, traces and the read-your-writes gate: `Pod`, `Deployment.apps`.
pub(crate) fn kind_name(resource: &ApiResource) -> Arc<str> {
    match resource.group.as_str() {
        "" => resource.kind.as_str().into(),
        group => format!("{}.{group}", resource.kind).into(),
    }
}
