//! Requests to a tower service in this process, without a socket.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt};

use super::{Reply, Transport, TransportError};

type Call =
    dyn Fn(Request<Bytes>) -> BoxFuture<'static, Result<Reply, TransportError>> + Send + Sync;

/// Calls a service; every request gets a clone of it.
pub struct InProcess {
    call: Box<Call>,
}

impl InProcess {
    /// A transport to `service`, which determines the user of requests without credentials.
    pub fn new<S, R>(service: S) -> Self
    where
        S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let call =
            move |request: Request<Bytes>| -> BoxFuture<'static, Result<Reply, TransportError>> {
                let service = service.clone();
                Box::pin(async move {
                    let reply = service
                        .oneshot(request.map(Full::new))
                        .await
                        .map_err(|e| TransportError::new("the service failed", e))?;
                    Ok(reply.map(|body| {
                        body.map_err(|e| TransportError::new("the body broke off", e))
                            .boxed_unsync()
                    }))
                })
            };
        Self {
            call: Box::new(call),
        }
    }
}

impl Transport for InProcess {
    fn token(&self) -> Option<&str> {
        None
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Reply, TransportError> {
        (self.call)(request).await
    }
}
