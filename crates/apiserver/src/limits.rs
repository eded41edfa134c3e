//! How many requests run at once.
//! In: requests that want to start. Out: a place each, in order of arrival, or a refusal.
//! Holds: neither those that run nor those that wait can become more than their bound, and nobody waits for ever.

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::error::ApiError;

/// How many requests a server works on at once.
///
/// The defaults are those of kube-apiserver. Every running request may hold a body of up to 3 MiB, so a server that is embedded in a small
/// process wants smaller ones. Watches count only until they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Reads under way; more wait.
    pub reads_max: usize,
    /// Writes under way; more wait.
    pub writes_max: usize,
    /// Reads that wait for a place, and as many writes; more are answered 429 with `Retry-After`.
    pub waiting_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            reads_max: 400,
            writes_max: 200,
            waiting_max: 4096,
        }
    }
}

/// How many requests are under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}

/// A bounded number of requests at once, and of those that wait.
pub(crate) struct Gate {
    running_max: usize,
    running: Semaphore,
    waiting_max: usize,
    waiting: Semaphore,
}

impl Gate {
    /// A gate for so many; at least one may run.
    pub(crate) fn new(running_max: usize, waiting_max: usize) -> Self {
        let running_max = running_max.clamp(1, Semaphore::MAX_PERMITS);
        let waiting_max = waiting_max.min(Semaphore::MAX_PERMITS);
        Self {
            running_max,
            running: Semaphore::new(running_max),
            waiting_max,
            waiting: Semaphore::new(waiting_max),
        }
    }

    /// How many are behind the gate and before it.
    pub(crate) fn load(&self) -> Load {
        Load {
            running: self.running_max - self.running.available_permits(),
            waiting: self.waiting_max - self.waiting.available_permits(),
        }
    }

    /// A place, until what is returned is dropped.
    ///
    /// # Errors
    /// 429 when too many wait already, or when no place gets free until the deadline.
    pub(crate) async fn enter(&self, deadline: Instant) -> Result<impl Drop, ApiError> {
        if let Ok(place) = self.running.try_acquire() {
            return Ok(place);
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| too_many())?;
        let place = timeout_at(deadline, self.running.acquire())
            .await
            .map_err(|_| too_many())?;
        Ok(place.expect("the semaphore is never closed"))
    }
}

fn too_many() -> ApiError {
    ApiError::TooManyRequests {
        message: "too many requests, please try again later".into(),
        retry_after_seconds: 1,
        causes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_beyond_the_deadline() {
        let gate = Gate::new(1, 1);
        let deadline = Instant::now() + Duration::from_secs(60);
        let first = gate.enter(deadline).await.expect("there is room");
        assert!(
            gate.enter(deadline).await.is_err_and(|e| e == too_many()),
            "the first stays too long"
        );
        assert_eq!(Instant::now(), deadline);
        drop(first);
        assert!(gate.enter(deadline).await.is_ok(), "its place is free");
        assert_eq!((gate.load().running, gate.load().waiting), (0, 0));
    }
}
