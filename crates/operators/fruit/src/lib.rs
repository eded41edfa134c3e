//! Fruit: a typed custom resource as a data store.
//!
//! There is no controller. The schema comes from one Rust type: ranges, defaults and a rule across fields are checked by
//! the server, which refuses a bad fruit with the name of the field. Fruits are listed in pages, selected by sweetness,
//! watched and aggregated through the typed client, the informer and its lister; `examples/orchard.rs` does all of it.

#![expect(
    unreachable_pub,
    reason = "the derived schema repeats its type inside of a function"
)]

use bellerophon_operator::{Operator, Place, schemas};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt as _, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind alone, for whoever installs it.
pub const OPERATOR: Operator = Operator {
    name: "fruit",
    summary: "Fruit is a typed data store: a kind without a controller",
    definitions: || vec![Fruit::crd()],
    rights: Vec::new,
    guards: Vec::new,
    place: Place::Anywhere,
    switches: &[],
    controllers: |_| Ok(Vec::new()),
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
#[x_kube(validation = Rule::new("self.weight <= 1000 || size(self.comment) > 0").message("a fruit of more than 1000 grams needs a comment").field_path(".comment"))]
pub struct FruitSpec {
    /// Whether it is sweet.
    pub sweetness: bool,
    /// Its weight in grams.
    #[schemars(range(min = 1, max = 100_000))]
    pub weight: i64,
    /// What there is to say about it.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub comment: String,
}

/// What somebody found out about a fruit.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FruitStatus {
    /// What is true of it.
    #[serde(default)]
    #[schemars(with = "Vec<schemas::Condition>")]
    pub conditions: Vec<Condition>,
}
