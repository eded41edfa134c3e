//! Permits: the seats of a request, from its dispatch until its answer is ready.
//! In: a classified request and its work. Out: a permit, or how long its client should wait.
//! Guarantees: seats, and the place in a queue, are given back when the permit, or the future that
//! waits for it, is dropped.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    Classified, FlowControl, Work,
    queue_set::Slot,
    request::Request,
    retry_after::{LATE, RejectedFlows},
    shuffle_sharding::flow_hash,
    state::Start,
};
use crate::listen::{TaskSeat, has_grant};

/// Added to the seconds since the start, so that the start is later than any time limit.
const CLOCK_OFFSET_SECONDS: u64 = 64;

/// The request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) retry_after_seconds: u32,
}

/// The seats of a request.
#[must_use = "the request has seats until the permit is dropped"]
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    flow_control: &'a FlowControl,
    classified: &'a Classified,
    slot: Slot,
}

impl FlowControl {
    /// Waits until the request may be executed, at most for `wait_max`.
    ///
    /// # Errors
    /// The level has no seat for the request and no place to wait, or none became free in time.
    pub(crate) async fn acquire<'a>(
        &'a self,
        classified: &'a Classified,
        work: Work,
        wait_max: Duration,
    ) -> Result<Permit<'a>, Rejection> {
        let schema = &classified.schema;
        let arrived = Instant::now();
        let request = new_request(classified, work, arrived);
        let start = self.with_state(|state| state.start(schema.level.id, request, arrived));
        let permit = |slot| Permit {
            flow_control: self,
            classified,
            slot,
        };
        let outcome = match start {
            Start::Executing(slot) if schema.exempt => return Ok(permit(slot)),
            Start::Executing(slot) => {
                let permit = permit(slot);
                // Requests that arrived meanwhile are polled first, so that they take part in the
                // order of execution before this one has the processor. One that has waited for the
                // processor does not wait for it again while it has seats.
                if !has_grant() {
                    reschedule().await;
                }
                schema.metrics.observe_wait(Duration::ZERO, true);
                return Ok(permit);
            }
            Start::Waiting(slot, dispatched) => {
                let permit = permit(slot);
                self.timer.notify_one();
                // The sender lives as long as the request waits. At the deadline, the request may
                // have been dispatched this moment.
                let _dispatched = timeout_at(arrived + wait_max, dispatched).await;
                let executing = self.with_state(|state| state.is_executing(schema.level.id, slot));
                if executing { Ok(permit) } else { Err(()) }
            }
            Start::Rejected => Err(()),
        };
        schema
            .metrics
            .observe_wait(arrived.elapsed(), outcome.is_ok());
        match outcome {
            Ok(permit) => Ok(permit),
            Err(()) => Err(self.reject(classified).await),
        }
    }

    /// Counts a rejection.
    async fn reject(&self, classified: &Classified) -> Rejection {
        let now = Instant::now();
        let second = (now - self.started).as_secs() + CLOCK_OFFSET_SECONDS;
        let seconds = self.with_state(|state| {
            let level = state.level_mut(classified.schema.level.id);
            level.retry_after.record(second);
            level.retry_after.seconds()
        });
        self.hold_back(classified, seconds).await;
        Rejection {
            retry_after_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    /// Waits before a 429 with this `Retry-After`. The answer to a flow that was rejected and did
    /// not wait is late: it costs the client time, and the server fewer answers.
    pub(crate) async fn hold_back(&self, classified: &Classified, retry_after_seconds: u64) {
        let now = Instant::now();
        let flow = classified.flow();
        if self.with_rejected(|flows| flows.hold(flow, now, retry_after_seconds)) {
            let _held = Held(self);
            tokio::time::sleep(LATE).await;
        }
    }

    fn with_rejected<T>(&self, f: impl FnOnce(&mut RejectedFlows) -> T) -> T {
        f(&mut self.rejected.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A delayed response.
struct Held<'a>(&'a FlowControl);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.with_rejected(RejectedFlows::answered);
    }
}

fn new_request(classified: &Classified, work: Work, arrived: Instant) -> Request {
    let schema = &classified.schema;
    Request {
        flow_hash: if schema.queued {
            flow_hash(&schema.name, &classified.details.flow_distinguisher)
        } else {
            0
        },
        work,
        total_work: work.total(),
        arrived,
        arrival_r: 0,
        started: None,
        queue: None,
        previous: None,
        next: None,
        processor_seats: 0,
        waiter: None,
        seat: TaskSeat::of_current_task(),
        kind: classified.kind,
        metrics: schema.metrics.clone(),
        details: Arc::clone(&classified.details),
    }
}

impl Permit<'_> {
    /// Runs the handler of the request. Once it waits, it no longer counts among the requests that
    /// compete for the processor.
    pub(crate) async fn run<F: Future>(&self, handler: F) -> F::Output {
        let mut handler = pin!(handler);
        let mut competes = !self.classified.schema.exempt;
        poll_fn(|cx| {
            let outcome = handler.as_mut().poll(cx);
            if outcome.is_pending() && std::mem::take(&mut competes) {
                let level = self.classified.schema.level.id;
                self.flow_control.with_state(|state| {
                    state.release_processor(level, self.slot, Instant::now());
                });
            }
            outcome
        })
        .await
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let schema = &self.classified.schema;
        let (executed, notifies): (Option<Duration>, bool) =
            self.flow_control.with_state(|state| {
                let before = state.next_event();
                let executed = state.end(schema.level.id, self.slot, Instant::now());
                let after = state.next_event();
                (executed, after.is_some() && after != before)
            });
        if notifies {
            self.flow_control.timer.notify_one();
        }
        if let Some(duration) = executed {
            schema
                .metrics
                .observe_execution(duration, self.classified.watch);
        }
    }
}

/// Goes to the end of the queue of the runtime.
fn reschedule() -> impl Future<Output = ()> {
    let mut rescheduled = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut rescheduled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
