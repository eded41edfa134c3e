//! The attributes of a write, as admission sees them. Mirrors `admission.Attributes`.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bellerophon_apimachinery::error::ApiError;
use tokio::time::Instant;

use crate::{
    auth::User,
    http::{query::Query, request_info::RequestInfo, route::ResourcePath},
    registry::Resource,
};

/// The attributes of a write: user, operation, resource and object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) user: &'a User,
    pub(crate) resource: &'a Resource,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    /// Empty for cluster-scoped resources.
    pub(crate) namespace: &'a str,
    /// The name in the path; empty for a POST to a collection.
    pub(crate) name: &'a str,
    /// The options of the request.
    pub(crate) query: &'a Query,
    /// When the request must be answered.
    pub(crate) deadline: Instant,
    /// Takes warnings and audit annotations.
    pub(crate) output: &'a AdmissionOutput,
}

/// Warnings and audit annotations of admission, whether the request is admitted or not.
#[derive(Debug, Default)]
pub(crate) struct AdmissionOutput(Mutex<Collected>);

#[derive(Debug, Default)]
struct Collected {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
    /// Annotations that are recorded from the audit level `Request` on.
    request_annotations: BTreeMap<String, String>,
}

impl AdmissionOutput {
    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns the client.
    pub(crate) fn warn(&self, warnings: impl IntoIterator<Item = String>) {
        self.lock().warnings.extend(warnings);
    }

    /// Adds an annotation to the audit event of the request. The first value of a key stays.
    pub(crate) fn annotate(&self, key: String, value: String) {
        self.lock().annotations.entry(key).or_insert(value);
    }

    /// Adds an annotation that is recorded from the audit level `Request` on.
    pub(crate) fn annotate_request(&self, key: String, value: String) {
        self.lock().request_annotations.entry(key).or_insert(value);
    }

    /// The warnings so far.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// The annotations so far; with those of the level `Request` if that is recorded.
    pub(crate) fn take_annotations(&self, has_request: bool) -> BTreeMap<String, String> {
        let mut collected = self.lock();
        let mut annotations = std::mem::take(&mut collected.annotations);
        if has_request {
            annotations.append(&mut collected.request_annotations);
        }
        annotations
    }
}

impl Attributes<'_> {
    /// The request with the verb `create`, as the authorizer sees it: what a PUT or PATCH needs in
    /// addition when it creates its object. `None` for a POST to a collection, which was authorized
    /// with that verb.
    pub(crate) fn creation(&self) -> Option<RequestInfo> {
        if self.name.is_empty() {
            return None;
        }
        let path = ResourcePath {
            group: self.resource.group.clone(),
            version: self.resource.version.clone(),
            namespace: self.namespace.to_owned(),
            resource: self.resource.plural.clone(),
            name: self.name.to_owned(),
            subresource: self.subresource.to_owned(),
            ..ResourcePath::default()
        };
        Some(RequestInfo::of_resource(
            &http::Method::POST,
            &path,
            &Query::default(),
        ))
    }

    /// 403 for the named object.
    pub(crate) fn forbidden(&self, name: &str, why: impl Into<String>) -> ApiError {
        ApiError::forbidden(self.resource.group_resource(), name, why)
    }
}
