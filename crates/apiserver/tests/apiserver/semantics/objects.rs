//! Objects in tests, short: only what matters is written.

use serde_json::{Value, json};

/// A ConfigMap with `data.k`.
pub(crate) fn cm(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": value}})
}

/// A ConfigMap with labels.
pub(crate) fn labelled(name: &str, labels: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

/// A Deployment with this many replicas.
pub(crate) fn deployment(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
    }})
}

/// A Pod that no node has taken yet.
pub(crate) fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

/// An object with a finalizer, which keeps it when it is deleted.
pub(crate) fn held(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    object
}

/// The definition of `widgets.example.dev`: version v1 with a status and a scale, v2 beside it.
pub(crate) fn widgets() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "color": {"type": "string", "default": "red"},
            "parts": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        }},
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}}},
    }}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": schema,
               "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.ready"}},
               "selectableFields": [{"jsonPath": ".spec.color"}]})
    };
    json!({"metadata": {"name": "widgets.example.dev"}, "spec": {
        "group": "example.dev", "scope": "Namespaced", "versions": [version("v1", true), version("v2", false)],
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
    }})
}

/// A widget of some size.
pub(crate) fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}
