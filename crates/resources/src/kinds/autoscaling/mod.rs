//! HorizontalPodAutoscalers: bounds, metrics and behaviour, stored as autoscaling/v2. Mirrors the
//! strategy in `pkg/registry/autoscaling/horizontalpodautoscaler` and
//! `SetDefaults_HorizontalPodAutoscaler`.

mod conversion; // autoscaling/v1 and back
mod validate; // the errors of an autoscaler

pub use conversion::STORED_AS_V2;

use serde_json::{Map, Value, json};

use super::{Generation, Strategy};
use bellerophon_apimachinery::json_ext::{JsonDefaults, JsonExt};
use bellerophon_codec::object::Object;

/// The strategy of HorizontalPodAutoscalers. Mirrors `pkg/registry/autoscaling/horizontalpodautoscaler`.
pub const AUTOSCALER: Strategy = Strategy {
    default,
    prepare_create: |autoscaler| {
        autoscaler.body.insert(
            "status".into(),
            json!({"desiredReplicas": 0, "currentMetrics": null}),
        );
    },
    validate: validate::autoscaler,
    validate_status: validate::status,
    generation: Generation::None,
    ..Strategy::WITH_STATUS
};

/// The same kind in its first version: only the number of replicas is filled in there.
pub const AUTOSCALER_V1: Strategy = Strategy {
    default: |autoscaler| {
        autoscaler.section("spec").default_to("minReplicas", 1);
        let status = autoscaler.section("status");
        status.default_to("currentReplicas", 0);
        status.default_to("desiredReplicas", 0);
    },
    field_annotations: &conversion::ANNOTATIONS,
    ..AUTOSCALER
};

/// Used when no metric is given: 80 % of the requested CPU.
fn default_metrics() -> Value {
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}])
}

fn default(autoscaler: &mut Object) {
    let spec = autoscaler.section("spec");
    spec.default_to("minReplicas", 1);
    if spec.is_empty_at("metrics") {
        spec.insert("metrics".into(), default_metrics());
    }
    if let Some(behavior) = spec.map_mut("behavior") {
        let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
            {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]});
        let down = json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
        fill(behavior, "scaleUp", up);
        fill(behavior, "scaleDown", down);
    }
    complete_status(autoscaler.section("status"));
}

fn fill(behavior: &mut Map<String, Value>, name: &str, defaults: Value) {
    behavior.default_to(name, Map::new());
    let rules = behavior.map_mut(name).into_iter();
    rules.for_each(|rules| {
        defaults
            .as_object()
            .into_iter()
            .flatten()
            .for_each(|(key, value)| rules.default_to(key, value.clone()))
    });
}

/// Sets the fields of the v2 status that are present even when empty.
fn complete_status(status: &mut Map<String, Value>) {
    status.default_to("desiredReplicas", 0);
    if status.is_empty_at("currentMetrics") {
        status.insert("currentMetrics".into(), Value::Null);
    }
    if status.int("currentReplicas") == Some(0) {
        status.remove("currentReplicas");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::create;

    #[test]
    fn bounds_metrics_and_behaviour_are_filled_in() {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let (autoscaler, errors) = create(
            &AUTOSCALER,
            json!({"spec": {"scaleTargetRef": target, "maxReplicas": 5, "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}}}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(autoscaler.at("spec.minReplicas"), Some(&json!(1)));
        assert_eq!(autoscaler.at("spec.metrics"), Some(&default_metrics()));
        assert_eq!(
            autoscaler.at("spec.behavior.scaleDown"),
            Some(
                &json!({"selectPolicy": "Max", "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]})
            )
        );
        assert_eq!(
            autoscaler.at("spec.behavior.scaleUp.stabilizationWindowSeconds"),
            Some(&json!(0))
        );
        assert_eq!(
            autoscaler.body["status"],
            json!({"desiredReplicas": 0, "currentMetrics": null})
        );
    }
}
