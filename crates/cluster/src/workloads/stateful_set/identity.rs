//! Identity: which member of a StatefulSet a pod is, and what a member looks like.
//!
//! In: a set, a template, an ordinal. Out: names, a pod.
//! Holds: a member's name, host name and storage follow from its ordinal, so the next pod of that ordinal is the same member.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};
use kube::ResourceExt;

use crate::workloads::revision::HASH;
use crate::workloads::template::pod_from;

/// The label that tells a member's name, for services that select one member.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The label that tells its ordinal.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The ordinals a set is to have.
pub(super) fn ordinals(set: &StatefulSet) -> std::ops::Range<i32> {
    let spec = set.spec.as_ref();
    let start = spec
        .and_then(|spec| spec.ordinals.as_ref()?.start)
        .unwrap_or(0);
    start..start.saturating_add(spec.and_then(|spec| spec.replicas).unwrap_or(1).max(0))
}

/// The ordinal of a member by its name; `None` for pods that are not members.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (parent, ordinal) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    (digits && Some(parent) == set.metadata.name.as_deref())
        .then(|| ordinal.parse().ok())
        .flatten()
}

/// The name of a member.
pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name_any())
}

/// The name of a member's claim, made from a template of claims.
pub(super) fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", set.name_any())
}

/// The revision of a pod, by name.
pub(super) fn revision(pod: &Pod) -> &str {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(HASH))
        .map_or("", String::as_str)
}

/// The pod of a member.
pub(super) fn member(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod_from(template, set);
    identify(set, &mut pod, ordinal);
    pod.labels_mut().insert(HASH.into(), revision.into());
    let name = pod.metadata.name.clone();
    let spec = pod.spec.get_or_insert_default();
    // Immutable, so only at birth.
    spec.hostname = name;
    spec.subdomain = set
        .spec
        .as_ref()
        .and_then(|spec| spec.service_name.clone())
        .filter(|name| !name.is_empty());
    pod
}

/// Gives a pod the name, labels and volumes of a member.
pub(super) fn identify(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let name = pod_name(set, ordinal);
    pod.metadata.name = Some(name.clone());
    pod.labels_mut().insert(POD_NAME.into(), name);
    pod.labels_mut()
        .insert(POD_INDEX.into(), ordinal.to_string());
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
    // A claim takes the place of a volume of its name.
    volumes.retain(|volume| claims.iter().all(|claim| claim.name != volume.name));
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

/// Whether a pod has the labels and volumes of its member.
pub(super) fn is_identified(set: &StatefulSet, pod: &Pod, ordinal: i32) -> bool {
    let labelled = pod.labels().get(POD_NAME) == Some(&pod_name(set, ordinal));
    let templates = set
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_claim_templates.as_deref())
        .unwrap_or_default();
    let claimed = |volume: &Volume| {
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
    let has = |template: &str| {
        let volume = volumes.iter().find(|volume| volume.name == template);
        volume.and_then(claimed) == Some(claim_name(set, template, ordinal))
    };
    labelled && templates.iter().all(|template| has(&template.name_any()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workloads::samples::pod;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "default", "uid": "u" },
            "spec": {
                "replicas": 3, "ordinals": { "start": 5 }, "serviceName": "db", "selector": {},
                "template": { "spec": { "containers": [], "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }] } },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn members_are_known_by_their_names() {
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
    fn member_has_its_name_its_host_and_its_storage() {
        let set = set();
        let template = set.spec.as_ref().unwrap().template.clone();
        let pod = member(&set, &template, "db-abc", 6);
        assert!(is_identified(&set, &pod, 6));
        assert!(!is_identified(&set, &pod, 7));
        assert_eq!(pod.name_any().as_str(), "db-6");
        assert_eq!(revision(&pod), "db-abc");
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
            "the claim takes the place of the template's own volume"
        );
    }
}
