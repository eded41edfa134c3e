//! Validation of metadata, the same for every kind.
//! In: metadata that is written. Out: its errors.
//! Guarantees: paths, reasons and messages are those of Kubernetes.

use std::collections::{BTreeSet, HashSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    names,
};
use bellerophon_codec::object::{Object, ObjectMeta, OwnerReference};

use crate::registry::{self, Resource};

const METADATA: Path<'static> = Path::field("metadata");

/// Annotations of one object may hold this many bytes together.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

/// Finalizers that need no domain: they are Kubernetes' own.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The errors of the metadata of a new object.
pub(crate) fn validate_new(resource: &Resource, meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let name_rule = resource.strategy.name;
    if !meta.generate_name.is_empty() {
        // A prefix may end where a name may not: the suffix comes behind it.
        for detail in name_rule(&mask_trailing_dash(&meta.generate_name)) {
            errors.push(FieldError::invalid(
                METADATA.child("generateName"),
                &meta.generate_name,
                &detail,
            ));
        }
    }
    if meta.name.is_empty() {
        errors.push(FieldError::required(
            METADATA.child("name"),
            "name or generateName is required",
        ));
    } else {
        for detail in name_rule(&meta.name) {
            errors.push(FieldError::invalid(
                METADATA.child("name"),
                &meta.name,
                &detail,
            ));
        }
    }
    if resource.namespaced {
        for detail in names::dns_label(&meta.namespace) {
            errors.push(FieldError::invalid(
                METADATA.child("namespace"),
                &meta.namespace,
                &detail,
            ));
        }
    }
    if meta.generation < 0 {
        errors.push(FieldError::invalid(
            METADATA.child("generation"),
            meta.generation,
            "must be greater than or equal to 0",
        ));
    }
    validate_maps(meta, errors);
    validate_owners(&meta.owner_references, errors);
    validate_finalizers(resource, &meta.finalizers, errors);
}

/// The errors of a change of metadata.
pub(crate) fn validate_change(new: &ObjectMeta, old: &ObjectMeta, errors: &mut Vec<FieldError>) {
    if old.deletion_timestamp.is_some() {
        let had: BTreeSet<&String> = old.finalizers.iter().collect();
        let added: BTreeSet<&str> = new
            .finalizers
            .iter()
            .filter(|f| !had.contains(f))
            .map(String::as_str)
            .collect();
        if !added.is_empty() {
            let list = added
                .iter()
                .map(|f| format!("{f:?}"))
                .collect::<Vec<_>>()
                .join(", ");
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            );
            errors.push(FieldError::forbidden(METADATA.child("finalizers"), &detail));
        }
    }
    let immutable = |field: &str, new: &str, old: &str, errors: &mut Vec<FieldError>| {
        if new != old {
            errors.push(FieldError::invalid(
                METADATA.child(field),
                new,
                "field is immutable",
            ));
        }
    };
    immutable("name", &new.name, &old.name, errors);
    immutable("namespace", &new.namespace, &old.namespace, errors);
    immutable("uid", &new.uid, &old.uid, errors);
    if new.deletion_timestamp != old.deletion_timestamp {
        let shown = new
            .deletion_timestamp
            .map_or_else(|| "null".to_owned(), |t| format!("{:?}", t.to_string()));
        errors.push(FieldError::invalid(
            METADATA.child("deletionTimestamp"),
            Verbatim(&shown),
            "field is immutable",
        ));
    }
    if new.deletion_grace_period_seconds != old.deletion_grace_period_seconds {
        let shown = new
            .deletion_grace_period_seconds
            .map_or_else(|| "null".to_owned(), |s| s.to_string());
        errors.push(FieldError::invalid(
            METADATA.child("deletionGracePeriodSeconds"),
            Verbatim(&shown),
            "field is immutable",
        ));
    }
    validate_maps(new, errors);
    validate_owners(&new.owner_references, errors);
}

fn validate_maps(meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let labels = METADATA.child("labels");
    for (key, value) in &meta.labels {
        errors.extend(
            names::qualified_name(key)
                .iter()
                .map(|detail| FieldError::invalid(labels, key, detail)),
        );
        errors.extend(
            names::label_value(value)
                .iter()
                .map(|detail| FieldError::invalid(labels, value, detail)),
        );
    }
    let annotations = METADATA.child("annotations");
    for key in meta.annotations.keys() {
        errors.extend(
            names::qualified_name(&key.to_lowercase())
                .iter()
                .map(|detail| FieldError::invalid(annotations, key, detail)),
        );
    }
    if meta
        .annotations
        .iter()
        .map(|(k, v)| k.len() + v.len())
        .sum::<usize>()
        > ANNOTATIONS_MAX_BYTES
    {
        errors.push(FieldError::too_long(annotations, ANNOTATIONS_MAX_BYTES));
    }
}

/// Of a longer list of owner references only the first conflict of controllers is reported.
const OWNERS_SHOWN_MAX: usize = 64;

