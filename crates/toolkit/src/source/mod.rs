//! Source: where the objects of one kind come from.
//! In: requests to list a page or to watch. Out: pages and events, already decoded.
//! Holds: an object that cannot be decoded is reported in its place and costs no other object.

mod client; // a Kubernetes API
mod decode; // what it answered
mod error; // what can go wrong, by what to do about it
mod received; // an object as it came
#[cfg(test)]
pub(crate) mod scripted; // a server in a few maps, with faults on request

use std::time::Duration;

use futures_util::{future::BoxFuture, stream::BoxStream};

pub use client::KubeListWatch;
pub use error::SourceError;
pub use received::Received;

use crate::key::ObjectKey;

/// Lists and watches the objects of one kind, in one namespace or in all.
///
/// A reflector asks one thing at a time and drops what it no longer wants.
pub trait ListWatch<K>: Send + Sync + 'static {
    /// One page of a consistent list, the newest there is.
    fn list(
        &self,
        request: ListRequest,
    ) -> BoxFuture<'static, Result<Page<Received<K>>, SourceError>>;

    /// Opens a watch. Events come in the order of the server; the end of the stream is not an error.
    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<EventStream<K>, SourceError>>;
}

/// The events of one watch. After an error nothing follows.
pub type EventStream<K> = BoxStream<'static, Result<SourceEvent<Received<K>>, SourceError>>;

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Objects a page; `None` asks for all at once.
    pub limit: Option<u32>,
    /// Where the last page ended.
    pub continue_token: Option<String>,
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Where to begin.
    pub from: WatchFrom,
    /// The server ends the watch after this time.
    pub timeout: Duration,
}

/// Where a watch begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// With everything that exists now, ended by a bookmark that says so, then live.
    InitialEvents,
    /// After this version.
    Version(String),
}

/// One page of a list. `O` is an object: [`Received`] from a source.
#[derive(Clone, Debug)]
pub struct Page<O> {
    /// In the order of the server.
    pub objects: Vec<O>,
    /// Those that could not be decoded.
    pub undecodable: Vec<Undecodable>,
    /// The version of the collection, the same on every page.
    pub resource_version: String,
    /// Where the next page begins, if there is one.
    pub continue_token: Option<String>,
}

/// One event of a watch. `O` is an object: [`Received`] from a source.
#[derive(Clone, Debug)]
pub enum SourceEvent<O> {
    /// The object was added or changed.
    Applied(O),
    /// The object is gone, or no longer selected.
    Deleted {
        /// Which object.
        key: ObjectKey,
        /// Its last form, if that could be decoded.
        object: Option<O>,
        /// The version of the deletion.
        resource_version: Option<String>,
    },
    /// Nothing of interest happened up to this version.
    Bookmark {
        /// The version.
        resource_version: String,
        /// Everything that existed at the start was sent.
        ends_initial_events: bool,
    },
    /// An object was added or changed and could not be decoded.
    Undecodable(Undecodable),
}

/// An object that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable {
    /// Which object, if its metadata could be read.
    pub key: Option<ObjectKey>,
    /// Its version, if its metadata could be read.
    pub resource_version: Option<String>,
    /// What the decoder said.
    pub reason: String,
}
