//! Admission: what the cluster as a whole demands of a request, after it is decoded and before it
//! is stored.
//! In: the attributes of a write and the object that is written. Out: the object completed, or a
//! refusal.
//! Guarantees: the plugins of [`mutate`] and [`validate`] run in the order of kube-apiserver; what
//! the server itself writes is not subject to admission. Only `write/` calls admission.

mod attributes; // who writes which object
mod ingress; // the default class of ingresses
mod limits; // limit ranges of a namespace
mod namespace; // objects live in namespaces that exist and stay
mod nodes; // a new node is not ready, a pod on one takes its topology
mod pod_security; // what pods of a namespace may do to their node
mod policy; // nobody grants more than they hold
mod priority; // pods take the priority of their class
mod runtime_class; // pods take overhead and placement of their runtime
mod service_account; // pods run as a service account
mod signing_request; // who asks for certificates, and who may approve and sign them
mod storage; // default classes, protection of volumes in use, growing claims
mod tolerations; // pods bear unreachable nodes for a while

pub(crate) use attributes::Attributes;

use crate::{
    api::Api,
    error::ApiError,
    object::Object,
    store::{ObjectKey, Range, Scope},
};

/// Mutating admission: changes or refuses an object that a client writes, before validation;
/// `old` is the stored one.
///
/// # Errors
/// The refusal.
pub(crate) async fn mutate(
    api: &Api,
    attributes: &Attributes<'_>,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let request = Admission {
        api,
        attributes,
        old,
    };
    namespace::mutate(&request, object)?;
    limits::fill(&request, object);
    service_account::mutate(&request, object).await?;
    nodes::taint(&request, object);
    priority::mutate(&request, object)?;
    tolerations::mutate(&request, object);
    storage::default_class(&request, object);
    storage::protect(&request, object);
    runtime_class::mutate(&request, object)?;
    ingress::mutate(&request, object);
    nodes::label_by_topology(&request, object);
    signing_request::record(&request, object);
    policy::mutate(&request, object)
}

/// Validating admission: allows or refuses an object that a client writes, after field
/// validation. Returns warnings.
///
/// # Errors
/// The refusal.
pub(crate) async fn validate(
    api: &Api,
    attributes: &Attributes<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Result<Vec<String>, ApiError> {
    let request = Admission {
        api,
        attributes,
        old,
    };
    limits::validate(&request, object)?;
    service_account::validate(&request, object)?;
    let warnings = pod_security::validate(&request, object)?;
    priority::validate(&request, object)?;
    storage::validate_expansion(&request, object)?;
    runtime_class::validate(&request, object)?;
    signing_request::validate(&request, object)?;
    nodes::validate_resize(&request, object)?;
    Ok(warnings)
}

/// Refuses the deletion of what the cluster needs.
///
/// # Errors
/// The refusal.
pub(crate) fn validate_delete(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    namespace::validate_delete(attributes)
}

/// What a check looks at besides the object.
struct Admission<'a> {
    api: &'a Api,
    attributes: &'a Attributes<'a>,
    /// The stored object; `None` when it is made.
    old: Option<&'a Object>,
}

impl Admission<'_> {
    /// Whether the request writes a whole object of this resource.
    fn writes(&self, group: &str, plural: &str) -> bool {
        self.writes_subresource(group, plural, "")
    }

    /// Whether the request makes an object of this resource.
    fn creates(&self, group: &str, plural: &str) -> bool {
        self.old.is_none() && self.writes(group, plural)
    }

    /// Whether the request writes this subresource of this resource; empty for the object itself.
    fn writes_subresource(&self, group: &str, plural: &str, subresource: &str) -> bool {
        let resource = self.attributes.resource;
        resource.plural == plural && resource.group == group && self.subresource() == subresource
    }

    /// The subresource that is written; empty for the object itself.
    fn subresource(&self) -> &str {
        self.attributes.subresource
    }

    /// 403 for the object. One whose name is still to be generated is named by what it will begin
    /// with.
    fn forbid(&self, object: &Object, why: impl Into<String>) -> ApiError {
        let names = [
            self.attributes.name,
            &object.meta.name,
            &object.meta.generate_name,
        ];
        let name = names
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("Unknown");
        self.attributes.forbidden(name, why)
    }

    /// A stored object of the cluster: `look_up("/nodes", "", "n1")`.
    fn look_up(&self, collection: &str, namespace: &str, name: &str) -> Option<Object> {
        self.api
            .store
            .get(collection, &ObjectKey::new(namespace, name))
            .map(|stored| stored.encoded.decode())
    }

    /// Every object of the cluster, or of a namespace, by name.
    fn list(&self, collection: &str, scope: Scope) -> Vec<Object> {
        let listing = self
            .api
            .store
            .list(collection, &Range::all_of(scope), None)
            .expect("the newest state is always kept");
        listing
            .objects
            .iter()
            .map(|stored| stored.encoded.decode())
            .collect()
    }

    /// The namespace of the request.
    fn namespace(&self) -> &str {
        self.attributes.namespace
    }
}
