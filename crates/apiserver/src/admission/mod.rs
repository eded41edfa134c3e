//! Admission: what the cluster as a whole demands of a request, after it is decoded and before it is stored.
//! In: a client's call and the object it writes. Out: the object completed, or a refusal.
//! Holds: the order of the lists in [`Api::admit`] and [`Api::confirm`] is the order of the real server; what the server writes by itself
//! does not pass here.

mod ingress; // the default class of ingresses
mod limits; // limit ranges of a namespace
mod namespace; // objects live in namespaces that exist and stay
mod nodes; // a new node is not ready, a pod on one takes its topology
mod pod_security; // what pods of a namespace may do to their node
mod policy; // nobody grants more than they hold
mod priority; // pods take the priority of their class
mod runtime_class; // pods take overhead and placement of their runtime
mod service_account; // pods run as somebody
mod signing_request; // who asks for certificates, and who may approve and sign them
mod storage; // default classes, protection of volumes in use, growing claims
mod tolerations; // pods bear unreachable nodes for a while

use crate::{
    api::Api,
    error::ApiError,
    object::Object,
    store::{ObjectKey, Range, Scope},
    verbs::Call,
};

impl Api {
    /// Changes or refuses an object that a client writes, before it is checked; `old` is the stored one.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn admit(
        &self,
        call: &Call,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), ApiError> {
        let request = Admission {
            api: self,
            call,
            old,
        };
        namespace::admit(&request, object)?;
        limits::fill(&request, object);
        service_account::admit(&request, object).await?;
        nodes::taint(&request, object);
        priority::admit(&request, object)?;
        tolerations::admit(&request, object);
        storage::default_class(&request, object);
        storage::protect(&request, object);
        runtime_class::admit(&request, object)?;
        ingress::admit(&request, object);
        nodes::label_by_topology(&request, object);
        // Mutating policies and mutating webhooks come here, in this order.
        signing_request::record(&request, object);
        policy::admit(&request, object)
    }

    /// Judges an object that a client writes, after it was found valid. What comes back are warnings.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn confirm(
        &self,
        call: &Call,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Vec<String>, ApiError> {
        let request = Admission {
            api: self,
            call,
            old,
        };
        limits::check(&request, object)?;
        service_account::confirm(&request, object)?;
        let warnings = pod_security::confirm(&request, object)?;
        priority::confirm(&request, object)?;
        storage::confirm_growth(&request, object)?;
        runtime_class::confirm(&request, object)?;
        signing_request::confirm(&request, object)?;
        nodes::confirm_resize(&request, object)?;
        // Validating policies, validating webhooks and resource quotas come here, in this order.
        Ok(warnings)
    }

    /// Refuses the deletion of what the cluster needs.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn admit_delete(&self, call: &Call) -> Result<(), ApiError> {
        namespace::admit_delete(call)
    }
}

/// What a check looks at besides the object.
struct Admission<'a> {
    api: &'a Api,
    call: &'a Call,
    /// The stored object; `None` when it is made.
    old: Option<&'a Object>,
}

impl Admission<'_> {
    /// Whether the request writes a whole object of this resource.
    fn writes(&self, group: &str, plural: &str) -> bool {
        self.writes_part(group, plural, "")
    }

    /// Whether the request makes an object of this resource.
    fn creates(&self, group: &str, plural: &str) -> bool {
        self.old.is_none() && self.writes(group, plural)
    }

    /// Whether the request writes this part of an object of this resource; the object itself is the empty part.
    fn writes_part(&self, group: &str, plural: &str, part: &str) -> bool {
        let resource = &self.call.target.resource;
        resource.plural == plural && resource.group == group && self.part() == part
    }

    /// The part that is written; empty for the object itself.
    fn part(&self) -> &str {
        self.call.part.as_ref().map_or("", |part| part.name)
    }

    /// 403 for the object. One whose name is still to be generated is named by what it will begin with.
    fn forbid(&self, object: &Object, why: impl Into<String>) -> ApiError {
        let names = [
            &self.call.target.name,
            &object.meta.name,
            &object.meta.generate_name,
        ];
        let name = names
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or("Unknown", String::as_str);
        ApiError::forbidden(self.call.target.resource.group_resource(), name, why)
    }

    /// A stored object of the cluster: `look_up("/nodes", "", "n1")`.
    fn look_up(&self, shelf: &str, namespace: &str, name: &str) -> Option<Object> {
        self.api
            .store
            .get(shelf, &ObjectKey::new(namespace, name))
            .map(|stored| stored.encoded.decode())
    }

    /// Every object of the cluster, or of a namespace, by name.
    fn list(&self, shelf: &str, scope: Scope) -> Vec<Object> {
        let listing = self
            .api
            .store
            .list(shelf, &Range::all_of(scope), None)
            .expect("the newest state is always kept");
        listing
            .objects
            .iter()
            .map(|stored| stored.encoded.decode())
            .collect()
    }

    /// The namespace of the request.
    fn namespace(&self) -> &str {
        &self.call.target.namespace
    }
}
