//! Validates updates of a job.
//! In: the new and the old Job. Out: the errors of the change.
//! Mirrors `ValidateJobUpdate` in `pkg/apis/batch/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value};

use super::{
    super::{selector, validation},
    job, job_status,
};

/// The errors of an update of a job. Kubernetes validates the spec twice on an update, and so
/// reports its errors twice.
pub(super) fn validate(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let before = old.body.field("spec");
    let at = Path::field("spec");
    let spec = new.body.field("spec");
    job::validate_spec(spec, &at, out);
    validate_completions(spec, before, &at.child("completions"), out);
    if !same(spec.field("selector"), before.field("selector")) {
        out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            validation::IMMUTABLE,
        ));
    }
    validate_template(spec, before, old, &at.child("template"), out);
    for (field, name) in [
        ("completionMode", ""),
        ("podFailurePolicy", "batch.PodFailurePolicy"),
        ("backoffLimitPerIndex", ""),
        ("managedBy", ""),
        ("successPolicy", "batch.SuccessPolicy"),
    ] {
        let new = spec.field(field);
        let old = before.field(field);
        let at = at.child(field);
        match name {
            "" => validate_fixed(&at, new, old, out),
            _ => validation::immutable_struct(&at, name, new, old, out),
        }
    }
}

fn validate_fixed(at: &Path<'_>, new: &Value, old: &Value, out: &mut Vec<FieldError>) {
    if !same(new, old) {
        out.push(FieldError::invalid(at, new, validation::IMMUTABLE));
    }
}

/// An indexed job may be scaled by changing completions and parallelism together.
fn validate_completions(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if new.text("completionMode") != "Indexed" {
        validate_fixed(at, new.field("completions"), old.field("completions"), out);
        return;
    }
    if let Some(completions) = new.int("completions")
        && old.int("completions") != Some(completions)
        && new.int("parallelism") != Some(completions)
    {
        out.push(FieldError::invalid(
            at,
            completions,
            "can only be modified in tandem with spec.parallelism",
        ));
    }
}

/// The template is fixed, but a job that waits may still be steered: where its pods run, and what
/// they get.
fn validate_template(
    new: &Value,
    old: &Value,
    stored: &Object,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let template = new.field("template");
    let Some(mut before) = old.field("template").as_object().cloned() else {
        return;
    };
    let status = stored.body.field("status");
    let waits = !status.has("startTime") || job_status::has_condition(status, "Suspended");
    if !old.is_true("suspend") || !waits || status.number("active") != 0 {
        validation::immutable_struct(
            at,
            "core.PodTemplateSpec",
            template,
            &Value::Object(before),
            out,
        );
        return;
    }
    steer(&mut before, template);
    let spec = template.field("spec");
    for list in ["containers", "initContainers"] {
        let alike = before.field("spec").list(list).len() == spec.list(list).len();
        for (container, new) in before
            .map_at("spec")
            .maps_mut(list)
            .zip(spec.list(list))
            .filter(|_| alike)
        {
            if container.text("name") == new.text("name") {
                container.take_over("resources", new);
            }
        }
    }
    validation::immutable_struct(
        &at.child("spec"),
        "core.PodSpec",
        spec,
        before.field("spec"),
        out,
    );
}

/// Lets the old template have what may be steered from the new one.
fn steer(old: &mut Map<String, Value>, new: &Value) {
    let spec = new.field("spec");
    let own = old.map_at("spec");
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        own.take_over(field, spec);
    }
    let affinity = own.map_at("affinity");
    affinity.take_over("nodeAffinity", spec.field("affinity"));
    if affinity.is_empty() && !spec.has("affinity") {
        own.remove("affinity");
    }
    for field in ["annotations", "labels"] {
        old.map_at("metadata")
            .take_over(field, new.field("metadata"));
    }
}
