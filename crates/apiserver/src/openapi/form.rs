//! The two versions of OpenAPI that are served.
//! Guarantees: all differences between them are here; the rest of the code is common to both.

use serde_json::{Map, Value, json};

/// The version of OpenAPI that a document is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Swagger: one document for everything, which kubectl up to 1.28 reads.
    V2,
    /// A document per group and version.
    V3,
}

impl Form {
    /// A reference to a schema by its name.
    pub(super) fn refer(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// Whether schemas have defaults.
    pub(super) fn has_defaults(self) -> bool {
        self == Self::V3
    }

    /// A schema that may stand beside others: in version 3 a reference has nothing beside it, so
    /// one that has is wrapped.
    pub(super) fn whole(self, mut schema: Map<String, Value>) -> Value {
        if self == Self::V3
            && schema.len() > 1
            && let Some(reference) = schema.remove("$ref")
        {
            schema.insert("allOf".into(), json!([{"$ref": reference}]));
        }
        schema.into()
    }
}
