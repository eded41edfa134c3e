//! The verbs: one function each, for every kind.
//! In: a target and a typed request. Out: a reply that is not encoded yet.
//! Guarantees: a verb depends on no kind; differences are properties of the resource.

mod change;
mod computed;
mod create;
mod delete;
mod delete_options;
mod dispatch;
mod get;
mod list;
mod page;
mod reviews;
mod subresources;
mod warnings;
mod watch;

pub(crate) use dispatch::dispatch;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use page::Page;
pub(crate) use warnings::Warnings;
pub(crate) use watch::{Watch, WatchItem};

use std::sync::Arc;

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::{decode::Encoding, object::Object};
use bellerophon_resources::kinds::Effect;
use bellerophon_storage::{ObjectKey, Scope, Stored};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    admission::{AdmissionOutput, Attributes},
    api::Api,
    auth::User,
    http::{
        negotiate,
        query::{Query, WriteOptions},
    },
    managed_fields::{self, Tracker},
    registry::{Resource, Subresource},
    write::Written,
};

/// A body or stored object of more bytes is large: 64 KiB take about a millisecond to decode,
/// validate and encode.
const LARGE_BYTES: usize = 64 << 10;

/// The target of a request.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    /// Empty for cluster-scoped resources and for all namespaces.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
}

impl Target {
    /// The key of the named object.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// The collection, or its objects in one namespace.
    pub(crate) fn scope(&self) -> Scope {
        if self.namespace.is_empty() {
            Scope::All
        } else {
            Scope::Namespace(self.namespace.clone())
        }
    }

    /// 404 for the named object.
    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::NotFound {
            resource: self.resource.group_resource(),
            name: self.name.clone(),
        }
    }
}

/// A request, parsed as far as all verbs have in common.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: Target,
    pub(crate) subresource: Option<Subresource>,
    pub(crate) query: Query,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Bytes,
    pub(crate) user: User,
    /// The name fields are owned under when the client gives none.
    pub(crate) user_agent: String,
    /// For the `Warning` headers.
    pub(crate) warnings: Warnings,
    /// When the request must be answered.
    pub(crate) deadline: Instant,
    /// Warnings and audit annotations of admission.
    pub(crate) admission: AdmissionOutput,
}

impl Call {
    /// Records the fields that this request changes under its field manager.
    pub(crate) fn tracker(&self, api: &Api, options: &WriteOptions) -> Tracker<'_> {
        Tracker {
            catalog: api.registry.catalog(),
            resource: &self.target.resource,
            subresource: self.subresource_name(),
            manager: managed_fields::manager_name(&options.field_manager, &self.user_agent),
            now: api.clock.now(),
        }
    }

    /// Whether the work may take so long that other requests of the same thread should not wait for
    /// it: body or stored object are large, or it is about many objects.
    pub(crate) fn may_take_long(&self, api: &Api, method: &Method) -> bool {
        let resource = &self.target.resource;
        if self.body.len() > LARGE_BYTES || resource.strategy.effect == Effect::Definition {
            return true;
        }
        if !self.names_object() {
            return method == Method::DELETE;
        }
        api.store
            .get(&resource.collection, &self.target.key())
            .is_some_and(|stored| stored.encoded.bytes().len() > LARGE_BYTES)
    }

    /// Whether the request names its object, and is no POST to a collection.
    fn names_object(&self) -> bool {
        !self.target.name.is_empty()
    }

    /// The name of the subresource; empty for the object itself.
    pub(crate) fn subresource_name(&self) -> &str {
        self.subresource
            .as_ref()
            .map_or("", |subresource| subresource.name)
    }

    /// The write as admission sees it.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes {
            user: &self.user,
            resource: &self.target.resource,
            subresource: self.subresource_name(),
            namespace: &self.target.namespace,
            name: &self.target.name,
            query: &self.query,
            deadline: self.deadline,
            output: &self.admission,
        }
    }

    /// The kind and version that the body has.
    pub(crate) fn body_kind(&self) -> (&str, &str) {
        let resource = &self.target.resource;
        match &self.subresource {
            Some(subresource) if !subresource.version.is_empty() => {
                (&subresource.kind, subresource.version)
            }
            Some(subresource) => (&subresource.kind, &resource.version),
            None => (&resource.kind, &resource.version),
        }
    }

    /// How the body is written.
    pub(crate) fn body_encoding(&self) -> Result<Encoding, ApiError> {
        negotiate::body_encoding(self.content_type.as_deref())
    }
}

/// The outcome of a verb.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
}

/// The content of a reply, not yet in the form that the client requested.
#[derive(Debug)]
pub(crate) enum Content {
    /// A stored object.
    Stored(Arc<Stored>),
    /// An object that is not stored, or not in this form.
    Object(Box<Object>),
    /// A collection.
    List(List),
    /// A document that has only one form: a `Status`.
    Document(Value),
    /// Events as they come.
    Watch(Box<Watch>),
}

/// A collection, or a page of it.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Stored>>,
    /// The token of the next page.
    pub(crate) next: Option<String>,
    /// How many objects are behind this page, where that is known.
    pub(crate) remaining: Option<usize>,
}

impl Reply {
    /// 200.
    pub(crate) fn ok(content: Content) -> Self {
        Self {
            status: StatusCode::OK,
            content,
        }
    }

    /// 201.
    pub(crate) fn created(content: Content) -> Self {
        Self {
            status: StatusCode::CREATED,
            content,
        }
    }
}

impl From<Written> for Content {
    fn from(written: Written) -> Self {
        match written {
            Written::Stored(stored) => Self::Stored(stored),
            Written::Unstored(object) => Self::Object(object),
        }
    }
}
