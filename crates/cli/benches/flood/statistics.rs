//! The results of a flood.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Something that happened to a flood.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A response with this status.
    Status(u16),
    /// A chunk of a watch.
    Chunk,
    /// A complete TLS handshake.
    Connected,
    /// A connection that could not be established.
    NotConnected,
    /// A connection that the server closed.
    Closed,
    /// A stream that the server reset.
    Reset,
}

/// How often each outcome was seen.
#[derive(Default)]
pub(crate) struct Statistics {
    size: AtomicUsize,
    outcomes: Mutex<BTreeMap<Outcome, usize>>,
}

impl Statistics {
    /// Counts a part of the flood that is established.
    pub(crate) fn grow(&self) {
        self.size.fetch_add(1, Ordering::Relaxed);
    }

    /// How many parts were established.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        *self.lock().entry(outcome).or_default() += 1;
    }

    /// Counts from zero.
    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    /// All outcomes, per second of this time.
    pub(crate) fn format(&self, time: Duration) -> String {
        let outcomes = self.lock();
        let outcomes = outcomes.iter().map(|(outcome, count)| {
            let rate = *count as f64 / time.as_secs_f64();
            let rate = if rate < 10.0 {
                format!("{rate:.1}/s")
            } else {
                format!("{rate:.0}/s")
            };
            match outcome {
                Outcome::Status(status) => format!("{status}: {rate}"),
                Outcome::Chunk => format!("events: {rate}"),
                Outcome::Connected => format!("handshakes: {rate}"),
                Outcome::NotConnected => format!("failed handshakes: {rate}"),
                Outcome::Closed => format!("closed connections: {rate}"),
                Outcome::Reset => format!("reset streams: {rate}"),
            }
        });
        let outcomes: Vec<String> = outcomes.collect();
        if outcomes.is_empty() {
            return "nothing answered or closed".into();
        }
        outcomes.join(", ")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Outcome, usize>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
