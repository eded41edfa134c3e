//! Daemon pods: which nodes run one, and the pod of a node.
//!
//! Input: a DaemonSet, nodes. Output: whether a node should run a pod; the pod of a node.
//! Rules: daemon pods are bound by the scheduler and select their node by a required node affinity.
//! They tolerate the taints of not-ready, unreachable and unschedulable nodes and of nodes under
//! pressure.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec,
    Toleration,
};
use kube::ResourceExt;

use crate::node_affinity::required_node_affinity_matches;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, find_matching_toleration};
use crate::workloads::pods::node_name;
use crate::workloads::revision::CONTROLLER_REVISION_HASH_LABEL;
use crate::workloads::template::pod_from_template;

/// Annotation with the template generation, which precedes revision hashes.
const TEMPLATE_GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
/// Label of pods with the template generation.
const POD_TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// Key and effect of the taints that all daemon pods tolerate.
const TOLERATED_TAINTS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (UNSCHEDULABLE, NO_SCHEDULE),
];

/// Whether a node runs a daemon pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeEligibility {
    /// It should run a pod.
    Run,
    /// An existing pod continues to run, but no pod is created: it would not be scheduled.
    ContinueRunning,
    /// It should not run a pod.
    Excluded,
}

/// The pod spec of a DaemonSet, with the tolerations of daemon pods.
pub(super) struct DaemonPodSpec {
    spec: PodSpec,
}

impl DaemonPodSpec {
    pub(super) fn of(set: &DaemonSet) -> Self {
        let mut spec = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.clone())
            .unwrap_or_default();
        add_daemon_pod_tolerations(&mut spec);
        Self { spec }
    }

    /// Mirrors NodeShouldRunDaemonPod.
    pub(super) fn node_eligibility(&self, node: &Node) -> NodeEligibility {
        let matches_node_name = self
            .spec
            .node_name
            .as_deref()
            .is_none_or(|name| name.is_empty() || Some(name) == node.metadata.name.as_deref());
        if !matches_node_name || !required_node_affinity_matches(&self.spec, node) {
            return NodeEligibility::Excluded;
        }
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let tolerations = self.spec.tolerations.as_deref().unwrap_or_default();
        let has_untolerated_taint = |effect: &str| {
            taints.iter().any(|taint| {
                taint.effect == effect && find_matching_toleration(tolerations, taint).is_none()
            })
        };
        match (
            has_untolerated_taint(NO_EXECUTE),
            has_untolerated_taint(NO_SCHEDULE),
        ) {
            // A NoExecute taint evicts a pod that runs already, a NoSchedule taint does not.
            (true, _) => NodeEligibility::Excluded,
            (false, true) => NodeEligibility::ContinueRunning,
            (false, false) => NodeEligibility::Run,
        }
    }
}

/// Mirrors AddOrUpdateDaemonPodTolerations.
fn add_daemon_pod_tolerations(spec: &mut PodSpec) {
    // Pods on the host network do not depend on the pod network.
    let network = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);
    let taints = TOLERATED_TAINTS
        .into_iter()
        .chain((spec.host_network == Some(true)).then_some(network));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in taints {
        let toleration = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        // A toleration of the template for the same taint, possibly with tolerationSeconds, is
        // replaced.
        let same = |existing: &Toleration| {
            existing.key == toleration.key
                && existing.effect == toleration.effect
                && existing.operator == toleration.operator
        };
        match tolerations.iter_mut().find(|existing| same(existing)) {
            Some(existing) => *existing = toleration,
            None => tolerations.push(toleration),
        }
    }
}

/// The template of daemon pods with tolerations and revision labels. Mirrors CreatePodTemplate.
pub(super) fn daemon_pod_template(set: &DaemonSet, hash: &str) -> PodTemplateSpec {
    let mut template = set
        .spec
        .as_ref()
        .map(|spec| spec.template.clone())
        .unwrap_or_default();
    add_daemon_pod_tolerations(template.spec.get_or_insert_default());
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    if let Some(generation) = template_generation(set) {
        labels.insert(POD_TEMPLATE_GENERATION_LABEL.into(), generation.into());
    }
    labels.insert(CONTROLLER_REVISION_HASH_LABEL.into(), hash.into());
    template
}

/// Mirrors GetTemplateGeneration.
fn template_generation(set: &DaemonSet) -> Option<&str> {
    set.annotations()
        .get(TEMPLATE_GENERATION_ANNOTATION)
        .map(String::as_str)
        .filter(|generation| generation.parse::<i64>().is_ok())
}

