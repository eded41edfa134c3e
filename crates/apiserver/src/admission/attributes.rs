//! The attributes of a write, as admission sees them. Mirrors `admission.Attributes`.

use crate::{
    auth::User,
    error::ApiError,
    http::{query::Query, request_info::RequestInfo, route::ResourcePath},
    registry::Resource,
};

/// Who writes which object.
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
