//! Core: what the feeds write, the listers read and the handlers are told from.
//! In: batches of one feed. Out: the index, then the mailboxes.
//! Holds: mailboxes get transitions in the order of the index, each handler every one from its first day;
//! the index has a change before a mailbox has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::Resource;
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    handler::{Handler, HandlerHandle, HandlerOptions, Slot},
    index::{Index, IndexError, IndexFn, Transition},
    mailbox::Mailbox,
    status::{Status, SyncError},
};
use crate::{
    cached::{Cached, Warm},
    fifo::{Batch, Delta, KnownKeys},
    key::ObjectKey,
    locks::{Locks, Os},
    queue::CauseEvent,
    source::SourceError,
    trace::{TraceBus, TraceEvent},
};

/// One namespace, or all of them.
pub(crate) type Scope = Option<String>;

/// What an informer holds, and what happened to its feeds so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InformerStats {
    /// Whole lists taken, the first included.
    pub relists: u64,
    /// Watches opened.
    pub watches: u64,
    /// Objects that could not be decoded and were passed over.
    pub undecodable: u64,
    /// Objects in the cache.
    pub objects: usize,
    /// Changes that handlers were not told yet, one an object and handler.
    pub backlog: usize,
    /// How long the oldest of those has waited.
    pub lag: Duration,
    /// How long the server has said nothing, on the feed that has been silent longest. Servers speak about every minute.
    pub silence: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) relists: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) undecodable: AtomicU64,
}

struct Feed {
    listed: bool,
    problem: Option<SyncError>,
    resource_version: Option<String>,
    /// When the server last said anything, or when the feed began.
    heard: Instant,
}

impl Feed {
    fn new() -> Self {
        Self {
            listed: false,
            problem: None,
            resource_version: None,
            heard: Instant::now(),
        }
    }

    fn refusal(&self) -> Option<SyncError> {
        self.problem.clone().filter(|_| !self.listed)
    }
}

struct Distribution<K> {
    /// One for each scope that is watched.
    feeds: BTreeMap<Scope, Feed>,
    /// Handlers in the order they came.
    slots: Vec<Arc<Slot<K>>>,
    /// Those of `slots` that no task serves yet.
    unserved: Vec<Arc<Slot<K>>>,
    /// The feeds were named at least once.
    started: bool,
    /// Why the feeds cannot be named yet.
    blocked: Option<SyncError>,
    stopped: bool,
}

pub(crate) struct Core<K, L: Locks = Os> {
    /// The resource, for people: `pods`, `heroes.example.com`.
    pub(crate) what: String,
    /// Which of the objects stay decoded.
    pub(crate) warm: Warm<K>,
    index: L::RwLock<Index<K>>,
    /// Taken before `index` by all who write, so that the order of mailboxes is the order of the index.
    distribution: L::Mutex<Distribution<K>>,
    pub(crate) status: watch::Sender<Status>,
    /// Told when a handler came.
    pub(crate) arrivals: Notify,
    pub(crate) counters: Counters,
    /// Where changes are told to those who ask why, and under which name of the kind.
    trace: (TraceBus, Arc<str>),
}

