//! The `binding` subresource: sets the node of a pod.
//! In: the Binding, the Pod, the labels of the node. Out: the bound Pod, or why it cannot be bound.
//! Mirrors `ValidatePodBinding` in `pkg/apis/core/validation` and `BindingREST` of the pod
//! registry.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{
    error::{ApiError, GroupResource},
    field::{FieldError, Path},
    json_ext::JsonExt,
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    super::{Creation, Strategy},
    condition, spec_value,
};

/// A Binding: binds a pod and is not stored.
pub const BINDING: Strategy = Strategy {
    creation: Creation::Binding,
    ..Strategy::PLAIN
};

/// Labels of a node that its pods take over when they are bound.
const TOPOLOGY: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// The errors of a Binding; Kubernetes answers it as one sentence without causes.
///
/// # Errors
/// A target that is no node, or has no name.
pub fn validate(binding: &Object) -> Result<(), ApiError> {
    let target = binding.body.field("target");
    let at = Path::field("target");
    let mut errors = Vec::new();
    if !matches!(target.text("kind"), "" | "Node") {
        errors.push(FieldError::not_supported(
            at.child("kind"),
            target.text("kind"),
            &["Node", "<empty>"],
        ));
    }
    if target.text("name").is_empty() {
        errors.push(FieldError::required(at.child("name"), ""));
    }
    let sentences: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match sentences.as_slice() {
        [] => Ok(()),
        [one] => Err(ApiError::Unnamed(one.clone())),
        many => Err(ApiError::Unnamed(format!("[{}]", many.join(", ")))),
    }
}

/// The labels that a binding to a node with `node_labels` brings along.
pub fn topology_labels(node_labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    TOPOLOGY
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), node_labels.get(*key)?.clone())))
        .collect()
}

/// Binds the pod to the target of a checked Binding; its labels and annotations go over to the pod.
///
/// # Errors
/// A pod that is terminating, has a node already, or still waits at a gate.
pub fn bind(pod: &mut Object, binding: &Object, now: Time) -> Result<(), ApiError> {
    let name = pod.meta.name.clone();
    let spec = spec_value(pod);
    let why = if pod.meta.deletion_timestamp.is_some() {
        format!("pod {name} is being deleted, cannot be assigned to a host")
    } else if !spec.text("nodeName").is_empty() {
        format!(
            "pod {name} is already assigned to node {:?}",
            spec.text("nodeName")
        )
    } else if !spec.list("schedulingGates").is_empty() {
        format!("pod {name} has non-empty .spec.schedulingGates")
    } else {
        let node = binding.body.field("target").text("name").to_owned();
        pod.section("spec").insert("nodeName".into(), node.into());
        pod.meta
            .annotations
            .extend(binding.meta.annotations.clone());
        pod.meta.labels.extend(binding.meta.labels.clone());
        pod.section("status").remove("nominatedNodeName");
        condition::set(pod, json!({"type": "PodScheduled", "status": "True"}), now);
        return Ok(());
    };
    Err(ApiError::Conflict {
        what: GroupResource::new("", "pods/binding"),
        name,
        why,
    })
}

/// The answer to a binding.
pub fn answer() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
