//! A Kubernetes API as a source.
//! In: requests of a reflector. Out: what the server answered, decoded object by object.
//! Holds: one object that cannot be decoded is named and passed over; metadata-only kinds ask for metadata only.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, io::AsyncBufReadExt};
use http::{HeaderValue, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::{Request, WatchEvent},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{EventStream, ListRequest, ListWatch, Page, SourceError, SourceEvent, Undecodable, WatchFrom, WatchRequest};
use crate::key::ObjectKey;

/// The annotation of the bookmark after the last initial event.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

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
        Self { client, path: K::url_path(kind, namespace), labels: None, fields: None, kind: std::marker::PhantomData }
    }

    /// Only objects whose labels match, chosen by the server.
    #[must_use]
    pub fn labels(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }

    /// Only objects whose fields match, chosen by the server.
    #[must_use]
    pub fn fields(self, selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..self }
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
        let built = if K::metadata_api() { path.list_metadata(&params) } else { path.list(&params) };
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
        let built = if K::metadata_api() { path.watch_metadata(&params, version) } else { path.watch(&params, version) };
        let mut built = named(built, "watch")?;
        // Events compressed one by one cannot be read as one stream.
        built.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
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
    fn list(&self, request: ListRequest) -> BoxFuture<'static, Result<Page<K>, SourceError>> {
        let (client, request) = (self.client.clone(), self.list_request(request));
        async move { decode_page(&client.request_text(request?).await?) }.boxed()
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'static, Result<EventStream<K>, SourceError>> {
        let (client, request) = (self.client.clone(), self.watch_request(&request));
        async move {
            let lines = Box::pin(client.request_stream(request?).await?).lines();
            let events = lines.filter_map(|line| std::future::ready(line.map_or_else(broken, |line| decode_event(&line))));
            // What follows an error is not trusted.
            let events = events.scan(false, |failed, event| {
                let over = std::mem::replace(failed, event.is_err());
                std::future::ready((!over).then_some(event))
            });
            Ok(events.boxed())
        }
        .boxed()
    }
}

fn broken<K>(error: std::io::Error) -> Option<Result<SourceEvent<K>, SourceError>> {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => None,
        _ => Some(Err(SourceError::Unreachable(error.to_string()))),
    }
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    // Some servers write the empty list as null.
    items: Option<Vec<T>>,
}

/// Enough of any object to name it.
#[derive(Clone, Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

impl Named {
    fn key(&self) -> Option<ObjectKey> {
        Some(ObjectKey { namespace: self.metadata.namespace.clone(), name: self.metadata.name.clone()? })
    }
}

fn decode_page<K: DeserializeOwned>(text: &str) -> Result<Page<K>, SourceError> {
    let nonsense = |error: serde_json::Error| SourceError::Other(format!("the list cannot be read: {error}"));
    let (metadata, objects, undecodable) = match serde_json::from_str::<List<K>>(text) {
        Ok(list) => (list.metadata, list.items.unwrap_or_default(), Vec::new()),
        // Read again, item by item, only when one of them is broken.
        Err(_) => {
            let list: List<serde_json::Value> = serde_json::from_str(text).map_err(nonsense)?;
            let (mut objects, mut undecodable) = (Vec::new(), Vec::new());
            for item in list.items.unwrap_or_default() {
                match K::deserialize(&item) {
                    Ok(object) => objects.push(object),
                    Err(error) => undecodable.push(unreadable(Named::deserialize(&item).ok(), error.to_string())),
                }
            }
            (list.metadata, objects, undecodable)
        }
    };
    Ok(Page {
        objects,
        undecodable,
        resource_version: metadata.resource_version.unwrap_or_default(),
        continue_token: metadata.continue_.filter(|token| !token.is_empty()),
    })
}

