//! A reader's place in the events of one shelf.
//! Holds: events come in order, each once; a reader that is slower than the kept history is told so and never slows anybody.

use std::sync::Arc;

use super::{Event, Revision, ShelfName, bell::Listener, memory::Shared, shelf::Shelf};

/// How many events one call hands out, so that a reader far behind does not hold the lock for long.
const BATCH_MAX_EVENTS: usize = 256;

/// The reader is so far behind that events it needs are gone; it must list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lagged;

/// A place in a shelf's events. All watchers read the same shared history, so a slow one costs nothing but its place.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    shared: Arc<Shared>,
    shelf: ShelfName,
    /// The position of the next event to hand out, counted over all events the shelf ever had.
    next: u64,
    changed: Listener,
}

impl StoreWatch {
    pub(super) fn new(shared: Arc<Shared>, shelf: ShelfName, next: u64, changed: Listener) -> Self {
        Self { shared, shelf, next, changed }
    }

    /// The events there are now, oldest first, and the revision up to which nothing else happened.
    ///
    /// # Errors
    /// The next event is no longer kept.
    pub(crate) fn ready(&mut self) -> Result<(Vec<Arc<Event>>, Revision), Lagged> {
        self.changed.catch_up();
        let (events, newest) = self.shared.read(|state| {
            let events = state.shelf(&self.shelf).and_then(|shelf| shelf.events_from(self.next, BATCH_MAX_EVENTS));
            (events, state.revision)
        });
        let events = events.ok_or(Lagged)?;
        self.next += events.len() as u64;
        let upto = if events.len() == BATCH_MAX_EVENTS { events.last().map_or(newest, |e| e.revision) } else { newest };
        Ok((events, upto))
    }

    /// How many readers the shelf has.
    pub(crate) fn readers(&self) -> usize {
        self.shared.read(|state| state.shelf(&self.shelf).map_or(0, Shelf::readers))
    }

    /// Resolves when there may be more events.
    pub(crate) async fn changed(&mut self) {
        self.changed.rung().await;
    }
}
