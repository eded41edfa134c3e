//! Handlers: from a change of any kind to keys of the kind being reconciled.
//!
//! In: add, update and delete calls of an informer. Out: keys with causes.
//! Holds: a deletion is never lost through a predicate; an update reaches the keys of the old and of the new form.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Resource;
use tokio::time::Instant;

use super::core::Core;
use super::predicate::{Predicate, same_version};
use crate::informer::Handler;
use crate::{Cause, CauseEvent, EventHandler, KeyChange, ObjectKey, Priority, Tombstone};

/// Finds keys for an object.
pub(super) type Find<W> = Arc<dyn Fn(&W) -> Vec<ObjectKey> + Send + Sync>;

/// Finds the keys that a change of an object concerns.
pub(super) enum Map<W> {
    /// The object itself.
    Itself,
    /// Whatever the function says.
    By(Find<W>),
}

/// Puts keys into the queue of one controller.
pub(super) struct Enqueue<W> {
    pub(super) core: Arc<Core>,
    pub(super) kind: Arc<str>,
    /// Whose changes these are, for the gate.
    pub(super) cache: Arc<str>,
    pub(super) map: Map<W>,
    pub(super) predicate: Option<Predicate<W>>,
}

impl<W: Resource + 'static> Enqueue<W> {
    fn keys(&self, object: &W) -> Vec<ObjectKey> {
        match &self.map {
            Map::Itself => vec![ObjectKey::of(object)],
            Map::By(find) => find(object),
        }
    }

    fn cause(&self, key: ObjectKey, resource_version: Option<String>, event: CauseEvent) -> Cause {
        Cause {
            kind: self.kind.clone(),
            key,
            resource_version,
            event,
            at: Instant::now(),
        }
    }

    /// How the handler is to be called: without objects where every change concerns the object itself.
    pub(super) fn into_handler(self) -> Handler<W>
    where
        W: Send + Sync,
    {
        match (&self.map, &self.predicate) {
            (Map::Itself, None) => Handler::Keys(Box::new(move |change| self.on_key(change))),
            _ => Handler::Objects(Box::new(self)),
        }
    }

    fn on_key(&self, change: KeyChange<'_>) {
        let cause = self.cause(change.key.clone(), change.resource_version, change.event);
        self.core.noticed(&self.cache, &cause);
        let nothing_new = change.in_initial_list || change.event == CauseEvent::Resync;
        self.enqueue(
            [change.key.clone()],
            if nothing_new {
                Priority::Low
            } else {
                Priority::Normal
            },
            &cause,
        );
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

impl<W: Resource + Send + Sync + 'static> EventHandler<W> for Enqueue<W> {
    fn on_add(&self, object: &Arc<W>, in_initial_list: bool) {
        let cause = self.cause(
            ObjectKey::of(&**object),
            object.meta().resource_version.clone(),
            CauseEvent::Added,
        );
        self.core.noticed(&self.cache, &cause);
        if self
            .predicate
            .as_ref()
            .is_none_or(|predicate| predicate.passes_add(object))
        {
            let priority = if in_initial_list {
                Priority::Low
            } else {
                Priority::Normal
            };
            self.enqueue(self.keys(object), priority, &cause);
        }
    }

    fn on_update(&self, old: &Arc<W>, new: &Arc<W>) {
        let resync = same_version(&**old, &**new);
        let event = if resync {
            CauseEvent::Resync
        } else {
            CauseEvent::Updated
        };
        let cause = self.cause(
            ObjectKey::of(&**new),
            new.meta().resource_version.clone(),
            event,
        );
        self.core.noticed(&self.cache, &cause);
        if self
            .predicate
            .as_ref()
            .is_none_or(|predicate| predicate.passes_update(old, new))
        {
            let priority = if resync {
                Priority::Low
            } else {
                Priority::Normal
            };
            let keys: BTreeSet<_> = self.keys(old).into_iter().chain(self.keys(new)).collect();
            self.enqueue(keys, priority, &cause);
        }
    }

    fn on_delete(&self, last: Tombstone<W>) {
        let version = last
            .object
            .as_ref()
            .and_then(|object| object.meta().resource_version.clone());
        let cause = self.cause(last.key.clone(), version, CauseEvent::Deleted);
        self.core.noticed(&self.cache, &cause);
        match (&self.map, &last.object) {
            (Map::Itself, _) => self.enqueue([last.key], Priority::Normal, &cause),
            (Map::By(find), Some(object)) => self.enqueue(find(object), Priority::Normal, &cause),
            (Map::By(_), None) => {
                tracing::debug!(kind = %self.kind, key = %last.key, "deleted before it could ever be read, nobody to tell")
            }
        }
    }
}