fn validate_owners(owners: &[OwnerReference], errors: &mut Vec<FieldError>) {
    let path = METADATA.child("ownerReferences");
    let mut controller: Option<&OwnerReference> = None;
    let mut conflicts = 0;
    for owner in owners {
        let version = owner.api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            errors.push(FieldError::invalid(
                path.child("apiVersion"),
                &owner.api_version,
                "version must not be empty",
            ));
        }
        for (field, text) in [
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if text.is_empty() {
                errors.push(FieldError::invalid(
                    path.child(field),
                    text,
                    "must not be empty",
                ));
            }
        }
        if registry::is_banned_owner(&owner.api_version, &owner.kind) {
            let shown = serde_json::to_string(owner).expect("references have string keys");
            let slash = if owner.api_version.contains('/') {
                ""
            } else {
                "/"
            };
            errors.push(FieldError::invalid(
                path,
                Verbatim(&shown),
                &format!(
                    "{slash}{}, Kind={} is disallowed from being an owner",
                    owner.api_version, owner.kind
                ),
            ));
        }
        if owner.controller == Some(true) {
            if let Some(first) = controller {
                // Each such error shows the whole list, so one is enough of a long list.
                conflicts += 1;
                if conflicts > 1 && owners.len() > OWNERS_SHOWN_MAX {
                    continue;
                }
                let shown = serde_json::to_string(owners).expect("references have string keys");
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
                    shown_owner(first),
                    shown_owner(owner)
                );
                errors.push(FieldError::invalid(path, Verbatim(&shown), &detail));
            } else {
                controller = Some(owner);
            }
        }
    }
}

fn shown_owner(owner: &OwnerReference) -> String {
    format!("{}/{}", owner.kind, owner.name)
}

/// Removes duplicate references, and returns their uids.
pub(crate) fn dedup_owners(meta: &mut ObjectMeta) -> Option<String> {
    let mut seen: HashSet<OwnerReference> = HashSet::with_capacity(meta.owner_references.len());
    let mut twice: Vec<String> = Vec::new();
    // References are compared as a whole: two of one uid may differ in the rest.
    meta.owner_references.retain(|owner| {
        let first = seen.insert(owner.clone());
        if !first {
            twice.push(owner.uid.clone());
        }
        first
    });
    (!twice.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        )
    })
}

fn validate_finalizers(resource: &Resource, finalizers: &[String], errors: &mut Vec<FieldError>) {
    let path = METADATA.child("finalizers");
    for finalizer in finalizers {
        errors.extend(
            names::qualified_name(finalizer)
                .iter()
                .map(|detail| FieldError::invalid(path, finalizer, detail)),
        );
    }
    let is_bare =
        |finalizer: &str| !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer);
    for (i, finalizer) in finalizers
        .iter()
        .enumerate()
        .filter(|(_, f)| !resource.is_custom() && is_bare(f))
    {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path.index(i), finalizer, detail));
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let shown = serde_json::to_value(finalizers).unwrap_or_default();
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, &shown, detail));
    }
}

/// A prefix validated as if its trailing dash were a letter.
fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(head) if !head.is_empty() => format!("{head}a"),
        _ => prefix.to_owned(),
    }
}

/// Puts back what no client may change, whatever it sends.
pub(crate) fn keep_server_fields(new: &mut Object, old: &Object) {
    let meta = &mut new.meta;
    let was = &old.meta;
    meta.generation = was.generation;
    meta.self_link.clear();
    if meta.uid.is_empty() {
        meta.uid.clone_from(&was.uid);
    }
    meta.creation_timestamp = was.creation_timestamp;
    if was.deletion_timestamp.is_some() {
        meta.deletion_timestamp = was.deletion_timestamp;
    }
    if meta.deletion_grace_period_seconds.is_none() {
        meta.deletion_grace_period_seconds = was.deletion_grace_period_seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNERS: usize = 20_000;

    fn owner(number: usize) -> OwnerReference {
        OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: format!("p{number}"),
            uid: "u".into(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Each reference used to be compared with all before it.
    #[test]
    fn equal_owner_references_are_dropped_whatever_their_number() {
        let mut meta = ObjectMeta {
            owner_references: (0..OWNERS).chain(0..2).map(owner).collect(),
            ..ObjectMeta::default()
        };
        let warning = dedup_owners(&mut meta).expect("two are repeated");
        assert!(
            warning.ends_with("duplicate UID(s) observed: u, u"),
            "{warning}"
        );
        let kept: Vec<OwnerReference> = (0..OWNERS).map(owner).collect();
        assert_eq!(
            meta.owner_references, kept,
            "several references may have one uid"
        );
        assert_eq!(dedup_owners(&mut meta), None);
    }

    /// Each conflict used to be reported with all references: their number squared.
    #[test]
    fn conflicts_of_many_controllers_are_reported_once() {
        let references = |count: usize| -> Vec<OwnerReference> { (0..count).map(owner).collect() };
        let mut errors = Vec::new();
        validate_owners(&references(3), &mut errors);
        assert_eq!(errors.len(), 2);
        errors.clear();
        validate_owners(&references(OWNERS), &mut errors);
        assert_eq!(errors.len(), 1);
    }
}
