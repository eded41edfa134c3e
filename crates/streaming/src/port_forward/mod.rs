//! The server side of port-forward requests.
//!
//! Input: a request for an upgrade. Output: connections to ports, as the client opens them.
//!
//! ```no_run
//! use bellerophon_streaming::{ConnectionOptions, port_forward};
//! use http::{Request, Response};
//! use hyper::body::Incoming;
//! use tokio::net::TcpStream;
//!
//! fn forward(mut request: Request<Incoming>) -> Response<String> {
//!     let upgrade = port_forward::upgrade(&mut request, &ConnectionOptions::default());
//!     if let Some(upgraded) = upgrade.upgraded {
//!         tokio::spawn(async move {
//!             let Ok(forward) = upgraded.connections().await else { return };
//!             forward
//!                 .run("pod web", |port| TcpStream::connect(("127.0.0.1", port)))
//!                 .await;
//!         });
//!     }
//!     upgrade.response
//! }
//! ```

mod ports;
mod relay;
mod spdy;

use std::{fmt, future::Future, io, time::Duration};

use bytes::Bytes;
use http::Request;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::{relay::Relay, spdy::SpdyForward};
use crate::{
    ByteStream, ByteWriter, ConnectionOptions, Error, Upgrade,
    upgrade::{self, Accepted, Refusal},
    websocket::{self, Channels, Codec, Tunnel},
};

/// The protocol of port-forward over SPDY.
const V1: &str = "portforward.k8s.io";
/// The same within WebSocket messages.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const V4_BASE64: &str = "v4.base64.channel.k8s.io";

/// Handles a request for port-forward.
///
/// The response must be sent for the connections to exist. It is 101, or an error with the status,
/// headers and message of Kubernetes: 400 if the request is no upgrade, or for WebSocket channels
/// without valid ports in its query; 403 if there is no common protocol.
pub fn upgrade<B>(
    request: &mut Request<B>,
    options: &ConnectionOptions,
) -> Upgrade<UpgradedForward> {
    match negotiate(request) {
        Err(refusal) => Upgrade::refused(refusal),
        Ok((accepted, transport)) => Upgrade {
            response: accepted.response,
            upgraded: Some(UpgradedForward {
                on_upgrade: accepted.on_upgrade,
                transport,
                options: options.clone(),
            }),
        },
    }
}

/// How connections are carried.
#[derive(Debug)]
enum Transport {
    Spdy,
    Tunnel,
    Channels { codec: Codec, ports: Vec<u16> },
}

fn negotiate<B>(request: &mut Request<B>) -> Result<(Accepted, Transport), Refusal> {
    if !upgrade::is_websocket(request) {
        let accepted = upgrade::spdy(request, &[V1])?;
        return Ok((accepted, Transport::Spdy));
    }
    let offered = upgrade::websocket_protocols(request);
    if offered.iter().any(|name| is_tunnel(name)) {
        let accepted = upgrade::websocket(request, &[TUNNEL])?;
        return Ok((accepted, Transport::Tunnel));
    }
    let ports = ports::from_query(request.uri().query().unwrap_or_default())?;
    let accepted = upgrade::websocket(request, &[V4, V4_BASE64, ""])?;
    let codec = match accepted.protocol.as_str() {
        V4_BASE64 => Codec::Base64,
        _ => Codec::Binary,
    };
    Ok((accepted, Transport::Channels { codec, ports }))
}

/// Mirrors `protocolSupportsWebsocketTunneling`.
fn is_tunnel(protocol: &str) -> bool {
    protocol.starts_with("SPDY/3.1+") && protocol.ends_with(".k8s.io")
}

/// A port-forward request that was accepted.
#[derive(Debug)]
pub struct UpgradedForward {
    on_upgrade: hyper::upgrade::OnUpgrade,
    transport: Transport,
    options: ConnectionOptions,
}

