//! Admission: webhook configurations, policies and their bindings. Mirrors
//! `printValidatingWebhook`, `printValidatingAdmissionPolicy` and others in
//! `pkg/printers/internalversion`.

use bellerophon_apimachinery::table_column::Column;
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    field::Fields,
    printer::{Printer, age, name},
};

const PARAM_KIND: Column = Column::text(
    "ParamKind",
    "The kind of objects that parameterise the policy.",
);

pub(super) static WEBHOOKS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer(
            "Webhooks",
            "Webhooks indicates the number of webhooks registered in this configuration",
        ),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.list("webhooks").len().into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static VALIDATING_POLICY: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Validations", "How many rules the policy has."),
        PARAM_KIND,
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.list("spec.validations").len().into(),
            param_kind(object).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static MUTATING_POLICY: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Mutations", "How many changes the policy makes."),
        PARAM_KIND,
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.list("spec.mutations").len().into(),
            param_kind(object).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static POLICY_BINDING: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("PolicyName", "The policy that is put in force."),
        Column::text("ParamRef", "The object that parameterises it."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("spec.policyName").into(),
            param_ref(object).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

fn param_kind(policy: &Object) -> String {
    match policy.field("spec.paramKind") {
        Some(kind) => format!("{}/{}", kind.text("apiVersion"), kind.text("kind")),
        None => "<unset>".into(),
    }
}

fn param_ref(binding: &Object) -> String {
    let Some(reference) = binding.field("spec.paramRef") else {
        return "<unset>".into();
    };
    match (reference.text("name"), reference.field("selector")) {
        ("", Some(selector)) => selector_dump(selector),
        ("", None) => "<unset>".into(),
        // Whether the parameter has a namespace is not known here.
        (name, _) => format!("{}/{name}", reference.filled_or("namespace", "*")),
    }
}

/// A selector as Go prints the struct, which is what Kubernetes puts in this one cell.
fn selector_dump(selector: &Value) -> String {
    let mut labels: Vec<_> = selector.map("matchLabels").into_iter().flatten().collect();
    labels.sort_unstable_by_key(|(key, _)| *key);
    let labels: String = labels
        .iter()
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()))
        .collect();
    let requirement = |expression: &Value| {
        let key = expression.text("key");
        let operator = expression.text("operator");
        let values = expression.texts("values").join(" ");
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions: String = selector
        .list("matchExpressions")
        .iter()
        .map(requirement)
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::print::printer::tests::check;

    const GROUP: &str = "admissionregistration.k8s.io/v1";

    #[test]
    fn configurations_and_policies_count_what_they_hold() {
        for kind in [
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration",
        ] {
            check(
                GROUP,
                kind,
                json!({ "webhooks": [{}, {}] }),
                json!(["x", 2, "10m"]),
            );
        }
        let spec = json!({ "validations": [{}], "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" } });
        check(
            GROUP,
            "ValidatingAdmissionPolicy",
            json!({ "spec": spec }),
            json!(["x", 1, "v1/ConfigMap", "10m"]),
        );
        check(
            GROUP,
            "MutatingAdmissionPolicy",
            json!({ "spec": { "mutations": [{}, {}] } }),
            json!(["x", 2, "<unset>", "10m"]),
        );
    }

    #[test]
    fn bindings_name_policy_and_parameters() {
        let expression = json!({ "key": "e", "operator": "In", "values": ["1", "2"] });
        for (reference, words) in [
            (json!(null), "<unset>"),
            (json!({ "parameterNotFoundAction": "Deny" }), "<unset>"),
            (json!({ "name": "p" }), "*/p"),
            (json!({ "name": "p", "namespace": "ns" }), "ns/p"),
            (
                json!({ "selector": { "matchLabels": { "b": "2", "a": "1" }, "matchExpressions": [expression] } }),
                "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:e,Operator:In,Values:[1 2],},},}",
            ),
        ] {
            for kind in [
                "ValidatingAdmissionPolicyBinding",
                "MutatingAdmissionPolicyBinding",
            ] {
                check(
                    GROUP,
                    kind,
                    json!({ "spec": { "policyName": "p1", "paramRef": reference } }),
                    json!(["x", "p1", words, "10m"]),
                );
            }
        }
    }
}
