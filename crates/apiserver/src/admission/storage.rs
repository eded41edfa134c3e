//! Volumes and claims: default classes, protection while they are in use, and which claims may
//! grow. Mirrors the plugins DefaultStorageClass, StorageObjectInUseProtection and
//! PersistentVolumeClaimResize.

use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonDefaults, JsonExt},
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use bellerophon_storage::Scope;

use super::Admission;

const CLASSES: &str = "storage.k8s.io/storageclasses";
const DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// How claims named their class before it was a field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Objects that are protected while they are in use, and their finalizers.
const PROTECTED: [(&str, &str, &str); 3] = [
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        "kubernetes.io/vac-protection",
    ),
];

/// A new claim without a class takes the default one.
pub(super) fn default_class(request: &Admission<'_>, claim: &mut Object) {
    if !request.creates("", "persistentvolumeclaims") || class_of(claim).is_some() {
        return;
    }
    if let Some(class) = newest_default(request, CLASSES, &DEFAULT) {
        claim.section("spec").default_to("storageClassName", class);
    }
}

/// New volumes and claims get the finalizers that protect them while they are in use.
pub(super) fn protect(request: &Admission<'_>, object: &mut Object) {
    for (group, plural, finalizer) in PROTECTED {
        if request.creates(group, plural) && !object.meta.finalizers.iter().any(|f| f == finalizer)
        {
            object.meta.finalizers.push(finalizer.to_owned());
        }
    }
}

/// Only bound claims of a class that allows it may grow.
///
/// # Errors
/// 403 for others.
pub(super) fn validate_expansion(request: &Admission<'_>, claim: &Object) -> Result<(), ApiError> {
    let Some(old) = request
        .old
        .filter(|_| request.writes("", "persistentvolumeclaims"))
    else {
        return Ok(());
    };
    let size = |claim: &Object| {
        claim
            .at("spec.resources.requests.storage")
            .and_then(Quantity::of)
            .unwrap_or(Quantity::ZERO)
    };
    if size(claim) <= size(old) {
        return Ok(());
    }
    if old.str_at("status.phase") != "Bound" {
        return Err(request.forbid(claim, "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(claim).filter(|class| !class.is_empty() && class_of(old) == Some(class));
    let expands = class
        .and_then(|class| request.look_up(CLASSES, "", class))
        .is_some_and(|class| class.body.is_true("allowVolumeExpansion"));
    if expands {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(request.forbid(claim, why))
}

fn class_of(claim: &Object) -> Option<&str> {
    let annotated = claim.meta.annotations.get(CLASS).map(String::as_str);
    annotated.or_else(|| {
        claim
            .at("spec.storageClassName")
            .and_then(|class| class.as_str())
    })
}

/// The name of the class marked as default; of several the newest counts.
pub(super) fn newest_default(
    request: &Admission<'_>,
    collection: &str,
    marks: &[&str],
) -> Option<String> {
    let is_default = |class: &Object| {
        marks.iter().any(|mark| {
            class
                .meta
                .annotations
                .get(*mark)
                .is_some_and(|v| v == "true")
        })
    };
    let mut classes: Vec<Object> = request
        .list(collection, Scope::All)
        .into_iter()
        .filter(is_default)
        .collect();
    classes.sort_by(|a, b| {
        (b.meta.creation_timestamp, &a.meta.name).cmp(&(a.meta.creation_timestamp, &b.meta.name))
    });
    classes.into_iter().next().map(|class| class.meta.name)
}
