//! The functions of serde_json that `#[derive(CustomResource)]` uses, without a decoder per crate.
//!
//! The derived `crd()` decodes the schema of the custom resource. With serde_json itself, every
//! crate with a custom resource compiles the decoder of `JSONSchemaProps`. A custom resource with
//! `#[kube(crates(serde_json = "bellerophon_operator::crd_json"))]` uses the codec of
//! `CustomResourceDefinition` instead, which is compiled once.

use std::sync::Arc;

use bellerophon::kinds::decode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use serde_json::Value;
pub use serde_json::{json, to_value};

/// Decodes a schema.
///
/// # Errors
/// The value is not a schema.
pub fn from_value(schema: Value) -> Result<JSONSchemaProps, serde_json::Error> {
    // The smallest definition that decodes, around the schema: only definitions have a codec.
    let version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema},
    });
    let crd = json!({
        "metadata": {},
        "spec": {
            "group": "", "names": {"kind": "", "plural": ""}, "scope": "",
            "versions": [version],
        },
    });
    let crd = decode::<CustomResourceDefinition>(crd.to_string().as_bytes())?;
    let versions = Arc::unwrap_or_clone(crd).spec.versions;
    let mut schemas = versions
        .into_iter()
        .filter_map(|version| version.schema?.open_api_v3_schema);
    Ok(schemas.next_back().unwrap_or_default())
}
