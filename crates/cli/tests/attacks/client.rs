//! HTTP/1.1 and HTTP/2 clients over TLS, with credentials and settings of their choice.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    net::TcpSocket,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The timeout of every response: shorter than what the attacks once took.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The receive buffer of a peer that does not read: what the kernel holds does not count.
const SMALL_RECEIVE_BUFFER_BYTES: u32 = 4096;

pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

/// The server's address, its CA, and the administrator's token.
#[derive(Clone)]
pub(crate) struct Endpoint {
    address: SocketAddr,
    roots: Arc<RootCertStore>,
    pub(crate) token: String,
}

impl Endpoint {
    pub(crate) fn from_kubeconfig(path: &str) -> Self {
        let text = fs::read_to_string(path).expect("a kubeconfig");
        let field = |key: &str| {
            let value = text.lines().find_map(|line| line.trim().strip_prefix(key));
            value.expect(key).trim().trim_matches('"').to_owned()
        };
        let authority = BASE64_STANDARD
            .decode(field("certificate-authority-data:"))
            .expect("base64");
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&authority).expect("PEM"))
            .expect("a CA");
        Self {
            address: field("server: https://").parse().expect("an address"),
            roots: Arc::new(roots),
            token: field("token:"),
        }
    }

    /// Opens a connection that speaks this protocol.
    pub(crate) async fn connect(&self, protocol: &str) -> TlsStream<tokio::net::TcpStream> {
        self.connect_from(TcpSocket::new_v4().expect("a socket"), protocol)
            .await
    }

    /// Opens a connection whose receive buffer is filled by a few kilobytes.
    pub(crate) async fn connect_unreading(&self) -> TlsStream<tokio::net::TcpStream> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .set_recv_buffer_size(SMALL_RECEIVE_BUFFER_BYTES)
            .expect("an open socket");
        self.connect_from(socket, "http/1.1").await
    }

    async fn connect_from(
        &self,
        socket: TcpSocket,
        protocol: &str,
    ) -> TlsStream<tokio::net::TcpStream> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let connecting = async {
            let stream = socket.connect(self.address).await?;
            TlsConnector::from(Arc::new(config))
                .connect(ServerName::from(self.address.ip()), stream)
                .await
        };
        timeout(RESPONSE_TIMEOUT, connecting)
            .await
            .expect("the server accepts connections")
            .expect("a handshake")
    }

    /// An HTTP/2 connection with these settings.
    pub(crate) async fn http2(&self, builder: &Builder<TokioExecutor>) -> SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.connect("h2").await);
        let (sender, connection) = builder.handshake(io).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }

    /// A client with this token.
    pub(crate) async fn client(&self, token: &str) -> Client {
        let builder = Builder::new(TokioExecutor::new());
        Client {
            sender: self.http2(&builder).await,
            authorization: format!("Bearer {token}").into_bytes(),
        }
    }
}

/// An HTTP/2 client of one user. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    pub(crate) authorization: Vec<u8>,
}

/// A response that was read.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) elapsed: Duration,
}

impl Response {
    /// Checks the status.
    #[track_caller]
    pub(crate) fn assert_status(&self, expected: u16) -> &Self {
        assert_eq!(self.status.as_u16(), expected, "{}", self.text());
        self
    }

    /// Checks that the response took at most this time.
    #[track_caller]
    pub(crate) fn assert_within(&self, max: Duration) -> &Self {
        assert!(self.elapsed <= max, "took {:?}", self.elapsed);
        self
    }

    /// Checks that the body contains a text.
    #[track_caller]
    pub(crate) fn assert_contains(&self, part: &str) -> &Self {
        let text = self.text();
        assert!(text.contains(part), "{part:?} is not in {text}");
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The first kilobyte of the body.
    fn text(&self) -> String {
        let start = &self.body[..self.body.len().min(1024)];
        String::from_utf8_lossy(start).into_owned()
    }
}

impl Client {
    /// Sends a request, and reads the response.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Response {
        let started = Instant::now();
        let responding = async {
            let response = self.start(method, path, content_type, body).await;
            let (head, body) = response.into_parts();
            (head, body.collect().await.expect("a body").to_bytes())
        };
        let (head, body) = timeout(RESPONSE_TIMEOUT, responding)
            .await
            .unwrap_or_else(|_| panic!("no response to {path}"));
        Response {
            status: head.status,
            headers: head.headers,
            body,
            elapsed: started.elapsed(),
        }
    }

    /// Sends a request, and returns the response with its body unread.
    pub(crate) async fn start(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> http::Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header(header::AUTHORIZATION, self.authorization.as_slice())
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body.into()))
            .expect("a request");
        let mut sender = self.sender.clone();
        sender.ready().await.expect("an open connection");
        sender.send_request(request).await.expect("a response")
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, JSON, "").await
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        self.send(Method::DELETE, path, JSON, "").await
    }

    pub(crate) async fn post(&self, path: &str, object: &Value) -> Response {
        self.send(Method::POST, path, JSON, object.to_string())
            .await
    }

    /// Creates an object.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Value {
        let created = self.post(path, object).await;
        created.assert_status(201);
        created.json()
    }
}
