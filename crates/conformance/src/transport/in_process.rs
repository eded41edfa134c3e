//! A server in this process: a tower service, called without a socket.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Service, ServiceExt};

use super::{Reply, Transport, TransportError};

type Call = dyn Fn(Request<Bytes>) -> BoxFuture<'static, Result<Reply, TransportError>> + Send + Sync;

/// Calls a service; every request gets a clone of it.
pub struct InProcess {
    call: Box<Call>,
    token: Option<String>,
}

impl InProcess {
    /// A transport to `service`, asking with `token` if there is one.
    pub fn new<S, Q, R>(service: S, token: Option<String>) -> Self
    where
        S: Service<Request<Q>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
        Q: From<Bytes> + Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let call = move |request: Request<Bytes>| -> BoxFuture<'static, Result<Reply, TransportError>> {
            let service = service.clone();
            Box::pin(async move {
                let reply = service.oneshot(request.map(Q::from)).await.map_err(|e| TransportError::new("the service failed", e))?;
                Ok(reply.map(|body| body.map_err(|e| TransportError::new("the body broke off", e)).boxed_unsync()))
            })
        };
        Self { call: Box::new(call), token }
    }
}

impl Transport for InProcess {
    fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Reply, TransportError> {
        (self.call)(request).await
    }
}
