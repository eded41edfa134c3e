//! ResourceQuotas: quantities of known resources, in scopes that apply to them.
//! Mirrors `ValidateResourceQuota` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
    quantity::Quantity,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{Generation, Strategy, validation};

/// The strategy of ResourceQuotas. Mirrors `pkg/registry/core/resourcequota`.
pub const RESOURCE_QUOTA: Strategy = Strategy {
    default: |quota| {
        quota.section("spec");
        quota.section("status");
    },
    prepare_create: |quota| {
        quota.body.insert("status".into(), json!({}));
    },
    validate,
    validate_update,
    validate_status: |new, _, out| {
        amounts("status", new.body.field("status"), &["hard", "used"], out)
    },
    warnings,
    generation: Generation::None,
    delete_answer: super::DeleteAnswer::Object,
    ..Strategy::WITH_STATUS
};

fn validate(quota: &Object, out: &mut Vec<FieldError>) {
    let spec = quota.body.field("spec");
    amounts("spec", spec, &["hard"], out);
    scopes(spec, out);
    if let Some(selector) = spec.get_set("scopeSelector") {
        scope_selector(spec, selector, out);
    }
}

fn amounts(root: &str, section: &Value, maps: &[&str], out: &mut Vec<FieldError>) {
    let root = Path::field(root);
    for map in maps {
        let all = root.child(map);
        for (resource, amount) in section.entries(map) {
            let at = all.key(resource);
            validation::named(&at, resource, names::qualified_name(resource), out);
            if !resource.contains('/') && !is_standard(resource) {
                out.push(FieldError::invalid(
                    at,
                    resource,
                    "must be a standard resource for quota",
                ));
            }
            validation::resource_amount(&at, resource, amount, out);
        }
    }
}

fn is_standard(resource: &str) -> bool {
    const STANDARD: &[&str] = &[
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    ];
    STANDARD.contains(&resource)
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-")
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];
const OPPOSITES: &[(&str, &str)] = &[
    ("BestEffort", "NotBestEffort"),
    ("Terminating", "NotTerminating"),
];

/// Whether a scope applies to a resource.
fn fits(scope: &str, resource: &str) -> bool {
    let compute = [
        "cpu",
        "memory",
        "limits.cpu",
        "limits.memory",
        "requests.cpu",
        "requests.memory",
    ]
    .contains(&resource);
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || compute,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            ["persistentvolumeclaims", "requests.storage"].contains(&resource)
        }
        _ => true,
    }
}

fn unfit(scope: &str, spec: &Value) -> usize {
    spec.entries("hard")
        .filter(|(resource, _)| is_standard(resource) && !fits(scope, resource))
        .count()
}

fn scopes(spec: &Value, out: &mut Vec<FieldError>) {
    let at = Path::field("spec.scopes");
    let all = spec.field("scopes");
    let mut seen = BTreeSet::new();
    for scope in spec.list("scopes").iter().filter_map(Value::as_str) {
        if !SCOPES.contains(&scope) {
            out.push(FieldError::invalid(at, all, "unsupported scope"));
        }
        out.extend(
            (0..unfit(scope, spec))
                .map(|_| FieldError::invalid(at, all, "unsupported scope applied to resource")),
        );
        seen.insert(scope);
    }
    conflicts(&at, all, &seen, out);
}

fn conflicts(at: &Path, shown: &Value, seen: &BTreeSet<&str>, out: &mut Vec<FieldError>) {
    for (a, b) in OPPOSITES {
        if seen.contains(a) && seen.contains(b) {
            out.push(FieldError::invalid(at, shown, "conflicting scopes"));
        }
    }
}

