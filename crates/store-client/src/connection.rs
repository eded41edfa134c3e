//! The HTTP/2 connection to one endpoint, shared by all requests.
//!
//! In: requests. Out: responses, or an error that states whether the request was sent.
//! Guarantees: a connection is opened when it is needed and replaced after it ended. Dead peers are
//! found by pings.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::debug;

use crate::endpoint::Endpoint;
use crate::{dial::ByteStream, options::ClientOptions};

/// The body of a request: bytes, or a file that is read while it is sent.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// How often an idle peer must acknowledge a ping, and how soon.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Flow-control windows: a page of a list, and several of them per connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// An endpoint and its connection.
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    sender: Mutex<Option<SendRequest<RequestBody>>>,
}

/// Why there is no response.
pub(crate) enum SendError {
    /// The request was not sent.
    NotSent(String),
    /// The request may have been processed.
    Sent(String),
}

impl Connection {
    pub(crate) fn new(endpoint: Endpoint) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            sender: Mutex::new(None),
        })
    }

    /// Sends a request and returns the head of the response.
    pub(crate) async fn send(
        &self,
        options: &ClientOptions,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let mut sender = self.sender(options).await.map_err(SendError::NotSent)?;
        sender.try_send_request(request).await.map_err(|mut error| {
            let cause = cause_chain(error.error());
            match error.take_message() {
                Some(_) => SendError::NotSent(cause),
                None => SendError::Sent(cause),
            }
        })
    }

    /// The open connection, or a new one.
    async fn sender(&self, options: &ClientOptions) -> Result<SendRequest<RequestBody>, String> {
        if let Some(mut sender) = self.open()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let sender = timeout(options.dial_timeout, self.connect(options))
            .await
            .map_err(|_| format!("no connection within {:?}", options.dial_timeout))?
            .map_err(|error| error.to_string())?;
        // Concurrent requests may each open a connection; the last one stays.
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        Ok(sender)
    }

    fn open(&self) -> Option<SendRequest<RequestBody>> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender
            .as_ref()
            .filter(|sender| !sender.is_closed())
            .cloned()
    }

    async fn connect(&self, options: &ClientOptions) -> io::Result<SendRequest<RequestBody>> {
        let stream = options.dialer.dial(&self.endpoint).await?;
        let stream = self.encrypted(options, stream).await?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let endpoint = self.endpoint.clone();
        // The task ends with the connection: when all senders are dropped, or the peer closes it.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%endpoint, %error, "connection to the store ended");
            }
        });
        Ok(sender)
    }

    async fn encrypted(
        &self,
        options: &ClientOptions,
        stream: Box<dyn ByteStream>,
    ) -> io::Result<Box<dyn ByteStream>> {
        if !self.endpoint.is_https {
            return Ok(stream);
        }
        let tls = options.tls.as_ref().ok_or_else(|| {
            io::Error::other("no certificate authority is configured for an https endpoint")
        })?;
        let name = ServerName::try_from(self.endpoint.host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(tls.config.clone())
            .connect(name, stream)
            .await?;
        Ok(Box::new(stream))
    }
}

/// An error and its causes on one line.
pub(crate) fn cause_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
