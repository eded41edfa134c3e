//! Timeouts and limits of a connection.

use std::time::Duration;

/// Timeouts and limits of one upgraded connection.
///
/// The defaults are those of kubelet: 4 hours idle, 30 seconds until the client has created its
/// streams, WebSocket messages of up to 32 MiB, no pings from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// How long a connection may be idle before it is closed. In SPDY any frame in either direction
    /// counts, including pings; in WebSocket channels only messages with data, as in Kubernetes.
    pub idle_timeout: Duration,
    /// How long the client may take to create the streams of an exec or attach request, or the
    /// second stream of a forwarded connection.
    pub stream_creation_timeout: Duration,
    /// How long closing may take: writing what is queued, then waiting for the client to close.
    pub close_timeout: Duration,
    /// The interval in which the server pings the client. None: never.
    pub ping_interval: Option<Duration>,
    /// The size of the largest WebSocket message accepted, in bytes. A larger one ends the connection.
    pub message_bytes_max: usize,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(4 * 60 * 60),
            stream_creation_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(30),
            ping_interval: None,
            message_bytes_max: 32 << 20,
        }
    }
}
