//! What may change in a job once it is made.
//! In: the new and the old Job. Out: what is wrong with the change.

use serde_json::{Map, Value};

use super::{
    super::{
        checks,
        look::{Fill, Look, same},
        selector,
    },
    job, job_status,
};
use crate::{
    field::{FieldError, Path},
    object::Object,
};

/// What is wrong with the change of a job. Kubernetes looks at the spec twice on an update, and so blames it twice.
pub(super) fn check(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let (spec, before, at) = (
        new.body.part("spec"),
        old.body.part("spec"),
        Path::field("spec"),
    );
    job::check_spec(spec, &at, out);
    check_completions(spec, before, &at.child("completions"), out);
    if !same(spec.part("selector"), before.part("selector")) {
        out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            checks::IMMUTABLE,
        ));
    }
    check_template(spec, before, old, &at.child("template"), out);
    for (field, name) in [
        ("completionMode", ""),
        ("podFailurePolicy", "batch.PodFailurePolicy"),
        ("backoffLimitPerIndex", ""),
        ("managedBy", ""),
        ("successPolicy", "batch.SuccessPolicy"),
    ] {
        let (new, old, at) = (spec.part(field), before.part(field), at.child(field));
        match name {
            "" => check_fixed(&at, new, old, out),
            _ => checks::immutable_struct(&at, name, new, old, out),
        }
    }
}

fn check_fixed(at: &Path<'_>, new: &Value, old: &Value, out: &mut Vec<FieldError>) {
    if !same(new, old) {
        out.push(FieldError::invalid(at, new, checks::IMMUTABLE));
    }
}

/// An indexed job may be scaled by changing completions and parallelism together.
fn check_completions(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if new.text("completionMode") != "Indexed" {
        check_fixed(at, new.part("completions"), old.part("completions"), out);
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

/// The template is fixed, but a job that waits may still be steered: where its pods run, and what they get.
fn check_template(
    new: &Value,
    old: &Value,
    stored: &Object,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let template = new.part("template");
    let Some(mut before) = old.part("template").as_object().cloned() else {
        return;
    };
    let status = stored.body.part("status");
    let waits = !status.has("startTime") || job_status::has_condition(status, "Suspended");
    if !old.is_true("suspend") || !waits || status.number("active") != 0 {
        checks::immutable_struct(
            at,
            "core.PodTemplateSpec",
            template,
            &Value::Object(before),
            out,
        );
        return;
    }
    steer(&mut before, template);
    let spec = template.part("spec");
    for list in ["containers", "initContainers"] {
        let alike = before.part("spec").list(list).len() == spec.list(list).len();
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
    checks::immutable_struct(
        &at.child("spec"),
        "core.PodSpec",
        spec,
        before.part("spec"),
        out,
    );
}

/// Lets the old template have what may be steered from the new one.
fn steer(old: &mut Map<String, Value>, new: &Value) {
    let spec = new.part("spec");
    let own = old.map_at("spec");
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        own.take_over(field, spec);
    }
    let affinity = own.map_at("affinity");
    affinity.take_over("nodeAffinity", spec.part("affinity"));
    if affinity.is_empty() && !spec.has("affinity") {
        own.remove("affinity");
    }
    for field in ["annotations", "labels"] {
        old.map_at("metadata")
            .take_over(field, new.part("metadata"));
    }
}
