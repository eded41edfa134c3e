//! PersistentVolumes: one source, a capacity, and a phase with its transition time. Mirrors
//! `ValidatePersistentVolume` and `ValidatePersistentVolumeUpdate` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
    names,
    quantity::Quantity,
    time::Time,
};
use bellerophon_codec::{
    object::Object,
    types::{Internal, changes},
};
use serde_json::{Map, Value, json};

use super::{DeleteAnswer, Generation, Strategy, validation};

/// The strategy of PersistentVolumes. Mirrors `pkg/registry/core/persistentvolume`.
pub const PERSISTENT_VOLUME: Strategy = Strategy {
    default,
    prepare_create: |volume| {
        volume
            .body
            .insert("status".into(), json!({"phase": "Pending"}));
    },
    stamp,
    validate: |volume, out| validate_spec(&Path::field("spec"), volume.body.field("spec"), out),
    validate_update,
    warnings,
    generation: Generation::None,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::WITH_STATUS
};

pub(super) const ACCESS_MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
pub(super) const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// Every source a volume can have, in the order of their checks, with the fields it cannot do
/// without.
const SOURCES: &[(&str, &[&str])] = &[
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("nfs", &["server", "path"]),
    ("rbd", &["monitors", "image"]),
    ("quobyte", &["registry", "volume"]),
    ("cephfs", &["monitors"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("local", &["path"]),
    ("storageos", &["volumeName"]),
    ("csi", &["driver", "volumeHandle"]),
];

fn default(volume: &mut Object) {
    let spec = volume.section("spec");
    spec.default_text("persistentVolumeReclaimPolicy", "Retain");
    spec.default_to("volumeMode", "Filesystem");
    let mut fill = |source: &str, fields: &[(&str, Value)]| {
        if let Some(map) = spec.map_mut(source) {
            fields
                .iter()
                .for_each(|(name, value)| map.default_to(name, value.clone()));
        }
    };
    fill("hostPath", &[("type", json!(""))]);
    fill("iscsi", &[("iscsiInterface", json!("default"))]);
    fill(
        "rbd",
        &[
            ("pool", json!("rbd")),
            ("user", json!("admin")),
            ("keyring", json!("/etc/ceph/keyring")),
        ],
    );
    fill(
        "azureDisk",
        &[
            ("cachingMode", json!("ReadWrite")),
            ("fsType", json!("ext4")),
            ("readOnly", json!(false)),
            ("kind", json!("Shared")),
        ],
    );
    fill(
        "scaleIO",
        &[
            ("storageMode", json!("ThinProvisioned")),
            ("fsType", json!("xfs")),
        ],
    );
    volume.section("status").default_text("phase", "Pending");
}

/// Sets the transition time of the phase, unless the client does.
fn stamp(new: &mut Object, old: Option<&Object>, now: Time) {
    const SINCE: &str = "lastPhaseTransitionTime";
    let before = old.map(|old| old.body.field("status"));
    let phase_changed = before.is_none_or(|b| b.text("phase") != new.str_at("status.phase"));
    let status = new.section("status");
    let since = before.map_or(&Value::Null, |b| b.field(SINCE));
    if phase_changed && (status.get_set(SINCE).is_none() || status.field(SINCE) == since) {
        status.insert(SINCE.into(), now.to_string().into());
    } else if !phase_changed && status.get_set(SINCE).is_none() && !since.is_null() {
        status.insert(SINCE.into(), since.clone());
    }
}

pub(super) fn access_modes(at: &Path, spec: &Value, out: &mut Vec<FieldError>) {
    let modes: Vec<&str> = spec
        .list("accessModes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    modes
        .iter()
        .for_each(|mode| validation::one_of(at, mode, ACCESS_MODES, out));
    let others = modes
        .iter()
        .any(|mode| *mode != "ReadWriteOncePod" && ACCESS_MODES.contains(mode));
    if modes.contains(&"ReadWriteOncePod") && others {
        out.push(FieldError::forbidden(
            at,
            "may not use ReadWriteOncePod with other access modes",
        ));
    }
}

fn validate_spec(at: &Path, spec: &Value, out: &mut Vec<FieldError>) {
    if spec.is_empty_at("accessModes") {
        out.push(FieldError::required(at.child("accessModes"), ""));
    }
    access_modes(&at.child("accessModes"), spec, out);
    capacity(&at.child("capacity"), spec.field("capacity"), out);
    let policy = spec.text("persistentVolumeReclaimPolicy");
    validation::one_of(
        &at.child("persistentVolumeReclaimPolicy"),
        policy,
        &["Delete", "Recycle", "Retain"],
        out,
    );
    if let Some(affinity) = spec.get_set("nodeAffinity") {
        node_affinity(&at.child("nodeAffinity"), affinity, out);
    }
    sources(at, spec, out);
    if policy == "Recycle"
        && spec
            .field("hostPath")
            .text("path")
            .trim_end_matches('/')
            .is_empty()
        && spec.get_set("hostPath").is_some()
    {
        out.push(FieldError::forbidden(
            at.child("persistentVolumeReclaimPolicy"),
            "may not be 'recycle' for a hostPath mount of '/'",
        ));
    }
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
    if let Some(class) = spec.field("volumeAttributesClassName").as_str() {
        let at_class = at.child("volumeAttributesClassName");
        match class {
            "" => out.push(FieldError::required(
                at_class,
                "an empty string is disallowed",
            )),
            class => validation::named(&at_class, class, names::dns_subdomain(class), out),
        }
        if spec.get_set("csi").is_none() {
            out.push(FieldError::required(
                at.child("csi"),
                "has to be specified when using volumeAttributesClassName",
            ));
        }
    }
}

fn capacity(at: &Path, capacity: &Value, out: &mut Vec<FieldError>) {
    let empty = Map::new();
    let amounts = capacity.as_object().unwrap_or(&empty);
    if amounts.is_empty() {
        out.push(FieldError::required(at, ""));
    }
    if !amounts.contains_key("storage") || amounts.len() > 1 {
        out.push(FieldError::not_supported(at, capacity, &["storage"]));
    }
    for (resource, amount) in amounts {
        let Some(amount) = Quantity::of(amount) else {
            continue;
        };
        let at = at.key(resource);
        if amount.value() < 0 {
            out.push(FieldError::invalid(
                at,
                amount.value(),
                "must be a valid resource quantity",
            ));
        }
        if amount.sign() <= 0 {
            out.push(FieldError::invalid(
                at,
                &amount,
                "must be greater than zero",
            ));
        }
    }
}

fn node_affinity(at: &Path, affinity: &Value, out: &mut Vec<FieldError>) {
    let Some(required) = affinity.get_set("required") else {
        out.push(FieldError::required(
            at.child("required"),
            "must specify required node constraints",
        ));
        return;
    };
    let at = at.child("required");
    if required.is_empty_at("nodeSelectorTerms") {
        out.push(FieldError::required(
            at.child("nodeSelectorTerms"),
            "must have at least one node selector term",
        ));
    }
    let all = at.child("nodeSelectorTerms");
    for (i, term) in required.list("nodeSelectorTerms").iter().enumerate() {
        let at = all.index(i);
        let expressions = at.child("matchExpressions");
        for (i, expression) in term.list("matchExpressions").iter().enumerate() {
            node_requirement(&expressions.index(i), expression, out);
        }
    }
}

fn node_requirement(at: &Path, requirement: &Value, out: &mut Vec<FieldError>) {
    let values = requirement.list("values");
    let at_values = at.child("values");
    match (requirement.text("operator"), values.len()) {
        ("In" | "NotIn", 0) => out.push(FieldError::required(
            at_values,
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        ("Exists" | "DoesNotExist", 1..) => {
            out.push(FieldError::forbidden(
                at_values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        ("Gt" | "Lt", n) if n != 1 => {
            out.push(FieldError::required(
                at_values,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ));
        }
        ("In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt", _) => {}
        (other, _) => out.push(FieldError::invalid(
            at.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    let key = requirement.text("key");
    validation::named(&at.child("key"), key, names::qualified_name(key), out);
    for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
        validation::named(&at_values.index(i), value, names::label_value(value), out);
    }
}

fn sources(at: &Path, spec: &Value, out: &mut Vec<FieldError>) {
    let mut found = 0;
    for (source, fields) in SOURCES {
        let Some(value) = spec.get_set(source) else {
            continue;
        };
        found += 1;
        if found > 1 && *source != "flexVolume" {
            out.push(FieldError::forbidden(
                at.child(source),
                "may not specify more than 1 volume type",
            ));
            continue;
        }
        validate_source(&at.child(source), source, value, fields, out);
        if *source == "local" && spec.get_set("nodeAffinity").is_none() {
            out.push(FieldError::required(
                at.child("nodeAffinity"),
                "Local volume requires node affinity",
            ));
        }
    }
    if found == 0 {
        out.push(FieldError::required(at, "must specify a volume type"));
    }
}

fn validate_source(
    at: &Path,
    source: &str,
    value: &Value,
    fields: &[&str],
    out: &mut Vec<FieldError>,
) {
    for field in fields.iter().filter(|field| value.is_empty_at(field)) {
        out.push(FieldError::required(at.child(field), ""));
    }
    let path = value.text("path");
    match source {
        "nfs" if !path.is_empty() && !path.starts_with('/') => {
            out.push(FieldError::invalid(
                at.child("path"),
                path,
                "must be an absolute path",
            ));
        }
        "hostPath" | "local" if path.split('/').any(|step| step == "..") => {
            out.push(FieldError::invalid(
                at.child("path"),
                path,
                "must not contain '..'",
            ));
        }
        "csi" => csi(at, value, out),
        _ => {}
    }
}

fn csi(at: &Path, csi: &Value, out: &mut Vec<FieldError>) {
    driver_name(&at.child("driver"), csi.text("driver"), out);
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(secret) = csi.get_set(name) else {
            continue;
        };
        let at = at.child(name);
        match secret.text("name") {
            "" => out.push(FieldError::required(at.child("name"), "")),
            name => validation::named(&at.child("name"), name, names::dns_subdomain(name), out),
        }
        match secret.text("namespace") {
            "" => out.push(FieldError::required(at.child("namespace"), "")),
            name => validation::named(&at.child("namespace"), name, names::dns_label(name), out),
        }
    }
}

/// A driver's name, in any case; its presence is validated elsewhere.
pub(super) fn driver_name(at: &Path, name: &str, out: &mut Vec<FieldError>) {
    if name.is_empty() {
        return;
    }
    if name.len() > 63 {
        out.push(FieldError::too_long(at, 63));
    }
    validation::named(at, name, names::dns_subdomain(&name.to_lowercase()), out);
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let before = old.body.field("spec");
    let spec = new.body.field("spec");
    let mut wanted = spec.clone();
    // The secret for growing may be added later.
    if let Some(csi) = wanted
        .get_mut("csi")
        .and_then(Value::as_object_mut)
        .filter(|_| !before.field("csi").has("controllerExpandSecretRef"))
    {
        csi.remove("controllerExpandSecretRef");
    }
    if SOURCES
        .iter()
        .any(|(source, _)| !same(wanted.field(source), before.field(source)))
    {
        let changes = changes("core.PersistentVolumeSource", before, &wanted);
        let why = format!("spec.persistentvolumesource is immutable after creation\n{changes}");
        out.push(FieldError::forbidden("spec.persistentvolumesource", &why));
    }
    validation::immutable(
        &Path::field("volumeMode"),
        spec.field("volumeMode"),
        before.field("volumeMode"),
        out,
    );
    if before.has("nodeAffinity") && !same(spec.field("nodeAffinity"), before.field("nodeAffinity"))
    {
        let shown = Internal::one("core.VolumeNodeAffinity", spec.field("nodeAffinity"));
        let why = format!(
            "{}, except for updating from beta label to GA",
            validation::IMMUTABLE
        );
        out.push(FieldError::invalid("nodeAffinity", shown, &why));
    }
    if before.get_set("volumeAttributesClassName").is_some()
        && spec.get_set("volumeAttributesClassName").is_none()
    {
        out.push(FieldError::forbidden(
            "spec.volumeAttributesClassName",
            "update from non-nil value to nil is forbidden",
        ));
    }
}

fn warnings(volume: &Object, _: Option<&Object>) -> Vec<String> {
    const ANNOTATIONS: &[(&str, &str)] = &[
        (
            "volume.beta.kubernetes.io/storage-class",
            "deprecated since v1.8; use \"storageClassName\" attribute instead",
        ),
        (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ];
    const GONE: &[(&str, &str, &str)] = &[
        (
            "cephfs",
            "cephfs",
            "deprecated in v1.28, non-functional in v1.31+",
        ),
        (
            "photonPersistentDisk",
            "photonPersistentDisk",
            "deprecated in v1.11, non-functional in v1.16+",
        ),
        (
            "scaleIO",
            "scaleIO",
            "deprecated in v1.16, non-functional in v1.22+",
        ),
        (
            "storageos",
            "storageOS",
            "deprecated in v1.22, non-functional in v1.25+",
        ),
        (
            "glusterfs",
            "glusterfs",
            "deprecated in v1.25, non-functional in v1.26+",
        ),
        (
            "rbd",
            "rbd",
            "deprecated in v1.28, non-functional in v1.31+",
        ),
    ];
    let spec = volume.body.field("spec");
    let annotated = ANNOTATIONS
        .iter()
        .filter(|(key, _)| volume.meta.annotations.contains_key(*key));
    let mut all: Vec<String> = annotated
        .map(|(key, why)| format!("metadata.annotations[{key}]: {why}"))
        .collect();
    if spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
        all.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".into());
    }
    let gone = GONE
        .iter()
        .filter(|(field, ..)| spec.get_set(field).is_some());
    all.extend(gone.map(|(_, shown, why)| format!("spec.{shown}: {why}")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{NOW, create, refused, update, update_status};

    fn volume() -> Value {
        json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "nfs": {"server": "a", "path": "/a"}}})
    }

    #[test]
    fn volume_is_completed_and_pending() {
        let (stored, errors) = create(&PERSISTENT_VOLUME, volume());
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            stored.str_at("spec.persistentVolumeReclaimPolicy"),
            "Retain"
        );
        assert_eq!(stored.str_at("spec.volumeMode"), "Filesystem");
        assert_eq!(
            stored.body["status"],
            json!({"phase": "Pending", "lastPhaseTransitionTime": NOW})
        );
    }

    #[test]
    fn capacity_modes_and_one_source_are_needed() {
        refused(
            &PERSISTENT_VOLUME,
            json!({"spec": {}}),
            &[
                "spec.accessModes: Required value",
                "spec.capacity: Required value",
                r#"spec.capacity: Unsupported value: null: supported values: "storage""#,
                "spec: Required value: must specify a volume type",
            ],
        );
        refused(
            &PERSISTENT_VOLUME,
            json!({"spec": {"capacity": {"storage": "-1Gi"}, "accessModes": ["Always"], "persistentVolumeReclaimPolicy": "Keep", "hostPath": {"path": "/a"}, "nfs": {"server": "s", "path": "relative"}}}),
            &[
                r#"spec.accessModes: Unsupported value: "Always": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod""#,
                "spec.capacity[storage]: Invalid value: -1073741824: must be a valid resource quantity",
                r#"spec.capacity[storage]: Invalid value: "-1Gi": must be greater than zero"#,
                r#"spec.persistentVolumeReclaimPolicy: Unsupported value: "Keep": supported values: "Delete", "Recycle", "Retain""#,
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
            ],
        );
    }

    #[test]
    fn source_stays_and_size_may_change() {
        let (old, _) = create(&PERSISTENT_VOLUME, volume());
        let mut next = volume();
        next["spec"]["capacity"]["storage"] = json!("2Gi");
        assert_eq!(update(&PERSISTENT_VOLUME, &old, next.clone()).1, [""; 0]);
        next["spec"]["nfs"]["path"] = json!("/b");
        assert_eq!(
            update(&PERSISTENT_VOLUME, &old, next).1,
            [
                "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n@@ -5,7 +5,7 @@\n  \"Glusterfs\": null,\n  \"NFS\": {\n   \"Server\": \"a\",\n-  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n   \"ReadOnly\": false\n  },\n  \"RBD\": null,\n"
            ]
        );
    }

    #[test]
    fn phase_change_is_timed() {
        let (mut old, _) = create(&PERSISTENT_VOLUME, volume());
        old.section("status").insert(
            "lastPhaseTransitionTime".into(),
            json!("2020-01-01T00:00:00Z"),
        );
        let mut next = old.to_value();
        let (kept, _) = update_status(&PERSISTENT_VOLUME, &old, next.clone());
        assert_eq!(
            kept.str_at("status.lastPhaseTransitionTime"),
            "2020-01-01T00:00:00Z"
        );
        next["status"]["phase"] = json!("Bound");
        let (bound, _) = update_status(&PERSISTENT_VOLUME, &old, next);
        assert_eq!(bound.str_at("status.lastPhaseTransitionTime"), NOW);
    }
}
