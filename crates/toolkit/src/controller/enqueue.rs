//! Enqueue: from a change of any kind to keys of the reconciled kind.
//!
//! In: add, update and delete notifications of an informer. Out: keys with causes.
//! Guarantees: a predicate never drops a deletion; an update enqueues the keys of the old and of
//! the new state.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use bellerophon_kinds::{KindCodec, Object};
use tokio::time::Instant;

use super::owners::Owners;
use super::predicate::{PredicateFn, is_same_version};
use crate::ObjectKey;
use crate::gate::Core;
use crate::informer::{Handler, KeyChange, ObjectHandler};
use crate::queue::{Cause, CauseEvent, Priority};

/// Maps an object to keys.
pub(super) type MapFn = Arc<dyn Fn(&dyn Any) -> Vec<ObjectKey> + Send + Sync>;

/// The keys that a change of an object enqueues.
pub(super) enum Mapping {
    /// The object itself.
    Itself,
    /// Its controlling owner.
    Owner(Owners),
    /// The keys that the function returns.
    Function(MapFn),
}

/// Puts keys into the queue of one controller.
pub(super) struct Enqueue {
    pub(super) core: Arc<Core>,
    pub(super) codec: &'static KindCodec,
    pub(super) kind: Arc<str>,
    /// The name of the cache, for the gate.
    pub(super) cache: Arc<str>,
    pub(super) mapping: Mapping,
    pub(super) predicate: Option<PredicateFn>,
}

impl Enqueue {
    /// A handler of keys where every change concerns the object itself, so that nothing is decoded.
    pub(super) fn into_handler(self) -> Handler {
        match (&self.mapping, &self.predicate) {
            (Mapping::Itself, None) => Handler::Keys(Box::new(move |change| self.on_key(change))),
            _ => Handler::Objects(Box::new(self)),
        }
    }

    fn keys(&self, object: &dyn Any) -> Vec<ObjectKey> {
        match &self.mapping {
            Mapping::Itself => vec![self.key(object)],
            Mapping::Owner(owners) => owners.controlling(self.codec.metadata(object)),
            Mapping::Function(map) => map(object),
        }
    }

    fn key(&self, object: &dyn Any) -> ObjectKey {
        let metadata = self.codec.metadata(object);
        let name = metadata.name.as_deref().unwrap_or_default();
        ObjectKey::new(metadata.namespace.as_deref(), name)
    }

    fn cause(&self, key: ObjectKey, version: Option<String>, event: CauseEvent) -> Cause {
        Cause {
            kind: self.kind.clone(),
            key,
            resource_version: version,
            event,
            reason: None,
            at: Instant::now(),
        }
    }

    fn object_cause(&self, object: &dyn Any, event: CauseEvent) -> Cause {
        let version = self.codec.metadata(object).resource_version.clone();
        self.cause(self.key(object), version, event)
    }

    fn on_key(&self, change: KeyChange<'_>) {
        let cause = self.cause(change.key.clone(), change.resource_version, change.event);
        self.core.delivered(&self.cache, &cause);
        // As controller-runtime's priority queue: what has existed for long waits behind what
        // happened just now.
        let is_new = !change.in_initial_list && change.event != CauseEvent::Resync;
        let priority = if is_new {
            Priority::Normal
        } else {
            Priority::Low
        };
        self.enqueue([change.key.clone()], priority, &cause);
    }

    fn enqueue(
        &self,
        keys: impl IntoIterator<Item = ObjectKey>,
        priority: Priority,
        cause: &Cause,
    ) {
        for key in keys {
            self.core.enqueue(key, priority, cause.clone());
        }
    }
}

impl ObjectHandler for Enqueue {
    fn on_add(&self, object: Object, in_initial_list: bool) {
        let cause = self.object_cause(&*object, CauseEvent::Added);
        self.core.delivered(&self.cache, &cause);
        if self
            .predicate
            .as_ref()
            .is_none_or(|predicate| predicate.passes_add(&*object))
        {
            let priority = if in_initial_list {
                Priority::Low
            } else {
                Priority::Normal
            };
            self.enqueue(self.keys(&*object), priority, &cause);
        }
    }

    fn on_update(&self, old: Object, new: Object) {
        let is_resync = is_same_version(self.codec.metadata(&*old), self.codec.metadata(&*new));
        let event = if is_resync {
            CauseEvent::Resync
        } else {
            CauseEvent::Updated
        };
        let cause = self.object_cause(&*new, event);
        self.core.delivered(&self.cache, &cause);
        if self
            .predicate
            .as_ref()
            .is_none_or(|predicate| predicate.passes_update(&*old, &*new))
        {
            let priority = if is_resync {
                Priority::Low
            } else {
                Priority::Normal
            };
            // The old state too: an object that moved to another owner must be reconciled by both.
            let keys: BTreeSet<_> = self
                .keys(&*old)
                .into_iter()
                .chain(self.keys(&*new))
                .collect();
            self.enqueue(keys, priority, &cause);
        }
    }

    fn on_delete(&self, key: &ObjectKey, last: Object) {
        let version = self.codec.metadata(&*last).resource_version.clone();
        let cause = self.cause(key.clone(), version, CauseEvent::Deleted);
        self.core.delivered(&self.cache, &cause);
        self.enqueue(self.keys(&*last), Priority::Normal, &cause);
    }
}
