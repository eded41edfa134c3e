//! Which objects a quota is about: `spec.scopes` and `spec.scopeSelector`.
//! Mirrors `podMatchesScopeFunc` and `pvcMatchesScopeFunc`.

use serde_json::{Value, json};

use super::{
    evaluator::{Evaluator, attributes_classes},
    pod,
};
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Selector;

/// Whether a quota is about an object: all of its scopes match.
pub(super) fn matches(quota: &Object, evaluator: &Evaluator, object: &Object) -> bool {
    let spec = quota.body.field("spec");
    let plain = spec
        .texts("scopes")
        .map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    let selected = spec
        .field("scopeSelector")
        .list("matchExpressions")
        .iter()
        .cloned();
    plain.chain(selected).all(|requirement| match evaluator {
        Evaluator::Pods => pod_matches(&requirement, object),
        Evaluator::Claims => claim_matches(&requirement, object),
        Evaluator::Services | Evaluator::Count(_) => false,
    })
}

fn pod_matches(requirement: &Value, pod: &Object) -> bool {
    match requirement.text("scopeName") {
        "Terminating" => pod::is_terminating(pod),
        "NotTerminating" => !pod::is_terminating(pod),
        "BestEffort" => pod::is_best_effort(pod),
        "NotBestEffort" => !pod::is_best_effort(pod),
        "CrossNamespacePodAffinity" => pod::has_cross_namespace_affinity(pod),
        "PriorityClass" => {
            let class = pod.str_at("spec.priorityClassName");
            let class = Some(class).filter(|class| !class.is_empty());
            selects(requirement, class)
        }
        _ => false,
    }
}

fn claim_matches(requirement: &Value, claim: &Object) -> bool {
    if requirement.text("scopeName") != "VolumeAttributesClass" {
        return false;
    }
    let classes = attributes_classes(claim);
    if classes.is_empty() {
        return selects(requirement, None);
    }
    classes
        .into_iter()
        .any(|class| selects(requirement, Some(class)))
}

/// Whether the value of a scope meets a requirement. Mirrors
/// `ScopedResourceSelectorRequirementsAsSelector`.
fn selects(requirement: &Value, value: Option<&str>) -> bool {
    let scope = requirement.text("scopeName");
    let expression = json!({
        "key": scope,
        "operator": requirement.text("operator"),
        "values": requirement.list("values"),
    });
    let selector = json!({ "matchExpressions": [expression] });
    let labels = value.map(|value| serde_json::Map::from_iter([(scope.to_owned(), value.into())]));
    Selector::read(Some(&selector)).is_some_and(|selector| selector.matches(labels.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::object;

    fn check(evaluator: &Evaluator, quota: &Value, item: &Value) -> bool {
        matches(
            &object(json!({ "spec": quota })),
            evaluator,
            &object(item.clone()),
        )
    }

    #[test]
    fn quota_is_about_objects_in_all_of_its_scopes() {
        let selector = |operator: &str, values: Value| {
            json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
        };
        let high = json!({"spec": {"priorityClassName": "high", "activeDeadlineSeconds": 5}});
        let cases = [
            (json!({}), true),
            (json!({"scopes": ["Terminating"]}), true),
            (json!({"scopes": ["NotTerminating"]}), false),
            (json!({"scopes": ["Terminating", "BestEffort"]}), true),
            (json!({"scopes": ["NotBestEffort"]}), false),
            (json!({"scopes": ["CrossNamespacePodAffinity"]}), false),
            (selector("In", json!(["low", "high"])), true),
            (selector("NotIn", json!(["high"])), false),
            (selector("Exists", json!([])), true),
            (selector("DoesNotExist", json!([])), false),
        ];
        for (quota, expected) in cases {
            assert_eq!(check(&Evaluator::Pods, &quota, &high), expected, "{quota}");
        }
        let scoped = json!({"scopes": ["BestEffort"]});
        assert!(!check(&Evaluator::Services, &scoped, &json!({})));
    }

    #[test]
    fn pods_that_name_other_namespaces_are_in_the_affinity_scope() {
        let quota = json!({"scopes": ["CrossNamespacePodAffinity"]});
        let term = json!({"topologyKey": "zone", "namespaceSelector": {}});
        for affinity in [
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}),
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": term}]}}),
        ] {
            let pod = json!({"spec": {"affinity": affinity}});
            assert!(check(&Evaluator::Pods, &quota, &pod), "{pod}");
        }
    }

    #[test]
    fn claims_match_by_their_attributes_classes() {
        let quota = json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["fast"]}]}});
        let claim = |class: &str| json!({"spec": {"volumeAttributesClassName": class}});
        assert!(check(&Evaluator::Claims, &quota, &claim("fast")));
        assert!(!check(&Evaluator::Claims, &quota, &claim("slow")));
        assert!(!check(&Evaluator::Claims, &quota, &json!({})));
        let changing = json!({"spec": {"volumeAttributesClassName": "slow"},
            "status": {"currentVolumeAttributesClassName": "fast"}});
        assert!(check(&Evaluator::Claims, &quota, &changing));
    }
}
