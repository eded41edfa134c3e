//! PersistentVolumeClaims: an immutable spec, except for expansion. Mirrors
//! `ValidatePersistentVolumeClaim` and `ValidatePersistentVolumeClaimUpdate` in
//! `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    json_ext::{JsonDefaults, JsonExt, same},
    names,
    quantity::Quantity,
};
use bellerophon_codec::{object::Object, types::changes};
use serde_json::{Value, json};

use super::{
    DeleteAnswer, Generation, Strategy,
    persistent_volume::{VOLUME_MODES, access_modes},
    strategy::keep_status,
    validation,
};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The strategy of PersistentVolumeClaims. Mirrors `pkg/registry/core/persistentvolumeclaim`.
pub const PERSISTENT_VOLUME_CLAIM: Strategy = Strategy {
    default: |claim| {
        claim.section("spec").default_to("volumeMode", "Filesystem");
        claim.section("status").default_text("phase", "Pending");
    },
    prepare_create: |claim| {
        claim
            .body
            .insert("status".into(), json!({"phase": "Pending"}));
        match_sources(claim);
    },
    prepare_update: |new, old| {
        keep_status(new, old);
        match_sources(new);
    },
    validate,
    validate_update,
    validate_status,
    warnings,
    generation: Generation::None,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::WITH_STATUS
};

/// Copies `dataSource` and `dataSourceRef` to each other, unless the latter names a namespace.
fn match_sources(claim: &mut Object) {
    let spec = claim.section("spec");
    let source = spec.get_set("dataSource").cloned();
    let reference = spec.get_set("dataSourceRef").cloned();
    match (source, reference) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".into(), source);
        }
        (None, Some(reference)) if reference.text("namespace").is_empty() => {
            spec.insert("dataSource".into(), reference);
        }
        _ => {}
    }
}

fn validate(claim: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = claim.body.field("spec");
    if spec.is_empty_at("accessModes") {
        out.push(FieldError::required(
            at.child("accessModes"),
            "at least 1 access mode is required",
        ));
    }
    validation::label_selector(&at.child("selector"), spec.field("selector"), out);
    access_modes(&at.child("accessModes"), spec, out);
    requested(&at, spec, out);
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        validation::named(
            &at.child("storageClassName"),
            class,
            names::dns_subdomain(class),
            out,
        );
    }
    if let Some(mode) = spec.field("volumeMode").as_str() {
        validation::one_of(&at.child("volumeMode"), mode, VOLUME_MODES, out);
    }
    data_sources(&at, spec, out);
    let class = spec.text("volumeAttributesClassName");
    if !class.is_empty() {
        validation::named(
            &at.child("volumeAttributesClassName"),
            class,
            names::dns_subdomain(class),
            out,
        );
    }
}

fn requested(at: &Path, spec: &Value, out: &mut Vec<FieldError>) {
    let resources = at.child("resources");
    let at = resources.key("storage");
    match spec
        .field("resources")
        .field("requests")
        .get_set("storage")
        .and_then(Quantity::of)
    {
        None => out.push(FieldError::required(at, "")),
        Some(amount) if amount.sign() <= 0 => out.push(FieldError::invalid(
            at,
            &amount,
            "must be greater than zero",
        )),
        Some(_) => {}
    }
}

