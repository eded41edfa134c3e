//! Node selector and required node affinity of a pod, matched against a node.
//!
//! Input: `spec.nodeSelector` and `spec.affinity.nodeAffinity` of a pod, labels and name of a node.
//! Rules, as in Kubernetes: the terms of a node selector are ORed, the requirements of a term are
//! ANDed, and a term without requirements matches no node.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use kube::ResourceExt;

/// Whether a node matches the node selector and the required node affinity of a pod. Mirrors
/// RequiredNodeAffinity.Match of `k8s.io/component-helpers`.
pub(crate) fn required_node_affinity_matches(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.labels();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    selected
        && required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|term| node_selector_term_matches(term, node))
        })
}

/// Whether a node matches one term of a node selector.
fn node_selector_term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let is_empty = expressions.clone().next().is_none() && fields.clone().next().is_none();
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    // metadata.name is the only supported field.
    let field = |key: &str| {
        if key == "metadata.name" {
            node.metadata.name.as_deref()
        } else {
            None
        }
    };
    !is_empty
        && expressions
            .into_iter()
            .all(|it| requirement_matches(it, label(&it.key)))
        && fields
            .into_iter()
            .all(|it| requirement_matches(it, field(&it.key)))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|known| known == value));
    let numbers = || {
        Some((
            value?.parse::<i64>().ok()?,
            values.first()?.parse::<i64>().ok()?,
        ))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn node_matches_by_labels_and_name() {
        let node: Node = serde_json::from_value(
            json!({ "metadata": { "name": "n1", "labels": { "disk": "ssd", "cpus": "8" } } }),
        )
        .unwrap();
        let affinity = |term: Value| {
            json!({
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [term],
                        },
                    },
                },
            })
        };
        let expression = |key: &str, operator: &str, values: &[&str]| {
            affinity(json!({
                "matchExpressions": [{ "key": key, "operator": operator, "values": values }],
            }))
        };
        let name = |values: &[&str]| {
            affinity(json!({
                "matchFields": [{ "key": "metadata.name", "operator": "In", "values": values }],
            }))
        };
        for (spec, matches) in [
            (json!({}), true),
            (json!({ "nodeSelector": { "disk": "ssd" } }), true),
            (json!({ "nodeSelector": { "disk": "hdd" } }), false),
            (
                json!({ "nodeSelector": { "disk": "ssd", "zone": "a" } }),
                false,
            ),
            (expression("disk", "In", &["hdd", "ssd"]), true),
            (expression("disk", "NotIn", &["hdd"]), true),
            (expression("zone", "NotIn", &["a"]), true),
            (expression("zone", "Exists", &[]), false),
            (expression("zone", "DoesNotExist", &[]), true),
            (expression("cpus", "Gt", &["4"]), true),
            (expression("cpus", "Lt", &["8"]), false),
            (expression("disk", "Gt", &["4"]), false),
            (name(&["n1"]), true),
            (name(&["n2"]), false),
            (affinity(json!({})), false),
        ] {
            let mut pod_spec = spec.clone();
            pod_spec["containers"] = json!([]);
            assert_eq!(
                required_node_affinity_matches(&serde_json::from_value(pod_spec).unwrap(), &node),
                matches,
                "{spec}"
            );
        }
    }
}
