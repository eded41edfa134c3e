//! Forwarded connections over SPDY: a stream for data and one for errors each.
//!
//! Streams with the same header `requestID` belong together. Mirrors `httpStreamHandler`.

use std::{collections::HashMap, time::Duration};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{ErrorSink, ForwardedConnection, ports};
use crate::{
    ByteStream, ConnectionOptions,
    spdy::{Connection, Headers, IncomingStream},
};

/// A client's connection, and connections of which only one stream has been created.
pub(super) struct SpdyForward {
    connection: Connection,
    /// By request ID. Bounded by the streams of the connection.
    pending: HashMap<String, Pending>,
    stream_creation_timeout: Duration,
}

/// A connection of which one stream is missing.
struct Pending {
    deadline: Instant,
    data: Option<(u16, ByteStream)>,
    errors: Option<ByteStream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamType {
    Data,
    Error,
}

impl SpdyForward {
    pub(super) fn new(connection: Connection, options: &ConnectionOptions) -> Self {
        Self {
            connection,
            pending: HashMap::new(),
            stream_creation_timeout: options.stream_creation_timeout,
        }
    }

    pub(super) fn closed(&self) -> CancellationToken {
        self.connection.closed()
    }

    pub(super) async fn close(self) {
        drop(self.pending);
        self.connection.close().await;
    }

    pub(super) async fn next(&mut self) -> Option<ForwardedConnection> {
        loop {
            let deadline = self.pending.values().map(|pair| pair.deadline).min();
            let expired = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let incoming = tokio::select! {
                incoming = self.connection.accept() => incoming?,
                () = expired => {
                    self.expire().await;
                    continue;
                }
            };
            if let Some(connection) = self.add(incoming).await {
                return Some(connection);
            }
        }
    }

    /// Adds a stream; returns the connection if it was the last one missing.
    async fn add(&mut self, incoming: IncomingStream) -> Option<ForwardedConnection> {
        let (port, stream_type) = match parse(incoming.headers()) {
            Ok(parsed) => parsed,
            Err(error) => {
                debug!(error, "stream rejected");
                return None;
            }
        };
        let id = request_id(&incoming, stream_type);
        let stream = incoming.accept().await.ok()?;
        let timeout = self.stream_creation_timeout;
        let pair = self.pending.entry(id.clone()).or_insert_with(|| Pending {
            deadline: Instant::now() + timeout,
            data: None,
            errors: None,
        });
        let is_repeated = match stream_type {
            StreamType::Data => pair.data.replace((port, stream)).is_some(),
            StreamType::Error => pair.errors.replace(stream).is_some(),
        };
        if is_repeated {
            debug!(
                request = id,
                ?stream_type,
                "a stream of a request is repeated"
            );
        }
        if pair.data.is_none() || pair.errors.is_none() {
            return None;
        }
        let pair = self.pending.remove(&id)?;
        let (port, data) = pair.data?;
        let errors = ErrorSink::new(pair.errors?);
        Some(ForwardedConnection { port, data, errors })
    }

    /// Ends connections whose second stream is late.
    async fn expire(&mut self) {
        let now = Instant::now();
        let late = self.pending.extract_if(|_, pair| pair.deadline <= now);
        let late: Vec<(String, Pending)> = late.collect();
        for (id, pair) in late {
            debug!(request = id, "timed out waiting for streams");
            if let Some(errors) = pair.errors {
                let message = format!("(request={id}) timed out waiting for streams");
                ErrorSink::new(errors).report(&message).await;
            }
        }
    }
}

/// Mirrors `httpStreamReceived`.
fn parse(headers: &Headers) -> Result<(u16, StreamType), String> {
    let port = headers.get("port").unwrap_or_default();
    if port.is_empty() {
        return Err(r#""port" header is required"#.to_owned());
    }
    let number = ports::parse(port);
    let number = number.map_err(|error| format!("unable to parse {port:?} as a port: {error}"))?;
    if number == 0 {
        return Err(format!("port {port:?} must be > 0"));
    }
    let stream_type = match headers.get("streamType").unwrap_or_default() {
        "data" => StreamType::Data,
        "error" => StreamType::Error,
        "" => return Err(r#""streamType" header is required"#.to_owned()),
        other => return Err(format!("invalid stream type {other:?}")),
    };
    Ok((number, stream_type))
}

/// The request of a stream. Old clients send none: they create the stream for errors first, so the
/// one for data has the next ID, which is larger by 2.
fn request_id(incoming: &IncomingStream, stream_type: StreamType) -> String {
    match incoming.headers().get("requestID") {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ => match stream_type {
            StreamType::Error => incoming.id().to_string(),
            StreamType::Data => incoming.id().saturating_sub(2).to_string(),
        },
    }
}
