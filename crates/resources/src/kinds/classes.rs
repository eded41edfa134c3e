//! PriorityClasses and RuntimeClasses. Mirrors
//! `ValidatePriorityClass` in `pkg/apis/scheduling/validation` and `ValidateRuntimeClass` in
//! `pkg/apis/node/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{Strategy, validation};

/// The strategy of PriorityClasses. Mirrors `pkg/registry/scheduling/priorityclass`.
pub const PRIORITY_CLASS: Strategy = Strategy {
    default: |class| {
        class
            .body
            .default_to("preemptionPolicy", "PreemptLowerPriority")
    },
    prepare_create: |class| class.meta.generation = 1,
    validate: validate_priority,
    validate_update: |new, old, out| {
        if new.body.int("value").unwrap_or_default() != old.body.int("value").unwrap_or_default() {
            out.push(FieldError::forbidden(
                "value",
                "may not be changed in an update.",
            ));
        }
        validation::immutable(
            &Path::field("preemptionPolicy"),
            new.body.field("preemptionPolicy"),
            old.body.field("preemptionPolicy"),
            out,
        );
    },
    ..Strategy::PLAIN
};

/// The strategy of RuntimeClasses. Mirrors `pkg/registry/node/runtimeclass`.
pub const RUNTIME_CLASS: Strategy = Strategy {
    validate: validate_runtime,
    validate_update: |new, old, out| {
        validation::immutable(
            &Path::field("handler"),
            new.body.field("handler"),
            old.body.field("handler"),
            out,
        );
    },
    unconditional_update: false,
    create_on_update: true,
    ..Strategy::PLAIN
};

const USER_PRIORITY_MAX: i64 = 1_000_000_000;
/// The two classes of the system, with their values.
const SYSTEM: &[(&str, i64)] = &[
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

fn validate_priority(class: &Object, out: &mut Vec<FieldError>) {
    let name = class.meta.name.as_str();
    let value = class.body.int("value").unwrap_or_default();
    if name.starts_with("system-") {
        let known = SYSTEM.iter().find(|(known, _)| *known == name);
        let error = match known {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, right)) if *right != value => {
                Some(format!("value of {name} PriorityClass must be {right}"))
            }
            Some(_) if class.body.is_true("globalDefault") => Some(format!(
                "globalDefault of {name} PriorityClass must be false"
            )),
            Some(_) => None,
        };
        if let Some(error) = error {
            let why = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {error}"
            );
            out.push(FieldError::forbidden("metadata.name", &why));
        }
    } else if value > USER_PRIORITY_MAX {
        out.push(FieldError::forbidden(
            "value",
            &format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}"),
        ));
    }
    if let Some(policy) = class.body.field("preemptionPolicy").as_str() {
        let at = Path::field("preemptionPolicy");
        match policy {
            "" => out.push(FieldError::required(at, "")),
            policy => validation::one_of(&at, policy, &["PreemptLowerPriority", "Never"], out),
        }
    }
}

fn validate_runtime(class: &Object, out: &mut Vec<FieldError>) {
    match class.body.text("handler") {
        "" => out.push(FieldError::required("handler", "")),
        handler => validation::named(
            &Path::field("handler"),
            handler,
            names::dns_label(handler),
            out,
        ),
    }
    let limits = Path::field("overhead.limits");
    for (resource, amount) in class.body.field("overhead").entries("podFixed") {
        validation::resource_amount(&limits.key(resource), resource, amount, out);
    }
    let at = Path::field("scheduling");
    let scheduling = class.body.field("scheduling");
    validation::labels(
        &at.child("nodeSelector"),
        scheduling.field("nodeSelector"),
        out,
    );
    tolerations(
        &at.child("tolerations"),
        scheduling.list("tolerations"),
        out,
    );
}

fn tolerations(all: &Path, tolerations: &[Value], out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (i, toleration) in tolerations.iter().enumerate() {
        let at = all.index(i);
        let key = toleration.text("key");
        let operator = toleration.text("operator");
        let effect = toleration.text("effect");
        if !key.is_empty() {
            validation::named(&at.child("key"), key, names::qualified_name(key), out);
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            out.push(FieldError::invalid(at.child("operator"), operator, why));
        }
        if toleration.int("tolerationSeconds").is_some() && effect != "NoExecute" {
            out.push(FieldError::invalid(
                at.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        let value = toleration.text("value");
        match operator {
            "" | "Equal" => {
                validation::named(&at.child("operator"), value, names::label_value(value), out)
            }
            "Exists" if !value.is_empty() => {
                out.push(FieldError::invalid(
                    at.child("operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                ));
            }
            "Exists" => {}
            other => out.push(FieldError::not_supported(
                at.child("operator"),
                other,
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
        if !seen.insert((key, operator, value, effect)) {
            out.push(FieldError::duplicate(at, toleration));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn value_of_a_priority_stays() {
        let (class, error) = create(
            &PRIORITY_CLASS,
            json!({"metadata": {"name": "high"}, "value": 10}),
        );
        assert_eq!(error.len(), 0);
        assert_eq!(class.meta.generation, 1);
        assert_eq!(class.body.text("preemptionPolicy"), "PreemptLowerPriority");
        let (_, error) = update(
            &PRIORITY_CLASS,
            &class,
            json!({"metadata": {"name": "high"}, "value": 11, "preemptionPolicy": "Never"}),
        );
        assert_eq!(
            error,
            [
                "value: Forbidden: may not be changed in an update.",
                "preemptionPolicy: Invalid value: \"Never\": field is immutable"
            ]
        );
        refused(
            &PRIORITY_CLASS,
            json!({"metadata": {"name": "x"}, "value": 1_000_000_001}),
            &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
        );
        refused(
            &PRIORITY_CLASS,
            json!({"metadata": {"name": "system-mine"}, "value": 1}),
            &[
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class",
            ],
        );
    }

    #[test]
    fn handler_of_a_runtime_stays() {
        let (class, _) = create(&RUNTIME_CLASS, json!({"handler": "a"}));
        assert_eq!(
            update(&RUNTIME_CLASS, &class, json!({"handler": "b"})).1,
            ["handler: Invalid value: \"b\": field is immutable"]
        );
        refused(&RUNTIME_CLASS, json!({}), &["handler: Required value"]);
    }
}
