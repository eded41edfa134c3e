//! Node selectors and pod selectors of scheduling constraints.
//!
//! In: node selectors, label selectors, pod affinity terms. Out: matchers for nodes and pods.
//! Guarantees: a selector that cannot be parsed matches nothing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector, SelectorExt};

pub(crate) type Labels = BTreeMap<String, String>;

/// Whether a node matches any term of a node selector. A selector without terms matches no node.
pub(crate) fn node_selector_matches(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| node_selector_term_matches(term, name, labels))
}

/// Whether a node matches all requirements of a term. An empty term matches no node.
pub(crate) fn node_selector_term_matches(
    term: &NodeSelectorTerm,
    name: &str,
    labels: &Labels,
) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label_matches = |requirement: &NodeSelectorRequirement| {
        requirement_matches(
            requirement,
            labels.get(&requirement.key).map(String::as_str),
        )
    };
    let field_matches = |requirement: &NodeSelectorRequirement| {
        requirement_matches(
            requirement,
            (requirement.key == "metadata.name").then_some(name),
        )
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(label_matches)
        && fields.iter().all(field_matches)
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(values.first().map(String::as_str));
    match requirement.operator.as_str() {
        "In" => is_listed(),
        // Also matches nodes without the label.
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // Mirrors Requirement.Matches: values that are not integers never match.
        "Gt" => number(value)
            .zip(bound())
            .is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value)
            .zip(bound())
            .is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// The namespaces a pod selector applies to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Namespaces {
    Names(BTreeSet<String>),
    /// These names, and namespaces whose labels match.
    NamesOrSelector(BTreeSet<String>, Selector),
}

/// Selects pods by namespace and labels, or by controller.
#[derive(Clone, Debug)]
pub(crate) struct PodSelector {
    /// Equal keys mean equal selectors.
    pub(crate) key: String,
    pub(crate) rule: SelectorRule,
}

#[derive(Clone, Debug)]
pub(crate) enum SelectorRule {
    Labels {
        namespaces: Namespaces,
        selector: Selector,
        include_terminating: bool,
    },
    /// Pods of one controller that are not terminating.
    Controller { uid: String },
}

/// The attributes of a pod that selectors match on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodAttributes<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) labels: &'a Labels,
    pub(crate) controller_uid: Option<&'a str>,
    pub(crate) terminating: bool,
}

impl PodSelector {
    /// The selector of an affinity term of a pod in `namespace` with `labels`.
    pub(crate) fn from_affinity_term(
        term: &PodAffinityTerm,
        namespace: &str,
        labels: &Labels,
    ) -> Self {
        let names: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        let namespace_selector = term.namespace_selector.as_ref();
        // Without namespaces and namespaceSelector a term applies to the pod's own namespace.
        let names = if names.is_empty() && namespace_selector.is_none() {
            [namespace.to_owned()].into()
        } else {
            names
        };
        let namespaces = match namespace_selector {
            Some(selector) => Namespaces::NamesOrSelector(names, parse_selector(Some(selector))),
            None => Namespaces::Names(names),
        };
        let match_keys = term.match_label_keys.as_deref().unwrap_or_default();
        let mismatch_keys = term.mismatch_label_keys.as_deref().unwrap_or_default();
        let requirements = label_key_requirements(match_keys, labels, "In")
            .chain(label_key_requirements(mismatch_keys, labels, "NotIn"));
        let requirements = requirements.collect();
        Self::from_labels(namespaces, term.label_selector.as_ref(), requirements, true)
    }

    /// The selector of a topology spread constraint of a pod in `namespace`.
    pub(crate) fn from_spread_constraint(
        selector: Option<&LabelSelector>,
        match_label_keys: &[String],
        namespace: &str,
        labels: &Labels,
    ) -> Self {
        let requirements = label_key_requirements(match_label_keys, labels, "In").collect();
        Self::from_labels(
            Namespaces::Names([namespace.to_owned()].into()),
            selector,
            requirements,
            // Mirrors countPodsMatchSelector: terminating pods are not counted.
            false,
        )
    }

    /// Selects the pods of a controller.
    pub(crate) fn from_controller(uid: &str) -> Self {
        Self {
            key: format!("controller {uid}"),
            rule: SelectorRule::Controller {
                uid: uid.to_owned(),
            },
        }
    }

    fn from_labels(
        namespaces: Namespaces,
        selector: Option<&LabelSelector>,
        requirements: Vec<LabelSelectorRequirement>,
        include_terminating: bool,
    ) -> Self {
        let selector = selector.map(|selector| {
            let mut selector = selector.clone();
            selector
                .match_expressions
                .get_or_insert_default()
                .extend(requirements);
            selector
        });
        // Pods of one controller share their selectors, and so one count in the cache.
        let key = format!("{namespaces:?} {selector:?} {include_terminating}");
        let selector = parse_selector(selector.as_ref());
        Self {
            key,
            rule: SelectorRule::Labels {
                namespaces,
                selector,
                include_terminating,
            },
        }
    }

