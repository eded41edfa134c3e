//! A child process with its own process group: a build, or the operator.
//!
//! Guarantee: when it is stopped or dropped, no process of the group is left.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// How long a process may take to end after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(2);

/// A running process and those that it starts.
#[derive(Debug)]
pub(super) struct ProcessGroup(Child);

impl ProcessGroup {
    /// Starts a command as the leader of a group, so that Ctrl-C in the terminal does not reach it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        command.spawn().map(Self)
    }

    /// The output of a command that was started with a pipe.
    pub(super) fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Waits for the end of the process. Cancel safe.
    ///
    /// # Errors
    /// The operating system does not return the exit status.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait().await
    }

    /// Stops the process: SIGTERM, then SIGKILL for what is left of the group.
    pub(super) async fn stop(mut self) {
        self.signal(Signal::Terminate);
        let ended = timeout(STOP_MAX, self.0.wait()).await;
        self.signal(Signal::Kill);
        if ended.is_err() {
            // Killed above, so it ends.
            let _ended = self.0.wait().await;
        }
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        let id = self.0.id().and_then(|id| i32::try_from(id).ok());
        // Without an id the leader was waited for, and others of the group ended with their pipes.
        if let Some(group) = id.and_then(rustix::process::Pid::from_raw) {
            let signal = match signal {
                Signal::Terminate => rustix::process::Signal::TERM,
                Signal::Kill => rustix::process::Signal::KILL,
            };
            // The group may have ended.
            let _sent = rustix::process::kill_process_group(group, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&self, _: Signal) {}
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
    }
}

#[derive(Clone, Copy)]
enum Signal {
    Terminate,
    Kill,
}
