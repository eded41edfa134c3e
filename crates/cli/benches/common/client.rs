//! A minimal HTTP/1.1 client over TLS. It shares two cores with the server, so it uses as little
//! CPU as possible.

use std::{path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::BenchError;

/// A server to load.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) token: String,
    pub(crate) tls: Arc<ClientConfig>,
}

impl Target {
    /// Parses address, CA and token of a kubeconfig.
    pub(crate) fn read(kubeconfig: &Path) -> Result<Self, BenchError> {
        let text = std::fs::read_to_string(kubeconfig)?;
        let field = |key: &str| {
            let line = text
                .lines()
                .map(str::trim)
                .find_map(|l| l.strip_prefix(key))
                .ok_or_else(|| format!("no {key} in the kubeconfig"));
            line.map(|l| l.trim().trim_matches('"').to_owned())
        };
        let address = field("server:")?.trim_start_matches("https://").to_owned();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(
            &STANDARD.decode(field("certificate-authority-data:")?)?,
        )?)?;
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            address,
            token: field("token:")?,
            tls: Arc::new(config),
        })
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection, BenchError> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1")?;
        let tls = TlsConnector::from(self.tls.clone());
        let stream = tls.connect(name, stream).await?;
        Ok(Connection {
            stream,
            token: self.token.clone(),
            buffer: Vec::with_capacity(64 * 1024),
            unread: 0,
        })
    }
}

/// A ConfigMap of the size that was measured with kube-apiserver: about 650 bytes stored.
pub(crate) fn config_map(name: &str, version: usize) -> String {
    let filler = "x".repeat(370);
    let metadata = format!(r#"{{"name":"{name}","labels":{{"bench":"yes"}}}}"#);
    let data = format!(r#"{{"version":"{version}","filler":"{filler}"}}"#);
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{metadata},"data":{data}}}"#)
}

/// A persistent connection.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    token: String,
    pub(crate) buffer: Vec<u8>,
    /// The index of the first unread byte in `buffer`.
    pub(crate) unread: usize,
}

impl Connection {
    /// Sends a request and reads the response. Returns the length of its body.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<usize, BenchError> {
        self.send(method, path, body).await?;
        let (status, length) = self.head().await?;
        let length = length.ok_or("the response has no content-length")?;
        self.skip(length).await?;
        if status >= 300 {
            return Err(format!("{method} {path} returned {status}").into());
        }
        Ok(length)
    }

    /// Sends a request.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(), BenchError> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\
             Content-Type: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            if method == "PATCH" {
                "application/merge-patch+json"
            } else {
                "application/json"
            },
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        Ok(self.stream.flush().await?)
    }

    /// Reads the head of a response: status, and content-length if there is one.
    pub(crate) async fn head(&mut self) -> Result<(u16, Option<usize>), BenchError> {
        let end = loop {
            if let Some(position) = self.buffer[self.unread..]
                .windows(4)
                .position(|w| w == b"\r\n\r\n")
            {
                break self.unread + position;
            }
            self.fill().await?;
        };
        let head = std::str::from_utf8(&self.buffer[self.unread..end])?;
        let status = head.get(9..12).ok_or("no status")?.parse()?;
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: "))
            .map(str::parse)
            .transpose()?;
        self.unread = end + 4;
        Ok((status, length))
    }

    async fn skip(&mut self, mut length: usize) -> Result<(), BenchError> {
        loop {
            let available = length.min(self.buffer.len() - self.unread);
            self.unread += available;
            length -= available;
            if length == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    /// Reads more bytes.
    pub(crate) async fn fill(&mut self) -> Result<(), BenchError> {
        self.buffer.drain(..self.unread);
        self.unread = 0;
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(())
    }
}