/// Whether a pod has the current template. Mirrors IsPodUpdated.
pub(super) fn is_pod_updated(set: &DaemonSet, pod: &Pod, hash: &str) -> bool {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    label(CONTROLLER_REVISION_HASH_LABEL) == Some(hash)
        || template_generation(set)
            .is_some_and(|generation| label(POD_TEMPLATE_GENERATION_LABEL) == Some(generation))
}

/// The pod for a node. Mirrors ReplaceDaemonSetPodNodeNameNodeAffinity.
pub(super) fn pod_for_node(template: &PodTemplateSpec, set: &DaemonSet, node: &str) -> Pod {
    let mut pod = pod_from_template(template, set);
    let affinity = pod
        .spec
        .get_or_insert_default()
        .affinity
        .get_or_insert_default()
        .node_affinity
        .get_or_insert_default();
    let name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.into()]),
    };
    let term = NodeSelectorTerm {
        match_fields: Some(vec![name]),
        match_expressions: None,
    };
    // The affinity of the template was evaluated by node_eligibility and is replaced.
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
    pod
}

/// The node of a pod, or the node its affinity selects. Mirrors GetTargetNodeName.
pub(super) fn target_node_name(pod: &Pod) -> Option<&str> {
    if !node_name(pod).is_empty() {
        return Some(node_name(pod));
    }
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?;
    let terms = &affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let fields = terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let name = fields
        .filter(|field| field.key == "metadata.name" && field.operator == "In")
        .find_map(|field| field.values.as_ref());
    name.filter(|values| values.len() == 1)
        .map(|values| values[0].as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(spec: Value) -> DaemonSet {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let set = json!({
            "metadata": { "name": "agent", "annotations": { TEMPLATE_GENERATION_ANNOTATION: "3" } },
            "spec": { "selector": {}, "template": { "spec": spec } },
        });
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn node_eligibility_follows_selectors_and_taints() {
        let node = |taints: Value| {
            serde_json::from_value(json!({
                "metadata": { "name": "n1", "labels": { "disk": "ssd" } },
                "spec": { "taints": taints },
            }))
            .unwrap()
        };
        let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
        for (case, spec, taints, expected) in [
            ("plain", json!({}), json!([]), NodeEligibility::Run),
            (
                "cordoned",
                json!({}),
                taint("node.kubernetes.io/unschedulable", "NoSchedule"),
                NodeEligibility::Run,
            ),
            (
                "unreachable",
                json!({}),
                taint("node.kubernetes.io/unreachable", "NoExecute"),
                NodeEligibility::Run,
            ),
            (
                "network unavailable",
                json!({}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                NodeEligibility::ContinueRunning,
            ),
            (
                "network unavailable, host network",
                json!({ "hostNetwork": true }),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                NodeEligibility::Run,
            ),
            (
                "untolerated NoSchedule",
                json!({}),
                taint("dedicated", "NoSchedule"),
                NodeEligibility::ContinueRunning,
            ),
            (
                "untolerated NoExecute",
                json!({}),
                taint("dedicated", "NoExecute"),
                NodeEligibility::Excluded,
            ),
            (
                "tolerated",
                json!({ "tolerations": [{ "key": "dedicated", "operator": "Exists" }] }),
                taint("dedicated", "NoExecute"),
                NodeEligibility::Run,
            ),
            (
                "selected",
                json!({ "nodeSelector": { "disk": "ssd" } }),
                json!([]),
                NodeEligibility::Run,
            ),
            (
                "not selected",
                json!({ "nodeSelector": { "disk": "hdd" } }),
                json!([]),
                NodeEligibility::Excluded,
            ),
            (
                "node name",
                json!({ "nodeName": "n1" }),
                json!([]),
                NodeEligibility::Run,
            ),
            (
                "another node name",
                json!({ "nodeName": "n2" }),
                json!([]),
                NodeEligibility::Excluded,
            ),
        ] {
            let eligibility = DaemonPodSpec::of(&set(spec)).node_eligibility(&node(taints));
            assert_eq!(eligibility, expected, "{case}");
        }
    }

    #[test]
    fn pod_has_its_target_node_and_revision() {
        let set = set(json!({}));
        let pod = pod_for_node(&daemon_pod_template(&set, "abc"), &set, "n7");
        assert_eq!(target_node_name(&pod), Some("n7"));
        assert!(is_pod_updated(&set, &pod, "abc"));
        assert!(
            is_pod_updated(&set, &pod, "other"),
            "equal template generation"
        );
        assert_eq!(pod.labels()[POD_TEMPLATE_GENERATION_LABEL], "3");
        assert_eq!(
            pod.spec.unwrap().tolerations.unwrap().len(),
            TOLERATED_TAINTS.len()
        );
    }
}
