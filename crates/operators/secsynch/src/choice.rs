//! Which namespaces get a copy, and which must not.
//!
//! In: the spec, the namespaces there are, what the source allows. Out: a verdict for each namespace that is meant.
//! Holds: the source's own namespace is never meant; without consent nothing is copied.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use crate::crd::SecSynchSpec;

/// The annotation of a secret that says where it may be copied: names and patterns, separated by commas.
pub const ALLOW_TO: &str = "secsynch.tutorial.study.dev/allow-to";

/// Namespaces of the cluster itself.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Whether a namespace may have its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may.
    Copy,
    /// It is named, but not there.
    Missing,
    /// It belongs to the cluster itself.
    Protected,
    /// The source does not allow it.
    NotAllowed,
}

/// Who may decide where a secret goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consent<'a> {
    /// Nobody has to be asked: the SecSynch is in the source's namespace, or the operator was told so.
    pub(crate) implied: bool,
    /// What the source allows.
    pub(crate) allow_to: &'a str,
}

impl Consent<'_> {
    fn to(self, namespace: &str) -> bool {
        self.implied
            || self
                .allow_to
                .split(',')
                .any(|pattern| matches(pattern.trim(), namespace))
    }
}

/// The namespaces that are meant. Those that are going are left out: nothing can be made there, and what is there goes.
pub(crate) fn choose<'a>(
    spec: &SecSynchSpec,
    namespaces: impl Iterator<Item = &'a Namespace>,
    consent: Consent<'_>,
    system_allowed: bool,
) -> BTreeMap<String, Verdict> {
    let selector = spec.destination_selector.as_ref().and_then(parsed);
    let mut chosen: BTreeMap<String, Verdict> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for namespace in namespaces {
        let name = namespace.name_any();
        known.insert(name.clone());
        let named = spec
            .destination_namespaces
            .iter()
            .any(|pattern| matches(pattern, &name));
        let labelled = selector
            .as_ref()
            .is_some_and(|selector| selector.matches(namespace.labels()));
        if !(named || labelled)
            || name == spec.source_namespace
            || namespace.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let verdict = match () {
            () if SYSTEM.contains(&&*name) && !system_allowed => Verdict::Protected,
            () if !consent.to(&name) => Verdict::NotAllowed,
            () => Verdict::Copy,
        };
        chosen.insert(name, verdict);
    }
    let named = spec
        .destination_namespaces
        .iter()
        .filter(|name| !name.contains('*') && !known.contains(*name));
    chosen.extend(named.map(|name| (name.clone(), Verdict::Missing)));
    chosen
}

/// Whether a namespace could be meant, now or before it changed.
pub(crate) fn could_mean(spec: &SecSynchSpec, namespace: &Namespace) -> bool {
    let name = namespace.name_any();
    spec.destination_namespaces
        .iter()
        .any(|pattern| matches(pattern, &name))
        || spec
            .destination_selector
            .as_ref()
            .and_then(parsed)
            .is_some_and(|selector| selector.matches(namespace.labels()))
}

/// An empty selector means nothing here: who wants all namespaces writes `*`.
fn parsed(selector: &LabelSelector) -> Option<Selector> {
    let empty = selector
        .match_labels
        .as_ref()
        .is_none_or(BTreeMap::is_empty)
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(Vec::is_empty);
    if empty {
        None
    } else {
        Selector::try_from(selector.clone()).ok()
    }
}

/// Whether a name fits a pattern, in which `*` stands for any text. Never more than linear in the name for each star.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

    #[test]
    fn every_meant_namespace_gets_a_verdict() {
        let namespaces: Vec<Namespace> = [
            json!({"metadata": {"name": "source"}}),
            json!({"metadata": {"name": "team-a", "labels": {"tier": "app"}}}),
            json!({"metadata": {"name": "team-b"}}),
            json!({"metadata": {"name": "team-going", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"name": "other", "labels": {"tier": "app"}}}),
            json!({"metadata": {"name": "kube-system", "labels": {"tier": "app"}}}),
        ]
        .into_iter()
        .map(|value| serde_json::from_value(value).expect("a namespace"))
        .collect();
        let spec: SecSynchSpec = serde_json::from_value(json!({
            "secretName": "s", "sourceNamespace": "source", "destinationNamespaces": ["team-*", "source", "nowhere"],
            "destinationSelector": {"matchLabels": {"tier": "app"}},
        }))
        .expect("a spec");
        let chosen =
            |consent: Consent<'_>, system: bool| choose(&spec, namespaces.iter(), consent, system);
        let all = chosen(
            Consent {
                implied: true,
                allow_to: "",
            },
            false,
        );
        let verdicts: Vec<_> = all
            .iter()
            .map(|(name, verdict)| (name.as_str(), *verdict))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("kube-system", Verdict::Protected),
                ("nowhere", Verdict::Missing),
                ("other", Verdict::Copy),
                ("team-a", Verdict::Copy),
                ("team-b", Verdict::Copy),
            ]
        );
        assert_eq!(
            chosen(
                Consent {
                    implied: true,
                    allow_to: ""
                },
                true
            )["kube-system"],
            Verdict::Copy
        );
        let some = chosen(
            Consent {
                implied: false,
                allow_to: "other, team-b*",
            },
            false,
        );
        assert_eq!(
            (some["other"], some["team-a"], some["team-b"]),
            (Verdict::Copy, Verdict::NotAllowed, Verdict::Copy)
        );
    }

    #[test]
    fn empty_selector_means_no_namespace() {
        let spec: SecSynchSpec = serde_json::from_value(
            json!({"secretName": "s", "sourceNamespace": "a", "destinationSelector": {}}),
        )
        .expect("a spec");
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "b"}})).expect("a namespace");
        assert!(!could_mean(&spec, &namespace));
        assert!(
            choose(
                &spec,
                [namespace].iter(),
                Consent {
                    implied: true,
                    allow_to: ""
                },
                true
            )
            .is_empty()
        );
    }
}
