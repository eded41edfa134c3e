//! The destination namespaces of a SecSynch.
//!
//! Inputs: the spec, the existing namespaces, the consent of the source. Output: whether each
//! selected namespace may have a copy.
//!
//! Guarantees: the source's own namespace is never selected; without the consent of both the source
//! and the destination nothing is copied.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::Namespace,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::crd::SecSynchSpec;

/// The annotation of a Secret that lists the namespaces it may be copied to: names and patterns,
/// separated by commas.
pub const ALLOW_TO: &str = "secsynch.tutorial.study.dev/allow-to";

/// The annotation of a Namespace that lists the namespaces whose Secrets may be copied to it, and
/// of a Secret that lists the namespaces whose copies may replace it: names and patterns, separated
/// by commas.
pub const ACCEPT_FROM: &str = "secsynch.tutorial.study.dev/accept-from";

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
    /// The source consents, but the namespace does not.
    NotAccepted,
}

impl Destination {
    /// Whether the source consents to this destination.
    pub(crate) fn is_allowed_by_source(self) -> bool {
        matches!(self, Self::Allowed | Self::NotAccepted)
    }
}

/// The consent of source and destinations to copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consent<'a> {
    /// Whether the operator runs without consent checks.
    pub(crate) is_waived: bool,
    /// The namespace of the SecSynch. Permission to create a SecSynch in a namespace includes its
    /// Secrets, so that the namespace consents as source and as destination.
    pub(crate) synch_namespace: &'a str,
    /// The source's [`ALLOW_TO`] annotation.
    pub(crate) allow_to: &'a str,
}

impl Consent<'_> {
    /// Whether the source consents to every destination.
    pub(crate) fn is_implied_by_source(self, spec: &SecSynchSpec) -> bool {
        self.is_waived || self.synch_namespace == spec.source_namespace
    }

    fn source_allows(self, spec: &SecSynchSpec, destination: &str) -> bool {
        self.is_implied_by_source(spec) || lists(self.allow_to, destination)
    }

    fn destination_accepts(self, spec: &SecSynchSpec, destination: &Namespace) -> bool {
        self.is_waived
            || destination.metadata.name.as_deref() == Some(self.synch_namespace)
            || accepts(&destination.metadata, &spec.source_namespace)
    }
}

/// Whether the [`ACCEPT_FROM`] annotation of an object has a source namespace.
pub(crate) fn accepts(metadata: &ObjectMeta, source_namespace: &str) -> bool {
    let annotations = metadata.annotations.as_ref();
    let accept_from = annotations.and_then(|annotations| annotations.get(ACCEPT_FROM));
    accept_from.is_some_and(|patterns| lists(patterns, source_namespace))
}

/// Whether a list of patterns, separated by commas, has one that matches a name.
fn lists(patterns: &str, name: &str) -> bool {
    patterns
        .split(',')
        .any(|pattern| matches(pattern.trim(), name))
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
        } else if !consent.source_allows(spec, &name) {
            Destination::NotAllowed
        } else if !consent.destination_accepts(spec, namespace) {
            Destination::NotAccepted
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

    const WAIVED: Consent<'_> = Consent {
        is_waived: true,
        synch_namespace: "source",
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
            json!({
                "name": "other", "labels": {"tier": "app"},
                "annotations": {(ACCEPT_FROM): "source"},
            }),
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
        let destinations = select_destinations(&spec(), namespaces().iter(), WAIVED, false);
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
        let destinations = select_destinations(&spec(), namespaces().iter(), WAIVED, true);
        assert_eq!(destinations["kube-system"], Destination::Allowed);
    }

    #[test]
    fn source_consents_by_name_and_pattern() {
        let consent = Consent {
            is_waived: false,
            synch_namespace: "elsewhere",
            allow_to: "other, team-b*",
        };
        let destinations = select_destinations(&spec(), namespaces().iter(), consent, false);
        assert_eq!(destinations["other"], Destination::Allowed);
        assert_eq!(destinations["team-a"], Destination::NotAllowed);
        assert_eq!(destinations["team-b"], Destination::NotAccepted);
    }

    #[test]
    fn destination_consents_by_name_and_pattern() {
        for (accept_from, is_accepted) in [
            (None, false),
            (Some(""), false),
            (Some("other"), false),
            (Some("sourc"), false),
            (Some("source"), true),
            (Some("other, so*"), true),
            (Some("*"), true),
        ] {
            let metadata = ObjectMeta {
                annotations: accept_from
                    .map(|value| BTreeMap::from([(ACCEPT_FROM.to_owned(), value.to_owned())])),
                ..ObjectMeta::default()
            };
            assert_eq!(accepts(&metadata, "source"), is_accepted, "{accept_from:?}");
        }
    }

    #[test]
    fn namespace_of_the_synch_consents() {
        let consent = |synch_namespace| Consent {
            is_waived: false,
            synch_namespace,
            allow_to: "team-*",
        };
        for (synch_namespace, team_b, kube_system) in [
            ("source", Destination::NotAccepted, Destination::NotAccepted),
            ("team-b", Destination::Allowed, Destination::NotAllowed),
            (
                "elsewhere",
                Destination::NotAccepted,
                Destination::NotAllowed,
            ),
        ] {
            let consent = consent(synch_namespace);
            let destinations = select_destinations(&spec(), namespaces().iter(), consent, true);
            assert_eq!(destinations["team-b"], team_b, "{synch_namespace}");
            assert_eq!(
                destinations["kube-system"], kube_system,
                "{synch_namespace}"
            );
        }
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
        let destinations = select_destinations(&spec, [namespace].iter(), WAIVED, true);
        assert!(destinations.is_empty());
    }
}
