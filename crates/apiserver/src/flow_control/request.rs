//! A request within flow control, from its arrival until its last seat is free.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::{
    metrics::FlowSchemaMetrics,
    queue_set::Slot,
    work_estimate::{SeatSeconds, Work},
};
use crate::{http::request_info::RequestInfo, listen::TaskSeat};

/// Whether a request counts as reading or as mutating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    ReadOnly,
    Mutating,
}

/// The details of a request in the debug endpoints.
#[derive(Debug)]
pub(crate) struct RequestDetails {
    pub(crate) user: String,
    pub(crate) request_info: Arc<RequestInfo>,
    /// Empty in a level without queues.
    pub(crate) flow_distinguisher: Box<str>,
}

/// A request that waits, is executed, or still holds seats after it was answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) flow_hash: u64,
    pub(super) work: Work,
    /// Virtual work as estimated at the arrival.
    pub(super) total_work: SeatSeconds,
    pub(super) arrived: Instant,
    /// R at the arrival; set by the queue.
    pub(super) arrival_r: SeatSeconds,
    /// Set while the request is executed.
    pub(super) started: Option<Instant>,
    /// `None` if the level has no queues.
    pub(super) queue: Option<u32>,
    /// The neighbours in the queue, while the request waits.
    pub(super) previous: Option<Slot>,
    pub(super) next: Option<Slot>,
    /// Seats of the gate in front of the processor that it holds.
    pub(super) processor_seats: u64,
    /// Notified when the request is dispatched; `None` if it never waited.
    pub(super) waiter: Option<oneshot::Sender<()>>,
    /// That of the task that executes it.
    pub(super) seat: TaskSeat,
    /// Which of the in-flight gauges it counts in, if any.
    pub(super) kind: Option<RequestKind>,
    pub(super) metrics: Arc<FlowSchemaMetrics>,
    pub(super) details: Arc<RequestDetails>,
}

impl Request {
    pub(super) fn is_executing(&self) -> bool {
        self.started.is_some()
    }
}
