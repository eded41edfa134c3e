//! Shared state of one controller: its name, queue, gate, trace and metrics.
//!
//! In: changes from handlers, writes from reconciles. Out: keys in the queue.
//! Guarantees: a key held back by the gate is enqueued as soon as the caches show its writes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bellerophon_kinds::{KindCodec, Object};
use tokio::time::Instant;

use super::writes::{Awaited, Gate, Seen, Written};
use crate::ObjectKey;
use crate::informer::{InformerHandle, kind_name};
use crate::metrics::ControllerMetrics;
use crate::queue::{AddOpts, Cause, CauseEvent, Fairness, Item, Priority, WorkQueue};
use crate::trace::{Trace, TraceEvent};

/// A cache that the controller watches.
struct WatchedCache {
    kind: Arc<str>,
    /// The kind, and a number if there are several caches of it.
    name: Arc<str>,
    informer: Arc<InformerHandle>,
}

impl WatchedCache {
    /// The cached state of an object; `None` if that cannot be determined.
    fn seen(&self, key: &ObjectKey) -> Option<Seen> {
        let core = self.informer.core();
        let number = |version: String| version.parse::<u64>().ok();
        let cached = core
            .store()
            .get(key)
            .map(|object| object.resource_version());
        match cached {
            Some(version) => version.and_then(number).map(Seen::Version),
            // Not cached yet, or deleted: the version of the collection decides.
            None => {
                let version = core.latest_version(key).and_then(number);
                version.map(|at| Seen::Gone { at: Some(at) })
            }
        }
    }
}

pub(crate) struct Core {
    pub(crate) name: Arc<str>,
    pub(crate) queue: WorkQueue,
    pub(crate) trace: Trace,
    pub(crate) metrics: ControllerMetrics,
    fairness: Fairness,
    gate: Mutex<Gate>,
    /// Filled before the start.
    caches: RwLock<Vec<WatchedCache>>,
}

impl Core {
    pub(crate) fn new(
        name: Arc<str>,
        queue: WorkQueue,
        fairness: Fairness,
        trace: Trace,
        metrics: ControllerMetrics,
    ) -> Self {
        Self {
            name,
            queue,
            trace,
            metrics,
            fairness,
            gate: Mutex::default(),
            caches: RwLock::default(),
        }
    }

    /// Adds a cache that the gate compares writes with, and returns its name.
    pub(crate) fn add_cache(&self, informer: Arc<InformerHandle>) -> Arc<str> {
        let kind = kind_name(&informer.informer.resource);
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        let name = match caches.iter().filter(|cache| cache.kind == kind).count() {
            0 => kind.clone(),
            others => format!("{kind} (cache {})", others + 1).into(),
        };
        caches.push(WatchedCache {
            kind,
            name: name.clone(),
            informer,
        });
        name
    }

    /// An object as a cache of this controller has it, complete; `None` if no cache does.
    pub(crate) fn cached(
        &self,
        codec: &'static KindCodec,
        kind: &str,
        key: &ObjectKey,
    ) -> Option<Object> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        let complete = |cache: &&WatchedCache| {
            *cache.kind == *kind
                // A metadata-only cache of the kind has another codec, and a transformed object
                // lacks fields that a patch would then remove.
                && std::ptr::eq(cache.informer.informer.codec, codec)
                && !cache.informer.informer.modifies_objects()
        };
        caches
            .iter()
            .filter(complete)
            .find_map(|cache| cache.informer.core().get(key))
    }

    /// A change of a cache was delivered to a handler of this controller.
    pub(crate) fn delivered(&self, cache: &Arc<str>, cause: &Cause) {
        self.trace.record(|| TraceEvent::Delivered {
            kind: cause.kind.clone(),
            key: cause.key.clone(),
            resource_version: cause.resource_version.clone(),
            event: cause.event,
        });
        let version = cause.resource_version.as_ref();
        let version = version.and_then(|version| version.parse().ok());
        let seen = match cause.event {
            CauseEvent::Deleted => Some(Seen::Gone { at: version }),
            _ => version.map(Seen::Version),
        };
        // Before the predicate decides: an event that leads to no reconcile may be the one a key
        // waits for.
        let freed = seen.map(|seen| self.gate().saw(&(cache.clone(), cause.key.clone()), seen));
        for key in freed.into_iter().flatten() {
            self.add(key, AddOpts::default());
        }
    }

    pub(crate) fn enqueue(&self, key: ObjectKey, priority: Priority, cause: Cause) {
        self.trace.record(|| TraceEvent::Enqueued {
            controller: self.name.clone(),
            key: key.clone(),
            cause_kind: cause.kind.clone(),
            cause_key: cause.key.clone(),
            cause_version: cause.resource_version.clone(),
        });
        let opts = AddOpts {
            priority,
            cause: Some(cause),
            ..AddOpts::default()
        };
        self.add(key, opts);
    }

    /// Puts a key into the queue, in its flow.
    pub(crate) fn add(&self, key: ObjectKey, opts: AddOpts) {
        let flow = self.fairness.flow(&key);
        self.queue.add_with_opts(key, AddOpts { flow, ..opts });
    }

    /// Returns a key that was not reconciled.
    pub(crate) fn put_back(&self, item: &Item<'_, ObjectKey>, delay: Duration) {
        self.queue
            .put_back(item, delay, self.fairness.flow(item.key()));
    }

    /// A reconcile wrote an object, and the response has this version; `None` for a deletion.
    pub(crate) fn wrote(
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
            // Versions that cannot be compared are not awaited.
            Some(Err(_)) => return,
        };
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        for cache in caches.iter().filter(|cache| cache.kind == kind) {
            let written = (cache.name.clone(), key.clone());
            // Awaited first, compared second: the event may be delivered before the response, or in
            // between.
            if self
                .gate()
                .wrote(reconciling, written.clone(), awaited, Instant::now())
            {
                self.compare(cache, reconciling, &written);
            }
        }
    }

    /// A reconcile wrote a subresource whose response has no version, such as a binding.
    pub(crate) fn wrote_subresource(
        &self,
        reconciling: &ObjectKey,
        kind: Arc<str>,
        key: ObjectKey,
        subresource: &str,
    ) {
        self.trace.record(|| TraceEvent::SubresourceWritten {
            controller: self.name.clone(),
            reconciling: reconciling.clone(),
            kind,
            key,
            subresource: subresource.to_owned(),
        });
    }

    /// Until when the key must be held back. A cache may be up to date without an event of the
    /// object, by a bookmark or because it does not select what was written: so it is compared
    /// again. A reflector of it that backs off is requested to retry.
    pub(crate) fn held_until(&self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        // The gate and the caches are locked one after the other, never together.
        let awaited = self.gate().awaited_by(key);
        if awaited.is_empty() {
            return None;
        }
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        for written in awaited {
            if let Some(cache) = caches.iter().find(|cache| cache.name == written.0)
                && self.compare(cache, key, &written)
            {
                cache.informer.core().awaited.notify_waiters();
            }
        }
        self.gate().held_until(key, now)
    }

    /// Compares a write with what a cache shows, on behalf of one key. Returns whether the key
    /// still waits for it.
    fn compare(&self, cache: &WatchedCache, key: &ObjectKey, written: &Written) -> bool {
        let seen = cache.seen(&written.1);
        self.gate().looked(key, written, seen)
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
