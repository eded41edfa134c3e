//! Claim templates: of a pod's ephemeral volumes, and of a StatefulSet.
//! In: the template of a claim. Out: its errors.
//! Mirrors `ValidatePersistentVolumeClaimSpec` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    json_ext::JsonExt,
    names,
    quantity::Quantity,
};
use serde_json::Value;

use super::super::validation;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

/// The errors of the template of a pod's own claim: of its metadata only labels and annotations may
/// be given.
pub(super) fn validate_template(template: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let meta = template.field("metadata");
    let meta_at = at.child("metadata");
    validate_annotations(
        &meta_at.child("annotations"),
        meta.field("annotations"),
        out,
    );
    validation::labels(&meta_at.child("labels"), meta.field("labels"), out);
    for field in [
        "name",
        "generateName",
        "namespace",
        "ownerReferences",
        "finalizers",
    ] {
        if !meta.is_empty_at(field) {
            out.push(FieldError::forbidden(meta_at.child(field), "cannot be set"));
        }
    }
    validate_spec(template.field("spec"), &at.child("spec"), out);
}

/// The errors with annotations of a template.
pub(crate) fn validate_annotations(at: &Path<'_>, annotations: &Value, out: &mut Vec<FieldError>) {
    for key in annotations.as_object().into_iter().flat_map(|a| a.keys()) {
        validation::named(at, key, names::qualified_name(&key.to_lowercase()), out);
    }
}

/// The errors of the spec of a claim.
pub(crate) fn validate_spec(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_access(spec, at, out);
    let storage_at = at.child("resources").key("storage").to_string();
    match Quantity::of(spec.field("resources").field("requests").field("storage")) {
        None => out.push(FieldError::required(&storage_at, "")),
        Some(amount) if amount <= Quantity::ZERO => out.push(FieldError::invalid(
            &storage_at,
            &amount,
            "must be greater than zero",
        )),
        Some(_) => {}
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if field == "volumeAttributesClassName" {
            validate_volume_mode(spec, at, out);
            validate_sources(spec, at, out);
        }
        let name = spec.text(field);
        if !name.is_empty() {
            validation::named(&at.child(field), name, names::dns_subdomain(name), out);
        }
    }
}

fn validate_access(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let modes_at = at.child("accessModes");
    let modes: Vec<&str> = spec.texts("accessModes").collect();
    if modes.is_empty() {
        out.push(FieldError::required(
            modes_at,
            "at least 1 access mode is required",
        ));
    }
    validation::label_selector(&at.child("selector"), spec.field("selector"), out);
    for mode in &modes {
        validation::one_of(&modes_at, mode, &ACCESS_MODES, out);
    }
    let single = modes.contains(&"ReadWriteOncePod");
    if single
        && modes
            .iter()
            .any(|m| *m != "ReadWriteOncePod" && ACCESS_MODES.contains(m))
    {
        out.push(FieldError::forbidden(
            modes_at,
            "may not use ReadWriteOncePod with other access modes",
        ));
    }
}

fn validate_volume_mode(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(mode) = spec.field("volumeMode").as_str() {
        validation::one_of(&at.child("volumeMode"), mode, &["Block", "Filesystem"], out);
    }
}

fn validate_sources(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let source = spec.get_set("dataSource");
    let reference = spec.get_set("dataSourceRef");
    for (name, value) in [("dataSource", source), ("dataSourceRef", reference)] {
        if let Some(value) = value {
            validate_source(value, &at.child(name), out);
        }
    }
    let (Some(source), Some(reference)) = (source, reference) else {
        return;
    };
    // Kubernetes shows a path here, which is not in the JSON.
    let shown = || Verbatim("{}");
    if !reference.text("namespace").is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        out.push(FieldError::invalid(at, shown(), detail));
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|f| source.field(f) != reference.field(f))
    {
        out.push(FieldError::invalid(at, shown(), "must match dataSourceRef"));
    }
}

fn validate_source(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let kind = source.text("kind");
    let group = source.text("apiGroup");
    validation::required(&at.child("name"), source.text("name"), out);
    validation::required(&at.child("kind"), kind, out);
    if group.is_empty() {
        if kind != "PersistentVolumeClaim" {
            out.push(FieldError::invalid(
                at,
                kind,
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            ));
        }
    } else {
        validation::named(
            &at.child("apiGroup"),
            group,
            names::dns_subdomain(group),
            out,
        );
    }
    let namespace = source.text("namespace");
    if !namespace.is_empty() {
        validation::named(
            &at.child("namespace"),
            namespace,
            names::dns_label(namespace),
            out,
        );
    }
}
