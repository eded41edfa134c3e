//! The parameters that a binding gives to a policy. Mirrors `CollectParams`.

use serde_json::Value;

use crate::{
    admission::dynamic::request::Request, admission_config::Binding, admission_config::ParamRef,
    admission_config::Policy, registry::Resource,
};
use bellerophon_codec::object::Object;
use bellerophon_storage::ObjectKey;
use bellerophon_storage::Range;
use bellerophon_storage::Scope;

/// The parameters of a binding; one that is null if the policy has none. None at all if the policy
/// is not evaluated.
///
/// # Errors
/// Parameters that do not exist and must, or that cannot be looked up.
pub(super) fn collect(
    request: &Request<'_>,
    policy: &Policy,
    binding: &Binding,
    object: Option<&Object>,
) -> Result<Vec<Value>, String> {
    let (Some((api_version, kind)), Some(reference)) = (&policy.param_kind, &binding.param_ref)
    else {
        return Ok(vec![Value::Null]);
    };
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let catalog = request.api.registry.catalog();
    let Some(resource) = catalog.find_kind(group, version, kind) else {
        // Mirrors the error of the policy source, which looks the kind up in discovery.
        return Err(format!(
            "failed to find resource referenced by paramKind: '{}, Kind={kind}'",
            if group.is_empty() {
                format!("/{version}")
            } else {
                api_version.clone()
            }
        ));
    };
    let namespace = namespace(request, reference, &resource, object)?;
    let found = if reference.name.is_empty() {
        select(request, reference, &resource, &namespace)
    } else {
        let key = ObjectKey::new(&namespace, &reference.name);
        let stored = request.api.store.get(&resource.collection, &key);
        let stored = stored.map(|stored| resource.read(&stored).into_value());
        stored.into_iter().collect()
    };
    if found.is_empty() && reference.denies_missing {
        return Err(
            "no params found for policy binding with `Deny` parameterNotFoundAction".into(),
        );
    }
    Ok(found)
}

/// The namespace of the parameters; empty for cluster-scoped ones.
fn namespace(
    request: &Request<'_>,
    reference: &ParamRef,
    resource: &Resource,
    object: Option<&Object>,
) -> Result<String, String> {
    if !resource.namespaced {
        if reference.namespace.is_empty() {
            return Ok(String::new());
        }
        return Err(
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into(),
        );
    }
    match (
        reference.namespace.as_str(),
        request.namespace_name(object),
    ) {
        ("", "") => Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".into()),
        ("", own) => Ok(own.to_owned()),
        (given, _) => Ok(given.to_owned()),
    }
}

fn select(
    request: &Request<'_>,
    reference: &ParamRef,
    resource: &Resource,
    namespace: &str,
) -> Vec<Value> {
    let scope = if namespace.is_empty() {
        Scope::All
    } else {
        Scope::Namespace(namespace.to_owned())
    };
    let listing = request
        .api
        .store
        .list(&resource.collection, &Range::all_of(scope), None)
        .expect("the newest state is always kept");
    listing
        .objects
        .iter()
        .filter(|stored| reference.selector.matches(&stored.attributes.labels))
        .map(|stored| resource.read(stored).into_value())
        .collect()
}
