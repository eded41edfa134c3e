//! The tasks of one connection: read, write, idle timeout, close.
//!
//! Guarantees: a connection that is closed or dropped sends what was written, then ends; nothing of
//! it is left after the close timeout.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    ConnectionOptions,
    activity::Activity,
    mux::{InputEnd, Mux},
};

/// A running connection. Dropping it closes the connection in the background.
pub(crate) struct Session {
    mux: Arc<Mux>,
    close_timeout: Duration,
    closing: CancellationToken,
    closed: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// What the tasks of a connection share.
pub(crate) struct Context {
    pub(crate) mux: Arc<Mux>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) options: ConnectionOptions,
}

impl Session {
    /// Runs a connection. `read` returns when the peer closed or broke the protocol; `write` returns
    /// when all output of the finished mux was sent, or on failure.
    pub(crate) fn spawn<R, W>(context: Context, read: R, write: W) -> Self
    where
        R: Future<Output = io::Result<InputEnd>> + Send + 'static,
        W: Future<Output = io::Result<()>> + Send + 'static,
    {
        let closing = CancellationToken::new();
        let closed = CancellationToken::new();
        let mux = Arc::clone(&context.mux);
        let close_timeout = context.options.close_timeout;
        let is_closing = closing.clone();
        let is_closed = closed.clone();
        let task = tokio::spawn(async move {
            let mut ending = Ending {
                mux: Arc::clone(&context.mux),
                end: InputEnd::Aborted,
                closed: is_closed,
            };
            ending.end = run(&context, read, write, is_closing).await;
        });
        Self {
            mux,
            close_timeout,
            closing,
            closed,
            task: Some(task),
        }
    }

    /// Cancelled once the connection has ended, for whatever reason.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Returns once what was written is flushed, at most after the close timeout: what is written
    /// then arrives after it, also on another stream.
    pub(crate) async fn drained(&self) {
        if time::timeout(self.close_timeout, self.mux.drained())
            .await
            .is_err()
        {
            debug!("the peer does not receive its output");
        }
    }

    /// Sends what was written, closes, and waits until the peer has closed too.
    pub(crate) async fn close(mut self) {
        self.begin_close();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            debug!(%error, "connection task failed");
        }
    }

    fn begin_close(&self) {
        self.mux.finish();
        self.closing.cancel();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.begin_close();
    }
}

/// Ends all streams when the task ends, also if the runtime stops it.
struct Ending {
    mux: Arc<Mux>,
    end: InputEnd,
    closed: CancellationToken,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.mux.close(self.end);
        self.closed.cancel();
    }
}

async fn run<R, W>(context: &Context, read: R, write: W, closing: CancellationToken) -> InputEnd
where
    R: Future<Output = io::Result<InputEnd>>,
    W: Future<Output = io::Result<()>>,
{
    let timeout = context.options.close_timeout;
    let mut read = pin!(read);
    let mut write = pin!(write);
    let close_expired = async {
        closing.cancelled().await;
        time::sleep(timeout).await;
    };
    let failure = tokio::select! {
        result = &mut read => match result {
            Ok(end) => return end,
            Err(error) => error.to_string(),
        },
        result = &mut write => {
            // Closing a socket with unread input resets it, and the peer loses what it has not yet
            // received. So input is read until the peer has closed.
            if result.is_ok() {
                let _ = time::timeout(timeout, read).await;
            }
            return InputEnd::Aborted;
        }
        () = context.activity.idle(context.options.idle_timeout) => "idle timeout".to_owned(),
        () = close_expired => return InputEnd::Aborted,
    };
    debug!(reason = failure, "closing a streaming connection");
    context.mux.finish();
    let _ = time::timeout(timeout, write).await;
    InputEnd::Aborted
}
