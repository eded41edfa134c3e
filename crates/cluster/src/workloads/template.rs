//! Pod templates: pods made from them, and names that tell templates apart.
//!
//! In: a template and its owner. Out: a pod to create; a hash.
//! Holds: equal templates have equal hashes whatever order their maps were written in; a hash is fit for names and labels.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Serialize;

use super::claim::controller_reference;

/// The label by which the pods of one template of a Deployment are told apart.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// Letters and digits that form no words and are not mistaken for each other; the alphabet of generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The pod that an owner creates from a template. The server completes the name.
pub(crate) fn pod_from<O: Resource<DynamicType = ()>>(
    template: &PodTemplateSpec,
    owner: &O,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.meta().namespace.clone(),
            generate_name: Some(format!(
                "{}-",
                owner.meta().name.as_deref().unwrap_or_default()
            )),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A short name for some content; `collisions` counts the names that turned out to be taken by other content.
///
/// Kubernetes hashes a dump of its own types in memory, which nothing else can reproduce; names made here are stable, and
/// a set that was named by another controller is found by its content, never by this name.
pub(crate) fn hash<T: Serialize>(content: &T, collisions: Option<i32>) -> String {
    // Maps of a JSON value are sorted, so the bytes depend on nothing but the content.
    let bytes = serde_json::to_value(content)
        .map(|value| value.to_string())
        .unwrap_or_default();
    let mut hash = Fnv::default();
    hash.write(bytes.as_bytes());
    if let Some(collisions) = collisions {
        hash.write(&i64::from(collisions).to_le_bytes());
    }
    safe(&hash.0.to_string())
}

/// Rewrites text in the alphabet of generated names.
pub(crate) fn safe(text: &str) -> String {
    text.bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

/// FNV-1a with 32 bits: short names are wanted, and collisions are resolved by counting them.
struct Fnv(u32);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// Whether two templates make the same pods, the hash label aside.
pub(crate) fn same_template(
    one: Option<&PodTemplateSpec>,
    other: Option<&PodTemplateSpec>,
) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return one.is_none() && other.is_none();
    };
    one.spec == other.spec && same_meta(one.metadata.as_ref(), other.metadata.as_ref())
}

fn same_meta(one: Option<&ObjectMeta>, other: Option<&ObjectMeta>) -> bool {
    let empty = ObjectMeta::default();
    let one = one.unwrap_or(&empty);
    let other = other.unwrap_or(&empty);
    let labels = |meta: &ObjectMeta| {
        let labels = meta
            .labels
            .iter()
            .flatten()
            .filter(|(key, _)| *key != TEMPLATE_HASH);
        labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    let annotations = |meta: &ObjectMeta| meta.annotations.clone().unwrap_or_default();
    let finalizers = |meta: &ObjectMeta| meta.finalizers.clone().unwrap_or_default();
    labels(one) == labels(other)
        && annotations(one) == annotations(other)
        && finalizers(one) == finalizers(other)
        && one.name == other.name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(json: serde_json::Value) -> PodTemplateSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn hash_tells_content_and_collisions_apart() {
        let a = template(
            json!({ "metadata": { "labels": { "a": "1", "b": "2" } }, "spec": { "containers": [{ "name": "x", "image": "y:1" }] } }),
        );
        let b = template(
            json!({ "spec": { "containers": [{ "image": "y:1", "name": "x" }] }, "metadata": { "labels": { "b": "2", "a": "1" } } }),
        );
        let c = template(
            json!({ "metadata": { "labels": { "a": "1", "b": "2" } }, "spec": { "containers": [{ "name": "x", "image": "y:2" }] } }),
        );
        assert_eq!(hash(&a, None), hash(&b, None));
        assert_ne!(hash(&a, None), hash(&c, None));
        assert_ne!(hash(&a, None), hash(&a, Some(1)));
        assert_ne!(hash(&a, Some(1)), hash(&a, Some(2)));
        assert!(hash(&a, None).bytes().all(|byte| ALPHABET.contains(&byte)));
    }

    #[test]
    fn templates_differ_by_more_than_their_hash_label() {
        let plain = json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "containers": [] } });
        for (other, same) in [
            (
                json!({ "metadata": { "labels": { "a": "1", "pod-template-hash": "x" } }, "spec": { "containers": [] } }),
                true,
            ),
            (
                json!({ "metadata": { "labels": { "a": "2" } }, "spec": { "containers": [] } }),
                false,
            ),
            (
                json!({ "metadata": { "labels": { "a": "1" }, "annotations": {} }, "spec": { "containers": [] } }),
                true,
            ),
            (
                json!({ "metadata": { "labels": { "a": "1" }, "annotations": { "x": "" } }, "spec": { "containers": [] } }),
                false,
            ),
            (
                json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "containers": [{ "name": "x" }] } }),
                false,
            ),
        ] {
            assert_eq!(
                same_template(
                    Some(&template(plain.clone())),
                    Some(&template(other.clone()))
                ),
                same,
                "{other}"
            );
        }
    }
}
