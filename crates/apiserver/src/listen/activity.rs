//! How many requests a connection carries.
//! In: the start and end of requests, the body of the answer included. Out: the moment at which a connection has been idle for long.
//! Holds: an answer without an end of its own, as of a watch, ends when the server stops.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Counts the running requests of one connection.
#[derive(Clone)]
pub(super) struct Activity(watch::Sender<usize>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(watch::channel(0).0)
    }

    /// One more request runs, until what is returned is dropped.
    pub(super) fn begin(&self) -> Running {
        self.0.send_modify(|running| *running += 1);
        Running(self.0.clone())
    }

    /// Returns when no request has run for `idle_timeout`.
    pub(super) async fn idle_for(&self, idle_timeout: Duration) {
        let mut running = self.0.subscribe();
        loop {
            let idle = *running.borrow_and_update() == 0;
            let changed = running.changed();
            // The sender is `self`, so `changed` never fails here.
            if idle {
                tokio::select! {
                    _ = changed => {}
                    () = sleep(idle_timeout) => return,
                }
            } else if changed.await.is_err() {
                return;
            }
        }
    }
}

/// A request that runs.
pub(super) struct Running(watch::Sender<usize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

/// A body that counts as running until it is sent.
pub(super) struct Tracked<B> {
    body: B,
    /// When an endless body ends; none for one whose length is known.
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _running: Running,
}

impl<B: Body> Tracked<B> {
    pub(super) fn new(body: B, running: Running, stop: &CancellationToken) -> Self {
        let endless = body.size_hint().exact().is_none();
        Self {
            body,
            stop: endless.then(|| Box::pin(stop.clone().cancelled_owned())),
            _running: running,
        }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        match (&next, &mut self.stop) {
            (Poll::Pending, Some(stop)) => stop.as_mut().poll(cx).map(|()| None),
            _ => next,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
