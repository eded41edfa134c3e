//! The connections of a flood.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::sleep,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    common::{BenchError, client::Target},
    statistics::{Outcome, Statistics},
};

/// The pause after a failure to connect, so that the flood does not compute in a loop.
const RETRY: Duration = Duration::from_millis(100);

/// The receive buffer of a peer that does not read: what the kernel holds does not count.
const SMALL_RECEIVE_BUFFER_BYTES: u32 = 4096;

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A body of known length.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// An account that floods.
#[derive(Clone)]
pub(crate) struct Peer {
    address: SocketAddr,
    pub(crate) authorization: String,
    http1: TlsConnector,
    http2: TlsConnector,
    pub(crate) statistics: Arc<Statistics>,
}

impl Peer {
    pub(crate) fn new(target: &Target, statistics: &Arc<Statistics>) -> Self {
        let tls = |protocol: &[u8]| {
            let mut config = ClientConfig::clone(&target.tls);
            config.alpn_protocols = vec![protocol.to_vec()];
            // A complete handshake takes more of the server's time.
            config.resumption = Resumption::disabled();
            TlsConnector::from(Arc::new(config))
        };
        Self {
            address: target.address.parse().expect("an address of an interface"),
            authorization: format!("Bearer {}", target.token),
            http1: tls(b"http/1.1"),
            http2: tls(b"h2"),
            statistics: statistics.clone(),
        }
    }

    /// An HTTP/1.1 connection.
    pub(crate) async fn http1(&self) -> TlsStream<TcpStream> {
        loop {
            match self.connect(&self.http1, None).await {
                Ok(stream) => return stream,
                Err(_) => self.failed().await,
            }
        }
    }

    /// An HTTP/1.1 connection of which the kernel buffers only a few kilobytes.
    pub(crate) async fn http1_unreading(&self) -> TlsStream<TcpStream> {
        loop {
            let buffer = Some(SMALL_RECEIVE_BUFFER_BYTES);
            match self.connect(&self.http1, buffer).await {
                Ok(stream) => return stream,
                Err(_) => self.failed().await,
            }
        }
    }

    /// An HTTP/2 connection.
    pub(crate) async fn http2(&self, builder: &Builder<TokioExecutor>) -> SendRequest<Body> {
        loop {
            match self.try_http2(builder).await {
                Ok(sender) => return sender,
                Err(_) => self.failed().await,
            }
        }
    }

    async fn try_http2(
        &self,
        builder: &Builder<TokioExecutor>,
    ) -> Result<SendRequest<Body>, BenchError> {
        let stream = self.connect(&self.http2, None).await?;
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let statistics = self.statistics.clone();
        tokio::spawn(async move {
            // An error is a way of closing.
            let _closed = connection.await;
            statistics.count(Outcome::Closed);
        });
        Ok(sender)
    }

    async fn connect(
        &self,
        tls: &TlsConnector,
        receive_buffer_bytes: Option<u32>,
    ) -> Result<TlsStream<TcpStream>, BenchError> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(self.address).await?;
        let name = ServerName::from(self.address.ip());
        Ok(tls.connect(name, stream).await?)
    }

    async fn failed(&self) {
        self.statistics.count(Outcome::NotConnected);
        sleep(RETRY).await;
    }

    /// Sends a request on an HTTP/2 connection, and counts its outcome. `None` if there was no
    /// response.
    pub(crate) async fn send(
        &self,
        sender: &mut SendRequest<Body>,
        method: Method,
        path: &str,
        body: Body,
    ) -> Option<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .expect("a request");
        sender.ready().await.ok()?;
        match sender.send_request(request).await {
            Ok(response) => {
                let status = response.status().as_u16();
                self.statistics.count(Outcome::Status(status));
                Some(response)
            }
            Err(_) => {
                if !sender.is_closed() {
                    self.statistics.count(Outcome::Reset);
                }
                None
            }
        }
    }
}
