//! Places: on which nodes a DaemonSet has pods, and what such a pod looks like.
//!
//! In: a DaemonSet, nodes. Out: whether a pod is to run there, may stay there; the pod for a node.
//! Holds: pods are bound by the scheduler: a pod names its node in a required affinity. They tolerate what befalls nodes, so
//! that a node in trouble keeps what people need to look after it.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec,
    Toleration,
};
use kube::ResourceExt;

use crate::node_affinity::required_node_affinity_matches;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, find_matching_toleration};
use crate::workloads::pods::node_name;
use crate::workloads::revision::HASH;
use crate::workloads::template::pod_from;

/// The annotation that counts templates, from before there were hashes.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// The label that tells it on pods.
const POD_TEMPLATE_GENERATION: &str = "pod-template-generation";

/// Troubles of a node that daemons stay through, and what they would do.
const TROUBLES: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (UNSCHEDULABLE, NO_SCHEDULE),
];

/// Whether a node has a place for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One is to run.
    Run,
    /// One that is there may stay, but none is to come: it would not be scheduled there now.
    Stay,
    /// None.
    No,
}

/// The places of one DaemonSet.
pub(super) struct Places {
    spec: PodSpec,
}

impl Places {
    pub(super) fn of(set: &DaemonSet) -> Self {
        let mut spec = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.clone())
            .unwrap_or_default();
        tolerate_troubles(&mut spec);
        Self { spec }
    }

    pub(super) fn on(&self, node: &Node) -> Place {
        let named = self
            .spec
            .node_name
            .as_deref()
            .is_none_or(|name| name.is_empty() || Some(name) == node.metadata.name.as_deref());
        if !named || !required_node_affinity_matches(&self.spec, node) {
            return Place::No;
        }
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let tolerations = self.spec.tolerations.as_deref().unwrap_or_default();
        let keeps_away = |effect: &str| {
            taints.iter().any(|taint| {
                taint.effect == effect && find_matching_toleration(tolerations, taint).is_none()
            })
        };
        match (keeps_away(NO_EXECUTE), keeps_away(NO_SCHEDULE)) {
            (true, _) => Place::No,
            (false, true) => Place::Stay,
            (false, false) => Place::Run,
        }
    }
}

fn tolerate_troubles(spec: &mut PodSpec) {
    let network = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);
    let troubles = TROUBLES
        .into_iter()
        .chain((spec.host_network == Some(true)).then_some(network));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in troubles {
        let toleration = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        // The template's own word on the same taint, such as how long it is tolerated, does not count for daemons.
        let same = |known: &Toleration| {
            known.key == toleration.key
                && known.effect == toleration.effect
                && known.operator == toleration.operator
        };
        match tolerations.iter_mut().find(|known| same(known)) {
            Some(known) => *known = toleration,
            None => tolerations.push(toleration),
        }
    }
}

/// The template of a DaemonSet's pods with the labels that tell its revision.
pub(super) fn template(set: &DaemonSet, hash: &str) -> PodTemplateSpec {
    let mut template = set
        .spec
        .as_ref()
        .map(|spec| spec.template.clone())
        .unwrap_or_default();
    tolerate_troubles(template.spec.get_or_insert_default());
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    if let Some(generation) = generation(set) {
        labels.insert(POD_TEMPLATE_GENERATION.into(), generation.into());
    }
    labels.insert(HASH.into(), hash.into());
    template
}

fn generation(set: &DaemonSet) -> Option<&str> {
    set.annotations()
        .get(TEMPLATE_GENERATION)
        .map(String::as_str)
        .filter(|generation| generation.parse::<i64>().is_ok())
}

/// Whether a pod has the present template.
pub(super) fn is_updated(set: &DaemonSet, pod: &Pod, hash: &str) -> bool {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    label(HASH) == Some(hash)
        || generation(set)
            .is_some_and(|generation| label(POD_TEMPLATE_GENERATION) == Some(generation))
}

/// The pod of a template for one node.
pub(super) fn pod_for(template: &PodTemplateSpec, set: &DaemonSet, node: &str) -> Pod {
    let mut pod = pod_from(template, set);
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
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
    pod
}

/// The node a pod is on, or is meant for.
pub(super) fn target(pod: &Pod) -> Option<&str> {
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
        let set = json!({ "metadata": { "name": "agent", "annotations": { TEMPLATE_GENERATION: "3" } }, "spec": { "selector": {}, "template": { "spec": spec } } });
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn node_in_trouble_keeps_its_daemons() {
        let node = |taints: Value| {
            serde_json::from_value(json!({ "metadata": { "name": "n1", "labels": { "disk": "ssd" } }, "spec": { "taints": taints } }))
                .unwrap()
        };
        let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
        for (what, spec, taints, place) in [
            ("plain", json!({}), json!([]), Place::Run),
            (
                "cordoned",
                json!({}),
                taint("node.kubernetes.io/unschedulable", "NoSchedule"),
                Place::Run,
            ),
            (
                "unreachable",
                json!({}),
                taint("node.kubernetes.io/unreachable", "NoExecute"),
                Place::Run,
            ),
            (
                "no network yet",
                json!({}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                Place::Stay,
            ),
            (
                "no network yet, of the host",
                json!({ "hostNetwork": true }),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                Place::Run,
            ),
            (
                "dedicated",
                json!({}),
                taint("dedicated", "NoSchedule"),
                Place::Stay,
            ),
            (
                "emptied",
                json!({}),
                taint("dedicated", "NoExecute"),
                Place::No,
            ),
            (
                "tolerated",
                json!({ "tolerations": [{ "key": "dedicated", "operator": "Exists" }] }),
                taint("dedicated", "NoExecute"),
                Place::Run,
            ),
            (
                "selected",
                json!({ "nodeSelector": { "disk": "ssd" } }),
                json!([]),
                Place::Run,
            ),
            (
                "not selected",
                json!({ "nodeSelector": { "disk": "hdd" } }),
                json!([]),
                Place::No,
            ),
            ("named", json!({ "nodeName": "n1" }), json!([]), Place::Run),
            (
                "another named",
                json!({ "nodeName": "n2" }),
                json!([]),
                Place::No,
            ),
        ] {
            assert_eq!(Places::of(&set(spec)).on(&node(taints)), place, "{what}");
        }
    }

    #[test]
    fn pod_names_its_node_and_its_revision() {
        let set = set(json!({}));
        let pod = pod_for(&template(&set, "abc"), &set, "n7");
        assert_eq!(target(&pod), Some("n7"));
        assert!(is_updated(&set, &pod, "abc"));
        assert!(
            is_updated(&set, &pod, "other"),
            "the generation tells as well"
        );
        assert_eq!(pod.labels()[POD_TEMPLATE_GENERATION], "3");
        assert_eq!(pod.spec.unwrap().tolerations.unwrap().len(), TROUBLES.len());
    }
}
