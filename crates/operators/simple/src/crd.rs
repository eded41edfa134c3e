//! The custom resource: the name of a winged horse, an image and a number of replicas.

use bellerophon::Kind;
use bellerophon_operator::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired Deployment. Field names are those of the original CRD.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name, a type and a path"
)]
#[kube(
    group = "stable.simple-bellerophon.io",
    version = "v444beta989",
    kind = "BellerophonSimple",
    singular = "shero",
    plural = "sheroes",
    shortname = "bsh",
    category = "all",
    namespaced,
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "BellerophonSimpleStatus",
    doc = "A BellerophonSimple becomes a Deployment of its name, with the horse's name in the environment.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Horse",
        type_ = "string",
        json_path = ".spec.winged_horse_name"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(
        name = "Image",
        type_ = "string",
        json_path = ".spec.image",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct BellerophonSimpleSpec {
    /// The name of the horse; the value of `WINGED_HORSE_NAME` in the environment of every pod.
    #[schemars(length(min = 1, max = 63))]
    pub winged_horse_name: String,
    /// The container image.
    #[schemars(length(min = 1))]
    pub image: String,
    /// The number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 100))]
    pub replicas: i32,
}

fn one() -> i32 {
    1
}

/// The observed state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BellerophonSimpleStatus {
    /// The number of available pods.
    #[serde(default)]
    pub replicas: i32,
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
