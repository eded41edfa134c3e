//! What the parts of one controller share: its name, its queue, its gate, and whom it tells.
//!
//! In: changes from handlers, writes from reconciles. Out: keys in the queue.
//! Holds: a key held back by the gate is woken as soon as the caches show its writes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kube::Resource;
use kube::core::ApiResource;
use tokio::time::Instant;

use super::gate::{Awaited, Gate, Seen};
use crate::metrics::ControllerMetrics;
use crate::{AddOpts, Cause, CauseEvent, Lister, ObjectKey, Priority, TraceBus, TraceEvent, WorkQueue};

/// Asks a cache what it shows of an object, given the version that is awaited.
type Look = Box<dyn Fn(&ObjectKey, Awaited) -> Option<Seen> + Send + Sync>;

pub(super) struct Core {
    pub(super) name: Arc<str>,
    pub(super) queue: WorkQueue,
    pub(super) trace: TraceBus,
    pub(super) metrics: ControllerMetrics,
    gate: Mutex<Gate>,
    /// The caches this controller watches, by kind. Filled before the start.
    caches: RwLock<HashMap<Arc<str>, Look>>,
}

impl Core {
    pub(super) fn new(name: Arc<str>, queue: WorkQueue, trace: TraceBus, metrics: ControllerMetrics) -> Self {
        Self { name, queue, trace, metrics, gate: Mutex::default(), caches: RwLock::default() }
    }

    /// Lets the gate look into the cache of a kind.
    pub(super) fn watch_cache<K: Resource + Send + Sync + 'static>(&self, kind: Arc<str>, lister: Lister<K>) {
        let look: Look = Box::new(move |key, awaited| {
            let number = |version: Option<String>| version.and_then(|version| version.parse::<u64>().ok());
            match (lister.get(key), awaited) {
                (Some(object), _) => number(object.meta().resource_version.clone()).map(Seen::Version),
                (None, Awaited::Gone) => Some(Seen::Gone),
                // Not there yet, or gone again: the collection's version tells.
                (None, Awaited::Version(_)) => number(lister.seen_up_to(key)).map(Seen::Version),
            }
        });
        self.caches.write().unwrap_or_else(PoisonError::into_inner).insert(kind, look);
    }

    /// A handler was told of a change.
    pub(super) fn noticed(&self, cause: &Cause) {
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
        let freed = seen.and_then(|seen| self.gate().saw(&(cause.kind.clone(), cause.key.clone()), seen));
        if let Some(key) = freed {
            self.queue.add(key);
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
        self.queue.add_with_opts(key, AddOpts { priority, cause: Some(cause), ..AddOpts::default() });
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
        let Some(look) = caches.get(&kind) else { return };
        let written = (kind.clone(), key);
        // Awaited first, looked at second: the event may have come before the answer, or may come in between.
        if self.gate().wrote(reconciling, written.clone(), awaited, Instant::now())
            && let Some(seen) = look(&written.1, awaited)
        {
            self.gate().saw(&written, seen);
        }
    }

    pub(super) fn held_until(&self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        self.gate().held_until(key, now)
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
