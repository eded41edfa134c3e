//! Sets the overhead and the scheduling constraints of a pod from its runtime class.
//! Mirrors the plugin RuntimeClass.

use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonDefaults, JsonExt},
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{Admission, tolerations};

/// Fills in overhead, node selector and tolerations.
///
/// # Errors
/// 403 for a class that does not exist, or that the pod contradicts.
pub(super) fn mutate(request: &Admission<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let Some(class) = class_of(request, pod)? else {
        return Ok(());
    };
    complete(pod, &class).map_err(|why| request.forbid(pod, why))
}

/// A pod's overhead is that of its class.
///
/// # Errors
/// 403 for any other.
pub(super) fn validate(request: &Admission<'_>, pod: &Object) -> Result<(), ApiError> {
    if !request.creates("", "pods") {
        return Ok(());
    }
    let class = class_of(request, pod)?;
    let given = pod.body.field("spec").field("overhead");
    match class
        .as_ref()
        .and_then(|class| class.body.get_set("overhead"))
    {
        Some(overhead) if same_amounts(overhead.field("podFixed"), given) => Ok(()),
        Some(_) => Err(request.forbid(pod, MISMATCH)),
        None if given.is_null() => Ok(()),
        None => Err(request.forbid(
            pod,
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        )),
    }
}

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

fn class_of(request: &Admission<'_>, pod: &Object) -> Result<Option<Object>, ApiError> {
    let Some(name) = pod
        .body
        .field("spec")
        .field("runtimeClassName")
        .as_str()
        .filter(|_| request.creates("", "pods"))
    else {
        return Ok(None);
    };
    let class = request.look_up("node.k8s.io/runtimeclasses", "", name);
    class.map(Some).ok_or_else(|| {
        request.forbid(
            pod,
            format!("pod rejected: RuntimeClass {name:?} not found"),
        )
    })
}

fn complete(pod: &mut Object, class: &Object) -> Result<(), String> {
    let spec = pod.section("spec");
    if let Some(overhead) = class.body.get_set("overhead") {
        let fixed = overhead.field("podFixed");
        if !spec.is_empty_at("overhead") && !same_amounts(fixed, spec.field("overhead")) {
            return Err(MISMATCH.into());
        }
        if !fixed.is_null() {
            spec.insert("overhead".into(), fixed.clone());
        }
    }
    let Some(scheduling) = class.body.get_set("scheduling") else {
        return Ok(());
    };
    for (key, wanted) in scheduling.entries("nodeSelector") {
        let selector = spec.map_at("nodeSelector");
        let wanted = wanted.as_str().unwrap_or_default();
        let given = selector.field(key).as_str();
        if let Some(given) = given.filter(|given| *given != wanted) {
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {given}"
            ));
        }
        selector.insert(key.clone(), wanted.into());
    }
    let tolerations = tolerations::merge(spec.list("tolerations"), scheduling.list("tolerations"));
    if !tolerations.is_empty() {
        spec.insert("tolerations".into(), tolerations.into());
    }
    Ok(())
}

fn same_amounts(a: &Value, b: &Value) -> bool {
    let amounts = |value: &Value| -> Vec<(String, Option<Quantity>)> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, amount)| (name.clone(), Quantity::of(amount)))
            .collect()
    };
    amounts(a) == amounts(b)
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_takes_overhead_and_placement_of_its_runtime() {
        let class = object(json!({
            "overhead": {"podFixed": {"cpu": "100m"}},
            "scheduling": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "a"}, {"key": "b"}]},
        }));
        let cases = [
            (
                json!({"tolerations": [{"key": "b"}], "nodeSelector": {"c": "2"}}),
                json!({"overhead": {"cpu": "100m"}, "nodeSelector": {"a": "1", "c": "2"}, "tolerations": [{"key": "b"}, {"key": "a"}]}),
                "",
            ),
            (
                json!({"overhead": {"cpu": "0.1"}}),
                json!({"overhead": {"cpu": "100m"}, "nodeSelector": {"a": "1"}, "tolerations": [{"key": "a"}, {"key": "b"}]}),
                "",
            ),
            (json!({"overhead": {"cpu": "1"}}), json!(null), MISMATCH),
            (
                json!({"nodeSelector": {"a": "9"}}),
                json!(null),
                "conflict: runtimeClass.scheduling.nodeSelector[a] = 1; pod.spec.nodeSelector[a] = 9",
            ),
        ];
        for (spec, want, why) in cases {
            let mut pod = object(json!({ "spec": spec }));
            assert_eq!(
                complete(&mut pod, &class).err().unwrap_or_default(),
                why,
                "{spec}"
            );
            assert!(
                !why.is_empty() || pod.body["spec"] == want,
                "{spec}: {}",
                pod.body["spec"]
            );
        }
    }
}
