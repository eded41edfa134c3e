//! Non-resource endpoints of the program that embeds the server.
//! In: the query of a request. Out: a streamed text body.
//! Guarantees: a body ends when the server stops.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, Response, header};
use tokio_util::sync::CancellationToken;

use crate::http::body::Body;

type Pieces = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// An endpoint of the embedding program.
pub(crate) struct CustomEndpoint {
    path: &'static str,
    write: Box<dyn Fn(&str) -> Pieces + Send + Sync>,
}

impl std::fmt::Debug for CustomEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Page").field(&self.path).finish()
    }
}

impl CustomEndpoint {
    /// A page that is made for each request.
    pub(crate) fn new<S>(
        path: &'static str,
        write: impl Fn(&str) -> S + Send + Sync + 'static,
    ) -> Self
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        Self {
            path,
            write: Box::new(move |query| Box::pin(write(query))),
        }
    }

    /// Whether it is at this path.
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.path == path
    }

    /// The answer to a request with this query.
    pub(super) fn answer(&self, query: &str, stopping: CancellationToken) -> Response<Body> {
        let mut response = Response::new(Body::stream(
            (self.write)(query).take_until(stopping.cancelled_owned()),
        ));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        response
    }
}
