//! What the parts of one controller share: its name, its queue, its gate, and whom it tells.
//!
//! In: changes from handlers, writes from reconciles. Out: keys in the queue.
//! Holds: a key held back by the gate is woken as soon as the caches show its writes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kube::Resource;
use kube::core::ApiResource;
use tokio::time::Instant;

use super::Order;
use super::gate::{Awaited, Gate, Seen, Written};
use crate::metrics::ControllerMetrics;
use crate::{AddOpts, Cause, CauseEvent, Line, Lister, ObjectKey, Priority, TraceBus, TraceEvent, WorkQueue};

/// Asks a cache what it shows of an object, given what is awaited; `None` if it will never show it.
type Look = Box<dyn Fn(&ObjectKey, Awaited) -> Option<Seen> + Send + Sync>;

/// A cache that the controller watches.
struct Watched {
    kind: Arc<str>,
    /// The kind, and a number if there are several caches of it.
    name: Arc<str>,
    look: Look,
}

pub(super) struct Core {
    pub(super) name: Arc<str>,
    pub(super) queue: WorkQueue,
    pub(super) trace: TraceBus,
    pub(super) metrics: ControllerMetrics,
    order: Order,
    gate: Mutex<Gate>,
    /// Filled before the start.
    caches: RwLock<Vec<Watched>>,
}

impl Core {
    pub(super) fn new(name: Arc<str>, queue: WorkQueue, order: Order, trace: TraceBus, metrics: ControllerMetrics) -> Self {
        Self { name, queue, trace, metrics, order, gate: Mutex::default(), caches: RwLock::default() }
    }

    /// Lets the gate look into a cache of a kind, and names it.
    pub(super) fn watch_cache<K: Resource + Send + Sync + 'static>(&self, kind: Arc<str>, lister: Lister<K>) -> Arc<str> {
        let look: Look = Box::new(move |key, awaited| {
            let number = |version: Option<String>| version.and_then(|version| version.parse::<u64>().ok());
            match (lister.resource_version_of(key), awaited) {
                (Some(version), _) => number(Some(version)).map(Seen::Version),
                (None, Awaited::Gone) => Some(Seen::Gone),
                // Not there yet, or gone again: the collection's version tells.
                (None, Awaited::Version(_)) => number(lister.seen_up_to(key)).map(Seen::Version),
            }
        });
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        let name = match caches.iter().filter(|cache| cache.kind == kind).count() {
            0 => kind.clone(),
            others => format!("{kind} (cache {})", others + 1).into(),
        };
        caches.push(Watched { kind, name: name.clone(), look });
        name
    }

    /// A handler was told of a change of what this cache shows.
    pub(super) fn noticed(&self, cache: &Arc<str>, cause: &Cause) {
        self.trace.record(|| TraceEvent::Noticed {
            kind: cause.kind.clone(),
            key: cause.key.clone(),
            resource_version: cause.resource_version.clone(),
            event: cause.event,
        });
        let seen = match cause.event {
            CauseEvent::Deleted => Some(Seen::Gone),
            _ => cause.resource_version.as_ref().and_then(|version| version.parse().ok()).map(Seen::Version),
        };
        let freed = seen.and_then(|seen| self.gate().saw(&(cache.clone(), cause.key.clone()), seen));
        if let Some(key) = freed {
            self.add(key, AddOpts::default());
        }
    }

    pub(super) fn enqueue(&self, key: ObjectKey, priority: Priority, cause: Cause) {
        self.trace.record(|| TraceEvent::Enqueued {
            controller: self.name.clone(),
            key: key.clone(),
            because_kind: cause.kind.clone(),
            because_key: cause.key.clone(),
            because_version: cause.resource_version.clone(),
        });
        self.add(key, AddOpts { priority, cause: Some(cause), ..AddOpts::default() });
    }

    /// Puts a key into the queue, in the line where it belongs.
    pub(super) fn add(&self, key: ObjectKey, opts: AddOpts) {
        let line = match self.order {
            Order::FirstCome => Line::default(),
            Order::ByNamespace => Line::of(key.namespace.as_deref()),
        };
        self.queue.add_with_opts(key, AddOpts { line, ..opts });
    }

    /// A reconcile wrote an object, and the server answered with this version; `None` for a deletion.
    pub(super) fn wrote(&self, reconciling: &ObjectKey, kind: Arc<str>, key: ObjectKey, version: Option<String>) {
        self.trace.record(|| TraceEvent::Wrote {
            controller: self.name.clone(),
            reconciling: reconciling.clone(),
            kind: kind.clone(),
            key: key.clone(),
            resource_version: version.clone(),
        });
        let awaited = match version.map(|version| version.parse()) {
            None => Awaited::Gone,
            Some(Ok(version)) => Awaited::Version(version),
            // Versions that cannot be compared are not waited for.
            Some(Err(_)) => return,
        };
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        for cache in caches.iter().filter(|cache| cache.kind == kind) {
            let written = (cache.name.clone(), key.clone());
            // Awaited first, looked at second: the event may have come before the answer, or may come in between.
            if self.gate().wrote(reconciling, written.clone(), awaited, Instant::now()) {
                self.look(cache, &written, awaited);
            }
        }
    }

    /// Until when the key must be held back. A cache may have got there without an event of the object: by a bookmark, or
    /// because it does not select what was written. So it is looked at again.
    pub(super) fn held_until(&self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        let awaited = self.gate().awaited_by(key);
        if awaited.is_empty() {
            return None;
        }
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        for (written, awaited) in awaited {
            if let Some(cache) = caches.iter().find(|cache| cache.name == written.0) {
                self.look(cache, &written, awaited);
            }
        }
        self.gate().held_until(key, now)
    }

    fn look(&self, cache: &Watched, written: &Written, awaited: Awaited) {
        let seen = (cache.look)(&written.1, awaited);
        // What the cache will never show is as good as gone from it.
        self.gate().saw(written, seen.unwrap_or(Seen::Gone));
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("name", &self.name).field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// How a kind is named in causes, traces and the gate: `Pod`, `Deployment.apps`.
pub(crate) fn kind_name(kind: &ApiResource) -> Arc<str> {
    match kind.group.as_str() {
        "" => kind.kind.as_str().into(),
        group => format!("{}.{group}", kind.kind).into(),
    }
}
