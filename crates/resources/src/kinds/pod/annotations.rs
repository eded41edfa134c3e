//! Annotations that Kubernetes interprets on pods.
//! In: annotations of a pod or template and its spec. Out: their errors.
//! Mirrors `ValidatePodSpecificAnnotations` in `pkg/apis/core/validation`.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use serde_json::Value;

use super::{
    mount::validate_descending,
    spec::{MIRROR, visit},
};

type Annotations<'a> = BTreeMap<&'a str, &'a str>;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The errors of the annotations of a pod or template.
pub(super) fn validate(
    annotations: &Annotations<'_>,
    spec: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    if let Some(value) = annotations.get(MIRROR)
        && spec.text("nodeName").is_empty()
    {
        out.push(FieldError::invalid(
            at.key(MIRROR),
            *value,
            "must set spec.nodeName if mirror pod annotation is set",
        ));
    }
    if let Some(cost) = annotations.get(DELETION_COST)
        && !is_cost(cost)
    {
        out.push(FieldError::invalid(
            at.key(DELETION_COST),
            *cost,
            "must be a 32bit integer",
        ));
    }
    for (key, profile) in annotations {
        if *key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            validate_seccomp(profile, &at.child(key), out);
        }
    }
    for (key, profile) in annotations {
        if let Some(container) = key.strip_prefix(APPARMOR) {
            validate_apparmor(container, profile, spec, &at.key(key), out);
        }
    }
}

fn is_cost(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.starts_with('+') && (digits == "0" || !digits.starts_with('0'));
    plain && text.parse::<i32>().is_ok()
}

fn validate_seccomp(profile: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(file) = profile.strip_prefix("localhost/") {
        validate_descending(file, at, out);
    } else if !matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        out.push(FieldError::invalid(
            at,
            profile,
            "must be a valid seccomp profile",
        ));
    }
}

fn validate_apparmor(
    container: &str,
    profile: &str,
    spec: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut found = false;
    visit(spec, &Path::ROOT, |c, _| {
        found |= c.text("name") == container
    });
    if !found {
        out.push(FieldError::invalid(at, container, "container not found"));
    }
    if !matches!(profile, "" | "runtime/default" | "unconfined")
        && !profile.starts_with("localhost/")
    {
        out.push(FieldError::invalid(
            at,
            profile,
            &format!("invalid AppArmor profile name: {profile:?}"),
        ));
    }
}

/// The errors of an update of annotations: mirror pod and AppArmor annotations are
/// immutable.
pub(super) fn validate_update(
    new: &BTreeMap<String, String>,
    old: &BTreeMap<String, String>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let guarded = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        _ if key.starts_with(APPARMOR) => Some("AppArmor annotations"),
        _ => None,
    };
    for (key, _) in old.iter().filter(|(k, v)| new.get(*k) != Some(v)) {
        if let Some(what) = guarded(key) {
            out.push(FieldError::forbidden(
                at.key(key),
                &format!("may not remove or update {what}"),
            ));
        }
    }
    for key in new.keys().filter(|k| !old.contains_key(*k)) {
        if let Some(what) = guarded(key) {
            out.push(FieldError::forbidden(
                at.key(key),
                &format!("may not add {what}"),
            ));
        }
    }
}

/// The errors of the annotations of a template.
pub(crate) fn validate_template(template: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let annotations = template
        .field("metadata")
        .entries("annotations")
        .map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
        .collect();
    validate(&annotations, template.field("spec"), at, out);
}
