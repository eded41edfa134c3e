//! Defaults of volume sources.
//! In: a volume of a pod spec. Out: the same with defaults. Guarantees: defaulting is idempotent.
//! Mirrors `SetDefaults_Volume` and the defaults of volume sources in
//! `pkg/apis/core/v1/defaults.go`.

use bellerophon_apimachinery::{
    json_ext::{JsonDefaults, JsonExt},
    quantity::Quantity,
};
use serde_json::{Map, Value};

use super::defaults::{canonical_lists, default_source, pull_policy};

type Json = Map<String, Value>;

/// `0644`, who may read files projected into a volume.
const FILE_MODE: i64 = 0o644;
/// How long a projected service-account token lives.
const TOKEN_SECONDS: i64 = 3600;

/// Default strings of sources: the source, the field, the value.
const TEXTS: [(&str, &str, &str); 8] = [
    ("iscsi", "iscsiInterface", "default"),
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("azureDisk", "cachingMode", "ReadWrite"),
    ("azureDisk", "kind", "Shared"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];

/// Completes a volume; one without a source is an empty directory.
pub(super) fn default_volume(volume: &mut Json) {
    if volume
        .iter()
        .all(|(field, value)| field == "name" || value.is_null())
    {
        volume.map_at("emptyDir");
    }
    for (source, field, value) in TEXTS {
        if let Some(source) = volume.map_mut(source) {
            source.default_text(field, value);
        }
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.map_mut(source) {
            source.default_to("defaultMode", FILE_MODE);
        }
    }
    if let Some(disk) = volume.map_mut("azureDisk") {
        disk.default_to("fsType", "ext4");
        disk.default_to("readOnly", false);
    }
    if let Some(path) = volume.map_mut("hostPath") {
        path.default_to("type", "");
    }
    if let Some(image) = volume.map_mut("image") {
        let policy = pull_policy(image.text("reference"));
        image.default_text("pullPolicy", policy);
    }
    if let Some(directory) = volume.map_mut("emptyDir")
        && let Some(limit) = Quantity::of(directory.field("sizeLimit"))
    {
        directory.insert("sizeLimit".into(), limit.to_string().into());
    }
    if let Some(d) = volume.map_mut("downwardAPI") {
        d.maps_mut("items").for_each(default_source)
    }
    if let Some(p) = volume.map_mut("projected") {
        p.maps_mut("sources").for_each(default_projection)
    }
    if let Some(claim) = volume
        .map_mut("ephemeral")
        .and_then(|e| e.map_mut("volumeClaimTemplate"))
    {
        claim.map_at("metadata");
        default_claim_spec(claim.map_at("spec"));
    }
}

fn default_projection(source: &mut Json) {
    if let Some(d) = source.map_mut("downwardAPI") {
        d.maps_mut("items").for_each(default_source)
    }
    if let Some(token) = source.map_mut("serviceAccountToken") {
        token.default_to("expirationSeconds", TOKEN_SECONDS);
    }
}

/// Completes the spec of a claim made from a template.
pub(crate) fn default_claim_spec(spec: &mut Json) {
    spec.default_to("volumeMode", "Filesystem");
    canonical_lists(spec.map_at("resources"));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sources_get_the_defaults_of_their_type() {
        let cases = [
            (json!({}), json!({"emptyDir": {}})),
            (
                json!({"emptyDir": {"sizeLimit": "1024Mi"}}),
                json!({"emptyDir": {"sizeLimit": "1Gi"}}),
            ),
            (
                json!({"configMap": {"name": "s"}}),
                json!({"configMap": {"name": "s", "defaultMode": 420}}),
            ),
            (
                json!({"secret": {"secretName": "s", "defaultMode": 256}}),
                json!({"secret": {"secretName": "s", "defaultMode": 256}}),
            ),
            (
                json!({"hostPath": {"path": "/x"}}),
                json!({"hostPath": {"path": "/x", "type": ""}}),
            ),
            (
                json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
                json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}],
                    "defaultMode": 420}}),
            ),
            (
                json!({"projected": {"sources": [{"configMap": {"name": "s"}}, {"serviceAccountToken": {"path": "token"}}]}}),
                json!({"projected": {"sources": [{"configMap": {"name": "s"}},
                    {"serviceAccountToken": {"expirationSeconds": 3600, "path": "token"}}], "defaultMode": 420}}),
            ),
            (
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1024Mi"}}}}}}),
                json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": "1Gi"}}}}}}),
            ),
            (
                json!({"iscsi": {"lun": 0}}),
                json!({"iscsi": {"lun": 0, "iscsiInterface": "default"}}),
            ),
            (
                json!({"persistentVolumeClaim": {"claimName": "d"}}),
                json!({"persistentVolumeClaim": {"claimName": "d"}}),
            ),
        ];
        for (given, stored) in cases {
            let mut volume = given.as_object().cloned().expect("an object");
            volume.insert("name".into(), "v".into());
            default_volume(&mut volume);
            volume.remove("name");
            assert_eq!(Value::Object(volume), stored);
        }
    }
}
