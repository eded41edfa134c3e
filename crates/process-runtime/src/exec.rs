//! A command in a running container.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::client::ShimClient;
use crate::config::Streams;
use crate::error::Error;
use crate::protocol::{ProcessSpec, Request, WaitStatus};
use crate::streams::{Input, Output, create_pipes};
use crate::terminal::Terminal;

/// A command in a running container. Dropping it kills the command.
pub struct ExecProcess {
    /// Its stdin, if requested. Dropping it ends the stream, except with a terminal.
    pub stdin: Option<Input>,
    /// Its stdout, or its terminal.
    pub stdout: Option<Output>,
    /// Its stderr; none with a terminal.
    pub stderr: Option<Output>,
    /// Its terminal, if requested.
    pub terminal: Option<Terminal>,
    process: u64,
    shim: Arc<ShimClient>,
    exit: Option<oneshot::Receiver<WaitStatus>>,
    exit_code: Option<i32>,
}

impl Drop for ExecProcess {
    fn drop(&mut self) {
        let container = self.process;
        // If the queue is full, the command is killed with its container.
        if self.exit_code.is_none() && !self.shim.try_send(Request::Kill { container }) {
            tracing::debug!("dropped command was not killed");
        }
    }
}

impl ExecProcess {
    pub(crate) async fn start(
        shim: &Arc<ShimClient>,
        container: u64,
        spec: ProcessSpec,
        streams: Streams,
    ) -> Result<Self, Error> {
        let (mut node, fds) = create_pipes(streams)?;
        let request = |process| Request::Exec {
            process,
            container,
            spec,
        };
        let (process, fds, exit) = shim.start(request, fds).await?;
        node.set_terminal(fds, streams)?;
        Ok(Self {
            stdin: node.stdin,
            stdout: node.stdout,
            stderr: node.stderr,
            terminal: node.terminal,
            process,
            shim: shim.clone(),
            exit: Some(exit),
            exit_code: None,
        })
    }

    /// Waits for the exit code: 128 and the number of the signal if it was killed.
    pub async fn wait(&mut self) -> i32 {
        if let Some(exit) = &mut self.exit {
            // Without a status the shim has ended, and killed the command.
            let sigkill = rustix::process::Signal::KILL.as_raw();
            let status = exit.await.unwrap_or(WaitStatus::Signaled(sigkill));
            self.exit = None;
            self.exit_code = Some(status.exit_code().0);
        }
        self.exit_code.unwrap_or_default()
    }
}
