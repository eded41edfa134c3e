//! Container streams: what the kubelet's HTTP server needs of a container runtime.
//!
//! In: a pod and the name of a container. Out: logs, commands and connections as byte streams; the
//! measured usage of resources.
//! Guarantees: the server has found pod and container in the API before it calls the runtime;
//! whether the container runs is known to the runtime alone.

use std::io;

use bellerophon_streaming::remote_command::TerminalSize;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Streams of the containers of a node, for the kubelet's HTTP server.
pub(crate) trait ContainerStreams: Send + Sync + 'static {
    /// Follows or reads the log of a container (upstream: GetContainerLogs).
    fn logs(
        &self,
        pod: &PodRef,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<LogStream, StreamError>>;

    /// Runs a command in a container (upstream: GetExec).
    fn exec(
        &self,
        pod: &PodRef,
        container: &str,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>>;

    /// Attaches to the main process of a container (upstream: GetAttach).
    fn attach(
        &self,
        pod: &PodRef,
        container: &str,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>>;

    /// Whether ports of a pod can be connected to (upstream: GetPortForward). Its error is the
    /// response to the request; an error of [`dial`](Self::dial) is that of one connection.
    fn port_forward(&self, _pod: &PodRef) -> Result<(), StreamError> {
        Ok(())
    }

    /// Connects to a port of a pod.
    fn dial(&self, pod: &PodRef, port: u16) -> BoxFuture<'_, Result<BoxedIo, StreamError>>;

    /// What a running container has used (the CRI's ContainerStats); `None` if it is not measured.
    /// Then the statistics show the simulated usage.
    fn usage(&self, _pod: &PodRef, _container: &str) -> BoxFuture<'_, Option<Usage>> {
        ready(None).boxed()
    }
}

/// The measured usage of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time since the start of the container, in nanoseconds.
    pub(crate) cpu_nanos_total: u64,
    /// Memory that cannot be reclaimed under pressure, in bytes.
    pub(crate) memory_working_set: u64,
}

/// A pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Which part of a log to return; the fields of `v1.PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// Waits for more lines until the container ends.
    pub(crate) follow: bool,
    /// The log of the previous instance of the container.
    pub(crate) previous: bool,
    /// At least 1. At most one of `since_seconds` and `since_time` is set.
    pub(crate) since_seconds: Option<i64>,
    pub(crate) since_time: Option<Timestamp>,
    /// Prefixes every line with its time.
    pub(crate) timestamps: bool,
    /// The number of lines from the end at which to begin; at least 0.
    pub(crate) tail_lines: Option<i64>,
    /// The number of bytes after which the log ends; at least 1.
    pub(crate) limit_bytes: Option<i64>,
}

impl LogOptions {
    /// The time of the oldest line to return.
    pub(crate) fn since(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = self.since_seconds.map(SignedDuration::from_secs);
        let ago = seconds.map(|ago| now.checked_sub(ago).unwrap_or(Timestamp::MIN));
        ago.or(self.since_time)
    }
}

/// The streams of a process that a client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    /// Never together with a terminal, which has only one output.
    pub(crate) stderr: bool,
    /// The process runs in a terminal.
    pub(crate) tty: bool,
}

/// The log of a container.
pub(crate) type LogStream = BoxStream<'static, io::Result<Bytes>>;

/// What a process writes.
pub(crate) type BoxedReader = Box<dyn AsyncRead + Send + Unpin>;

/// What a process reads.
pub(crate) type BoxedWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// Changes the size of a terminal.
pub(crate) type Resize = Box<dyn Fn(TerminalSize) -> io::Result<()> + Send + Sync>;

/// A connection to a port of a pod.
pub(crate) type BoxedIo = Box<dyn ByteStream>;

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A process with the requested streams. Dropping it kills a command of `exec`, and detaches from
/// the main process of a container.
pub(crate) struct Process {
    pub(crate) stdin: Option<BoxedWriter>,
    /// Ends when the process has closed it.
    pub(crate) stdout: Option<BoxedReader>,
    pub(crate) stderr: Option<BoxedReader>,
    /// `None` without a terminal.
    pub(crate) resize: Option<Resize>,
    /// The exit code. Its value is ignored for the main process of a container.
    pub(crate) exit: BoxFuture<'static, io::Result<i32>>,
}

/// Why there is no stream. The text is the one that clients see.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum StreamError {
    /// The pod or container does not exist, or does not run.
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense for the container.
    #[error("{0}")]
    BadRequest(String),
    /// The runtime has no such streams.
    #[error("{0}")]
    Unsupported(String),
    /// The runtime failed.
    #[error("{0}")]
    Internal(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_count_from_now() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let options = LogOptions {
            since_seconds: Some(90),
            ..LogOptions::default()
        };
        let expected = "2026-01-01T11:58:30Z".parse().unwrap();
        assert_eq!(options.since(now), Some(expected));
        let options = LogOptions {
            since_seconds: Some(i64::MAX),
            ..LogOptions::default()
        };
        assert_eq!(options.since(now), Some(Timestamp::MIN));
        assert_eq!(LogOptions::default().since(now), None);
    }
}
