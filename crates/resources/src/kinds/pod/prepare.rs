//! The initial status of a new pod, and `matchLabelKeys` merged into its selectors.
//! In: a defaulted Pod. Out: the Pod as it is first stored.
//! Mirrors `PrepareForCreate` of the pod strategy in `pkg/registry/core/pod`.

use bellerophon_apimachinery::{
    json_ext::{JsonDefaults, JsonExt},
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{resources::qos_class, spec_value};

/// Brings a new pod into the shape it is stored in.
pub(super) fn prepare_create(pod: &mut Object) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(spec_value(pod))});
    if !spec_value(pod).list("schedulingGates").is_empty() {
        status["conditions"] = json!([gated()]);
    }
    pod.body.insert("status".into(), status);
    merge_label_keys(pod);
}

/// The condition of a pod that waits for its gates; its time is stamped later.
fn gated() -> Value {
    json!({
        "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": null,
        "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
    })
}

/// Conditions of a new pod began now.
pub(super) fn stamp(pod: &mut Object, old: Option<&Object>, now: Time) {
    if old.is_none() {
        pod.section("status")
            .maps_mut("conditions")
            .for_each(|c| c.default_to("lastTransitionTime", now.to_string()));
    }
}

/// Selectors with `matchLabelKeys` compare with the pod's own labels: the values are written into
/// the selector once, at creation.
fn merge_label_keys(pod: &mut Object) {
    let labels = pod.meta.labels.clone();
    let spec = pod.section("spec");
    let merge = |term: &mut Map<String, Value>| {
        for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
            let found: Vec<Value> = term
                .texts(list)
                .filter_map(|key| {
                    Some(json!({"key": key, "operator": operator, "values": [labels.get(key)?]}))
                })
                .collect();
            if let Some(selector) = term.map_mut("labelSelector").filter(|_| !found.is_empty()) {
                selector.default_to("matchExpressions", json!([]));
                selector
                    .get_mut("matchExpressions")
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .for_each(|e| e.extend(found.clone()));
            }
        }
    };
    spec.maps_mut("topologySpreadConstraints").for_each(merge);
    let Some(affinity) = spec.map_mut("affinity") else {
        return;
    };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = affinity.map_mut(kind) else {
            continue;
        };
        affinity
            .maps_mut("requiredDuringSchedulingIgnoredDuringExecution")
            .for_each(merge);
        affinity
            .maps_mut("preferredDuringSchedulingIgnoredDuringExecution")
            .filter_map(|w| w.map_mut("podAffinityTerm"))
            .for_each(merge);
    }
}
