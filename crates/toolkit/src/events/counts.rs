//! Counts: what became of notes.
//!
//! In: one call for each fate. Out: numbers since the start.
//! Holds: counting never waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of the notes of one recorder.
#[derive(Debug)]
pub(crate) struct Counts {
    controller: String,
    written: AtomicU64,
    full: AtomicU64,
    spam: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    pub(super) fn new(controller: String) -> Self {
        let [written, full, spam, refused] = [const { AtomicU64::new(0) }; 4];
        Self {
            controller,
            written,
            full,
            spam,
            refused,
        }
    }

    /// Whose notes they are.
    pub(crate) fn controller(&self) -> &str {
        &self.controller
    }

    /// The server took an Event, new or counted up.
    pub(super) fn count_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Too many notes were waiting, or nobody writes any more.
    pub(super) fn count_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// The object had begun too many topics.
    pub(super) fn count_spam(&self) {
        self.spam.fetch_add(1, Ordering::Relaxed);
    }

    /// The server did not take it.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Events that the server took.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Notes that were dropped unread.
    pub(super) fn dropped_unread(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Notes that became no Event, by reason.
    pub(crate) fn dropped(&self) -> [(&'static str, u64); 3] {
        [
            ("full", &self.full),
            ("rate_limited", &self.spam),
            ("refused", &self.refused),
        ]
        .map(|(why, count)| (why, count.load(Ordering::Relaxed)))
    }
}
