//! Nodes: taints a new node as not ready, copies topology labels of the node to its pods, and
//! rejects a pod resize that the node does not allow.
//! Mirrors the plugins TaintNodesByCondition and PodTopologyLabels.

use bellerophon_apimachinery::{
    error::{ApiError, Cause},
    json_ext::JsonExt,
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::{self, binding::topology_labels};

use super::{Admission, limits::pod_amounts};

/// A new node is tainted until it reports that it is ready.
pub(super) fn taint(request: &Admission<'_>, node: &mut Object) {
    if request.creates("", "nodes") {
        kinds::taint_not_ready(node);
    }
}

/// A pod that is made on a node takes over where that node is.
pub(super) fn label_by_topology(request: &Admission<'_>, pod: &mut Object) {
    if !request.creates("", "pods") || pod.str_at("spec.nodeName").is_empty() {
        return;
    }
    if let Some(node) = request.look_up("/nodes", "", pod.str_at("spec.nodeName")) {
        pod.meta.labels.extend(topology_labels(&node.meta.labels));
    }
}

/// A resized pod must fit its node.
///
/// # Errors
/// 403 with the reason as cause.
pub(super) fn validate_resize(request: &Admission<'_>, pod: &Object) -> Result<(), ApiError> {
    let name = pod.str_at("spec.nodeName");
    let unchanged = request
        .old
        .is_none_or(|old| old.meta.generation == pod.meta.generation);
    if !request.writes_subresource("", "pods", "resize") || name.is_empty() || unchanged {
        return Ok(());
    }
    let Some(node) = request.look_up("/nodes", "", name) else {
        return Err(request.forbid(pod, format!("node {name:?} not found")));
    };
    if let Some(system) = node
        .meta
        .labels
        .get("kubernetes.io/os")
        .filter(|system| *system != "linux")
    {
        let why =
            format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        return Err(with_cause(request.forbid(pod, why), "UnsupportedPlatform"));
    }
    let requested = pod_amounts(pod, "requests");
    let amount = |resource: &str| requested.get(resource).copied().unwrap_or(Quantity::ZERO);
    let allocatable = |resource: &str| {
        node.body
            .field("status")
            .field("allocatable")
            .get(resource)
            .and_then(Quantity::of)
            .unwrap_or(Quantity::ZERO)
    };
    let mut lacking = Vec::new();
    if amount("cpu") > allocatable("cpu") {
        lacking.push(format!(
            "cpu, requested: {}, allocatable: {}",
            amount("cpu").milli_value(),
            allocatable("cpu").milli_value()
        ));
    }
    if amount("memory") > allocatable("memory") {
        lacking.push(format!(
            "memory, requested: {}, allocatable: {}",
            amount("memory").value(),
            allocatable("memory").value()
        ));
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let why = format!(
        "node didn't have enough allocatable resources: {}",
        lacking.join("; ")
    );
    Err(with_cause(request.forbid(pod, why), "NodeCapacity"))
}

fn with_cause(mut error: ApiError, reason: &str) -> ApiError {
    if let ApiError::Forbidden { causes, .. } = &mut error {
        causes.push(Cause {
            reason: reason.to_owned(),
            ..Cause::default()
        });
    }
    error
}
