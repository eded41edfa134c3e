//! Node affinity, pod affinity and pod anti-affinity.
//! In: the affinity of a pod spec. Out: its errors.
//! Mirrors `validateAffinity` in `pkg/apis/core/validation`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use serde_json::Value;

use super::super::validation;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The errors of an affinity, which may be null.
pub(super) fn validate(affinity: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(nodes) = affinity.get_set("nodeAffinity") {
        validate_nodes(nodes, &at.child("nodeAffinity"), out);
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        if let Some(pods) = affinity.get_set(name) {
            validate_pods(pods, &at.child(name), out);
        }
    }
}

fn validate_nodes(affinity: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(required) = affinity.get_set(REQUIRED) {
        validate_node_selector(required, &at.child(REQUIRED), out);
    }
    let preferred_at = at.child(PREFERRED);
    for (i, term) in affinity.list(PREFERRED).iter().enumerate() {
        let at = preferred_at.index(i);
        validate_weight(term, &at, out);
        // Preferences were never checked for label values and cannot be now.
        validate_term(
            term.field("preference"),
            Values::Unchecked,
            &at.child("preference"),
            out,
        );
    }
}

/// The errors of a selector of nodes.
pub(crate) fn validate_node_selector(selector: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let terms_at = at.child("nodeSelectorTerms");
    let terms = selector.list("nodeSelectorTerms");
    if terms.is_empty() {
        out.push(FieldError::required(
            terms_at,
            "must have at least one node selector term",
        ));
        return;
    }
    for (i, term) in terms.iter().enumerate() {
        validate_term(term, Values::Checked, &terms_at.index(i), out);
    }
}

/// Whether the values of a requirement must be possible values of a label.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Checked,
    Unchecked,
}

fn validate_term(term: &Value, values: Values, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let expressions = at.child("matchExpressions");
    for (i, requirement) in term.list("matchExpressions").iter().enumerate() {
        validate_requirement(requirement, values, &expressions.index(i), out);
    }
    let fields = at.child("matchFields");
    for (i, requirement) in term.list("matchFields").iter().enumerate() {
        validate_field(requirement, &fields.index(i), out);
    }
}

fn validate_requirement(
    requirement: &Value,
    values: Values,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let values_at = at.child("values");
    let operator = requirement.text("operator");
    match (operator, requirement.list("values").len()) {
        ("In" | "NotIn", 0) => {
            out.push(FieldError::required(
                values_at,
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        ("Exists" | "DoesNotExist", 1..) => {
            out.push(FieldError::forbidden(
                values_at,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        ("Gt" | "Lt", count) if count != 1 => {
            out.push(FieldError::required(
                values_at,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ));
        }
        ("In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt", _) => {}
        _ => out.push(FieldError::invalid(
            at.child("operator"),
            operator,
            "not a valid selector operator",
        )),
    }
    let key = requirement.text("key");
    validation::named(&at.child("key"), key, names::qualified_name(key), out);
    if values == Values::Checked {
        for (i, value) in requirement.texts("values").enumerate() {
            validation::named(&values_at.index(i), value, names::label_value(value), out);
        }
    }
}

fn validate_field(requirement: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let values_at = at.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" => {
            if requirement.list("values").len() != 1 {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                out.push(FieldError::required(values_at, detail));
            }
        }
        other => out.push(FieldError::invalid(
            at.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    if requirement.text("key") == "metadata.name" {
        for (i, value) in requirement.texts("values").enumerate() {
            validation::named(&values_at.index(i), value, names::dns_subdomain(value), out);
        }
    } else {
        out.push(FieldError::invalid(
            at.child("key"),
            requirement.text("key"),
            "not a valid field selector key",
        ));
    }
}

fn validate_pods(affinity: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let required_at = at.child(REQUIRED);
    for (i, term) in affinity.list(REQUIRED).iter().enumerate() {
        validate_pod_term(term, &required_at.index(i), out);
    }
    let preferred_at = at.child(PREFERRED);
    for (i, weighted) in affinity.list(PREFERRED).iter().enumerate() {
        let at = preferred_at.index(i);
        validate_weight(weighted, &at, out);
        validate_pod_term(
            weighted.field("podAffinityTerm"),
            &at.child("podAffinityTerm"),
            out,
        );
    }
}

fn validate_weight(term: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let weight = term.number("weight");
    if !(1..=100).contains(&weight) {
        out.push(FieldError::invalid(
            at.child("weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

fn validate_pod_term(term: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for name in ["labelSelector", "namespaceSelector"] {
        validation::label_selector(&at.child(name), term.field(name), out);
    }
    for namespace in term.texts("namespaces") {
        validation::named(
            &at.child("namespace"),
            namespace,
            names::dns_label(namespace),
            out,
        );
    }
    validate_label_keys(term, at, out);
    let key = term.text("topologyKey");
    if key.is_empty() {
        out.push(FieldError::required(
            at.child("topologyKey"),
            "can not be empty",
        ));
    }
    validation::named(
        &at.child("topologyKey"),
        key,
        names::qualified_name(key),
        out,
    );
}

/// Keys whose values are taken from the pod's own labels.
pub(super) fn validate_label_keys(holder: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let selector = holder.get_set("labelSelector");
    for name in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys_at = at.child(name);
        if selector.is_none() && !holder.list(name).is_empty() {
            out.push(FieldError::forbidden(
                keys_at,
                "must not be specified when labelSelector is not set",
            ));
            continue;
        }
        for (i, key) in holder.texts(name).enumerate() {
            validation::named(&keys_at.index(i), key, names::qualified_name(key), out);
        }
    }
    let keys: Vec<&str> = holder.texts("matchLabelKeys").collect();
    if let Some(selector) = selector {
        // Of equal keys the last counts.
        let places: BTreeMap<&str, usize> = keys.iter().copied().zip(0..).collect();
        let mut seen: BTreeSet<&str> = selector
            .entries("matchLabels")
            .map(|(k, _)| k.as_str())
            .collect();
        for expression in selector.list("matchExpressions") {
            let key = expression.text("key");
            if let Some(i) = places.get(key).copied()
                && seen.contains(key)
            {
                out.push(FieldError::invalid(
                    at.index(i),
                    key,
                    "exists in both matchLabelKeys and labelSelector",
                ));
            }
            seen.insert(key);
        }
    }
    let keys_at = at.child("matchLabelKeys");
    let mismatched: BTreeSet<&str> = holder.texts("mismatchLabelKeys").collect();
    for (i, key) in keys.iter().enumerate() {
        if mismatched.contains(key) {
            out.push(FieldError::invalid(
                keys_at.index(i),
                *key,
                "exists in both matchLabelKeys and mismatchLabelKeys",
            ));
        }
    }
}
