//! The custom resource: an Icecream specifies a Deployment and reports the nodes of its pods.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired Deployment.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name, a type and a path"
)]
#[kube(
    group = "controller.nicoleh.io",
    version = "v1alpha1",
    kind = "Icecream",
    plural = "icecreams",
    shortname = "ice",
    category = "all",
    namespaced,
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "IcecreamStatus",
    doc = "An Icecream owns a Deployment and reports the nodes its pods run on.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.availableReplicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Deployment",
        type_ = "string",
        json_path = ".spec.deploymentName"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(
        name = "Available",
        type_ = "integer",
        json_path = ".status.availableReplicas"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodes",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct IcecreamSpec {
    /// The name of the Deployment, in the namespace of the Icecream. After a change, the Deployment
    /// of the former name is deleted.
    #[schemars(length(min = 1, max = 253))]
    pub deployment_name: String,
    /// The number of pods. If unset, the operator does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: Option<i32>,
}

/// The observed state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IcecreamStatus {
    /// The number of available pods.
    #[serde(default)]
    pub available_replicas: i32,
    /// The nodes that pods are scheduled on, sorted and without duplicates.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The label selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: all desired pods are available. `Progressing`: a rollout is in progress.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
