//! Counts of events: written, and dropped by reason.
//!
//! In: one call for each event. Out: totals since the start, for the metrics.
//! Guarantees: counting never waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one recorder.
#[derive(Debug)]
pub(crate) struct EventCounts {
    controller: String,
    written: AtomicU64,
    queue_full: AtomicU64,
    rate_limited: AtomicU64,
    refused: AtomicU64,
}

impl EventCounts {
    pub(super) fn new(controller: String) -> Self {
        Self {
            controller,
            written: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            rate_limited: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The `reportingController`.
    pub(crate) fn controller(&self) -> &str {
        &self.controller
    }

    /// An Event object was created or its series updated.
    pub(super) fn count_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// The queue was full, or the writer had ended.
    pub(super) fn count_queue_full(&self) {
        self.queue_full.fetch_add(1, Ordering::Relaxed);
    }

    /// The object exceeded its rate limit.
    pub(super) fn count_rate_limited(&self) {
        self.rate_limited.fetch_add(1, Ordering::Relaxed);
    }

    /// The request to the server failed.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Event objects created or updated.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Events that never reached the writer.
    pub(super) fn queue_full(&self) -> u64 {
        self.queue_full.load(Ordering::Relaxed)
    }

    /// Events that were not written, by the `reason` label of the metric.
    pub(crate) fn dropped(&self) -> [(&'static str, u64); 3] {
        [
            ("full", &self.queue_full),
            ("rate_limited", &self.rate_limited),
            ("refused", &self.refused),
        ]
        .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}
