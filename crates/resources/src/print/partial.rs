//! Objects without their bodies, for clients that request only metadata.

use std::borrow::Borrow;

use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::form::ListMeta;
use crate::print::MetaVersion;

/// The metadata of one object, as a `PartialObjectMetadata`.
pub fn partial(object: &Object, version: MetaVersion) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": object.meta })
}

/// The metadata of many objects, as a `PartialObjectMetadataList`.
pub fn partial_list(
    objects: impl IntoIterator<Item: Borrow<Object>>,
    list: &ListMeta,
    version: MetaVersion,
) -> Value {
    let items: Vec<Value> = objects
        .into_iter()
        .map(|object| partial(object.borrow(), version))
        .collect();
    // Kubernetes sends null, not an empty list, without items.
    let items = if items.is_empty() {
        Value::Null
    } else {
        Value::Array(items)
    };
    json!({ "kind": "PartialObjectMetadataList", "apiVersion": version.api_version(), "metadata": list, "items": items })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::printer::tests::object;

    #[test]
    fn only_metadata_is_left() {
        let settings = object(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "k": "v" },
            "metadata": { "name": "c", "resourceVersion": "7", "labels": { "a": "b" } },
        }));
        let bare = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "name": "c", "resourceVersion": "7", "labels": { "a": "b" } },
        });
        assert_eq!(partial(&settings, MetaVersion::V1), bare);
        let page = ListMeta {
            resource_version: "9".into(),
            continue_token: "next".into(),
            remaining_item_count: Some(3),
        };
        assert_eq!(
            partial_list([&settings], &page, MetaVersion::V1),
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [bare],
                "metadata": { "resourceVersion": "9", "continue": "next", "remainingItemCount": 3 },
            })
        );
        let none: [Object; 0] = [];
        assert_eq!(
            partial_list(none, &ListMeta::default(), MetaVersion::V1Beta1)["items"],
            Value::Null
        );
    }
}
