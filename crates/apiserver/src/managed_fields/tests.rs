//! Tests of managed fields and server-side apply.

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::{object::FieldsV1, types};
use serde_json::{Value, json};

use super::{
    collect::{collect, remove, with_named},
    compare::compare,
    field_manager::cap_updaters,
    fields_v1::NotAFieldSet,
    merge::merge,
    validate::validate,
    *,
};

/// Field sets as JSON.
trait Json: Sized {
    fn from_json(json: &Value) -> Result<Self, NotAFieldSet>;
    fn to_json(&self) -> Value;
}

impl Json for FieldSet {
    fn from_json(json: &Value) -> Result<Self, NotAFieldSet> {
        Self::from_fields_v1(&FieldsV1::new(json.to_string()))
    }

    fn to_json(&self) -> Value {
        serde_json::from_str(self.to_fields_v1().text()).expect("JSON")
    }
}

fn pod() -> Node<'static> {
    Node::Struct(types::find("", "v1", "Pod").expect("pods"), false)
}

fn containers(list: &Value) -> Value {
    json!({"spec": {"containers": list}})
}

#[test]
fn field_sets_read_back_as_they_were_written() {
    for json in [
        json!({}),
        json!({"f:data": {".": {}, "f:a": {}}, "f:immutable": {}}),
        json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}, "f:names": {"v:\"a\"": {}, "i:3": {}}}}),
    ] {
        assert_eq!(
            FieldSet::from_json(&json).expect("a field set").to_json(),
            json
        );
    }
    assert!(
        FieldSet::from_json(&json!({"data": {}})).is_err()
            && FieldSet::from_json(&json!({"f:a": 1})).is_err()
    );
    assert_eq!(
        FieldSet::from_json(&json!({"z:later": {}})),
        Ok(FieldSet::default())
    );
}

#[test]
fn sets_combine_path_by_path() {
    let set = |json: Value| FieldSet::from_json(&json).expect("a field set");
    let left = set(json!({"f:a": {".": {}, "f:x": {}}, "f:b": {}}));
    let right = set(json!({"f:a": {}, "f:c": {}}));
    assert_eq!(
        left.union(&right),
        set(json!({"f:a": {".": {}, "f:x": {}}, "f:b": {}, "f:c": {}}))
    );
    assert_eq!(left.intersection(&right), set(json!({"f:a": {}})));
    assert_eq!(
        left.difference(&right),
        set(json!({"f:a": {"f:x": {}}, "f:b": {}}))
    );
    assert_eq!(left.without(&right), set(json!({"f:b": {}})));
    assert_eq!(left.paths(), [".a", ".b", ".a.x"]);
}

#[test]
fn differences_are_named_by_field_key_and_value() {
    let cases = [
        (
            containers(&json!(null)),
            containers(&json!([{"name": "web", "image": "a"}])),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:image": {}, "f:name": {}}}}}),
            json!({}),
            json!({}),
        ),
        (
            containers(&json!([{"name": "web", "ports": [{"containerPort": 80}]}])),
            containers(
                &json!([{"name": "web", "ports": [{"containerPort": 80, "hostPort": 1}, {"containerPort": 80, "protocol": "UDP"}]}]),
            ),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:ports": {
                "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {"f:hostPort": {}},
                "k:{\"containerPort\":80,\"protocol\":\"UDP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}},
            }}}}}),
            json!({}),
            json!({}),
        ),
        (
            json!({"spec": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "a"}]}, "metadata": {"labels": {"x": "1", "y": "1"}}}),
            json!({"spec": {"nodeSelector": {"a": "2"}, "tolerations": []}, "metadata": {"labels": {"x": "2"}}}),
            json!({}),
            json!({"f:metadata": {"f:labels": {"f:x": {}}}, "f:spec": {"f:nodeSelector": {}, "f:tolerations": {}}}),
            json!({"f:metadata": {"f:labels": {"f:y": {}}}}),
        ),
    ];
    for (old, new, added, modified, removed) in cases {
        let found = compare(pod(), &old, &new);
        let shown = (
            found.added.to_json(),
            found.modified.to_json(),
            found.removed.to_json(),
        );
        assert_eq!(shown, (added, modified, removed), "{old} -> {new}");
    }
}

#[test]
fn applied_items_keep_their_order_among_the_others() {
    let list = |names: &str| {
        containers(&json!(
            names
                .split(' ')
                .map(|name| json!({"name": name}))
                .collect::<Vec<_>>()
        ))
    };
    for (live, config, expected) in [
        ("a b", "b", "a b"),
        ("a b", "b a", "b a"),
        ("a b c", "c a", "b c a"),
        ("a b", "c", "a b c"),
        ("a b c d", "d x b", "a c d x b"),
    ] {
        assert_eq!(
            merge(pod(), &list(live), &list(config)),
            list(expected),
            "{live} + {config}"
        );
    }
}

#[test]
fn removed_fields_leave_their_empty_map_behind() {
    let object = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "web", "image": "x"}]}});
    let set = FieldSet::from_json(
        &json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:image": {}}}}}),
    );
    assert_eq!(
        remove(pod(), &object, &set.expect("a field set")),
        json!({"metadata": {"labels": {}}, "spec": {"containers": [{"name": "web"}]}})
    );
    let owned = collect(pod(), &object);
    let named = with_named(pod(), &owned);
    assert!(!owned.has(&["spec"]) && named.has(&["spec"]) && named.has(&["metadata", "labels"]));
}

#[test]
fn invalid_configurations_have_the_messages_of_kube_apiserver() {
    for (config, why) in [
        (json!({"spek": {}}), ".spek: field not declared in schema"),
        (
            json!({"metadata": {"labels": {"a": 8}}}),
            ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:8}",
        ),
        (
            json!({"spec": {"priority": "x"}}),
            ".spec.priority: expected numeric (int or float), got string",
        ),
        (
            json!({"spec": {"hostNetwork": "x"}}),
            ".spec.hostNetwork: expected boolean, got &{x}",
        ),
        (json!({"spec": 5}), ".spec: expected map, got &{5}"),
        (
            containers(&json!([{"name": "a"}, {"name": "a"}])),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"metadata": {"finalizers": ["a", "a"]}}),
            ".metadata.finalizers: duplicate entries for key [=\"a\"]",
        ),
    ] {
        assert_eq!(validate(pod(), &config), Err(why.to_owned()), "{config}");
    }
}

#[test]
fn oldest_updates_are_kept_together() {
    let field_manager = |i: i64| FieldManager {
        manager: format!("m{i:02}"),
        operation: Operation::Update,
        api_version: "v1".into(),
        subresource: String::new(),
        time: Some(
            Time::parse("2026-01-02T03:04:05Z")
                .expect("a time")
                .plus_seconds(i),
        ),
        fields: FieldSet::of_path(&["data", &format!("k{i:02}")]),
    };
    let mut field_managers: Vec<FieldManager> = (0..12).map(field_manager).collect();
    cap_updaters(&mut field_managers);
    assert_eq!(field_managers.len(), 10);
    assert_eq!(field_managers[0].manager.as_str(), "ancient-changes");
    assert_eq!(field_managers[0].fields.paths().len(), 3);
    assert_eq!(field_managers[1].manager, "m03");
}

#[test]
fn managers_without_a_name_are_named_by_user_agent() {
    for (given, agent, name) in [
        ("me", "curl/8", "me"),
        ("", "curl/8", "curl"),
        ("", "kubectl/v1 (linux)", "kubectl"),
        ("", "", "unknown"),
        ("", "/x", "unknown"),
    ] {
        assert_eq!(manager_name(given, agent), name);
    }
}
