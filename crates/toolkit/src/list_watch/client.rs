//! A Kubernetes API server as a source.
//! In: requests of a reflector. Out: the server's responses, split into objects.
//! Guarantees: metadata-only kinds request `PartialObjectMetadata`; objects share the buffer they
//! were received in; nothing follows an error.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{
    AsyncBufRead, AsyncReadExt, FutureExt, StreamExt,
    future::BoxFuture,
    io::{AsyncBufReadExt, ErrorKind},
    stream,
};
use http::{HeaderValue, header};
use kube::{
    Client,
    api::{ListParams, WatchParams},
    core::Request,
};

use super::{
    ListPage, ListRequest, ListWatch, ListWatchError, WatchEvent, WatchFrom, WatchRequest,
    WatchStream,
    decode::{event, page},
};

/// A longer event breaks the watch. Servers store objects of at most 1.5 MB with etcd's defaults.
const EVENT_LENGTH_MAX: u64 = 64 << 20;

/// Lists and watches one resource on a Kubernetes API server.
///
/// ```
/// use bellerophon::informer::{KubeListWatch, ListRequest, ListWatch};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = bellerophon_apiserver::ApiServer::builder().start().await?;
/// # let client = server.client();
/// let source = KubeListWatch::new(client, "/api/v1/namespaces")
///     .metadata_only()
///     .fields("metadata.name=default");
/// let page = source.list(ListRequest::default()).await?;
/// assert_eq!(page.items.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KubeListWatch {
    client: Client,
    path: String,
    metadata_only: bool,
    /// Selectors of every request.
    labels: Option<String>,
    fields: Option<String>,
}

impl std::fmt::Debug for KubeListWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeListWatch")
            .field("path", &self.path)
            .field("labels", &self.labels)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl KubeListWatch {
    /// The objects of a collection, such as `/api/v1/namespaces/team-a/pods`.
    pub fn new(client: Client, path: impl Into<String>) -> Self {
        Self {
            client,
            path: path.into(),
            metadata_only: false,
            labels: None,
            fields: None,
        }
    }

    /// Requests the metadata of the objects only.
    #[must_use]
    pub fn metadata_only(self) -> Self {
        Self {
            metadata_only: true,
            ..self
        }
    }

    /// Only objects whose labels match, selected by the server.
    #[must_use]
    pub fn labels(self, selector: impl Into<String>) -> Self {
        Self {
            labels: Some(selector.into()),
            ..self
        }
    }

    /// Only objects whose fields match, selected by the server.
    #[must_use]
    pub fn fields(self, selector: impl Into<String>) -> Self {
        Self {
            fields: Some(selector.into()),
            ..self
        }
    }

    fn list_request(&self, request: ListRequest) -> Result<http::Request<Vec<u8>>, ListWatchError> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: request.limit,
            continue_token: request.continue_token,
            ..ListParams::default()
        };
        let path = Request::new(&*self.path);
        let built = if self.metadata_only {
            path.list_metadata(&params)
        } else {
            path.list(&params)
        };
        with_verb(built, "list")
    }

    fn watch_request(
        &self,
        request: &WatchRequest,
    ) -> Result<http::Request<Vec<u8>>, ListWatchError> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(u32::try_from(request.timeout.as_secs()).unwrap_or(u32::MAX)),
            bookmarks: true,
            send_initial_events: request.from == WatchFrom::InitialEvents,
        };
        let version = match &request.from {
            WatchFrom::InitialEvents => "",
            WatchFrom::Version(version) => version,
        };
        let path = Request::new(&*self.path);
        let built = if self.metadata_only {
            path.watch_metadata(&params, version)
        } else {
            path.watch(&params, version)
        };
        let mut built = with_verb(built, "watch")?;
        // Events compressed one by one cannot be read as one stream.
        let identity = HeaderValue::from_static("identity");
        built
            .headers_mut()
            .insert(header::ACCEPT_ENCODING, identity);
        Ok(built)
    }
}

/// The verb in the extensions is how layers of the client distinguish requests.
fn with_verb(
    built: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    verb: &'static str,
) -> Result<http::Request<Vec<u8>>, ListWatchError> {
    let mut request = built.map_err(|error| ListWatchError::Other(error.to_string()))?;
    request.extensions_mut().insert(verb);
    Ok(request)
}

impl ListWatch for KubeListWatch {
    fn list(&self, request: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>> {
        let client = self.client.clone();
        let request = self.list_request(request);
        async move {
            // The body is read as bytes and not as text: the objects then share this buffer until
            // they are decoded.
            let mut text = Vec::new();
            let mut body = Box::pin(client.request_stream(request?).await?);
            let read = body.read_to_end(&mut text).await;
            read.map_err(|error| ListWatchError::Unreachable(error.to_string()))?;
            page(&text.into())
        }
        .boxed()
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<WatchStream, ListWatchError>> {
        let client = self.client.clone();
        let request = self.watch_request(&request);
        async move {
            let reader = Box::pin(client.request_stream(request?).await?);
            let events = stream::unfold(Some(Lines { reader }), |lines| async {
                let mut lines = lines?;
                match lines.next_event().await? {
                    Ok(event) => Some((Ok(event), Some(lines))),
                    // The state is gone after an error, so the stream ends.
                    Err(error) => Some((Err(error), None)),
                }
            });
            Ok(events.boxed())
        }
        .boxed()
    }
}

/// The lines of one watch.
struct Lines {
    reader: Pin<Box<dyn AsyncBufRead + Send>>,
}

impl Lines {
    async fn next_event(&mut self) -> Option<Result<WatchEvent, ListWatchError>> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.reader).take(EVENT_LENGTH_MAX);
            match bounded.read_until(b'\n', &mut line).await {
                Ok(0) => return None,
                Ok(length) if length as u64 == EVENT_LENGTH_MAX => {
                    let reason = format!("an event is longer than {EVENT_LENGTH_MAX} bytes");
                    return Some(Err(ListWatchError::Other(reason)));
                }
                Ok(_) => {}
                // A load balancer that closes the connection looks like this. It is the end of the
                // watch, which resumes, and no failure.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
                Err(error) => return Some(Err(ListWatchError::Unreachable(error.to_string()))),
            }
            if let Some(event) = event(&Bytes::from(line)) {
                return Some(event);
            }
        }
    }
}