impl UpgradedForward {
    /// Waits until the response is sent.
    ///
    /// # Errors
    ///
    /// If the connection cannot be upgraded.
    pub async fn connections(self) -> Result<PortForward, Error> {
        let io = TokioIo::new(self.on_upgrade.await?);
        let options = &self.options;
        let source = match self.transport {
            Transport::Spdy => {
                let connection = crate::spdy::Connection::server(io, options);
                Source::Spdy(SpdyForward::new(connection, options))
            }
            Transport::Tunnel => {
                let tunnel = Tunnel::new(websocket::server(io, options).await);
                let connection = crate::spdy::Connection::server(tunnel, options);
                Source::Spdy(SpdyForward::new(connection, options))
            }
            Transport::Channels { codec, ports } => {
                let socket = websocket::server(io, options).await;
                let channels = ports::channel_options(codec, &ports);
                let (channels, streams) = Channels::spawn(socket, channels, options);
                let connections = ports::connections(&ports, streams);
                Source::Channels {
                    channels,
                    connections,
                }
            }
        };
        Ok(PortForward {
            source,
            close_timeout: options.close_timeout,
        })
    }
}

/// The connections that a client forwards over one request.
pub struct PortForward {
    source: Source,
    close_timeout: Duration,
}

enum Source {
    Spdy(SpdyForward),
    Channels {
        channels: Channels,
        /// Those that are not yet taken.
        connections: std::vec::IntoIter<ForwardedConnection>,
    },
}

/// One connection to a port.
#[derive(Debug)]
pub struct ForwardedConnection {
    /// The port that the client wants to reach.
    pub port: u16,
    /// What the client sends and receives.
    pub data: ByteStream,
    /// Where the client learns why the connection failed.
    pub errors: ErrorSink,
}

/// Where a client learns why a forwarded connection failed. Dropping it reports no error.
#[derive(Debug)]
pub struct ErrorSink(ByteWriter);

impl ErrorSink {
    pub(crate) fn new(stream: ByteStream) -> Self {
        Self(stream.into_split().1)
    }

    /// Reports an error. Since 1.23, kubectl ends the whole port-forward after one.
    pub async fn report(mut self, message: &str) {
        if let Err(error) = self.0.write_all(message.as_bytes()).await {
            debug!(%error, message, "cannot report an error of a forwarded connection");
        }
    }
}

impl PortForward {
    /// The next connection; None once there can be no more.
    ///
    /// Not cancel safe: a stream that is being accepted is reset, and kubectl then closes the local
    /// connection that it belongs to.
    pub async fn next(&mut self) -> Option<ForwardedConnection> {
        match &mut self.source {
            Source::Spdy(forward) => forward.next().await,
            Source::Channels { connections, .. } => connections.next(),
        }
    }

    /// Whether the client sees the end of one connection. WebSocket channels end together.
    pub fn has_half_close(&self) -> bool {
        matches!(self.source, Source::Spdy(_))
    }

    /// Cancelled once the client is gone, or the connection was idle for too long.
    pub fn closed(&self) -> CancellationToken {
        match &self.source {
            Source::Spdy(forward) => forward.closed(),
            Source::Channels { channels, .. } => channels.closed(),
        }
    }

    /// Ends all connections and waits until the client has closed too, at most the close timeout.
    pub async fn close(self) {
        match self.source {
            Source::Spdy(forward) => forward.close().await,
            Source::Channels { channels, .. } => channels.close().await,
        }
    }

    /// Dials every port that the client requests and copies in both directions, until the client
    /// disconnects. Half-closed connections work in both directions if the protocol has them.
    ///
    /// A failure to dial is reported to the client; `target` names what was dialed. A connection
    /// that breaks later ends as far as the client sees, since kubectl ends all others otherwise.
    pub async fn run<D, F, S>(mut self, target: &str, dial: D)
    where
        D: Fn(u16) -> F,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let has_half_close = self.has_half_close();
        let closed = self.closed();
        let mut relays = JoinSet::new();
        // The end of a relay must not cancel `next`: that resets a stream that is being accepted.
        while let Some(connection) = self.next().await {
            let relay = Relay {
                target: target.to_owned(),
                has_half_close,
                closed: closed.clone(),
                close_timeout: self.close_timeout,
            };
            let dialed = dial(connection.port);
            relays.spawn(relay.run(connection, dialed));
            while let Some(ended) = relays.try_join_next() {
                log_failure(target, ended);
            }
        }
        while let Some(ended) = relays.join_next().await {
            log_failure(target, ended);
        }
        self.close().await;
    }
}

impl fmt::Debug for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortForward").finish_non_exhaustive()
    }
}

fn log_failure(target: &str, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        debug!(target, %error, "the task of a forwarded connection failed");
    }
}

/// What a server sends on a channel of a port first.
fn port_message(port: u16) -> Bytes {
    Bytes::copy_from_slice(&port.to_le_bytes())
}
