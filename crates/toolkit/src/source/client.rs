//! A Kubernetes API as a source.
//! In: requests of a reflector. Out: what the server answered, decoded object by object.
//! Holds: metadata-only kinds ask for metadata only; an event is copied once, from the line it came in to the bytes it is
//! kept as; nothing follows an error.

use std::pin::Pin;

use futures_util::{
    AsyncBufRead, AsyncReadExt, FutureExt, StreamExt,
    future::BoxFuture,
    io::{AsyncBufReadExt, ErrorKind},
    stream,
};
use http::{HeaderValue, header};
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::Request,
};
use serde::de::DeserializeOwned;

use super::{
    EventStream, ListRequest, ListWatch, Page, Received, SourceError, SourceEvent, WatchFrom,
    WatchRequest,
    decode::{ManagedFields, event, page},
};

/// A longer event breaks the watch. Servers keep objects far below: 1.5 MB unless etcd is told otherwise.
const EVENT_LENGTH_MAX: u64 = 64 << 20;

/// Lists and watches one kind on a Kubernetes API.
///
/// A kind known at compile time needs nothing but its type, `PartialObjectMeta<K>` asks for metadata only, and
/// `DynamicObject` takes an `ApiResource` at run time.
#[derive(Clone)]
pub struct KubeListWatch<K> {
    client: Client,
    path: String,
    /// Selectors of every request.
    labels: Option<String>,
    fields: Option<String>,
    managed_fields: ManagedFields,
    kind: std::marker::PhantomData<fn() -> K>,
}

impl<K> std::fmt::Debug for KubeListWatch<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeListWatch")
            .field("path", &self.path)
            .field("labels", &self.labels)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl<K: Resource> KubeListWatch<K> {
    /// All objects of a kind, in one namespace or, with `None`, in all.
    pub fn new(client: Client, kind: &K::DynamicType, namespace: Option<&str>) -> Self {
        let (path, managed_fields) = (K::url_path(kind, namespace), ManagedFields::Kept);
        Self {
            client,
            path,
            labels: None,
            fields: None,
            managed_fields,
            kind: std::marker::PhantomData,
        }
    }

    /// Only objects whose labels match, chosen by the server.
    #[must_use]
    pub fn labels(self, selector: impl Into<String>) -> Self {
        Self {
            labels: Some(selector.into()),
            ..self
        }
    }

    /// Only objects whose fields match, chosen by the server.
    #[must_use]
    pub fn fields(self, selector: impl Into<String>) -> Self {
        Self {
            fields: Some(selector.into()),
            ..self
        }
    }

    /// Leaves `metadata.managedFields` out of every object before it is decoded, which is most of the work for small
    /// objects.
    #[must_use]
    pub fn without_managed_fields(self) -> Self {
        Self {
            managed_fields: ManagedFields::Dropped,
            ..self
        }
    }

    fn list_request(&self, request: ListRequest) -> Result<http::Request<Vec<u8>>, SourceError> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: request.limit,
            continue_token: request.continue_token,
            ..ListParams::default()
        };
        let path = Request::new(&*self.path);
        let built = if K::metadata_api() {
            path.list_metadata(&params)
        } else {
            path.list(&params)
        };
        named(built, "list")
    }

    fn watch_request(&self, request: &WatchRequest) -> Result<http::Request<Vec<u8>>, SourceError> {
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
        let built = if K::metadata_api() {
            path.watch_metadata(&params, version)
        } else {
            path.watch(&params, version)
        };
        let mut built = named(built, "watch")?;
        // Events compressed one by one cannot be read as one stream.
        built.headers_mut().insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
        Ok(built)
    }
}

/// The verb in the extensions is how layers of the client tell requests apart.
fn named(
    built: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    verb: &'static str,
) -> Result<http::Request<Vec<u8>>, SourceError> {
    let mut request = built.map_err(|error| SourceError::Other(error.to_string()))?;
    request.extensions_mut().insert(verb);
    Ok(request)
}

impl<K: Resource + DeserializeOwned + Send + Sync + 'static> ListWatch<K> for KubeListWatch<K> {
    fn list(
        &self,
        request: ListRequest,
    ) -> BoxFuture<'static, Result<Page<Received<K>>, SourceError>> {
        let (client, request, managed_fields) = (
            self.client.clone(),
            self.list_request(request),
            self.managed_fields,
        );
        async move {
            let mut text = Vec::new();
            let mut body = Box::pin(client.request_stream(request?).await?);
            body.read_to_end(&mut text)
                .await
                .map_err(|error| SourceError::Unreachable(error.to_string()))?;
            page(&text, managed_fields)
        }
        .boxed()
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<EventStream<K>, SourceError>> {
        let (client, request, managed_fields) = (
            self.client.clone(),
            self.watch_request(&request),
            self.managed_fields,
        );
        async move {
            let lines = Lines {
                reader: Box::pin(client.request_stream(request?).await?),
                line: Vec::new(),
            };
            let events = stream::unfold(Some(lines), move |lines| async move {
                let mut lines = lines?;
                // What follows an error is not trusted.
                match lines.next_event(managed_fields).await? {
                    Ok(event) => Some((Ok(event), Some(lines))),
                    Err(error) => Some((Err(error), None)),
                }
            });
            Ok(events.boxed())
        }
        .boxed()
    }
}

/// The lines of one watch, read into one buffer.
struct Lines {
    reader: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
}

impl Lines {
    async fn next_event<K>(
        &mut self,
        managed_fields: ManagedFields,
    ) -> Option<Result<SourceEvent<Received<K>>, SourceError>>
    where
        K: Resource + DeserializeOwned,
    {
        loop {
            self.line.clear();
            match (&mut self.reader)
                .take(EVENT_LENGTH_MAX)
                .read_until(b'\n', &mut self.line)
                .await
            {
                Ok(0) => return None,
                Ok(length) if length as u64 == EVENT_LENGTH_MAX => {
                    return Some(Err(SourceError::Other(format!(
                        "an event is longer than {EVENT_LENGTH_MAX} bytes"
                    ))));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
                Err(error) => return Some(Err(SourceError::Unreachable(error.to_string()))),
            }
            if let Some(event) = event(&self.line, managed_fields) {
                return Some(event);
            }
        }
    }
}
