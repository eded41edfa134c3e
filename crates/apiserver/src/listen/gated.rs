//! Futures of a connection's task that are rarely ready.
//!
//! A task polls all of its futures whenever one of them notifies the waker, and each poll of a
//! timer or of a cancellation token takes a lock, some of which all connections share. The task of
//! a watch is notified of every event.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future that is polled only after its own waker was notified.
pub(super) struct Gated<F> {
    future: F,
    gate: Arc<Gate>,
    /// A copy of `gate.task`, to be compared without its lock.
    task: Waker,
}

struct Gate {
    is_notified: AtomicBool,
    /// The task to which the future belongs.
    task: Mutex<Waker>,
}

/// Makes a future independent of other wakers of its task.
pub(super) fn gated<F: Future + Unpin>(future: F) -> Gated<F> {
    Gated {
        future,
        gate: Arc::new(Gate {
            // The first poll has no notification.
            is_notified: AtomicBool::new(true),
            task: Mutex::new(Waker::noop().clone()),
        }),
        task: Waker::noop().clone(),
    }
}

impl<F: Future + Unpin> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Set before the check: a notification of the gate after the check reaches this task.
        if !self.task.will_wake(cx.waker()) {
            self.task.clone_from(cx.waker());
            self.gate.lock_task().clone_from(cx.waker());
        }
        if !self.gate.is_notified.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.gate.is_notified.store(false, Ordering::Release);
        let waker = Waker::from(self.gate.clone());
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

impl Gate {
    fn lock_task(&self) -> std::sync::MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_notified.store(true, Ordering::Release);
        self.lock_task().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, time::Duration};

    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gated_future_ends_when_it_is_ready() {
        gated(Box::pin(tokio::time::sleep(Duration::from_secs(1)))).await;
        let token = CancellationToken::new();
        let waiting = tokio::spawn({
            let token = token.clone();
            async move { gated(pin!(token.cancelled())).await }
        });
        tokio::task::yield_now().await;
        token.cancel();
        waiting.await.expect("the task ends");
    }

    #[tokio::test]
    async fn gated_future_is_not_polled_for_other_wakers() {
        let mut polls = 0;
        let mut counted = pin!(gated(poll_fn(|_| {
            polls += 1;
            Poll::<()>::Pending
        })));
        for _ in 0..10 {
            let pending = poll_fn(|cx| Poll::Ready(counted.as_mut().poll(cx).is_pending()));
            assert!(pending.await);
        }
        assert_eq!(polls, 1);
    }
}
