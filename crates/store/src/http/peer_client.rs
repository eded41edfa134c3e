//! The peer transport over HTTP/2.
//!
//! In: messages of this member. Out: responses of other members.
//! Guarantees: with TLS, the certificate proves the receiver. A connection is opened by one task,
//! which continues if a message is cancelled, so a slow handshake is not restarted. Snapshots have
//! a separate connection and do not delay other messages.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt as _, StreamExt as _, TryStreamExt as _,
    future::{BoxFuture, Shared},
    stream,
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tracing::debug;

use super::{body::full, peer_server};
use crate::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, TransportError,
    api::{ClusterId, ErrorBody, MemberId, Reason, StoreError},
    tls::{Tls, member_name},
};

/// From the dial to the end of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A peer that does not acknowledge a ping is unreachable: a few election timeouts.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Flow-control windows: several messages of 1 MiB.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Connections of one member. When it is reached, all are closed and opened again when needed.
const CONNECTIONS_MAX: usize = 256;

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Sender = SendRequest<Body>;
type Connecting = Shared<BoxFuture<'static, Result<Sender, String>>>;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    Messages,
    Snapshots,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConnectionKey {
    member: MemberId,
    address: String,
    purpose: Purpose,
}

/// Sends messages over HTTP/2, with mutual TLS unless there are no certificates.
pub(crate) struct HttpTransport {
    tls: Option<Arc<Tls>>,
    connections: Mutex<HashMap<ConnectionKey, Connecting>>,
}

impl HttpTransport {
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Arc<Self> {
        Arc::new(Self {
            tls,
            connections: Mutex::default(),
        })
    }

    /// The connection to a member, which may still be in progress.
    fn connection(&self, key: ConnectionKey, cluster: &ClusterId) -> Connecting {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connecting) = connections.get(&key)
            && is_usable(connecting)
        {
            return connecting.clone();
        }
        if connections.len() >= CONNECTIONS_MAX {
            connections.clear();
        }
        let connecting = self.connect(&key, cluster);
        connections.insert(key, connecting.clone());
        connecting
    }

    /// Opens a connection in a task, which ends with the handshake or its timeout.
    fn connect(&self, key: &ConnectionKey, cluster: &ClusterId) -> Connecting {
        let tls = self
            .tls
            .as_ref()
            .map(|tls| tls.configs().peer_client.clone());
        let name = member_name(key.member, cluster);
        let address = key.address.clone();
        let connect = async move {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            let Some(config) = tls else {
                return handshake(stream).await;
            };
            let name = ServerName::try_from(name).map_err(io::Error::other)?;
            handshake(TlsConnector::from(config).connect(name, stream).await?).await
        };
        let task = tokio::spawn(timeout(CONNECT_TIMEOUT, connect));
        let connecting = async move {
            match task.await {
                Ok(Ok(Ok(sender))) => Ok(sender),
                Ok(Ok(Err(error))) => Err(error.to_string()),
                Ok(Err(_)) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        connecting.boxed().shared()
    }

    async fn exchange(
        connecting: Connecting,
        request: Request<Body>,
    ) -> Result<PeerResponse, TransportError> {
        let mut sender = connecting.await.map_err(TransportError::Unreachable)?;
        let response = sender
            .try_send_request(request)
            .await
            .map_err(|mut error| {
                let cause = error.error().to_string();
                match error.take_message() {
                    Some(_) => TransportError::Unreachable(cause),
                    None => TransportError::Lost(cause),
                }
            })?;
        receive(response).await
    }
}

impl PeerTransport for HttpTransport {
    fn send(
        &self,
        to: PeerAddress,
        request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        let purpose = if request.snapshot.is_some() {
            Purpose::Snapshots
        } else {
            Purpose::Messages
        };
        let authority = to.address.clone();
        let key = ConnectionKey {
            member: to.member,
            address: to.address,
            purpose,
        };
        let connecting = self.connection(key, &request.cluster);
        Box::pin(async move {
            let request = http_request(&authority, request)
                .map_err(|error| TransportError::Unreachable(error.to_string()))?;
            Self::exchange(connecting, request).await
        })
    }
}

/// Whether a connection is in progress or open.
fn is_usable(connecting: &Connecting) -> bool {
    match connecting.peek() {
        None => true,
        Some(Ok(sender)) => !sender.is_closed(),
        Some(Err(_)) => false,
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<Sender> {
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // The task ends with the connection: when all senders are dropped, or the peer closes it.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "connection to a peer ended");
        }
    });
    Ok(sender)
}

fn http_request(authority: &str, request: PeerRequest) -> http::Result<Request<Body>> {
    let builder = Request::post(format!("https://{authority}{}", peer_server::PATH))
        .header(peer_server::CLUSTER, request.cluster.as_str())
        .header(peer_server::FROM, request.from)
        .header(peer_server::TO, request.to)
        .header(peer_server::MESSAGE_BYTES, request.message.len());
    let body = match request.snapshot {
        None => full(request.message),
        Some(snapshot) => {
            let message = stream::iter([Ok(request.message)]);
            let parts = message.chain(snapshot).map_ok(Frame::data);
            UnsyncBoxBody::new(StreamBody::new(parts))
        }
    };
    builder.body(body)
}

async fn receive(response: Response<Incoming>) -> Result<PeerResponse, TransportError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), PeerRequest::MESSAGE_BYTES_MAX);
    let body = body
        .collect()
        .await
        .map_err(|error| TransportError::Lost(error.to_string()))?
        .to_bytes();
    if status.is_success() {
        return Ok(PeerResponse { message: body });
    }
    let error = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => StoreError(Box::new(body)),
        Err(_) => StoreError::new(
            Reason::Other,
            format!("the peer responded with status {status}; check its address"),
        ),
    };
    Err(TransportError::Refused(error))
}
