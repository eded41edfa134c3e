//! Patches: cases, and random objects with random unknown fields.

use std::sync::Arc;

use bellerophon_kinds::{decode, encode};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
struct Operation {
    op: String,
    path: String,
    /// A null is a value, and not the absence of one.
    #[serde(default, deserialize_with = "some")]
    value: Option<Value>,
}

fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The operations that make the change from `before` to `after` in `raw`.
fn patch(raw: &Value, before: &Value, after: &Value) -> Vec<Operation> {
    let [raw, before, after] = [raw, before, after].map(Value::to_string);
    let patch = super::patch(&raw, before.as_bytes(), after.as_bytes()).unwrap();
    patch.map_or(Vec::new(), |patch| serde_json::from_slice(&patch).unwrap())
}

/// The name of an item of a list; empty if it has none.
fn name_of(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

/// Applies a JSON patch of `add`, `replace` and `remove`.
fn applied(document: &Value, operations: &[Operation]) -> Value {
    let mut document = document.clone();
    for operation in operations {
        let (parent, last) = operation.path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/").replace("~0", "~");
        let parent = document.pointer_mut(parent).unwrap();
        let value = operation.value.clone();
        match (parent, operation.op.as_str()) {
            (Value::Object(parent), "remove") => assert!(parent.remove(&last).is_some()),
            (Value::Object(parent), "add") => {
                assert!(parent.insert(last, value.unwrap()).is_none());
            }
            (Value::Object(parent), "replace") => {
                assert!(parent.insert(last, value.unwrap()).is_some());
            }
            (Value::Array(parent), "remove") => drop(parent.remove(last.parse().unwrap())),
            (Value::Array(parent), "add") => parent.insert(last.parse().unwrap(), value.unwrap()),
            (Value::Array(parent), "replace") => {
                parent[last.parse::<usize>().unwrap()] = value.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    document
}

#[test]
fn a_patch_makes_the_typed_change_and_no_other() {
    for (what, raw, before, after, expected) in [
        (
            "an unknown field stays",
            json!({"spec": {"a": 1, "unknown": {"x": 1}}}),
            json!({"spec": {"a": 1}}),
            json!({"spec": {"a": 2}}),
            json!({"spec": {"a": 2, "unknown": {"x": 1}}}),
        ),
        (
            "a default of the type stays out",
            json!({"spec": {}}),
            json!({"spec": {"replicas": 3, "a": 1}}),
            json!({"spec": {"replicas": 3, "a": 2}}),
            json!({"spec": {"a": 2}}),
        ),
        (
            "a changed part of a default is added as a whole",
            json!({}),
            json!({"spec": {"a": 1, "b": 1}}),
            json!({"spec": {"a": 1, "b": 2}}),
            json!({"spec": {"a": 1, "b": 2}}),
        ),
        (
            "a null that the type leaves out stays",
            json!({"metadata": {"creationTimestamp": null, "name": "a"}}),
            json!({"metadata": {"name": "a"}}),
            json!({"metadata": {"name": "a", "labels": {"a/b": "~"}}}),
            json!({"metadata": {"creationTimestamp": null, "name": "a", "labels": {"a/b": "~"}}}),
        ),
        (
            "a removed field is removed",
            json!({"a": 1, "b": 2}),
            json!({"a": 1, "b": 2}),
            json!({"a": 1}),
            json!({"a": 1}),
        ),
        (
            "items that move keep their unknown fields",
            json!({"l": [{"name": "a", "u": 1}, {"name": "b", "u": 2}]}),
            json!({"l": [{"name": "a"}, {"name": "b"}]}),
            json!({"l": [{"name": "new"}, {"name": "b", "x": 1}, {"name": "a"}]}),
            json!({"l": [{"name": "new"}, {"name": "b", "u": 2, "x": 1}, {"name": "a", "u": 1}]}),
        ),
        (
            "the unknown fields of a removed item go with it",
            json!({"l": [{"name": "a", "u": 1}, {"name": "b", "u": 2}]}),
            json!({"l": [{"name": "a"}, {"name": "b"}]}),
            json!({"l": [{"name": "b"}]}),
            json!({"l": [{"name": "b", "u": 2}]}),
        ),
        (
            "an item of another name in the same place is another item",
            json!({"l": [{"name": "a", "u": 1}]}),
            json!({"l": [{"name": "a"}]}),
            json!({"l": [{"name": "c"}]}),
            json!({"l": [{"name": "c"}]}),
        ),
        (
            "an item without a name that changes in its place keeps its unknown fields",
            json!({"l": [{"v": 1, "u": 1}, {"v": 2, "u": 2}]}),
            json!({"l": [{"v": 1}, {"v": 2}]}),
            json!({"l": [{"v": 1}, {"v": 3}]}),
            json!({"l": [{"v": 1, "u": 1}, {"v": 3, "u": 2}]}),
        ),
        (
            "equal items are distinguished by their order",
            json!({"l": [{"v": 1, "u": 1}, {"v": 1, "u": 2}]}),
            json!({"l": [{"v": 1}, {"v": 1}]}),
            json!({"l": [{"v": 0}, {"v": 1}, {"v": 1}]}),
            json!({"l": [{"v": 0}, {"v": 1, "u": 2}, {"v": 1, "u": 1}]}),
        ),
    ] {
        let operations = patch(&raw, &before, &after);
        assert_eq!(
            applied(&raw, &operations),
            expected,
            "{what}: {operations:?}"
        );
    }
}

/// A pod with random lists, whose items have names that are unique in their list.
fn random_pod(rng: &mut StdRng) -> Pod {
    let mut names = 0..;
    let mut name = move |prefix: &str| format!("{prefix}-{}", names.next().unwrap());
    let containers = 1..=rng.random_range(1..4);
    let containers = containers.map(|_| Container {
        name: name("container"),
        image: rng.random_bool(0.5).then(|| "nginx".to_owned()),
        args: rng
            .random_bool(0.5)
            .then(|| vec!["a".to_owned(), "b".to_owned()]),
        ..Container::default()
    });
    let containers = containers.collect();
    let volumes = 0..rng.random_range(0..3);
    let volumes: Vec<_> = volumes
        .map(|_| Volume {
            name: name("volume"),
            ..Volume::default()
        })
        .collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(name("pod")),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers,
            volumes: (!volumes.is_empty()).then_some(volumes),
            node_name: rng.random_bool(0.5).then(|| "node".to_owned()),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// Changes a pod as webhooks do: sidecars, defaults, labels, other orders, removals.
fn mutate(rng: &mut StdRng, pod: &mut Pod) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("example.org/~team".to_owned(), "heroes".to_owned());
    let Some(spec) = &mut pod.spec else { return };
    if rng.random_bool(0.5) {
        let index = rng.random_range(0..=spec.containers.len());
        let sidecar = Container {
            name: "sidecar".to_owned(),
            ..Container::default()
        };
        spec.containers.insert(index, sidecar);
    }
    if rng.random_bool(0.3) {
        spec.containers.reverse();
    }
    for container in &mut spec.containers {
        if rng.random_bool(0.4) {
            container.image = Some("nginx:1".to_owned());
        }
        if rng.random_bool(0.3) {
            container.args = None;
        }
    }
    if rng.random_bool(0.3) && spec.containers.len() > 1 {
        spec.containers.remove(0);
    }
    if rng.random_bool(0.3) {
        spec.volumes = None;
    }
    if rng.random_bool(0.5) {
        spec.tolerations = Some(vec![Toleration::default()]);
    }
    spec.node_name = None;
}

/// Adds unknown fields to random objects. Objects of lists are keyed by their names in `path`.
fn add_unknown(rng: &mut StdRng, value: &mut Value, path: &str, added: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object.iter_mut() {
                add_unknown(rng, value, &format!("{path}/{name}"), added);
            }
            // Not in labels, whose type knows every key.
            if rng.random_bool(0.4) && !path.ends_with("labels") {
                let value = match rng.next_u64() % 4 {
                    0 => json!(rng.next_u64()),
                    1 => json!({"nested": [1, {"deep": rng.next_u64()}]}),
                    2 => Value::Null,
                    _ => json!("text"),
                };
                object.insert("x-unknown~/".to_owned(), value.clone());
                added.push((path.to_owned(), value));
            }
        }
        Value::Array(items) => {
            for item in items {
                let path = format!("{path}[{}]", name_of(item));
                add_unknown(rng, item, &path, added);
            }
        }
        _ => {}
    }
}

/// The unknown fields of a value.
fn unknown(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match name == "x-unknown~/" {
                    true => found.push((path.to_owned(), value.clone())),
                    false => unknown(value, &format!("{path}/{name}"), found),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                unknown(item, &format!("{path}[{}]", name_of(item)), found);
            }
        }
        _ => {}
    }
}