fn scope_selector(spec: &Value, selector: &Value, out: &mut Vec<FieldError>) {
    let at = Path::field("spec.scopeSelector.matchExpressions");
    let shown = || Internal::one("core.ScopeSelector", selector);
    let mut seen = BTreeSet::new();
    for expression in selector.list("matchExpressions") {
        let scope = expression.text("scopeName");
        let operator = expression.text("operator");
        let values = expression.field("values");
        if !SCOPES.contains(&scope) {
            out.push(FieldError::invalid(
                at.child("scopeName"),
                scope,
                "unsupported scope",
            ));
        }
        out.extend(
            (0..unfit(scope, spec))
                .map(|_| FieldError::invalid(at, shown(), "unsupported scope applied to resource")),
        );
        if SCOPES.contains(&scope)
            && !["PriorityClass", "VolumeAttributesClass"].contains(&scope)
            && operator != "Exists"
        {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            out.push(FieldError::invalid(at.child("operator"), operator, why));
        }
        match operator {
            "In" | "NotIn" if expression.is_empty_at("values") => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                out.push(FieldError::required(at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !expression.is_empty_at("values") => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                out.push(FieldError::invalid(at.child("values"), values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => out.push(FieldError::invalid(
                at.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        seen.insert(scope);
    }
    conflicts(&at, spec.field("scopes"), &seen, out);
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let set = |o: &Object| -> BTreeSet<String> {
        o.body
            .field("spec")
            .list("scopes")
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    if set(new) != set(old) {
        out.push(FieldError::invalid(
            "spec.scopes",
            new.body.field("spec").field("scopes"),
            validation::IMMUTABLE,
        ));
    }
}

fn warnings(quota: &Object, old: Option<&Object>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let hard = quota.body.field("spec").field("hard");
    let amount = |name: &str| {
        hard.get(name)
            .and_then(Quantity::of)
            .map(|q| (name.to_owned(), q))
    };
    ["cpu", "memory", "storage", "ephemeral-storage"]
        .iter()
        .filter_map(|resource| {
            let short = ["cpu", "memory"].contains(resource).then(|| amount(resource)).flatten();
            let (request_name, request) = amount(&format!("requests.{resource}")).or(short)?;
            let (limit_name, limit) = amount(&format!("limits.{resource}"))?;
            (request > limit).then(|| format!("ResourceQuota {request_name} ({request}) should be less than {limit_name} ({limit})"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn amounts_and_scopes_are_checked() {
        let all = r#"["Best","Terminating","NotTerminating"]"#;
        refused(
            &RESOURCE_QUOTA,
            json!({"spec": {"hard": {"pods": "-1"}, "scopes": ["Best", "Terminating", "NotTerminating"]}}),
            &[
                r#"spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0"#,
                &format!("spec.scopes: Invalid value: {all}: unsupported scope"),
                &format!("spec.scopes: Invalid value: {all}: conflicting scopes"),
            ],
        );
        refused(
            &RESOURCE_QUOTA,
            json!({"spec": {"hard": {"bad name": "1"}}}),
            &[
                r#"spec.hard[bad name]: Invalid value: "bad name": name part must consist…"#,
                r#"spec.hard[bad name]: Invalid value: "bad name": must be a standard resource for quota"#,
            ],
        );
        refused(
            &RESOURCE_QUOTA,
            json!({"spec": {"hard": {"pods": "1500m"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}}),
            &[
                r#"spec.hard[pods]: Invalid value: "1500m": must be an integer"#,
                "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ],
        );
    }

    #[test]
    fn scopes_are_immutable_and_inverted_bounds_are_warned_of() {
        let (quota, errors) = create(
            &RESOURCE_QUOTA,
            json!({"spec": {"hard": {"requests.cpu": "2", "limits.cpu": "1"}, "scopes": ["NotTerminating"]}, "status": {"used": {"pods": "1"}}}),
        );
        assert_eq!(errors.len(), 0);
        assert_eq!(&quota.body["status"], &json!({}));
        assert_eq!(
            warnings(&quota, None),
            ["ResourceQuota requests.cpu (2) should be less than limits.cpu (1)"]
        );
        let (_, errors) = update(&RESOURCE_QUOTA, &quota, json!({"spec": {}}));
        assert_eq!(
            errors,
            ["spec.scopes: Invalid value: null: field is immutable"]
        );
    }
}
