//! A client that sends arbitrary bytes over TLS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bellerophon_apiserver::{ApiServer, Builder};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::log;

/// On the wall clock: whatever is sent, the answer does not take this long.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A server under attack, and the administrator's token: an attack that stops at the door proves
/// little.
pub(crate) struct Target {
    pub(crate) server: ApiServer,
    address: SocketAddr,
    authority: String,
    pub(crate) token: String,
}

/// What came back: nothing but a close, or an answer.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// 0 when the connection was closed without an answer.
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Target {
    pub(crate) async fn start() -> Self {
        Self::start_with(ApiServer::builder()).await
    }

    pub(crate) async fn start_with(builder: Builder) -> Self {
        log::install();
        let server = builder
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .start()
            .await
            .expect("a free port");
        let kubeconfig = server.kubeconfig().expect("it listens");
        let after = |key: &str| {
            let line = kubeconfig
                .lines()
                .find_map(|line| line.trim().strip_prefix(key));
            line.expect(key).trim().trim_matches('"').to_owned()
        };
        let authority = BASE64_STANDARD
            .decode(after("certificate-authority-data:"))
            .expect("base64");
        let address = after("server: https://").parse().expect("an address");
        let authority = String::from_utf8(authority).expect("PEM");
        let token = after("token:");
        Self {
            server,
            address,
            authority,
            token,
        }
    }

    /// A connection that speaks this protocol.
    pub(crate) async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.as_bytes()).expect("PEM"))
            .expect("an authority");
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address)
            .await
            .expect("the server listens");
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::from(self.address.ip()), stream)
            .await
            .expect("a handshake")
    }

    /// Sends bytes and reads until the server closes.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Outcome {
        let mut stream = self.connect("http/1.1").await;
        // The server may answer and close before it has read everything.
        let _written = stream.write_all(bytes).await;
        finish(&mut stream).await
    }

    /// Sends bytes, shuts down its side for writing, and reads until the server closes.
    pub(crate) async fn send_all(&self, bytes: &[u8]) -> Outcome {
        let mut stream = self.connect("http/1.1").await;
        let _written = stream.write_all(bytes).await;
        let _closed = stream.shutdown().await;
        finish(&mut stream).await
    }

    /// Sends a request with a body, as the administrator.
    pub(crate) async fn request(&self, line: &str, content_type: &str, body: &[u8]) -> Outcome {
        let token = &self.token;
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        self.send(&[head.as_bytes(), body].concat()).await
    }

    /// The server still serves, and never panicked.
    pub(crate) async fn must_be_well(self) {
        let answer = self
            .request("GET /api/v1/namespaces/default", "", b"")
            .await;
        assert_eq!(answer.code, 200, "{answer:?}");
        assert_eq!(log::logged_errors(), Vec::<String>::new());
        self.server.shutdown().await;
    }
}

/// Reads what is left of a connection.
pub(crate) async fn finish(stream: &mut TlsStream<TcpStream>) -> Outcome {
    let mut bytes = Vec::new();
    // A cut without a TLS goodbye is an error to the client, and as clean a close as any.
    let _end = timeout(ANSWER_MAX, stream.read_to_end(&mut bytes))
        .await
        .expect("an answer or a close in time");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let code = text
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_default();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Outcome {
        code,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

impl Outcome {
    /// An error as a client understands it: a Status, plain text for a path that is not served, or
    /// a close by the HTTP layer.
    pub(crate) fn is_clean(&self) -> bool {
        let status = || {
            serde_json::from_str::<Value>(&self.body)
                .is_ok_and(|body| body["kind"] == "Status" && body["code"] == self.code)
        };
        match self.code {
            0 | 200 | 201 => true,
            400 | 414 | 431 if self.body.is_empty() => true,
            404 if self.body == "404 page not found\n" => true,
            406 if self.body.starts_with("only the following media types") => true,
            _ => status(),
        }
    }
}
