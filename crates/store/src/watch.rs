//! Watches: events of keys with a prefix, in the order of their revisions.
//!
//! In: commits of the state. Out: pages of events and progress.
//!
//! Guarantees: every event from the requested revision on, each once, in order; progress is the
//! revision of this stream, never ahead of its events. A watch reads the history at its own speed
//! and has no buffer, so a slow client costs no memory; a watch that falls behind the history ends
//! with `Compacted`.

use std::sync::Arc;

use crate::{
    api::{Event, Reason, Revision, StoreError},
    state::State,
};

/// What a watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// Events, oldest first.
    Events(Vec<Event>),
    /// All events up to a revision were delivered, and there are none yet after it.
    Progress(Revision),
}

/// A watch. Dropping it ends it.
pub struct WatchStream {
    state: Arc<State>,
    prefix: String,
    /// The first revision that was not considered yet.
    next: Revision,
    /// Whether the progress up to `next` was delivered.
    is_progress_delivered: bool,
}

impl WatchStream {
    pub(crate) fn new(
        state: Arc<State>,
        prefix: &str,
        from: Option<Revision>,
    ) -> Result<Self, StoreError> {
        let meta = state.meta();
        let next = from.unwrap_or(meta.revision + 1);
        if next <= meta.compacted {
            return Err(compacted(meta.compacted));
        }
        Ok(Self {
            state,
            prefix: prefix.to_owned(),
            next,
            is_progress_delivered: false,
        })
    }

    /// The next events, or the progress after the last ones. Waits for a commit if there is
    /// nothing to deliver. It may be dropped and called again without losing events.
    ///
    /// # Errors
    ///
    /// `Compacted` if the history does not reach back to the next event: list, then watch again.
    pub async fn next(&mut self) -> Result<WatchItem, StoreError> {
        loop {
            let state = Arc::clone(&self.state);
            let changed = state.changed().notified();
            let mut changed = std::pin::pin!(changed);
            // Before the read, so that no commit is missed between them.
            changed.as_mut().enable();
            let page = self
                .state
                .events(self.next, &self.prefix)
                .map_err(|error| {
                    StoreError::new(
                        Reason::StorageFailed,
                        format!("cannot read events: {error}"),
                    )
                })?;
            if self.next <= page.compacted {
                return Err(compacted(page.compacted));
            }
            if page.until >= self.next {
                self.next = page.until + 1;
                self.is_progress_delivered = false;
                if !page.events.is_empty() {
                    return Ok(WatchItem::Events(page.events));
                }
                continue;
            }
            if !self.is_progress_delivered {
                self.is_progress_delivered = true;
                return Ok(WatchItem::Progress(self.next - 1));
            }
            changed.await;
        }
    }
}

fn compacted(revision: Revision) -> StoreError {
    let message = format!(
        "the events up to revision {revision} are compacted; list, then watch from the revision \
         of the list"
    );
    StoreError::new(Reason::Compacted, message).with_current(revision)
}
