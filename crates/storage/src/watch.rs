//! The position of a watcher in the events of a scope of one collection.
//! Guarantees: events come in order, each once; a watcher that is slower than the kept history gets
//! [`Lagged`] and never delays others; events of other scopes neither notify a watcher nor cost it
//! anything while it keeps up.

use std::sync::Arc;

use super::{CollectionName, Event, Revision, Scope, memory::Shared, notifier::Listener};

/// How many events one call hands out, so that a reader far behind neither holds the lock for long
/// nor takes much memory: there can be 10,000 of them.
const BATCH_MAX_EVENTS: usize = 64;

/// The watcher is behind the kept history; it must list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagged;

/// A position in a collection's events. All watchers read the same shared history, so a slow one
/// costs only its position.
#[derive(Debug)]
pub struct StoreWatch {
    shared: Arc<Shared>,
    collection: CollectionName,
    scope: Scope,
    /// The position of the next event to read, counted over all events of the collection.
    next: u64,
    listener: Option<Listener>,
}

impl StoreWatch {
    pub(super) fn new(
        shared: Arc<Shared>,
        collection: CollectionName,
        scope: Scope,
        next: u64,
        listener: Listener,
    ) -> Self {
        Self {
            shared,
            collection,
            scope,
            next,
            listener: Some(listener),
        }
    }

    /// The available events, oldest first, and the revision up to which there are no others.
    ///
    /// # Errors
    /// An event it needs is no longer kept.
    pub fn ready(&mut self) -> Result<(Vec<Arc<Event>>, Revision), Lagged> {
        let Some(listener) = &mut self.listener else {
            return Err(Lagged);
        };
        let scope = &self.scope;
        let next = self.next;
        let (events, consumed, next, newest) = self.shared.read(|state| {
            let collection = state.collection(&self.collection).ok_or(Lagged)?;
            let pending = listener.pending();
            let (events, next) = match pending {
                0 => (Vec::new(), collection.end()),
                // Its position is known: other events meanwhile need not be read.
                1 => (
                    collection
                        .events_from(listener.last(), scope, 1, pending)
                        .ok_or(Lagged)?
                        .0,
                    collection.end(),
                ),
                _ => collection
                    .events_from(next, scope, BATCH_MAX_EVENTS, pending)
                    .ok_or(Lagged)?,
            };
            // Events that were counted for this watcher and are not returned are consumed all the
            // same: an event may be pending once only.
            let (consumed, next) = if events.len() < BATCH_MAX_EVENTS {
                (pending, collection.end())
            } else {
                (events.len() as u64, next)
            };
            Ok((events, consumed, next, state.revision))
        })?;
        listener.acknowledge(consumed);
        self.next = next;
        let upto = if events.len() == BATCH_MAX_EVENTS {
            events.last().map_or(newest, |e| e.revision)
        } else {
            newest
        };
        Ok((events, upto))
    }

    /// How many read the same part of the collection.
    pub fn readers(&self) -> usize {
        self.listener.as_ref().map_or(0, Listener::listeners)
    }

    /// Resolves when there are more events.
    pub async fn changed(&self) {
        if let Some(listener) = &self.listener {
            listener.changed().await;
        }
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        self.listener = None;
        self.shared
            .write(|state| state.unlisten(&self.collection, &self.scope));
    }
}
