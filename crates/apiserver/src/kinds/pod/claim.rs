//! Claims that are made from a template: by a pod for itself, by a StatefulSet for its pods.
//! In: the template of a claim. Out: what is wrong with it.

use serde_json::Value;

use super::super::{checks, look::Look, quantity::Quantity};
use crate::{
    field::{FieldError, Path, Verbatim},
    names,
};

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

/// What is wrong with the template of a pod's own claim: of its metadata only labels and annotations may be given.
pub(super) fn check_template(template: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (meta, meta_at) = (template.part("metadata"), at.child("metadata"));
    check_annotations(&meta_at.child("annotations"), meta.part("annotations"), out);
    checks::labels(&meta_at.child("labels"), meta.part("labels"), out);
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
    check_spec(template.part("spec"), &at.child("spec"), out);
}

/// What is wrong with annotations of a template.
pub(crate) fn check_annotations(at: &Path<'_>, annotations: &Value, out: &mut Vec<FieldError>) {
    for key in annotations.as_object().into_iter().flat_map(|a| a.keys()) {
        checks::named(at, key, names::qualified_name(&key.to_lowercase()), out);
    }
}

/// What is wrong with the spec of a claim.
pub(crate) fn check_spec(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    check_access(spec, at, out);
    let storage_at = at.child("resources").key("storage").to_string();
    match Quantity::of(spec.part("resources").part("requests").part("storage")) {
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
            check_volume_mode(spec, at, out);
            check_sources(spec, at, out);
        }
        let name = spec.text(field);
        if !name.is_empty() {
            checks::named(&at.child(field), name, names::dns_subdomain(name), out);
        }
    }
}

fn check_access(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let modes_at = at.child("accessModes");
    let modes: Vec<&str> = spec.texts("accessModes").collect();
    if modes.is_empty() {
        out.push(FieldError::required(
            modes_at,
            "at least 1 access mode is required",
        ));
    }
    checks::label_selector(&at.child("selector"), spec.part("selector"), out);
    for mode in &modes {
        checks::one_of(&modes_at, mode, &ACCESS_MODES, out);
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

fn check_volume_mode(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(mode) = spec.part("volumeMode").as_str() {
        checks::one_of(&at.child("volumeMode"), mode, &["Block", "Filesystem"], out);
    }
}

fn check_sources(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (source, reference) = (spec.get_set("dataSource"), spec.get_set("dataSourceRef"));
    for (name, value) in [("dataSource", source), ("dataSourceRef", reference)] {
        if let Some(value) = value {
            check_source(value, &at.child(name), out);
        }
    }
    let (Some(source), Some(reference)) = (source, reference) else {
        return;
    };
    // Kubernetes shows a path here, of which JSON has nothing to tell.
    let shown = || Verbatim("{}");
    if !reference.text("namespace").is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        out.push(FieldError::invalid(at, shown(), detail));
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|f| source.part(f) != reference.part(f))
    {
        out.push(FieldError::invalid(at, shown(), "must match dataSourceRef"));
    }
}

fn check_source(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (kind, group) = (source.text("kind"), source.text("apiGroup"));
    checks::required(&at.child("name"), source.text("name"), out);
    checks::required(&at.child("kind"), kind, out);
    if group.is_empty() {
        if kind != "PersistentVolumeClaim" {
            out.push(FieldError::invalid(
                at,
                kind,
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            ));
        }
    } else {
        checks::named(
            &at.child("apiGroup"),
            group,
            names::dns_subdomain(group),
            out,
        );
    }
    let namespace = source.text("namespace");
    if !namespace.is_empty() {
        checks::named(
            &at.child("namespace"),
            namespace,
            names::dns_label(namespace),
            out,
        );
    }
}
