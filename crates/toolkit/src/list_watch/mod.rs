//! ListWatch: where the objects of one resource come from.
//! In: requests to list a page or to watch. Out: pages and events, each object as its JSON.
//! Guarantees: nothing is decoded here, so one source serves every kind.

mod client; // a Kubernetes API server
mod decode; // its responses
mod error; // failures, by what to do about them
#[cfg(test)]
pub(crate) mod scripted; // a scripted server for tests

use std::time::Duration;

use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};

pub use client::KubeListWatch;
pub use error::ListWatchError;

/// Lists and watches the objects of one resource, in one namespace or in all.
///
/// A reflector sends one request at a time and drops what it no longer needs. An object that cannot
/// be decoded is skipped and counted by the informer; the others of its page are not affected.
///
/// ```
/// use bellerophon::informer::{
///     ListPage, ListRequest, ListWatch, ListWatchError, WatchRequest, WatchStream,
/// };
/// use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
///
/// /// A fixed list that never changes.
/// struct Fixed;
///
/// impl ListWatch for Fixed {
///     fn list(&self, _: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>> {
///         let item = br#"{"metadata":{"name":"a","resourceVersion":"1"}}"#;
///         let page = ListPage {
///             items: vec![item.to_vec().into()],
///             resource_version: "1".into(),
///             continue_token: None,
///         };
///         async move { Ok(page) }.boxed()
///     }
///
///     fn watch(
///         &self,
///         _: WatchRequest,
///     ) -> BoxFuture<'static, Result<WatchStream, ListWatchError>> {
///         async { Ok(stream::pending().boxed()) }.boxed()
///     }
/// }
/// ```
pub trait ListWatch: Send + Sync + 'static {
    /// One page of a consistent list, the newest there is.
    fn list(&self, request: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>>;

    /// Opens a watch. Events come in the order of the server; the end of the stream is not an
    /// error.
    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<WatchStream, ListWatchError>>;
}

/// The events of one watch. Nothing follows an error.
///
/// ```
/// use bellerophon::informer::{WatchEvent, WatchStream};
/// use futures_util::{StreamExt, stream};
///
/// /// One object, then nothing until the watch is dropped.
/// fn watch() -> WatchStream {
///     let object = br#"{"metadata":{"name":"a","resourceVersion":"2"}}"#;
///     let applied = WatchEvent::Applied(object.to_vec().into());
///     stream::iter([Ok(applied)]).chain(stream::pending()).boxed()
/// }
/// ```
pub type WatchStream = BoxStream<'static, Result<WatchEvent, ListWatchError>>;

/// The parameters of a list.
///
/// ```
/// use bellerophon::informer::ListRequest;
///
/// let first = ListRequest { limit: Some(500), ..ListRequest::default() };
/// let next = ListRequest { continue_token: Some("eyJydiI6NDF9".into()), ..first.clone() };
/// # assert_ne!(first, next);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Objects per page; `None` requests the whole list in one response.
    pub limit: Option<u32>,
    /// The continue token of the last page.
    pub continue_token: Option<String>,
}

/// The parameters of a watch.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::informer::{WatchFrom, WatchRequest};
///
/// let resume = WatchRequest {
///     from: WatchFrom::Version("41".into()),
///     timeout: Duration::from_secs(300),
/// };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Where to begin.
    pub from: WatchFrom,
    /// The server ends the watch after this time.
    pub timeout: Duration,
}

/// Where a watch begins.
///
/// ```
/// use bellerophon::informer::WatchFrom;
///
/// /// What a source that does not stream its initial list checks first.
/// fn resumes_at(from: &WatchFrom) -> Option<&str> {
///     match from {
///         WatchFrom::Version(version) => Some(version),
///         WatchFrom::InitialEvents => None,
///     }
/// }
/// assert_eq!(resumes_at(&WatchFrom::Version("41".into())), Some("41"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// With every existing object, ended by a bookmark with the annotation
    /// `k8s.io/initial-events-end`, then live (`sendInitialEvents=true`).
    InitialEvents,
    /// After this resource version.
    Version(String),
}

/// One page of a list.
///
/// ```
/// use bellerophon::informer::ListPage;
///
/// let page = ListPage {
///     items: vec![br#"{"metadata":{"name":"a","resourceVersion":"40"}}"#.to_vec().into()],
///     resource_version: "41".into(),
///     continue_token: None,
/// };
/// assert!(page.continue_token.is_none(), "this is the last page");
/// ```
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The objects as JSON, in the order of the server.
    pub items: Vec<Bytes>,
    /// The version of the collection, the same on every page.
    pub resource_version: String,
    /// Where the next page begins, if there is one.
    pub continue_token: Option<String>,
}

/// One event of a watch.
///
/// ```
/// use bellerophon::informer::WatchEvent;
///
/// let end_of_initial_events = WatchEvent::Bookmark {
///     resource_version: "41".into(),
///     ends_initial_events: true,
/// };
/// let deleted = WatchEvent::Deleted(
///     br#"{"metadata":{"name":"a","resourceVersion":"42"}}"#.to_vec().into(),
/// );
/// # assert_ne!(end_of_initial_events, deleted);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The object was added or modified; its JSON.
    Applied(Bytes),
    /// The object was deleted or is no longer selected; the JSON of its last state, whose resource
    /// version is that of the deletion.
    Deleted(Bytes),
    /// Nothing of interest happened up to this version.
    Bookmark {
        /// The version.
        resource_version: String,
        /// Every object that existed at the start was sent.
        ends_initial_events: bool,
    },
}
