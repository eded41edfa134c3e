//! Pod templates: inside workloads, and as objects of their own.
//! In: a template and the selector that must fit it. Out: what is wrong with it.

use serde_json::Value;

use super::super::{
    DeleteAnswer, Generation, Strategy, checks,
    look::{Fill, Look},
    pod::{
        annotations_of_template, claim,
        defaults::default_template,
        spec::{self, Holder},
        warnings,
    },
    selector::{self, Selector},
};
use crate::{
    field::{FieldError, Path},
    object::Object,
};

/// A template kept for its own sake.
pub(crate) const POD_TEMPLATE: Strategy = Strategy {
    default: |object| default_template(object.body.map_at("template")),
    validate: |object, out| check(object.body.part("template"), &Path::field("template"), out),
    warnings: |object, _| {
        let mut out = Vec::new();
        warnings::of_template(
            object.body.part("template"),
            &Path::field("template"),
            &mut out,
        );
        out
    },
    generation: Generation::Body,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::PLAIN
};

/// What is wrong with a template.
pub(super) fn check(template: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let meta = template.part("metadata");
    // Kubernetes leaves `metadata` out of these two paths.
    checks::labels(&at.child("labels"), meta.part("labels"), out);
    let annotations_at = at.child("annotations");
    claim::check_annotations(&annotations_at, meta.part("annotations"), out);
    annotations_of_template(template, &annotations_at, out);
    let (spec, spec_at) = (template.part("spec"), at.child("spec"));
    spec::check(spec, Holder::Template, &spec_at, out);
    if !spec.list("ephemeralContainers").is_empty() {
        out.push(FieldError::forbidden(
            spec_at.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
}

/// A template whose pods are always restarted, in a kind of this name.
pub(super) fn check_lasting(
    template: &Value,
    kind: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    check(template, at, out);
    check_lasting_spec(template, kind, at, out);
}

/// Pods that a workload keeps running neither end nor have a deadline.
pub(super) fn check_lasting_spec(
    template: &Value,
    kind: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let (spec, at) = (template.part("spec"), at.child("spec"));
    checks::one_of(
        &at.child("restartPolicy"),
        spec.text("restartPolicy"),
        &["Always"],
        out,
    );
    if spec.has("activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        out.push(FieldError::forbidden(
            at.child("activeDeadlineSeconds"),
            &detail,
        ));
    }
}

/// The labels of a template must fit the selector that looks for its pods.
pub(super) fn check_fits(
    selector: &Selector<'_>,
    template: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let labels = template.part("metadata").part("labels");
    if !selector.matches(labels.as_object()) {
        let detail = "`selector` does not match template `labels`";
        out.push(FieldError::invalid(
            at.child("metadata.labels"),
            labels,
            detail,
        ));
    }
}

/// The selector of a workload: required, sound, not empty.
pub(super) fn check_selector(spec: &Value, kind: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let at = at.child("selector");
    let Some(selector) = spec.get_set("selector") else {
        out.push(FieldError::required(at, ""));
        return;
    };
    checks::label_selector(&at, selector, out);
    if selector.is_empty_at("matchLabels") && selector.is_empty_at("matchExpressions") {
        out.push(selector::invalid(
            Some(selector),
            at,
            &format!("empty selector is invalid for {kind}"),
        ));
    }
}

/// The selector of a workload may not change.
pub(super) fn check_same_selector(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let (new, old) = (
        new.body.part("spec").part("selector"),
        old.body.part("spec").part("selector"),
    );
    if !super::super::look::same(new, old) {
        out.push(selector::invalid(
            Some(new),
            Path::field("spec.selector"),
            checks::IMMUTABLE,
        ));
    }
}

/// Warnings for a workload with a template at `spec.template`; a name that pods inherit is judged when it is new.
pub(super) fn warnings_of(new: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() {
        warnings::of_name(new, &mut out);
    }
    out.extend(template_warnings(new, old));
    out
}

/// Warnings for the template of a workload, unless the update left its spec alone.
pub(super) fn template_warnings(new: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none_or(|old| old.body.part("spec") != new.body.part("spec")) {
        warnings::of_template(
            new.body.part("spec").part("template"),
            &Path::field("spec.template"),
            &mut out,
        );
    }
    out
}
