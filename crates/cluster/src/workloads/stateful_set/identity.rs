//! Identity of a StatefulSet's pods: ordinal, names, volumes.
//!
//! Input: a StatefulSet, a template, an ordinal. Output: names, a pod.
//! Guarantees: name, hostname and claims of a pod follow from its ordinal, so a replacement has the
//! same identity.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};
use kube::ResourceExt;

use crate::workloads::revision::CONTROLLER_REVISION_HASH_LABEL;
use crate::workloads::template::pod_from_template;

/// Label with the pod's name, for services that select a single pod.
const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the pod's ordinal.
const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The ordinals of the desired replicas. Mirrors getStartOrdinal and getEndOrdinal.
pub(super) fn ordinals(set: &StatefulSet) -> std::ops::Range<i32> {
    let spec = set.spec.as_ref();
    let start = spec
        .and_then(|spec| spec.ordinals.as_ref()?.start)
        .unwrap_or(0);
    start..start.saturating_add(spec.and_then(|spec| spec.replicas).unwrap_or(1).max(0))
}

/// The ordinal of a pod by its name; `None` if the name does not belong to the set. Mirrors
/// getParentNameAndOrdinal.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, ordinal) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    (digits && Some(parent) == set.metadata.name.as_deref())
        .then(|| ordinal.parse().ok())
        .flatten()
}

/// The name of a replica's pod. Mirrors getPodName.
pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name_any())
}

/// The name of a replica's claim. Mirrors getPersistentVolumeClaimName.
pub(super) fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", set.name_any())
}

/// The name of a pod's revision. Mirrors getPodRevision.
pub(super) fn pod_revision(pod: &Pod) -> &str {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(CONTROLLER_REVISION_HASH_LABEL))
        .map_or("", String::as_str)
}

/// The pod of a replica. Mirrors newStatefulSetPod and initIdentity.
pub(super) fn new_pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod_from_template(template, set);
    update_identity(set, &mut pod, ordinal);
    pod.labels_mut()
        .insert(CONTROLLER_REVISION_HASH_LABEL.into(), revision.into());
    let name = pod.metadata.name.clone();
    let spec = pod.spec.get_or_insert_default();
    // hostname and subdomain are immutable, so they are set only here.
    spec.hostname = name;
    spec.subdomain = set
        .spec
        .as_ref()
        .and_then(|spec| spec.service_name.clone())
        .filter(|name| !name.is_empty());
    pod
}

/// Sets the name, labels and volumes of a pod's identity. Mirrors updateIdentity and updateStorage.
pub(super) fn update_identity(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let name = pod_name(set, ordinal);
    pod.metadata.name = Some(name.clone());
    pod.labels_mut().insert(POD_NAME_LABEL.into(), name);
    pod.labels_mut()
        .insert(POD_INDEX_LABEL.into(), ordinal.to_string());
    let templates = set
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_claim_templates.as_deref())
        .unwrap_or_default();
    let claims: Vec<Volume> = templates
        .iter()
        .map(|template| volume(set, &template.name_any(), ordinal))
        .collect();
    if claims.is_empty() {
        return;
    }
    let volumes = pod
        .spec
        .get_or_insert_default()
        .volumes
        .get_or_insert_default();
    // A claim replaces a volume of the same name.
    volumes.retain(|volume| claims.iter().all(|claim| claim.name != volume.name));
    // Mirrors updateStorage: claim volumes come first.
    volumes.splice(0..0, claims);
}

fn volume(set: &StatefulSet, template: &str, ordinal: i32) -> Volume {
    let source = PersistentVolumeClaimVolumeSource {
        claim_name: claim_name(set, template, ordinal),
        read_only: None,
    };
    Volume {
        name: template.to_owned(),
        persistent_volume_claim: Some(source),
        ..Volume::default()
    }
}

/// Whether a pod has the labels and volumes of its identity. Mirrors identityMatches and
/// storageMatches.
pub(super) fn identity_matches(set: &StatefulSet, pod: &Pod, ordinal: i32) -> bool {
    let has_name_label = pod.labels().get(POD_NAME_LABEL) == Some(&pod_name(set, ordinal));
    let templates = set
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_claim_templates.as_deref())
        .unwrap_or_default();
    let claim_of = |volume: &Volume| {
        volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone())
    };
    let volumes = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref())
        .unwrap_or_default();
    let has_claim = |template: &str| {
        let volume = volumes.iter().find(|volume| volume.name == template);
        volume.and_then(claim_of) == Some(claim_name(set, template, ordinal))
    };
    has_name_label
        && templates
            .iter()
            .all(|template| has_claim(&template.name_any()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workloads::test_objects::pod;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "default", "uid": "u" },
            "spec": {
                "replicas": 3,
                "ordinals": { "start": 5 },
                "serviceName": "db",
                "selector": {},
                "template": {
                    "spec": {
                        "containers": [],
                        "volumes": [
                            { "name": "data", "emptyDir": {} },
                            { "name": "tmp", "emptyDir": {} },
                        ],
                    },
                },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn ordinal_is_parsed_from_the_pod_name() {
        let set = set();
        assert_eq!(ordinals(&set), 5..8);
        for (name, expected) in [
            ("db-0", Some(0)),
            ("db-12", Some(12)),
            ("db", None),
            ("db-x", None),
            ("other-1", None),
            ("db-1-1", None),
            ("db-", None),
        ] {
            assert_eq!(ordinal(&set, &pod(name).build()), expected, "{name}");
        }
    }

    #[test]
    fn pod_has_name_hostname_and_claims_of_its_ordinal() {
        let set = set();
        let template = set.spec.as_ref().unwrap().template.clone();
        let pod = new_pod(&set, &template, "db-abc", 6);
        assert!(identity_matches(&set, &pod, 6));
        assert!(!identity_matches(&set, &pod, 7));
        assert_eq!(pod.name_any().as_str(), "db-6");
        assert_eq!(pod_revision(&pod), "db-abc");
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("db-6"));
        assert_eq!(spec.subdomain.as_deref(), Some("db"));
        let volumes: Vec<_> = spec
            .volumes
            .unwrap()
            .into_iter()
            .map(|volume| {
                (
                    volume.name,
                    volume.persistent_volume_claim.map(|claim| claim.claim_name),
                )
            })
            .collect();
        assert_eq!(
            volumes,
            [
                ("data".into(), Some("data-db-6".into())),
                ("tmp".into(), None)
            ],
            "the claim replaces the template's volume"
        );
    }
}
