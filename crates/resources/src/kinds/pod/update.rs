//! Validates updates of a pod: only few fields are mutable.
//! In: the new and the old Pod. Out: the errors of the change.
//! Mirrors `ValidatePodUpdate` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
};
use bellerophon_codec::{
    object::Object,
    types::{Internal, changes},
};
use serde_json::{Map, Value};

use super::{annotations, container::validate_image_blanks, scheduling, spec_value};

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// The errors of the change of a pod.
pub(super) fn validate(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    annotations::validate_update(
        &new.meta.annotations,
        &old.meta.annotations,
        &Path::field("metadata.annotations"),
        out,
    );
    let new = spec_value(new);
    let old = spec_value(old);
    let at = Path::field("spec");
    for list in ["containers", "initContainers"] {
        let list_at = at.child(list);
        if new.list(list).len() != old.list(list).len() {
            out.push(FieldError::forbidden(
                list_at,
                "pod updates may not add or remove containers",
            ));
            return;
        }
        for (i, container) in new.list(list).iter().enumerate() {
            let at = list_at.index(i);
            if container.text("image").is_empty() {
                out.push(FieldError::required(at.child("image"), ""));
            }
            validate_image_blanks(container, &at, out);
        }
    }
    if !validate_deadline(
        new.int("activeDeadlineSeconds"),
        old.int("activeDeadlineSeconds"),
        &at.child("activeDeadlineSeconds"),
        out,
    ) {
        return;
    }
    validate_tolerations(new, old, &at.child("tolerations"), out);
    validate_gates(new, old, &at.child("schedulingGates"), out);
    if !same(new, old) {
        validate_rest(new, old, &at, out);
    }
}

/// A deadline may only decrease; returns false when the rest need not be validated.
fn validate_deadline(
    new: Option<i64>,
    old: Option<i64>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) -> bool {
    match (new, old) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            out.push(FieldError::invalid(
                at,
                new,
                "must be between 0 and 2147483647, inclusive",
            ));
            false
        }
        (Some(new), Some(old)) if old < new => {
            out.push(FieldError::invalid(
                at,
                new,
                "must be less than or equal to previous value",
            ));
            false
        }
        (None, Some(_)) => {
            out.push(FieldError::invalid(
                at,
                &Value::Null,
                "must not update from a positive integer to nil value",
            ));
            true
        }
        _ => true,
    }
}

fn validate_tolerations(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let but_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration
            .as_object_mut()
            .map(|t| t.remove("tolerationSeconds"));
        toleration.to_string()
    };
    let kept: BTreeSet<String> = new.list("tolerations").iter().map(but_seconds).collect();
    if old
        .list("tolerations")
        .iter()
        .any(|t| !kept.contains(&but_seconds(t)))
    {
        out.push(FieldError::forbidden(
            at,
            "existing toleration can not be modified except its tolerationSeconds",
        ));
        return;
    }
    scheduling::validate_tolerations(new.list("tolerations"), at, out);
}

fn validate_gates(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let before: BTreeSet<&str> = old
        .list("schedulingGates")
        .iter()
        .map(|gate| gate.text("name"))
        .collect();
    for (i, gate) in new.list("schedulingGates").iter().enumerate() {
        let name = gate.text("name");
        if !before.contains(name) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            out.push(FieldError::forbidden(at.index(i).child("name"), &detail));
        }
    }
}

/// Restores all mutable fields; other differences are rejected.
fn validate_rest(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let Some(mut munged) = new.as_object().cloned() else {
        return;
    };
    for list in ["containers", "initContainers"] {
        for (container, old) in munged.maps_mut(list).zip(old.list(list)) {
            container.take_over("image", old);
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        munged.take_over(field, old);
    }
    if old.number("terminationGracePeriodSeconds") < 0
        && munged.number("terminationGracePeriodSeconds") == 1
    {
        munged.take_over("terminationGracePeriodSeconds", old);
    }
    if !old.list("schedulingGates").is_empty() {
        validate_gated(&mut munged, old, at, out);
    }
    let munged = Value::Object(munged);
    if !same(&munged, old) {
        out.push(FieldError::forbidden(
            at,
            &format!("{ONLY}\n{}", changes("core.PodSpec", old, &munged)),
        ));
    }
}

/// A pod that still waits at a gate may become pickier about its node.
fn validate_gated(
    munged: &mut Map<String, Value>,
    old: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let selector = munged.field("nodeSelector").clone();
    if old
        .entries("nodeSelector")
        .any(|(k, v)| selector.get(k) != Some(v))
    {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        out.push(FieldError::invalid(
            at.child("nodeSelector"),
            &selector,
            detail,
        ));
    }
    munged.take_over("nodeSelector", old);
    let affinity = munged.field("affinity").field("nodeAffinity").clone();
    let old_affinity = old.field("affinity").field("nodeAffinity");
    if same(&affinity, old_affinity) {
        return;
    }
    validate_node_affinity(
        &affinity,
        old_affinity,
        &at.child("affinity").child("nodeAffinity"),
        out,
    );
    let own = munged.map_at("affinity");
    own.take_over("nodeAffinity", old.field("affinity"));
    if own.is_empty() && !old.has("affinity") {
        munged.remove("affinity");
    }
}

fn validate_node_affinity(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let new = new.field(REQUIRED);
    let old = old.field(REQUIRED);
    let required_at = at.child(REQUIRED);
    let terms_at = required_at.child("nodeSelectorTerms");
    let new_terms = new.list("nodeSelectorTerms");
    let old_terms = old.list("nodeSelectorTerms");
    if !old_terms.is_empty() && old_terms.len() != new_terms.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        out.push(FieldError::invalid(
            terms_at,
            Internal::list("core.NodeSelectorTerm", new.field("nodeSelectorTerms")),
            detail,
        ));
        return;
    }
    for (i, (new, old)) in new_terms.iter().zip(old_terms).enumerate() {
        if !only_adds(new, old) {
            let shown = Internal::one("core.NodeSelectorTerm", new);
            out.push(FieldError::invalid(
                terms_at.index(i),
                shown,
                "only additions are allowed (no mutations or deletions)",
            ));
        }
    }
}

fn only_adds(new: &Value, old: &Value) -> bool {
    const LISTS: [&str; 2] = ["matchExpressions", "matchFields"];
    if LISTS.iter().all(|l| old.list(l).is_empty()) {
        // A term without requirements matches nothing; requirements would make it match.
        return LISTS.iter().all(|l| new.list(l).is_empty());
    }
    LISTS.iter().all(|l| new.list(l).starts_with(old.list(l)))
}
