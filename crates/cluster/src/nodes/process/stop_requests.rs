//! Requests to stop a container.
//!
//! Guarantees: a request can only become more urgent: the earliest deadline counts, and `SIGTERM` is
//! not taken back.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A request to stop an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StopRequest {
    /// The end of the grace period.
    pub(super) deadline: Instant,
    /// Whether `SIGTERM` may be sent before the deadline; otherwise only the preStop hook runs.
    pub(super) terminate: bool,
}

/// The requests to stop an instance, which can only become more urgent.
#[derive(Clone, Default)]
pub(super) struct StopRequests(watch::Sender<Option<StopRequest>>);

impl StopRequests {
    pub(super) fn add(&self, request: StopRequest) {
        self.0.send_if_modified(|current| {
            let merged = current.map_or(request, |current| StopRequest {
                deadline: current.deadline.min(request.deadline),
                terminate: current.terminate || request.terminate,
            });
            *current != Some(merged) && {
                *current = Some(merged);
                true
            }
        });
    }

    /// Whether a grace period is left.
    pub(super) fn has_time_left(&self) -> bool {
        let request = *self.0.borrow();
        request.is_none_or(|request| request.deadline > Instant::now())
    }

    /// Waits for a request.
    pub(super) async fn requested(&self) {
        self.wait_for(|_| true).await;
    }

    /// Waits until `SIGTERM` may be sent: on request, or at the end of the grace period.
    pub(super) async fn may_terminate(&self) {
        tokio::select! {
            () = self.wait_for(|request| request.terminate) => {}
            () = self.grace_period_ended(None) => {}
        }
    }

    async fn wait_for(&self, condition: impl Fn(&StopRequest) -> bool) {
        let mut requests = self.0.subscribe();
        // An error cannot occur: the sender is borrowed.
        let _ = requests
            .wait_for(|request| request.as_ref().is_some_and(&condition))
            .await;
    }

    /// Waits for the end of the grace period, which may become shorter meanwhile.
    pub(super) async fn grace_period_ended(&self, minimum: Option<Instant>) {
        let mut requests = self.0.subscribe();
        loop {
            let requested = requests.borrow_and_update().map(|request| request.deadline);
            let end = requested.into_iter().chain(minimum).max();
            let end = end.unwrap_or_else(Instant::now);
            tokio::select! {
                () = sleep_until(end) => return,
                _ = requests.changed() => {}
            }
        }
    }
}
