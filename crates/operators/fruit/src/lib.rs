//! Fruit: a typed custom resource as a data store, without a controller.
//!
//! The schema is derived from one Rust type. The API server validates ranges, applies defaults and
//! evaluates a validation rule (CEL) across fields; a validation error names the field. Clients
//! list Fruits in pages, select them by `spec.sweetness`, and watch and aggregate them through an
//! informer and its lister. See `examples/orchard.rs`.

#![expect(
    unreachable_pub,
    reason = "the derived schema repeats its type inside of a function"
)]

use bellerophon::Kind;
use bellerophon_operator::{Operator, Placement, RoleAggregation, schemas};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt as _, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The CRD of Fruit; it has no permissions and no controllers.
pub const OPERATOR: Operator = Operator {
    name: "fruit",
    summary: "a typed custom resource as a data store, without a controller",
    crds: || vec![Fruit::crd()],
    permissions: Vec::new,
    admission_policies: Vec::new,
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::Deployment,
    feature_switches: &[],
    webhooks: None,
    // No controller: validation, defaults and selection are the API server's.
    setup: |_mgr, _switches| {},
};

/// One fruit.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "user.k8sasdb.org",
    version = "v1",
    kind = "Fruit",
    plural = "fruits",
    shortname = "fr",
    category = "food",
    namespaced,
    derive = "PartialEq",
    derive = "Kind",
    crates(serde_json = "bellerophon_operator::crd_json"),
    status = "FruitStatus",
    doc = "A Fruit is a row in a table that Kubernetes keeps.",
    selectable = ".spec.sweetness",
    printcolumn(name = "Sweet", type_ = "boolean", json_path = ".spec.sweetness"),
    printcolumn(
        name = "Weight",
        type_ = "integer",
        json_path = ".spec.weight",
        description = "in grams"
    ),
    printcolumn(
        name = "Comment",
        type_ = "string",
        json_path = ".spec.comment",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
// On the whole spec, since it compares fields. `field_path` makes the error name the field that is
// to be changed.
#[x_kube(validation = Rule::new("self.weight <= 1000 || size(self.comment) > 0").message("a fruit of more than 1000 grams needs a comment").field_path(".comment"))]
pub struct FruitSpec {
    /// Whether it is sweet.
    pub sweetness: bool,
    /// Its weight in grams.
    #[schemars(range(min = 1, max = 100_000))]
    pub weight: i64,
    /// A free-form comment. Required for fruits of more than 1000 grams.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub comment: String,
}

/// The observed state of a fruit.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FruitStatus {
    /// The conditions of the fruit, set by its users.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
