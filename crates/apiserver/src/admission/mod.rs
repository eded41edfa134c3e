//! Admission: mutates and validates a request after it is decoded and before it is stored.
//! In: the attributes of a write and the object that is written. Out: the mutated object, or a
//! denial.
//! Guarantees: the plugins of [`mutate`] and [`validate`] run in the order of kube-apiserver; what
//! the server itself writes is not subject to admission. Only `write/` calls admission.

mod attributes; // who writes which object
pub(crate) mod dynamic; // webhooks and policies
mod ingress; // DefaultIngressClass
mod limits; // LimitRanger
mod namespace; // NamespaceLifecycle
mod nodes; // TaintNodesByCondition, PodTopologyLabels
mod pod_security; // PodSecurity
mod policy; // privilege escalation through RBAC objects
mod priority; // Priority
pub(crate) mod quota; // ResourceQuota
mod runtime_class; // RuntimeClass
mod service_account; // ServiceAccount
mod signing_request; // CertificateApproval, CertificateSigning
mod storage; // DefaultStorageClass, protection finalizers, claim resize
mod tolerations; // DefaultTolerationSeconds

pub(crate) use attributes::{AdmissionOutput, Attributes};
pub(crate) use dynamic::{Operation, Target};

use serde_json::Value;

use self::dynamic::Reinvocation;
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::{ManagedFieldsEntry, Object};
use bellerophon_storage::{ObjectKey, Range, Scope};

use crate::{api::Api, managed_fields};

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
    dry_run: bool,
) -> Result<(), ApiError> {
    let request = Admission {
        api,
        attributes,
        old,
    };
    mutate_built_in(&request, object).await?;
    let Some(configured) = dynamic::mutating(api, attributes) else {
        return Ok(());
    };
    let target = write_target(old, dry_run);
    let before = object.meta.managed_fields.clone();
    let mut reinvocation = Reinvocation::default();
    loop {
        dynamic::mutate(
            api,
            attributes,
            target,
            &configured,
            Some(object),
            old,
            &mut reinvocation,
        )
        .await?;
        if !reinvocation.begin_again() {
            break;
        }
        // Mirrors the reinvoker: built-in plugins see what others have changed.
        mutate_built_in(&request, object).await?;
    }
    keep_managed_fields(attributes, object, before);
    Ok(())
}

/// Resets managed fields that admission has made invalid. Mirrors
/// `managedFieldsValidatingAdmissionController`.
fn keep_managed_fields(
    attributes: &Attributes<'_>,
    object: &mut Object,
    before: Vec<ManagedFieldsEntry>,
) {
    if object.meta.managed_fields == before {
        return;
    }
    if let Err(why) = managed_fields::check_entries(&object.meta.managed_fields) {
        object.meta.managed_fields = before;
        attributes.output.warn([format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {why}"
        )]);
    }
}

/// A write as dynamic admission sees it.
fn write_target(old: Option<&Object>, dry_run: bool) -> Target<'static> {
    Target {
        operation: match old {
            Some(_) => Operation::Update,
            None => Operation::Create,
        },
        options: None,
        dry_run,
    }
}

/// Admission of objects that are not stored as they are sent: reviews, evictions, bindings, scales,
/// and options of connections. Only webhooks and policies see them.
///
/// # Errors
/// The denial.
pub(crate) async fn admit_virtual(
    api: &Api,
    attributes: &Attributes<'_>,
    target: Target<'_>,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if let Some(configured) = dynamic::mutating(api, attributes) {
        let mut reinvocation = Reinvocation::default();
        loop {
            dynamic::mutate(
                api,
                attributes,
                target,
                &configured,
                Some(&mut *object),
                old,
                &mut reinvocation,
            )
            .await?;
            if !reinvocation.begin_again() {
                break;
            }
        }
    }
    dynamic::validate(api, attributes, target, Some(object), old).await
}

async fn mutate_built_in(request: &Admission<'_>, object: &mut Object) -> Result<(), ApiError> {
    let runs = |plugin| request.runs(plugin);
    if runs("NamespaceLifecycle") {
        namespace::mutate(request, object)?;
    }
    if runs("LimitRanger") {
        limits::fill(request, object);
    }
    if runs("ServiceAccount") {
        service_account::mutate(request, object).await?;
    }
    if runs("TaintNodesByCondition") {
        nodes::taint(request, object);
    }
    if runs("Priority") {
        priority::mutate(request, object)?;
    }
    if runs("DefaultTolerationSeconds") {
        tolerations::mutate(request, object);
    }
    if runs("DefaultStorageClass") {
        storage::default_class(request, object);
    }
    if runs("StorageObjectInUseProtection") {
        storage::protect(request, object);
    }
    if runs("RuntimeClass") {
        runtime_class::mutate(request, object)?;
    }
    if runs("DefaultIngressClass") {
        ingress::mutate(request, object);
    }
    if runs("PodTopologyLabels") {
        nodes::label_by_topology(request, object);
    }
    signing_request::record(request, object);
    policy::mutate(request, object)
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
    dry_run: bool,
) -> Result<Vec<String>, ApiError> {
    let request = Admission {
        api,
        attributes,
        old,
    };
    let runs = |plugin| request.runs(plugin);
    if runs("LimitRanger") {
        limits::validate(&request, object)?;
    }
    if runs("ServiceAccount") {
        service_account::validate(&request, object)?;
    }
    let mut warnings = Vec::new();
    if runs("PodSecurity") {
        warnings = pod_security::validate(&request, object)?;
    }
    if runs("Priority") {
        priority::validate(&request, object)?;
    }
    if runs("PersistentVolumeClaimResize") {
        storage::validate_expansion(&request, object)?;
    }
    if runs("RuntimeClass") {
        runtime_class::validate(&request, object)?;
    }
    signing_request::validate(&request, object)?;
    nodes::validate_resize(&request, object)?;
    let target = write_target(old, dry_run);
    dynamic::validate(api, attributes, target, Some(object), old).await?;
    Ok(warnings)
}

/// Refuses the deletion of what the cluster needs.
///
/// # Errors
/// The refusal.
pub(crate) fn validate_delete(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    namespace::validate_delete(attributes)
}

/// Whether webhooks or policies may see a deletion.
pub(crate) fn watches_deletions(api: &Api) -> bool {
    api.admission_config.current().is_some()
}

/// Admission of a deletion by webhooks and policies. Mirrors
/// `AdmissionToValidateObjectDeleteFunc`.
///
/// # Errors
/// The refusal.
pub(crate) async fn admit_delete(
    api: &Api,
    attributes: &Attributes<'_>,
    old: &Object,
    options: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let target = Target {
        operation: Operation::Delete,
        options: Some(options),
        dry_run,
    };
    if let Some(configured) = dynamic::mutating(api, attributes) {
        let mut reinvocation = Reinvocation::default();
        dynamic::mutate(
            api,
            attributes,
            target,
            &configured,
            None,
            Some(old),
            &mut reinvocation,
        )
        .await?;
    }
    dynamic::validate(api, attributes, target, None, Some(old)).await
}

/// The request of an admission plugin, besides the object.
struct Admission<'a> {
    api: &'a Api,
    attributes: &'a Attributes<'a>,
    /// The stored object; `None` when it is made.
    old: Option<&'a Object>,
}

impl Admission<'_> {
    /// Whether a plugin runs, by its name in kube-apiserver.
    fn runs(&self, plugin: &str) -> bool {
        self.api.runs_admission_plugin(plugin)
    }

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
