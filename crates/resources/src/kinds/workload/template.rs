//! Pod templates: of workloads, and PodTemplate objects.
//! In: a template and the selector that must match it. Out: its errors.
//! Mirrors `ValidatePodTemplateSpec` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::super::{
    DeleteAnswer, Generation, Strategy,
    pod::{
        annotations_of_template, claim,
        defaults::default_template,
        spec::{self, Holder},
        warnings,
    },
    selector::{self, Selector},
    validation,
};

/// A template kept for its own sake.
pub const POD_TEMPLATE: Strategy = Strategy {
    default: |object| default_template(object.body.map_at("template")),
    validate: |object, out| validate(object.body.field("template"), &Path::field("template"), out),
    warnings: |object, _| {
        let mut out = Vec::new();
        warnings::of_template(
            object.body.field("template"),
            &Path::field("template"),
            &mut out,
        );
        out
    },
    generation: Generation::Body,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::PLAIN
};

/// The errors of a template.
pub(super) fn validate(template: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let meta = template.field("metadata");
    // Kubernetes leaves `metadata` out of these two paths.
    validation::labels(&at.child("labels"), meta.field("labels"), out);
    let annotations_at = at.child("annotations");
    claim::validate_annotations(&annotations_at, meta.field("annotations"), out);
    annotations_of_template(template, &annotations_at, out);
    let spec_at = at.child("spec");
    let spec = template.field("spec");
    spec::validate(spec, Holder::Template, &spec_at, out);
    if !spec.list("ephemeralContainers").is_empty() {
        out.push(FieldError::forbidden(
            spec_at.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
}

/// A template whose pods are always restarted, in a kind of this name.
pub(super) fn validate_lasting(
    template: &Value,
    kind: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate(template, at, out);
    validate_lasting_spec(template, kind, at, out);
}

/// Pods that a workload keeps running neither end nor have a deadline.
pub(super) fn validate_lasting_spec(
    template: &Value,
    kind: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let at = at.child("spec");
    let spec = template.field("spec");
    validation::one_of(
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
pub(super) fn validate_fits(
    selector: &Selector<'_>,
    template: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let labels = template.field("metadata").field("labels");
    if !selector.matches(labels.as_object()) {
        let detail = "`selector` does not match template `labels`";
        out.push(FieldError::invalid(
            at.child("metadata.labels"),
            labels,
            detail,
        ));
    }
}

/// The selector of a workload: required, valid, not empty.
pub(super) fn validate_selector(
    spec: &Value,
    kind: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let at = at.child("selector");
    let Some(selector) = spec.get_set("selector") else {
        out.push(FieldError::required(at, ""));
        return;
    };
    validation::label_selector(&at, selector, out);
    if selector.is_empty_at("matchLabels") && selector.is_empty_at("matchExpressions") {
        out.push(selector::invalid(
            Some(selector),
            at,
            &format!("empty selector is invalid for {kind}"),
        ));
    }
}

/// The selector of a workload is immutable.
pub(super) fn validate_same_selector(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let new = new.body.field("spec").field("selector");
    let old = old.body.field("spec").field("selector");
    if !bellerophon_apimachinery::json_ext::same(new, old) {
        out.push(selector::invalid(
            Some(new),
            Path::field("spec.selector"),
            validation::IMMUTABLE,
        ));
    }
}

/// Warnings for a workload with a template at `spec.template`; a name that pods inherit is
/// validated when it is new.
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
    if old.is_none_or(|old| old.body.field("spec") != new.body.field("spec")) {
        warnings::of_template(
            new.body.field("spec").field("template"),
            &Path::field("spec.template"),
            &mut out,
        );
    }
    out
}
