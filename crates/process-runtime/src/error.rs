//! Errors of the runtime.

use std::io;

use serde::{Deserialize, Serialize};

/// Why a sandbox could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This system cannot run pods as processes.
    #[error("cannot run pods as processes: {0}")]
    Unsupported(String),
    /// The sandbox could not be created, or a request to it failed.
    #[error("{0}")]
    Sandbox(String),
    /// The sandbox has ended.
    #[error("the pod sandbox has ended")]
    Ended,
    /// The container has ended, so nothing can be executed in it.
    #[error("the container is not running")]
    NotRunning,
    /// The process could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What prevented the start of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartErrorKind {
    /// The program does not exist.
    NotFound,
    /// The program exists and cannot be executed.
    NotExecutable,
    /// The working directory cannot be entered.
    WorkingDirectory,
    /// A volume cannot be mounted.
    Mount,
    /// The user, the cgroup, a namespace or a terminal cannot be set up.
    Setup,
}

/// Why a process could not be started. The message is worded as by OCI runtimes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct StartError {
    /// What prevented the start.
    pub kind: StartErrorKind,
    /// What failed, and why.
    pub message: String,
}

impl StartError {
    /// The reason in the status of the container, as container runtimes report it.
    pub const REASON: &'static str = "StartError";
    /// The exit code in the status of a container that did not start, as container runtimes
    /// report it.
    pub const EXIT_CODE: i32 = 128;

    pub(crate) fn new(kind: StartErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The exit code that a shell gives to a command that cannot be started: 127 if it does not
    /// exist, otherwise 126. `exec` returns it.
    pub fn shell_exit_code(&self) -> i32 {
        match self.kind {
            StartErrorKind::NotFound => 127,
            _ => 126,
        }
    }
}
