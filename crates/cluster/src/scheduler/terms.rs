//! Terms: which nodes and which pods a pod speaks of, made ready for asking often.
//!
//! In: node selectors, label selectors, affinity terms. Out: matchers.
//! Holds: a selector that cannot be read matches nothing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector, SelectorExt};

pub(crate) type Labels = BTreeMap<String, String>;

/// Whether a node matches any of the terms. A selector without terms matches none.
pub(crate) fn node_matches(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| term_matches(term, name, labels))
}

/// Whether a node meets all requirements of a term. An empty term matches no node.
pub(crate) fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |requirement: &NodeSelectorRequirement| {
        meets(
            requirement,
            labels.get(&requirement.key).map(String::as_str),
        )
    };
    let field = |requirement: &NodeSelectorRequirement| {
        meets(
            requirement,
            (requirement.key == "metadata.name").then_some(name),
        )
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(label)
        && fields.iter().all(field)
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let within = || value.is_some_and(|value| values.iter().any(|known| known == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(values.first().map(String::as_str));
    match requirement.operator.as_str() {
        "In" => within(),
        "NotIn" => !within(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value)
            .zip(bound())
            .is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value)
            .zip(bound())
            .is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Which namespaces a group of pods is in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Namespaces {
    Named(BTreeSet<String>),
    /// These, and those whose labels match.
    Labelled(BTreeSet<String>, Selector),
}

/// Some pods, by what they have in common.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Equal identities mean equal groups.
    pub(crate) identity: String,
    pub(crate) members: Members,
}

#[derive(Clone, Debug)]
pub(crate) enum Members {
    /// Pods with matching labels; those that are going count only if wanted.
    Labelled {
        namespaces: Namespaces,
        selector: Selector,
        with_going: bool,
    },
    /// Pods of one controller.
    Controlled { by: String },
}

/// What decides whether a pod is in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) labels: &'a Labels,
    pub(crate) controller: Option<&'a str>,
    pub(crate) going: bool,
}

impl Group {
    /// The pods a term of an affinity of a pod in `namespace` with `labels` speaks of.
    pub(crate) fn of_term(term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Self {
        let named: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        let labelled = term.namespace_selector.as_ref();
        let own = named.is_empty() && labelled.is_none();
        let named = if own {
            [namespace.to_owned()].into()
        } else {
            named
        };
        let namespaces = match labelled {
            Some(selector) => Namespaces::Labelled(named, readable(Some(selector))),
            None => Namespaces::Named(named),
        };
        let (same, other) = (
            term.match_label_keys.as_deref(),
            term.mismatch_label_keys.as_deref(),
        );
        let more = requirements(same.unwrap_or_default(), labels, "In").chain(requirements(
            other.unwrap_or_default(),
            labels,
            "NotIn",
        ));
        let more = more.collect();
        Self::labelled(namespaces, term.label_selector.as_ref(), more, true)
    }

    /// The pods that a spread constraint of a pod in `namespace` counts.
    pub(crate) fn of_spread(
        selector: Option<&LabelSelector>,
        keys: &[String],
        namespace: &str,
        labels: &Labels,
    ) -> Self {
        let more = requirements(keys, labels, "In").collect();
        Self::labelled(
            Namespaces::Named([namespace.to_owned()].into()),
            selector,
            more,
            false,
        )
    }

    /// The pods of a controller.
    pub(crate) fn of_controller(uid: &str) -> Self {
        Self {
            identity: format!("controller {uid}"),
            members: Members::Controlled { by: uid.to_owned() },
        }
    }

    fn labelled(
        namespaces: Namespaces,
        selector: Option<&LabelSelector>,
        more: Vec<LabelSelectorRequirement>,
        with_going: bool,
    ) -> Self {
        let selector = selector.map(|selector| {
            let mut selector = selector.clone();
            selector
                .match_expressions
                .get_or_insert_default()
                .extend(more);
            selector
        });
        let identity = format!("{namespaces:?} {selector:?} {with_going}");
        let selector = readable(selector.as_ref());
        Self {
            identity,
            members: Members::Labelled {
                namespaces,
                selector,
                with_going,
            },
        }
    }

    /// Whether a pod is one of them; `labels_of` tells the labels of a namespace.
    pub(crate) fn contains<'a>(
        &self,
        pod: Candidate<'_>,
        labels_of: impl Fn(&str) -> Option<&'a Labels>,
    ) -> bool {
        match &self.members {
            Members::Controlled { by } => !pod.going && pod.controller == Some(by.as_str()),
            Members::Labelled {
                namespaces,
                selector,
                with_going,
            } => {
                let inside = match namespaces {
                    Namespaces::Named(names) => names.contains(pod.namespace),
                    Namespaces::Labelled(names, selector) => {
                        names.contains(pod.namespace)
                            || labels_of(pod.namespace)
                                .is_some_and(|labels| selector.matches(labels))
                    }
                };
                inside && (*with_going || !pod.going) && selector.matches(pod.labels)
            }
        }
    }
}

/// The pod's own values of these labels, as requirements. Labels it does not have are passed over.
fn requirements<'a>(
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

/// A selector that is absent, or that cannot be read, selects nothing.
fn readable(selector: Option<&LabelSelector>) -> Selector {
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
    fn node_terms_match_labels_and_names() {
        let labels: Labels = serde_json::from_value(json!({"zone": "a", "size": "8"})).unwrap();
        let on = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (term, matches) in [
            (on("zone", "In", json!(["a", "b"])), true),
            (on("zone", "NotIn", json!(["a"])), false),
            (on("disk", "NotIn", json!(["a"])), true),
            (on("zone", "Exists", json!([])), true),
            (on("disk", "DoesNotExist", json!([])), true),
            (on("size", "Gt", json!(["7"])), true),
            (on("size", "Lt", json!(["8"])), false),
            (on("zone", "Gt", json!(["7"])), false),
            (
                json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
                true,
            ),
            (
                json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}),
                false,
            ),
            (json!({}), false),
        ] {
            let parsed: NodeSelectorTerm = serde_json::from_value(term.clone()).unwrap();
            assert_eq!(term_matches(&parsed, "n", &labels), matches, "{term}");
        }
    }

    #[test]
    fn groups_know_their_pods() {
        let labels: Labels = serde_json::from_value(json!({"app": "web", "version": "2"})).unwrap();
        let namespaces: BTreeMap<&str, Labels> = [(
            "team-b",
            serde_json::from_value(json!({"tier": "x"})).unwrap(),
        )]
        .into();
        let app = json!({"matchLabels": {"app": "web"}});
        for (term, namespace, contains) in [
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
            let group = Group::of_term(&serde_json::from_value(full).unwrap(), "team-a", &labels);
            let pod = Candidate {
                namespace,
                labels: &labels,
                controller: None,
                going: false,
            };
            assert_eq!(
                group.contains(pod, |name| namespaces.get(name)),
                contains,
                "{term} in {namespace}"
            );
        }
    }
}