/// `None` for a line that the end of the stream cut short: the change will be told again.
fn decode_event<K: DeserializeOwned + Resource>(line: &str) -> Option<Result<SourceEvent<K>, SourceError>> {
    let error = match serde_json::from_str::<WatchEvent<K>>(line) {
        Ok(event) => return Some(translate(event)),
        Err(error) if error.is_eof() => return None,
        Err(error) => error.to_string(),
    };
    Some(match serde_json::from_str::<WatchEvent<Named>>(line) {
        Ok(WatchEvent::Deleted(named)) if named.metadata.name.is_some() => {
            let key = named.key().expect("a name makes a key");
            Ok(SourceEvent::Deleted { key, object: None, resource_version: named.metadata.resource_version })
        }
        Ok(WatchEvent::Added(named) | WatchEvent::Modified(named)) => Ok(SourceEvent::Undecodable(unreadable(Some(named), error))),
        _ => Ok(SourceEvent::Undecodable(unreadable(None, error))),
    })
}

fn translate<K: Resource>(event: WatchEvent<K>) -> Result<SourceEvent<K>, SourceError> {
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => SourceEvent::Applied(object),
        WatchEvent::Deleted(object) => {
            let (key, resource_version) = (ObjectKey::of(&object), object.meta().resource_version.clone());
            SourceEvent::Deleted { key, object: Some(object), resource_version }
        }
        WatchEvent::Bookmark(bookmark) => SourceEvent::Bookmark {
            ends_initial_events: bookmark.metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true"),
            resource_version: bookmark.metadata.resource_version,
        },
        WatchEvent::Error(status) => return Err(SourceError::from_status(&status)),
    })
}

fn unreadable(named: Option<Named>, reason: String) -> Undecodable {
    let key = named.as_ref().and_then(Named::key);
    Undecodable { key, resource_version: named.and_then(|named| named.metadata.resource_version), reason }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn print(line: &str) -> String {
        match decode_event::<ConfigMap>(line) {
            None => "cut short".into(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(SourceEvent::Applied(object))) => format!("+{}", ObjectKey::of(&object)),
            Some(Ok(SourceEvent::Deleted { key, object, resource_version })) => {
                format!("-{key} {} {}", if object.is_some() { "readable" } else { "unreadable" }, resource_version.unwrap_or_default())
            }
            Some(Ok(SourceEvent::Bookmark { resource_version, ends_initial_events })) => {
                format!("^{resource_version} {ends_initial_events}")
            }
            Some(Ok(SourceEvent::Undecodable(Undecodable { key, resource_version, .. }))) => {
                format!("?{} {}", key.map(|key| key.to_string()).unwrap_or_default(), resource_version.unwrap_or_default())
            }
        }
    }

    #[test]
    fn lines_of_a_watch_become_events() {
        let cases = [
            (r#"{"type":"ADDED","object":{"metadata":{"namespace":"n","name":"a"}}}"#, "+n/a"),
            (r#"{"object":{"metadata":{"name":"a"}},"type":"MODIFIED"}"#, "+a"),
            (r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#, "-a readable 7"),
            (r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"7"},"data":5}}"#, "-a unreadable 7"),
            (r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},"data":5}}"#, "?a 7"),
            (r#"{"type":"SURPRISE","object":{}}"#, "? "),
            (r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}"#, "^9 false"),
            (
                r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
                "^9 true",
            ),
            (
                r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}}"#,
                "the version is too old: m",
            ),
            (r#"{"type":"ADDED","object":{"metadata":{"na"#, "cut short"),
        ];
        for (line, wanted) in cases {
            assert_eq!(print(line), wanted, "{line}");
        }
    }

    #[test]
    fn one_unreadable_item_costs_no_other_of_its_page() {
        let text =
            r#"{"metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"data":5}]}"#;
        let page: Page<ConfigMap> = decode_page(text).expect("a page");
        let unreadable: Vec<_> = page.undecodable.iter().map(|undecodable| undecodable.key.clone()).collect();
        assert_eq!((page.objects.len(), unreadable), (1, vec![Some(ObjectKey::cluster("b"))]));
        assert_eq!((page.resource_version.as_str(), page.continue_token.as_deref()), ("9", Some("t")));
    }

    #[test]
    fn empty_list_may_be_null_and_end_with_an_empty_token() {
        let page: Page<ConfigMap> = decode_page(r#"{"metadata":{"resourceVersion":"9","continue":""},"items":null}"#).expect("a page");
        assert_eq!((page.objects.len(), page.continue_token), (0, None));
        assert!(decode_page::<ConfigMap>("<html>").is_err());
    }
}
