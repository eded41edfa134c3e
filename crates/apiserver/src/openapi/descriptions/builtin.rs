//! Descriptions of the built-in types, as the build script collected them.
//!
//! Guarantees: decoded once per process, at first use; types that the Kubernetes version of
//! k8s-openapi does not have are not described.

use std::{collections::HashMap, sync::LazyLock};

use flate2::read::GzDecoder;
use serde::Deserialize;

/// Compressed JSON: [`Described`] by the published name of the type.
const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.json.gz"));

static TYPES: LazyLock<HashMap<Box<str>, Described>> = LazyLock::new(|| {
    serde_json::from_reader(GzDecoder::new(COMPRESSED))
        .expect("the build script wrote JSON of this form")
});

/// The description of a type, and those of its fields.
#[derive(Debug, Deserialize)]
struct Described {
    description: Option<Box<str>>,
    fields: HashMap<Box<str>, Box<str>>,
}

pub(super) fn of_type(name: &str) -> Option<&'static str> {
    TYPES.get(name)?.description.as_deref()
}

pub(super) fn of_field(type_name: &str, field: &str) -> Option<&'static str> {
    TYPES.get(type_name)?.fields.get(field).map(|text| &**text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_source_are_resolved() {
        let affinity = of_field("io.k8s.api.core.v1.ServiceSpec", "sessionAffinity");
        let affinity = affinity.expect("the field is described");
        assert!(affinity.starts_with("Supports \"ClientIP\" and \"None\"."));
        let quantity = of_type("io.k8s.apimachinery.pkg.api.resource.Quantity");
        let quantity = quantity.expect("the type is described");
        assert!(quantity.contains("\n\n\t(Note that <suffix> may be empty"));
    }

    #[test]
    fn property_with_the_name_description_is_a_field() {
        let field = of_field("io.k8s.api.scheduling.v1.PriorityClass", "description");
        assert!(field.is_some());
    }
}
