//! Transports: a call in this process, or HTTPS with a kubeconfig.
//! Input: a request. Output: status and headers, then the body as a stream.

mod https; // any server on loopback
mod in_process; // a tower service, without a socket
mod kubeconfig; // server and user of a kubeconfig

use std::{error::Error, future::Future};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;

pub use https::Https;
pub use in_process::InProcess;

/// An answer whose body is still arriving.
pub type Reply = Response<UnsyncBoxBody<Bytes, TransportError>>;

/// Sends requests to one server, as one user. Requests are independent: they may be sent at the same time.
pub trait Transport: Send + Sync + 'static {
    /// The bearer token of the user, sent unless a scenario overrides it.
    fn token(&self) -> Option<&str>;

    /// Sends a request whose URI is a path; the answer is there once its headers are.
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Reply, TransportError>> + Send;
}

/// A server that could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub(crate) String);

impl TransportError {
    /// What failed, with its chain of causes on one line.
    pub(crate) fn new(what: &str, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let cause = cause.into();
        let mut text = format!("{what}: {cause}");
        let mut deeper = cause.source();
        while let Some(next) = deeper {
            text.push_str(&format!(": {next}"));
            deeper = next.source();
        }
        Self(text)
    }
}