fn data_sources(at: &Path, spec: &Value, out: &mut Vec<FieldError>) {
    for name in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.get_set(name) else {
            continue;
        };
        let at = at.child(name);
        validation::required(&at.child("name"), source.text("name"), out);
        validation::required(&at.child("kind"), source.text("kind"), out);
        match source.text("apiGroup") {
            "" if source.text("kind") != "PersistentVolumeClaim" => {
                let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
                out.push(FieldError::invalid(at, source.text("kind"), why));
            }
            "" => {}
            group => validation::named(
                &at.child("apiGroup"),
                group,
                names::dns_subdomain(group),
                out,
            ),
        }
    }
    let source = spec.field("dataSource");
    let reference = spec.field("dataSourceRef");
    if source.is_null() || reference.is_null() {
        return;
    }
    // Kubernetes shows a path here, which is not in the JSON.
    let shown = Verbatim("{}");
    if !reference.text("namespace").is_empty() {
        out.push(FieldError::invalid(
            at,
            shown,
            "may not be specified when dataSourceRef.namespace is specified",
        ));
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|field| source.field(field) != reference.field(field))
    {
        out.push(FieldError::invalid(at, shown, "must match dataSourceRef"));
    }
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let beta = |claim: &Object| claim.meta.annotations.get(BETA_CLASS).cloned();
    let before = old.body.field("spec");
    let spec = new.body.field("spec");
    let named_by_annotation = before.get_set("storageClassName").is_none()
        && spec.field("storageClassName").as_str() == beta(old).as_deref();
    let upgraded = beta(old).is_some()
        && named_by_annotation
        && beta(new).is_none_or(|class| Some(class) == beta(old));
    if !upgraded && beta(new) != beta(old) {
        let at = Path::field("metadata.annotations");
        out.push(FieldError::invalid(
            at.key(BETA_CLASS),
            beta(new).unwrap_or_default().as_str(),
            validation::IMMUTABLE,
        ));
    }
    let (kept, wanted) = fixed(new, old);
    if !same(&kept, &wanted) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let changes = changes("core.PersistentVolumeClaimSpec", &kept, &wanted);
        out.push(FieldError::forbidden("spec", &format!("{why}\n{changes}")));
    }
    size_change(new, old, out);
    validation::immutable(
        &Path::field("volumeMode"),
        spec.field("volumeMode"),
        before.field("volumeMode"),
        out,
    );
    let current = old
        .body
        .field("status")
        .get_set("currentVolumeAttributesClassName")
        .is_some();
    if current
        && spec.field("volumeAttributesClassName") != before.field("volumeAttributesClassName")
    {
        let why = |to: &str| {
            format!(
                "update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
            )
        };
        match spec.field("volumeAttributesClassName").as_str() {
            None => out.push(FieldError::forbidden(
                "spec.volumeAttributesClassName",
                &why("nil"),
            )),
            Some("") => out.push(FieldError::forbidden(
                "spec.volumeAttributesClassName",
                &why("empty string"),
            )),
            Some(_) => {}
        }
    }
}

/// The old and the new spec, which must be the same, with what may change made equal in both.
fn fixed(new: &Object, old: &Object) -> (Value, Value) {
    let mut kept = old.body.field("spec").clone();
    let mut wanted = new.body.field("spec").clone();
    let (Some(before), Some(after)) = (kept.as_object_mut(), wanted.as_object_mut()) else {
        return (kept, wanted);
    };
    if before.text("volumeName").is_empty() {
        before.take_over("volumeName", new.body.field("spec"));
    }
    // A class may be given later to a claim that never had one.
    if !before.has("storageClassName") {
        after.remove("storageClassName");
    }
    if old.str_at("status.phase") == "Bound" {
        after.take_over("volumeAttributesClassName", old.body.field("spec"));
        if let Some(requests) = after
            .map_mut("resources")
            .and_then(|resources| resources.map_mut("requests"))
        {
            requests.take_over("storage", before.field("resources").field("requests"));
        }
    }
    (kept, wanted)
}

fn size_change(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let size = |claim: &Object| {
        claim
            .at("spec.resources.requests.storage")
            .and_then(Quantity::of)
            .unwrap_or(Quantity::ZERO)
    };
    let real = old
        .at("status.capacity.storage")
        .and_then(Quantity::of)
        .unwrap_or(Quantity::ZERO);
    if size(new) < size(old) && size(new) <= real {
        out.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
}

fn validate_status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    if new.body.field("spec").is_empty_at("accessModes") {
        out.push(FieldError::required("Spec.accessModes", ""));
    }
    let at = Path::field("status");
    let capacity = at.child("capacity");
    let status = new.body.field("status");
    for (resource, amount) in status.entries("capacity") {
        if let Some(amount) = Quantity::of(amount).filter(|amount| amount.value() < 0) {
            out.push(FieldError::invalid(
                capacity.key(resource),
                amount.value(),
                "must be a valid resource quantity",
            ));
        }
    }
    const RESIZING: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    for (resource, state) in status.entries("allocatedResourceStatuses") {
        if !RESIZING.contains(&state.as_str().unwrap_or_default()) {
            let mut known = RESIZING.to_vec();
            known.sort_unstable();
            out.push(FieldError::not_supported(
                at.child("allocatedResourceStatuses"),
                resource,
                &known,
            ));
        }
    }
}

