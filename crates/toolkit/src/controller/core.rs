//! What the parts of one controller share: its name, its queue, its gate, and whom it tells.
//!
//! In: changes from handlers, writes from reconciles. Out: keys in the queue.
//! Holds: a key held back by the gate is woken as soon as the caches show its writes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use kube::Resource;
use kube::core::ApiResource;
use tokio::time::Instant;

use super::Order;
use super::gate::{Awaited, Gate, Seen, Written};
use crate::metrics::ControllerMetrics;
use crate::{
    AddOpts, Cause, CauseEvent, Item, Line, Lister, ObjectKey, Priority, TraceBus, TraceEvent,
    WorkQueue,
};

/// Asks a cache what it shows of an object; `None` if nobody can tell.
type Look = Box<dyn Fn(&ObjectKey) -> Option<Seen> + Send + Sync>;

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
    pub(super) fn new(
        name: Arc<str>,
        queue: WorkQueue,
        order: Order,
        trace: TraceBus,
        metrics: ControllerMetrics,
    ) -> Self {
        Self {
            name,
            queue,
            trace,
            metrics,
            order,
            gate: Mutex::default(),
            caches: RwLock::default(),
        }
    }

    /// Lets the gate look into a cache of a kind, and names it.
    pub(super) fn watch_cache<K: Resource + Send + Sync + 'static>(
        &self,
        kind: Arc<str>,
        lister: Lister<K>,
    ) -> Arc<str> {
        let look: Look = Box::new(move |key| {
            let number = |version: String| version.parse::<u64>().ok();
            match lister.resource_version_of(key) {
                Some(version) => number(version).map(Seen::Version),
                // Not there yet, or gone again: the collection's version tells.
                None => lister
                    .seen_up_to(key)
                    .and_then(number)
                    .map(|at| Seen::Gone { at: Some(at) }),
            }
        });
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        let name = match caches.iter().filter(|cache| cache.kind == kind).count() {
            0 => kind.clone(),
            others => format!("{kind} (cache {})", others + 1).into(),
        };
        caches.push(Watched {
            kind,
            name: name.clone(),
            look,
        });
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
        let version = cause
            .resource_version
            .as_ref()
            .and_then(|version| version.parse().ok());
        let seen = match cause.event {
            CauseEvent::Deleted => Some(Seen::Gone { at: version }),
            _ => version.map(Seen::Version),
        };
        let freed = seen.map(|seen| self.gate().saw(&(cache.clone(), cause.key.clone()), seen));
        for key in freed.into_iter().flatten() {
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
        self.add(
            key,
            AddOpts {
                priority,
                cause: Some(cause),
                ..AddOpts::default()
            },
        );
    }

    /// Puts a key into the queue, in the line where it belongs.
    pub(super) fn add(&self, key: ObjectKey, opts: AddOpts) {
        let line = self.line(&key);
        self.queue.add_with_opts(key, AddOpts { line, ..opts });
    }

    /// Gives a key back unread.
    pub(super) fn put_back(&self, item: &Item<'_, ObjectKey>, delay: Duration) {
        self.queue.put_back(item, delay, self.line(item.key()));
    }

    fn line(&self, key: &ObjectKey) -> Line {
        match self.order {
            Order::FirstCome => Line::default(),
            Order::ByNamespace => Line::of(key.namespace()),
        }
    }

    /// A reconcile wrote an object, and the server answered with this version; `None` for a deletion.
    pub(super) fn wrote(
        &self,
        reconciling: &ObjectKey,
        kind: Arc<str>,
        key: ObjectKey,
        version: Option<String>,
    ) {
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
            if self
                .gate()
                .wrote(reconciling, written.clone(), awaited, Instant::now())
            {
                self.look(cache, reconciling, &written);
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
        for written in awaited {
            if let Some(cache) = caches.iter().find(|cache| cache.name == written.0) {
                self.look(cache, key, &written);
            }
        }
        self.gate().held_until(key, now)
    }

    /// Looks into a cache on behalf of one key.
    fn look(&self, cache: &Watched, key: &ObjectKey, written: &Written) {
        let seen = (cache.look)(&written.1);
        self.gate().looked(key, written, seen);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// How a kind is named in causes, traces and the gate: `Pod`, `Deployment.apps`.
pub(crate) fn kind_name(kind: &ApiResource) -> Arc<str> {
    match kind.group.as_str() {
        "" => kind.kind.as_str().into(),
        group => format!("{}.{group}", kind.kind).into(),
    }
}