impl<K: Resource + Send + Sync + 'static, L: Locks> Core<K, L> {
    pub(crate) fn new(what: String, decoded_max: usize, trace: (TraceBus, Arc<str>)) -> Self {
        let (feeds, slots, unserved) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            what,
            warm: Warm::new(decoded_max),
            index: L::rw_lock(Index::new()),
            distribution: L::mutex(Distribution {
                feeds,
                slots,
                unserved,
                started: false,
                blocked: None,
                stopped: false,
            }),
            status: watch::Sender::new(Status::default()),
            arrivals: Notify::new(),
            counters: Counters::default(),
            trace,
        }
    }

    /// Writes a batch of one feed and queues what it changed for every handler.
    pub(crate) fn apply(&self, scope: &Scope, batch: Batch<K>) {
        let mut distribution = self.distribution();
        let (is_list, version) = (batch.is_list, batch.resource_version.clone());
        let transitions = self.write(batch);
        let first_list = is_list
            && distribution
                .feeds
                .get(scope)
                .is_some_and(|feed| !feed.listed);
        // A feed that is being ended is none any more.
        if let Some(feed) = distribution.feeds.get_mut(scope) {
            self.counters
                .relists
                .fetch_add(u64::from(is_list), Ordering::Relaxed);
            feed.listed |= is_list;
            feed.heard = Instant::now();
            feed.problem = feed.problem.take().filter(|_| !is_list);
            feed.resource_version = version.or(feed.resource_version.take());
            self.tell_trace(&transitions, first_list, feed.resource_version.as_ref());
        }
        distribution.tell(&transitions, first_list);
        if is_list {
            self.publish(&distribution);
        }
    }

    /// Takes objects out that no feed follows any more.
    pub(crate) fn forget(&self, keys: KnownKeys) {
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
        distribution.tell(&transitions, false);
    }

    fn write(&self, batch: Batch<K>) -> Vec<Transition<K>> {
        // Readers go on while index functions look at the objects.
        let evaluated = self.index().evaluate(batch);
        self.index_mut().apply(evaluated)
    }

    fn tell_trace(
        &self,
        transitions: &[Transition<K>],
        first_list: bool,
        version: Option<&String>,
    ) {
        let (bus, kind) = &self.trace;
        if first_list {
            let (kind, objects, resource_version) =
                (kind.clone(), transitions.len(), version.cloned());
            return bus.record(|| TraceEvent::Listed {
                kind,
                objects,
                resource_version,
            });
        }
        for transition in transitions {
            bus.record(|| {
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

    /// Notes why a feed cannot list.
    pub(crate) fn suffer(&self, scope: &Scope, error: &SourceError) {
        let problem = SyncError::from_source(&self.what, scope.as_deref(), error);
        let mut distribution = self.distribution();
        if let Some(feed) = distribution.feeds.get_mut(scope)
            && feed.problem != problem
        {
            feed.problem = problem;
            self.publish(&distribution);
        }
    }

    /// Names the feeds there are from now on.
    pub(crate) fn watch_scopes(&self, scopes: &BTreeSet<Scope>) {
        let mut distribution = self.distribution();
        distribution.started = true;
        distribution.blocked = None;
        distribution.feeds.retain(|scope, _| scopes.contains(scope));
        for scope in scopes {
            distribution
                .feeds
                .entry(scope.clone())
                .or_insert_with(Feed::new);
        }
        self.publish(&distribution);
    }

    pub(crate) fn block(&self, reason: SyncError) {
        let mut distribution = self.distribution();
        distribution.blocked = Some(reason);
        self.publish(&distribution);
    }

    pub(crate) fn stop(&self) {
        let mut distribution = self.distribution();
        distribution.stopped = true;
        self.publish(&distribution);
    }

    /// Registers a handler; all that is cached is its initial list.
    pub(crate) fn add_handler(
        &self,
        handler: Handler<K>,
        options: HandlerOptions,
        begun: CancellationToken,
    ) -> HandlerHandle {
        let slot = Arc::new(Slot {
            handler,
            mailbox: Mailbox::new(),
            options,
            begun,
            removed: CancellationToken::new(),
        });
        let handle = HandlerHandle {
            what: self.what.clone(),
            status: self.status.subscribe(),
            synced: slot.mailbox.synced.subscribe(),
            depth: slot.mailbox.depth.clone(),
            removed: slot.removed.clone(),
        };
        let mut distribution = self.distribution();
        let cached: Vec<_> = self
            .index()
            .entries()
            .map(|(key, after)| added(key, after))
            .collect();
        slot.mailbox.note(&cached, true);
        if distribution.status().synced {
            slot.mailbox.complete_initial_list();
        }
        distribution.slots.push(slot.clone());
        distribution.unserved.push(slot);
        drop(distribution);
        self.arrivals.notify_one();
        handle
    }

    /// Handlers that came since the last call and have no task yet.
    pub(crate) fn unserved(&self) -> Vec<Arc<Slot<K>>> {
        std::mem::take(&mut self.distribution().unserved)
    }

    /// Reports every cached object to a handler as unchanged.
    pub(crate) fn remind(&self, slot: &Slot<K>) {
        let _order = self.distribution();
        slot.mailbox.remind(self.index().entries());
    }

    pub(crate) fn add_index(&self, name: String, function: IndexFn<K>) -> Result<(), IndexError> {
        let _order = self.distribution();
        let built = self.index().build(&name, function)?;
        self.index_mut().adopt(name, built);
        Ok(())
    }

    pub(crate) fn index(&self) -> impl Deref<Target = Index<K>> {
        L::read(&self.index)
    }

    fn index_mut(&self) -> impl DerefMut<Target = Index<K>> {
        L::write(&self.index)
    }

    /// The version of the collection up to which changes of this key are in the index.
    pub(crate) fn seen_up_to(&self, key: &ObjectKey) -> Option<String> {
        let distribution = self.distribution();
        let feed = distribution
            .feeds
            .get(&key.namespace().map(str::to_owned))
            .or_else(|| distribution.feeds.get(&None))?;
        feed.resource_version.clone()
    }

    pub(crate) fn stats(&self) -> InformerStats {
        let Counters {
            relists,
            watches,
            undecodable,
        } = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let objects = self.index().len();
        let distribution = self.distribution();
        let mailboxes = || {
            distribution
                .slots
                .iter()
                .filter(|slot| slot.is_served())
                .map(|slot| &slot.mailbox)
        };
        InformerStats {
            relists: read(relists),
            watches: read(watches),
            undecodable: read(undecodable),
            objects,
            backlog: mailboxes()
                .map(|mailbox| mailbox.depth.load(Ordering::Relaxed))
                .sum(),
            lag: mailboxes().map(Mailbox::lag).max().unwrap_or_default(),
            silence: distribution
                .feeds
                .values()
                .map(|feed| feed.heard.elapsed())
                .max()
                .unwrap_or_default(),
        }
    }

    fn publish(&self, distribution: &Distribution<K>) {
        let status = distribution.status();
        if status.synced {
            distribution
                .slots
                .iter()
                .for_each(|slot| slot.mailbox.complete_initial_list());
        }
        self.status.send_if_modified(|was| {
            let changed = *was != status;
            *was = status;
            changed
        });
    }

    fn distribution(&self) -> impl DerefMut<Target = Distribution<K>> {
        L::lock(&self.distribution)
    }
}

impl<K> Distribution<K> {
    /// Queues what changed for every handler.
    fn tell(&mut self, transitions: &[Transition<K>], in_initial_list: bool) {
        self.slots.retain(|slot| !slot.removed.is_cancelled());
        self.slots
            .iter()
            .for_each(|slot| slot.mailbox.note(transitions, in_initial_list));
    }

    fn status(&self) -> Status {
        Status {
            synced: self.started && self.feeds.values().all(|feed| feed.listed),
            problem: self
                .blocked
                .clone()
                .or_else(|| self.feeds.values().find_map(Feed::refusal)),
            stopped: self.stopped,
        }
    }
}

fn added<K>(key: &Arc<ObjectKey>, after: &Cached<K>) -> Transition<K> {
    Transition::Applied {
        key: key.clone(),
        before: None,
        after: after.clone(),
    }
}