    /// Whether a pod matches; `namespace_labels` returns the labels of a namespace.
    pub(crate) fn matches<'a>(
        &self,
        pod: PodAttributes<'_>,
        namespace_labels: impl Fn(&str) -> Option<&'a Labels>,
    ) -> bool {
        match &self.rule {
            SelectorRule::Controller { uid } => {
                !pod.terminating && pod.controller_uid == Some(uid.as_str())
            }
            SelectorRule::Labels {
                namespaces,
                selector,
                include_terminating,
            } => {
                let namespace_matches = match namespaces {
                    Namespaces::Names(names) => names.contains(pod.namespace),
                    Namespaces::NamesOrSelector(names, selector) => {
                        names.contains(pod.namespace)
                            || namespace_labels(pod.namespace)
                                .is_some_and(|labels| selector.matches(labels))
                    }
                };
                namespace_matches
                    && (*include_terminating || !pod.terminating)
                    && selector.matches(pod.labels)
            }
        }
    }
}

/// Requirements for the pod's own values of `matchLabelKeys` or `mismatchLabelKeys`. Labels that
/// the pod does not have are skipped.
fn label_key_requirements<'a>(
    keys: &'a [String],
    labels: &'a Labels,
    operator: &'static str,
) -> impl Iterator<Item = LabelSelectorRequirement> + use<'a> {
    keys.iter().filter_map(move |key| {
        let values = Some(vec![labels.get(key)?.clone()]);
        Some(LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.into(),
            values,
        })
    })
}

/// Parses a label selector. An absent or invalid selector matches nothing.
fn parse_selector(selector: Option<&LabelSelector>) -> Selector {
    // As LabelSelectorAsSelector: nil matches nothing, whereas an empty selector matches
    // everything.
    let nothing = || Selector::from(Expression::In(String::new(), BTreeSet::new()));
    selector
        .and_then(|selector| Selector::try_from(selector.clone()).ok())
        .unwrap_or_else(nothing)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn node_selector_terms_match_labels_and_name() {
        let labels: Labels = serde_json::from_value(json!({"zone": "a", "size": "8"})).unwrap();
        let expression = |key: &str, operator: &str, values: Value| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            json!({"matchExpressions": [expression]})
        };
        let name_field = |value: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [value]});
            json!({"matchFields": [field]})
        };
        for (term, expected) in [
            (expression("zone", "In", json!(["a", "b"])), true),
            (expression("zone", "NotIn", json!(["a"])), false),
            (expression("disk", "NotIn", json!(["a"])), true),
            (expression("zone", "Exists", json!([])), true),
            (expression("disk", "DoesNotExist", json!([])), true),
            (expression("size", "Gt", json!(["7"])), true),
            (expression("size", "Lt", json!(["8"])), false),
            (expression("zone", "Gt", json!(["7"])), false),
            (name_field("n"), true),
            (name_field("m"), false),
            (json!({}), false),
        ] {
            let parsed: NodeSelectorTerm = serde_json::from_value(term.clone()).unwrap();
            let matches = node_selector_term_matches(&parsed, "n", &labels);
            assert_eq!(matches, expected, "{term}");
        }
    }

    #[test]
    fn affinity_terms_match_namespaces_and_labels() {
        let labels: Labels = serde_json::from_value(json!({"app": "web", "version": "2"})).unwrap();
        let namespaces: BTreeMap<&str, Labels> = [(
            "team-b",
            serde_json::from_value(json!({"tier": "x"})).unwrap(),
        )]
        .into();
        let app = json!({"matchLabels": {"app": "web"}});
        for (term, namespace, expected) in [
            (json!({"labelSelector": app}), "team-a", true),
            (json!({"labelSelector": app}), "team-b", false),
            (
                json!({"labelSelector": app, "namespaces": ["team-b"]}),
                "team-b",
                true,
            ),
            (
                json!({"labelSelector": app, "namespaces": ["team-b"]}),
                "team-a",
                false,
            ),
            (
                json!({"labelSelector": app, "namespaceSelector": {}}),
                "team-b",
                true,
            ),
            (
                json!({"labelSelector": app, "namespaceSelector": {"matchLabels": {"tier": "y"}}}),
                "team-b",
                false,
            ),
            (json!({}), "team-a", false),
            (
                json!({"labelSelector": app, "matchLabelKeys": ["version"]}),
                "team-a",
                true,
            ),
            (
                json!({"labelSelector": app, "mismatchLabelKeys": ["version"]}),
                "team-a",
                false,
            ),
        ] {
            let mut full = term.clone();
            full["topologyKey"] = json!("zone");
            let parsed = serde_json::from_value(full).unwrap();
            let selector = PodSelector::from_affinity_term(&parsed, "team-a", &labels);
            let pod = PodAttributes {
                namespace,
                labels: &labels,
                controller_uid: None,
                terminating: false,
            };
            let matches = selector.matches(pod, |name| namespaces.get(name));
            assert_eq!(matches, expected, "{term} in {namespace}");
        }
    }
}
