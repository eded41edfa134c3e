//! A reader's place in the events of a part of one shelf.
//! Holds: events come in order, each once; a reader that is slower than the kept history is told so and never slows anybody; events of other
//! parts neither wake a reader nor cost it anything while it keeps up.

use std::sync::Arc;

use super::{Event, Revision, Scope, ShelfName, bell::Listener, memory::Shared};

/// How many events one call hands out, so that a reader far behind neither holds the lock for long
/// nor takes much memory: there can be 10,000 of them.
const BATCH_MAX_EVENTS: usize = 64;

/// The reader is so far behind that events it needs are gone; it must list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lagged;

/// A place in a shelf's events. All watchers read the same shared history, so a slow one costs nothing but its place.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    shared: Arc<Shared>,
    shelf: ShelfName,
    scope: Scope,
    /// The position of the next event to look at, counted over all events the shelf ever had.
    next: u64,
    listener: Option<Listener>,
}

impl StoreWatch {
    pub(super) fn new(
        shared: Arc<Shared>,
        shelf: ShelfName,
        scope: Scope,
        next: u64,
        listener: Listener,
    ) -> Self {
        Self {
            shared,
            shelf,
            scope,
            next,
            listener: Some(listener),
        }
    }

    /// The events there are now, oldest first, and the revision up to which nothing else happened.
    ///
    /// # Errors
    /// An event it needs is no longer kept.
    pub(crate) fn ready(&mut self) -> Result<(Vec<Arc<Event>>, Revision), Lagged> {
        let Some(listener) = &mut self.listener else {
            return Err(Lagged);
        };
        let (scope, next) = (&self.scope, self.next);
        let (events, consumed, next, newest) = self.shared.read(|state| {
            let shelf = state.shelf(&self.shelf).ok_or(Lagged)?;
            let unheard = listener.unheard();
            let (events, next) = match unheard {
                0 => (Vec::new(), shelf.end()),
                // Its place is known: whatever else happened meanwhile need not be looked at.
                1 => (
                    shelf
                        .events_from(listener.last(), scope, 1, unheard)
                        .ok_or(Lagged)?
                        .0,
                    shelf.end(),
                ),
                _ => shelf
                    .events_from(next, scope, BATCH_MAX_EVENTS, unheard)
                    .ok_or(Lagged)?,
            };
            // Whatever was counted for this reader and is not handed out is consumed all the same:
            // an event may be pending once only.
            let (consumed, next) = if events.len() < BATCH_MAX_EVENTS {
                (unheard, shelf.end())
            } else {
                (events.len() as u64, next)
            };
            Ok((events, consumed, next, state.revision))
        })?;
        listener.hear(consumed);
        self.next = next;
        let upto = if events.len() == BATCH_MAX_EVENTS {
            events.last().map_or(newest, |e| e.revision)
        } else {
            newest
        };
        Ok((events, upto))
    }

    /// How many read the same part of the shelf.
    pub(crate) fn readers(&self) -> usize {
        self.listener.as_ref().map_or(0, Listener::listeners)
    }

    /// Resolves when there are more events.
    pub(crate) async fn changed(&self) {
        if let Some(listener) = &self.listener {
            listener.news().await;
        }
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        self.listener = None;
        self.shared
            .write(|state| state.unlisten(&self.shelf, &self.scope));
    }
}
