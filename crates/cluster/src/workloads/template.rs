//! Pod templates: pods created from them, their hash, their comparison.
//!
//! Input: a template and its owner. Output: a pod to create; a hash.
//! Guarantees: the hash does not depend on the order of map entries and is valid in names and
//! labels.

use bellerophon::kinds::{decode, encode};
use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec};
use kube::Resource;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::claim::controller_reference;

/// Label with the hash of a Deployment's pod template.
pub(crate) const POD_TEMPLATE_HASH_LABEL: &str = "pod-template-hash";

/// Characters of generated names: no vowels, 0, 1 or 3, so that they form no words. Upstream:
/// alphanums in `k8s.io/apimachinery/pkg/util/rand`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The pod that an owner creates from a template, with `generateName`. Mirrors GetPodFromTemplate.
pub(crate) fn pod_from_template<O: Resource<DynamicType = ()>>(
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

/// Hash of a template, safe-encoded; `collision_count` makes it differ from hashes whose name is
/// taken. Mirrors ComputeHash.
///
/// The value differs from upstream's, which hashes a dump of Go structs. ReplicaSets and revisions
/// of other controllers are therefore found by template, never by hash.
pub(crate) fn compute_hash(template: &PodTemplateSpec, collision_count: Option<i32>) -> String {
    // Maps of a JSON value are sorted.
    let bytes = template_to_json(template).to_string();
    let mut hasher = Fnv::default();
    hasher.write(bytes.as_bytes());
    // Mirrors ComputeHash: the collision count enters the hash after the template.
    if let Some(collision_count) = collision_count {
        hasher.write(&i64::from(collision_count).to_le_bytes());
    }
    safe_encode_string(&hasher.0.to_string())
}

/// A template as JSON. It is encoded as part of a PodTemplate, whose codec is shared.
pub(crate) fn template_to_json(template: &PodTemplateSpec) -> Value {
    let object = PodTemplate {
        template: Some(template.clone()),
        ..PodTemplate::default()
    };
    let json = encode(&object).and_then(|json| serde_json::from_slice::<Value>(&json));
    json.map(|mut object| object["template"].take())
        .unwrap_or_default()
}

/// The template of its JSON; `None` if it is not a template.
pub(crate) fn template_from_json(template: &Value) -> Option<PodTemplateSpec> {
    let object = json!({ "template": template }).to_string();
    decode::<PodTemplate>(object.as_bytes())
        .ok()?
        .template
        .clone()
}

/// Encodes text in the alphabet of generated names. Mirrors SafeEncodeString.
pub(crate) fn safe_encode_string(text: &str) -> String {
    text.bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

/// 32-bit FNV-1a.
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

/// Whether two templates are equal except for the hash label. Mirrors EqualIgnoreHash.
pub(crate) fn equal_ignore_hash(a: Option<&PodTemplateSpec>, b: Option<&PodTemplateSpec>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return a.is_none() && b.is_none();
    };
    a.spec == b.spec && equal_metadata(a.metadata.as_ref(), b.metadata.as_ref())
}

fn equal_metadata(a: Option<&ObjectMeta>, b: Option<&ObjectMeta>) -> bool {
    let empty = ObjectMeta::default();
    let a = a.unwrap_or(&empty);
    let b = b.unwrap_or(&empty);
    let labels = |meta: &ObjectMeta| {
        let labels = meta
            .labels
            .iter()
            .flatten()
            .filter(|(key, _)| *key != POD_TEMPLATE_HASH_LABEL);
        labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    let annotations = |meta: &ObjectMeta| meta.annotations.clone().unwrap_or_default();
    let finalizers = |meta: &ObjectMeta| meta.finalizers.clone().unwrap_or_default();
    labels(a) == labels(b)
        && annotations(a) == annotations(b)
        && finalizers(a) == finalizers(b)
        && a.name == b.name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(json: serde_json::Value) -> PodTemplateSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn hash_depends_on_content_and_collision_count() {
        let a = template(json!({
            "metadata": { "labels": { "a": "1", "b": "2" } },
            "spec": { "containers": [{ "name": "x", "image": "y:1" }] },
        }));
        let b = template(json!({
            "spec": { "containers": [{ "image": "y:1", "name": "x" }] },
            "metadata": { "labels": { "b": "2", "a": "1" } },
        }));
        let c = template(json!({
            "metadata": { "labels": { "a": "1", "b": "2" } },
            "spec": { "containers": [{ "name": "x", "image": "y:2" }] },
        }));
        assert_eq!(compute_hash(&a, None), compute_hash(&b, None));
        assert_ne!(compute_hash(&a, None), compute_hash(&c, None));
        assert_ne!(compute_hash(&a, None), compute_hash(&a, Some(1)));
        assert_ne!(compute_hash(&a, Some(1)), compute_hash(&a, Some(2)));
        assert!(
            compute_hash(&a, None)
                .bytes()
                .all(|byte| ALPHABET.contains(&byte))
        );
    }

    #[test]
    fn templates_are_compared_without_the_hash_label() {
        let plain = json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "containers": [] } });
        for (b, same) in [
            (
                json!({
                    "metadata": { "labels": { "a": "1", "pod-template-hash": "x" } },
                    "spec": { "containers": [] },
                }),
                true,
            ),
            (
                json!({ "metadata": { "labels": { "a": "2" } }, "spec": { "containers": [] } }),
                false,
            ),
            (
                json!({
                    "metadata": { "labels": { "a": "1" }, "annotations": {} },
                    "spec": { "containers": [] },
                }),
                true,
            ),
            (
                json!({
                    "metadata": { "labels": { "a": "1" }, "annotations": { "x": "" } },
                    "spec": { "containers": [] },
                }),
                false,
            ),
            (
                json!({
                    "metadata": { "labels": { "a": "1" } },
                    "spec": { "containers": [{ "name": "x" }] },
                }),
                false,
            ),
        ] {
            assert_eq!(
                equal_ignore_hash(Some(&template(plain.clone())), Some(&template(b.clone()))),
                same,
                "{b}"
            );
        }
    }
}
