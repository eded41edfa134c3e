//! The destination namespaces of a SecSynch.
//!
//! Inputs: the spec, the existing namespaces, the consent of the source. Output: whether each
//! selected namespace may have a copy.
//!
//! Guarantees: the source's own namespace is never selected; without consent nothing is copied.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::crd::SecSynchSpec;

/// The annotation of a Secret that lists the namespaces it may be copied to: names and patterns,
/// separated by commas.
pub const ALLOW_TO: &str = "secsynch.tutorial.study.dev/allow-to";

/// The namespaces of the cluster's own components.
const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Whether a selected namespace may have a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// It may.
    Allowed,
    /// The spec names it, but it does not exist.
    NamespaceMissing,
    /// It is a system namespace.
    Protected,
    /// The source does not consent.
    NotAllowed,
}

/// The consent of the source to copies in other namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consent<'a> {
    /// Consent to every namespace: the SecSynch is in the source's namespace, or the operator runs
    /// without consent checks.
    pub(crate) is_implied: bool,
    /// The source's [`ALLOW_TO`] annotation.
    pub(crate) allow_to: &'a str,
}

impl Consent<'_> {
    fn allows(self, namespace: &str) -> bool {
        self.is_implied
            || self
                .allow_to
                .split(',')
                .any(|pattern| matches(pattern.trim(), namespace))
    }
}

/// Selects the destination namespaces. Terminating namespaces are left out: nothing can be created
/// there, and the namespace controller deletes what exists.
pub(crate) fn select_destinations<'a>(
    spec: &SecSynchSpec,
    namespaces: impl Iterator<Item = &'a Namespace>,
    consent: Consent<'_>,
    allow_system_namespaces: bool,
) -> BTreeMap<String, Destination> {
    let mut destinations: BTreeMap<String, Destination> = BTreeMap::new();
    let mut existing: BTreeSet<String> = BTreeSet::new();
    let selector = spec.destination_selector.as_ref().and_then(parse_selector);
    for namespace in namespaces {
        let name = namespace.name_any();
        existing.insert(name.clone());
        if !is_selected(spec, selector.as_ref(), namespace)
            || name == spec.source_namespace
            || namespace.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let destination = if SYSTEM_NAMESPACES.contains(&name.as_str()) && !allow_system_namespaces
        {
            Destination::Protected
        } else if !consent.allows(&name) {
            Destination::NotAllowed
        } else {
            Destination::Allowed
        };
        destinations.insert(name, destination);
    }
    for name in &spec.destination_namespaces {
        // A pattern that selects nothing is not a failure, a missing name is.
        let is_pattern = name.contains('*');
        if !is_pattern && !existing.contains(name) {
            destinations.insert(name.clone(), Destination::NamespaceMissing);
        }
    }
    destinations
}

/// Whether a spec selects a namespace, whatever its source and consent.
pub(crate) fn selects(spec: &SecSynchSpec, namespace: &Namespace) -> bool {
    let selector = spec.destination_selector.as_ref().and_then(parse_selector);
    is_selected(spec, selector.as_ref(), namespace)
}

fn is_selected(spec: &SecSynchSpec, selector: Option<&Selector>, namespace: &Namespace) -> bool {
    let name = namespace.name_any();
    let mut patterns = spec.destination_namespaces.iter();
    patterns.any(|pattern| matches(pattern, &name))
        || selector.is_some_and(|selector| selector.matches(namespace.labels()))
}

/// Parses a label selector. Unlike elsewhere in Kubernetes, an empty selector selects nothing here:
/// the pattern `*` selects all namespaces.
fn parse_selector(selector: &LabelSelector) -> Option<Selector> {
    let labels = selector.match_labels.as_ref();
    let expressions = selector.match_expressions.as_ref();
    let is_empty = labels.is_none_or(BTreeMap::is_empty) && expressions.is_none_or(Vec::is_empty);
    if is_empty {
        return None;
    }
    Selector::try_from(selector.clone()).ok()
}

/// Whether a name matches a pattern in which `*` matches any text. The cost is linear in the length
/// of the name for each `*`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut segments = pattern.split('*');
    let first = segments.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = segments.next_back() else {
        return rest.is_empty();
    };
    for segment in segments {
        let Some(start) = rest.find(segment) else {
            return false;
        };
        rest = &rest[start + segment.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const IMPLIED: Consent<'_> = Consent {
        is_implied: true,
        allow_to: "",
    };

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("team-*", "team-a", true),
            ("team-*", "team-", true),
            ("team-*", "my-team-a", false),
            ("*", "anything", true),
            ("*-a", "team-a", true),
            ("t*m-*", "team-a", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    fn namespaces() -> Vec<Namespace> {
        let terminating =
            json!({"name": "team-terminating", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        [
            json!({"name": "source"}),
            json!({"name": "team-a", "labels": {"tier": "app"}}),
            json!({"name": "team-b"}),
            terminating,
            json!({"name": "other", "labels": {"tier": "app"}}),
            json!({"name": "kube-system", "labels": {"tier": "app"}}),
        ]
        .into_iter()
        .map(|metadata| serde_json::from_value(json!({"metadata": metadata})).expect("a Namespace"))
        .collect()
    }

    fn spec() -> SecSynchSpec {
        serde_json::from_value(json!({
            "secretName": "s", "sourceNamespace": "source",
            "destinationNamespaces": ["team-*", "source", "nowhere"],
            "destinationSelector": {"matchLabels": {"tier": "app"}},
        }))
        .expect("a spec")
    }

    #[test]
    fn names_patterns_and_labels_select_destinations() {
        let destinations = select_destinations(&spec(), namespaces().iter(), IMPLIED, false);
        let destinations: Vec<_> = destinations
            .iter()
            .map(|(name, destination)| (name.as_str(), *destination))
            .collect();
        assert_eq!(
            destinations,
            [
                ("kube-system", Destination::Protected),
                ("nowhere", Destination::NamespaceMissing),
                ("other", Destination::Allowed),
                ("team-a", Destination::Allowed),
                ("team-b", Destination::Allowed),
            ]
        );
    }

    #[test]
    fn system_namespaces_can_be_allowed() {
        let destinations = select_destinations(&spec(), namespaces().iter(), IMPLIED, true);
        assert_eq!(destinations["kube-system"], Destination::Allowed);
    }

    #[test]
    fn source_consents_by_name_and_pattern() {
        let consent = Consent {
            is_implied: false,
            allow_to: "other, team-b*",
        };
        let destinations = select_destinations(&spec(), namespaces().iter(), consent, false);
        assert_eq!(destinations["other"], Destination::Allowed);
        assert_eq!(destinations["team-a"], Destination::NotAllowed);
        assert_eq!(destinations["team-b"], Destination::Allowed);
    }

    #[test]
    fn empty_selector_selects_nothing() {
        let spec: SecSynchSpec = serde_json::from_value(
            json!({"secretName": "s", "sourceNamespace": "a", "destinationSelector": {}}),
        )
        .expect("a spec");
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "b"}})).expect("a Namespace");
        assert!(!selects(&spec, &namespace));
        let destinations = select_destinations(&spec, [namespace].iter(), IMPLIED, true);
        assert!(destinations.is_empty());
    }
}
