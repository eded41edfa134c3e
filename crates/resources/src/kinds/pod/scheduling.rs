//! Scheduling gates, tolerations and topology spread constraints.
//! In: fields of a pod spec. Out: their errors. Mirrors `ValidateTolerations`,
//! `validateTopologySpreadConstraints` and `validateSchedulingGates` in `pkg/apis/core/validation`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use serde_json::Value;

use super::{super::validation, affinity::validate_label_keys};

/// The errors of the gates before scheduling and before readiness.
pub(super) fn validate_gates(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let readiness_at = at.child("readinessGates");
    for (i, gate) in spec.list("readinessGates").iter().enumerate() {
        let condition = gate.text("conditionType");
        validation::named(
            &readiness_at.index(i).child("conditionType"),
            condition,
            names::qualified_name(condition),
            out,
        );
    }
    let gates_at = at.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.list("schedulingGates").iter().enumerate() {
        let name = gate.text("name");
        validation::named(&gates_at.index(i), name, names::qualified_name(name), out);
        if !seen.insert(name) {
            out.push(FieldError::duplicate(gates_at.index(i), name));
        }
    }
}

/// The errors with tolerations.
pub(super) fn validate_tolerations(
    tolerations: &[Value],
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let at = at.index(i);
        let key = toleration.text("key");
        let operator = toleration.text("operator");
        let value = toleration.text("value");
        let effect = toleration.text("effect");
        let operator_at = at.child("operator");
        if !key.is_empty() {
            validation::named(&at.child("key"), key, names::qualified_name(key), out);
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            out.push(FieldError::invalid(operator_at, operator, detail));
        }
        if toleration.has("tolerationSeconds") && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            out.push(FieldError::invalid(at.child("effect"), effect, detail));
        }
        match operator {
            "" | "Equal" => {
                let errors = names::label_value(value);
                if !errors.is_empty() {
                    out.push(FieldError::invalid(operator_at, value, &errors.join(";")));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => out.push(FieldError::invalid(
                operator_at,
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Lt" | "Gt" => out.push(FieldError::not_supported(
                operator_at,
                operator,
                &["Equal", "Exists", "Lt", "Gt"],
            )),
            _ => out.push(FieldError::not_supported(
                operator_at,
                operator,
                &["Equal", "Exists"],
            )),
        }
        if !effect.is_empty() {
            validation::one_of(
                &at.child("effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                out,
            );
        }
    }
}

/// The errors with topology spread constraints.
pub(super) fn validate_spread(constraints: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    let last: BTreeMap<(&str, &str), usize> = constraints
        .iter()
        .enumerate()
        .map(|(i, c)| ((c.text("topologyKey"), c.text("whenUnsatisfiable")), i))
        .collect();
    for (i, constraint) in constraints.iter().enumerate() {
        let at = at.index(i);
        validate_positive(constraint.number("maxSkew"), &at.child("maxSkew"), out);
        let key = constraint.text("topologyKey");
        let action = constraint.text("whenUnsatisfiable");
        if key.is_empty() {
            out.push(FieldError::required(
                at.child("topologyKey"),
                "can not be empty",
            ));
        }
        validation::one_of(
            &at.child("whenUnsatisfiable"),
            action,
            &["DoNotSchedule", "ScheduleAnyway"],
            out,
        );
        if last.get(&(key, action)).is_some_and(|last| *last > i) {
            out.push(FieldError::duplicate(
                at.child("{topologyKey, whenUnsatisfiable}"),
                &format!("{{{key}, {action}}}"),
            ));
        }
        if let Some(domains) = constraint.int("minDomains") {
            let domains_at = at.child("minDomains");
            validate_positive(domains, &domains_at, out);
            if action != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                out.push(FieldError::invalid(domains_at, domains, &detail));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(value) = constraint.field(policy).as_str() {
                validation::one_of(&at.child(policy), value, &["Honor", "Ignore"], out);
            }
        }
        validate_label_keys(constraint, &at, out);
        validation::label_selector(
            &at.child("labelSelector"),
            constraint.field("labelSelector"),
            out,
        );
    }
}

fn validate_positive(value: i64, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if value <= 0 {
        out.push(FieldError::invalid(at, value, "must be greater than zero"));
    }
}