/// Whether the object at a path, as `add_unknown` spells it, is part of a value.
fn exists(value: &Value, path: &str, wanted: &str) -> bool {
    match value {
        _ if path == wanted => true,
        Value::Object(object) => object
            .iter()
            .any(|(name, value)| exists(value, &format!("{path}/{name}"), wanted)),
        Value::Array(items) => items
            .iter()
            .any(|item| exists(item, &format!("{path}[{}]", name_of(item)), wanted)),
        _ => false,
    }
}

#[test]
fn mutations_of_ten_thousand_objects_touch_no_unknown_field() {
    let mut rng = StdRng::seed_from_u64(1);
    for round in 0..10_000 {
        let pod = random_pod(&mut rng);
        let mut raw: Value = serde_json::from_slice(&encode(&pod).unwrap()).unwrap();
        let mut added = Vec::new();
        add_unknown(&mut rng, &mut raw, "", &mut added);

        let decoded = decode::<Pod>(raw.to_string().as_bytes()).unwrap();
        let mut mutated = Arc::unwrap_or_clone(decoded.clone());
        mutate(&mut rng, &mut mutated);
        let json = |pod: &Pod| -> Value { serde_json::from_slice(&encode(pod).unwrap()).unwrap() };
        let after = json(&mutated);
        let result = applied(&raw, &patch(&raw, &json(&decoded), &after));

        // The typed change was made.
        let seen = decode::<Pod>(result.to_string().as_bytes()).unwrap();
        assert_eq!(json(&seen), after, "round {round}: {raw} -> {result}");
        // Unknown fields are those of the objects that are left, and no others.
        let mut expected: Vec<_> = added;
        expected.retain(|(path, _)| exists(&after, "", path));
        let mut found = Vec::new();
        unknown(&result, "", &mut found);
        let by_path = |a: &(String, Value), b: &(String, Value)| a.0.cmp(&b.0);
        expected.sort_by(by_path);
        found.sort_by(by_path);
        assert_eq!(found, expected, "round {round}: {raw} -> {result}");
    }
}