fn warnings(claim: &Object, _: Option<&Object>) -> Vec<String> {
    let mut all = Vec::new();
    if claim.meta.annotations.contains_key(BETA_CLASS) {
        all.push(format!("metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"));
    }
    for section in ["requests", "limits"] {
        let amount = claim
            .body
            .field("spec")
            .field("resources")
            .field(section)
            .get_set("storage")
            .and_then(Quantity::of);
        if let Some(amount) = amount.filter(|amount| !amount.is_whole()) {
            let shown = amount.to_string();
            all.push(format!("spec.resources.{section}[storage]: fractional byte value {shown:?} is invalid, must be an integer"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    fn claim(size: &str) -> Value {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": size}}}})
    }

    const FIXED: &str = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@ -6,7 +6,7 @@\n  \"Resources\": {\n   \"Limits\": null,\n   \"Requests\": {\n-   \"storage\": \"1Gi\"\n+   \"storage\": \"2Gi\"\n   }\n  },\n  \"VolumeName\": \"\",\n";

    #[test]
    fn modes_and_size_are_needed() {
        refused(
            &PERSISTENT_VOLUME_CLAIM,
            json!({"spec": {}}),
            &[
                "spec.accessModes: Required value: at least 1 access mode is required",
                "spec.resources[storage]: Required value",
            ],
        );
        refused(
            &PERSISTENT_VOLUME_CLAIM,
            json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteOncePod"], "volumeMode": "Raw", "storageClassName": "Bad_Class", "resources": {"requests": {"storage": "0"}}}}),
            &[
                "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
                r#"spec.resources[storage]: Invalid value: "0": must be greater than zero"#,
                r#"spec.storageClassName: Invalid value: "Bad_Class": a lowercase RFC 1123 subdomain…"#,
                r#"spec.volumeMode: Unsupported value: "Raw": supported values: "Block", "Filesystem""#,
            ],
        );
    }

    #[test]
    fn source_is_shown_under_both_names() {
        let mut body = claim("5Gi");
        body["spec"]["dataSource"] = json!({"name": "snap", "kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io"});
        let (stored, errors) = create(&PERSISTENT_VOLUME_CLAIM, body);
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            stored.at("spec.dataSourceRef"),
            stored.at("spec.dataSource")
        );
    }

    #[test]
    fn only_a_bound_claim_grows() {
        let (old, _) = create(&PERSISTENT_VOLUME_CLAIM, claim("1Gi"));
        assert_eq!(
            update(&PERSISTENT_VOLUME_CLAIM, &old, claim("2Gi")).1,
            [FIXED]
        );
        let mut named = claim("1Gi");
        named["spec"]["volumeName"] = json!("pv1");
        assert_eq!(update(&PERSISTENT_VOLUME_CLAIM, &old, named).1, [""; 0]);
        let mut bound = old;
        bound.body.insert(
            "status".into(),
            json!({"phase": "Bound", "capacity": {"storage": "2Gi"}}),
        );
        bound
            .section("spec")
            .insert("resources".into(), json!({"requests": {"storage": "2Gi"}}));
        assert_eq!(
            update(&PERSISTENT_VOLUME_CLAIM, &bound, claim("3Gi")).1,
            [""; 0]
        );
        assert_eq!(
            update(&PERSISTENT_VOLUME_CLAIM, &bound, claim("1Gi")).1,
            [
                "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
            ]
        );
    }
}
