//! Tests of strategic merge patches of built-in types.

use serde_json::{Value, json};

use super::*;
use crate::types;

fn check(kind: &str, object: Value, patch: Value) -> Result<Value, String> {
    let (group, kind) = kind.split_once('/').expect("group and kind");
    let ty = types::find(group, "v1", kind).expect("a kind of the table");
    let (Value::Object(mut object), Value::Object(mut patch)) = (object, patch) else {
        panic!("maps")
    };
    match strategic_merge(&mut object, &mut patch, ty) {
        Ok(()) => Ok(Value::Object(object)),
        Err(ApiError::BadRequest(why)) => Err(format!("400 {why}")),
        Err(ApiError::Unnamed(why)) => Err(format!("500 {why}")),
        Err(other) => Err(format!("{} {other:?}", other.code())),
    }
}

/// A pod with these fields in its spec.
fn pod(spec: Value) -> Value {
    json!({"spec": spec})
}

#[test]
fn lists_merge_by_the_keys_of_patches() {
    let cases = [
        (
            "merged and appended",
            json!({"containers": [{"name": "web", "image": "a"}, {"name": "side", "image": "b"}]}),
            json!({"containers": [{"name": "side", "image": "c"}, {"name": "extra"}]}),
            json!({"containers": [{"name": "web", "image": "a"}, {"name": "side", "image": "c"}, {"name": "extra"}]}),
        ),
        (
            "an item deleted",
            json!({"containers": [{"name": "web"}, {"name": "side"}]}),
            json!({"containers": [{"name": "side", "$patch": "delete"}, {"name": "none", "$patch": "delete"}]}),
            json!({"containers": [{"name": "web"}]}),
        ),
        (
            "a list replaced",
            json!({"containers": [{"name": "web"}, {"name": "side"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "only"}]}),
            json!({"containers": [{"name": "only"}]}),
        ),
        (
            "ports of one number are one item",
            json!({"containers": [{"name": "dns", "ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]}]}),
            json!({"containers": [{"name": "dns", "ports": [{"containerPort": 53, "hostPort": 5353}]}]}),
            json!({"containers": [{"name": "dns", "ports": [{"containerPort": 53, "protocol": "UDP", "hostPort": 5353}, {"containerPort": 53, "protocol": "TCP"}]}]}),
        ),
        (
            "an order given",
            json!({"volumes": [{"name": "a"}, {"name": "c"}]}),
            json!({"$setElementOrder/volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "volumes": [{"name": "b"}]}),
            json!({"volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
        ),
        (
            "other lists are replaced",
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        ),
        (
            "keys retained",
            json!({"volumes": [{"name": "a", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "a", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "a", "hostPath": {"path": "/x"}}]}),
        ),
    ];
    for (what, spec, patch, expected) in cases {
        assert_eq!(
            check("/Pod", pod(spec), pod(patch)),
            Ok(pod(expected)),
            "{what}"
        );
    }
}

#[test]
fn maps_merge_without_a_directive() {
    let cases = [
        (
            json!({"nodeSelector": {"a": "1"}}),
            json!({"nodeSelector": {"b": "2", "a": null}}),
            json!({"nodeSelector": {"b": "2"}}),
        ),
        (
            json!({"nodeSelector": {"a": "1"}}),
            json!({"nodeSelector": {"$patch": "replace", "b": "2"}}),
            json!({"nodeSelector": {"b": "2"}}),
        ),
        (
            json!({"securityContext": {"runAsUser": 1}}),
            json!({"securityContext": {"$patch": "delete"}}),
            json!({"securityContext": {}}),
        ),
        (
            json!({}),
            json!({"nodeSelector": {"$patch": "replace", "b": "2"}}),
            json!({}),
        ),
        (
            json!({}),
            json!({"securityContext": {"runAsUser": null, "fsGroup": 2}}),
            json!({"securityContext": {"fsGroup": 2}}),
        ),
    ];
    for (spec, patch, expected) in cases {
        assert_eq!(
            check("/Pod", pod(spec), pod(patch.clone())),
            Ok(pod(expected)),
            "{patch}"
        );
    }
}

#[test]
fn values_of_primitive_lists_merge_and_are_deleted() {
    let object = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let cases = [
        (json!({"finalizers": ["c", "a"]}), json!(["c", "a", "b"])),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["a", "z"]}),
            json!(["b"]),
        ),
        (
            json!({"$setElementOrder/finalizers": ["b", "a"]}),
            json!(["b", "a"]),
        ),
    ];
    for (patch, expected) in cases {
        let patched = check(
            "/ConfigMap",
            object(json!(["a", "b"])),
            json!({"metadata": patch.clone()}),
        );
        assert_eq!(patched, Ok(object(expected)), "{patch}");
    }
}

#[test]
fn malformed_patches_have_the_messages_of_kube_apiserver() {
    let cases = [
        (
            json!({"containers": [{"image": "x"}]}),
            "500 map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"containers": [{"name": "web", "$patch": "merge"}]}),
            "500 merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"nodeSelector": {"$patch": "squash", "b": "2"}}),
            "500 unknown patch type: squash in map: map[$patch:squash b:2]",
        ),
        (
            json!({"$retainKeys": ["containers"], "hostNetwork": true}),
            "400 invalid patch format of retainKeys",
        ),
        (
            json!({"$deleteFromPrimitiveList": ["a"]}),
            "400 invalid patch format of primitive list",
        ),
        (
            json!({"$setElementOrder/containers": [{"name": "side"}], "containers": [{"name": "web", "image": "x"}]}),
            "500 The order in patch list:\n[map[image:x name:web]]\n doesn't match $setElementOrder list:\n[map[name:side]]\n",
        ),
        (
            json!({"$setElementOrder/none": []}),
            "500 unable to find api field in struct PodSpec for the json field \"none\"",
        ),
    ];
    for (patch, why) in cases {
        let object =
            pod(json!({"containers": [{"name": "web", "image": "a"}], "nodeSelector": {"a": "1"}}));
        assert_eq!(
            check("/Pod", object, pod(patch.clone())),
            Err(why.to_owned()),
            "{patch}"
        );
    }
}
