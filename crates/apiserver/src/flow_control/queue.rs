//! A queue of a priority level, and what the level does with requests beyond its limit.

use super::{queue_set::Slot, shuffle_sharding::Dealer, work_estimate::SeatSeconds};

/// The handling of requests beyond the concurrency limit of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queuing {
    /// There is no limit.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait in queues of at most this length.
    Queue { dealer: Dealer, length_limit: usize },
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RejectReason {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
}

impl RejectReason {
    pub(super) const ALL: [Self; 3] = [Self::QueueFull, Self::ConcurrencyLimit, Self::TimeOut];

    /// The label of metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::TimeOut => "time-out",
        }
    }
}

/// Requests of a flow, and of those flows that share the queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The waiting requests, a list through the slots, oldest first.
    pub(super) head: Option<Slot>,
    pub(super) tail: Option<Slot>,
    pub(super) waiting: usize,
    pub(super) waiting_initial_seats: u64,
    pub(super) waiting_seats: u64,
    pub(super) waiting_work: SeatSeconds,
    pub(super) executing: usize,
    /// Seats of requests that are executed, and of those that linger.
    pub(super) seats_in_use: u64,
    /// R at which the next request is dispatched.
    pub(super) next_dispatch_r: SeatSeconds,
}

impl Queue {
    pub(super) fn is_active(&self) -> bool {
        self.waiting > 0 || self.executing > 0
    }
}
