//! Properties of decoding, as tables and for every kind.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    Field, Item, Shape, Type, complete, decode, decode_node, find, settle,
    table::{KINDS, SCHEMA, TYPES},
};
use crate::decode::{Media, parse};

/// Reads JSON text as a kind that is named `apps/v1/Deployment`, or `v1/Pod` in the core group.
fn read(kind: &str, body: &str) -> Result<(Value, Vec<String>), String> {
    let parts: Vec<&str> = kind.split('/').collect();
    let ty = match parts[..] {
        [version, kind] => find("", version, kind),
        [group, version, kind] => find(group, version, kind),
        _ => None,
    };
    let tree = parse(body.as_bytes(), Media::Json)?;
    decode_node(ty.expect("a kind of the table"), tree.root)
        .map(|decoded| (Value::Object(decoded.object), decoded.strict))
}

#[test]
fn type_errors_have_the_messages_of_go() {
    let quantity = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let cases = [
        ("apps/v1/Deployment", r#"{"spec":{"replicas":"two"}}"#, field("string", "DeploymentSpec.spec.replicas", "int32")),
        ("apps/v1/Deployment", r#"{"spec":{"replicas":1.5}}"#, field("number 1.5", "DeploymentSpec.spec.replicas", "int32")),
        ("apps/v1/Deployment", r#"{"spec":{"replicas":1e3}}"#, field("number 1e3", "DeploymentSpec.spec.replicas", "int32")),
        ("v1/ConfigMap", r#"{"data":{"a":5}}"#, field("number", "ConfigMap.data", "string")),
        ("v1/ConfigMap", r#"{"metadata":{"labels":[]}}"#, field("array", "ObjectMeta.metadata.labels", "map[string]string")),
        ("v1/Pod", r#"{"spec":{"containers":{}}}"#, field("object", "PodSpec.spec.containers", "[]v1.Container")),
        ("v1/Pod", r#"{"spec":{"containers":[{"env":[{"value":true}]}]}}"#, field("bool", "EnvVar.spec.containers.env.value", "string")),
        (
            "v1/Pod",
            r#"{"spec":{"volumes":[{"emptyDir":5}]}}"#,
            field("number", "Volume.spec.volumes.VolumeSource.emptyDir", "v1.EmptyDirVolumeSource"),
        ),
        ("v1/Service", r#"{"spec":{"ports":[{"port":"http"}]}}"#, field("string", "ServicePort.spec.ports.port", "int32")),
        ("v1/Service", r#"{"spec":{"ports":[{"targetPort":true}]}}"#, field("bool", "ServicePort.spec.ports.targetPort", "int32")),
        ("v1/Service", r#"{"spec":{"ports":[{"protocol":6}]}}"#, field("number", "ServicePort.spec.ports.protocol", "v1.Protocol")),
        ("v1/Secret", r#"{"data":{"a":"not base64"}}"#, "illegal base64 data at input byte 3".to_owned()),
        ("v1/Pod", r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"lots"}}}]}}"#, quantity.to_owned()),
        (
            "coordination.k8s.io/v1/Lease",
            r#"{"spec":{"renewTime":"2024-05-01"}}"#,
            r#"parsing time "2024-05-01" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "" as "T""#.to_owned(),
        ),
        (
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            r#"{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"items":{"type":4}}}}]}}"#,
            field("number", "JSONSchemaProps.spec.versions.schema.openAPIV3Schema.items.type", "string"),
        ),
    ];
    for (kind, body, why) in cases {
        assert_eq!(read(kind, body).expect_err(body), why);
    }
}

fn field(found: &str, place: &str, go: &str) -> String {
    format!("json: cannot unmarshal {found} into Go struct field {place} of type {go}")
}

#[test]
fn first_type_error_is_reported_unless_a_value_cannot_be_decoded() {
    let two = r#"{"metadata":{"labels":5,"name":6}}"#;
    assert_eq!(
        read("v1/Pod", two).expect_err(two),
        field("number", "ObjectMeta.metadata.labels", "map[string]string")
    );
    let unreadable = r#"{"metadata":{"labels":5,"creationTimestamp":"x"}}"#;
    assert!(
        read("v1/Pod", unreadable)
            .expect_err(unreadable)
            .starts_with("parsing time")
    );
}

#[test]
fn objects_are_encoded_as_in_go() {
    let cases = [
        (
            "v1/ConfigMap",
            r#"{"data":{},"binaryData":null,"immutable":false}"#,
            json!({"metadata": {}, "immutable": false}),
        ),
        (
            "v1/ConfigMap",
            r#"{"data":{"a":""},"metadata":{"name":"","labels":{}}}"#,
            json!({"metadata": {}, "data": {"a": ""}}),
        ),
        (
            "v1/Pod",
            "{}",
            json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        ),
        (
            "v1/Secret",
            r#"{"data":{"a":null,"b":"YQ\n=="}}"#,
            json!({"metadata": {}, "data": {"a": "", "b": "YQ=="}}),
        ),
        (
            "apps/v1/Deployment",
            r#"{"spec":{"replicas":0,"minReadySeconds":0,"template":{"spec":{"containers":[{"ports":[{"hostPort":0}]}]}}}}"#,
            json!({"metadata": {}, "status": {}, "spec": {"replicas": 0, "selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {
                "containers": [{"name": "", "ports": [{"containerPort": 0}], "resources": {}}]}}}}),
        ),
        (
            "v1/ResourceQuota",
            r#"{"spec":{"hard":{"cpu":0.5,"memory":"1024Mi","pods":null}}}"#,
            json!({"metadata": {}, "status": {}, "spec": {"hard": {"cpu": "500m", "memory": "1Gi", "pods": "0"}}}),
        ),
        (
            "coordination.k8s.io/v1/Lease",
            r#"{"metadata":{"creationTimestamp":"2024-05-01T10:20:30.5+02:00"},"spec":{"renewTime":"2024-05-01T10:20:30.100000+02:00"}}"#,
            json!({"metadata": {"creationTimestamp": "2024-05-01T08:20:30Z"}, "spec": {"renewTime": "2024-05-01T08:20:30.100000Z"}}),
        ),
        (
            "v1/Service",
            r#"{"spec":{"ports":[{"port":80}]}}"#,
            json!({"metadata": {}, "spec": {"ports": [{"port": 80, "targetPort": 0}]}, "status": {"loadBalancer": {}}}),
        ),
        (
            "autoscaling/v1/Scale",
            r#"{"spec":{"replicas":0}}"#,
            json!({"metadata": {}, "spec": {}, "status": {"replicas": 0}}),
        ),
        (
            "v1/DeleteOptions",
            r#"{"gracePeriodSeconds":0,"dryRun":[]}"#,
            json!({"gracePeriodSeconds": 0}),
        ),
    ];
    for (kind, body, expected) in cases {
        assert_eq!(
            read(kind, body),
            Ok((expected, Vec::new())),
            "{kind} {body}"
        );
    }
}

#[test]
fn empty_list_is_none_once_it_is_stored() {
    let terms = r#"{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}},"containers":[]}}"#;
    for (group, kind, body, sent, kept) in [
        (
            "rbac.authorization.k8s.io",
            "Role",
            r#"{"rules":[]}"#,
            json!([]),
            json!(null),
        ),
        ("", "Pod", terms, json!([]), json!(null)),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            r#"{"status":{"acceptedNames":{"plural":"","kind":""},"storedVersions":[]}}"#,
            json!([]),
            json!([]),
        ),
    ] {
        let ty = find(group, "v1", kind).expect("a kind");
        let at = |object: &Map<String, Value>| {
            let place = [
                "/rules",
                "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
                "/status/storedVersions",
            ];
            let object = Value::Object(object.clone());
            place
                .iter()
                .find_map(|place| object.pointer(place).cloned())
        };
        let mut object = decode(ty, serde_json::from_str(body).expect("JSON"))
            .expect(body)
            .object;
        assert_eq!(at(&object), Some(sent), "{kind} as it was sent");
        settle(ty, &mut object);
        assert_eq!(at(&object), Some(kept), "{kind} as it is stored");
    }
}

#[test]
fn dropped_status_is_an_empty_one() {
    for (kind, status) in [
        ("Pod", json!({})),
        ("Service", json!({"loadBalancer": {}})),
        ("ReplicationController", json!({"replicas": 0})),
    ] {
        let mut body = Map::new();
        complete(find("", "v1", kind).expect("a core kind"), &mut body);
        assert_eq!(body.get("status"), Some(&status), "{kind}");
        assert!(!body.contains_key("metadata"), "{kind}");
    }
}

#[test]
fn unknown_and_repeated_fields_are_named_in_their_order() {
    let cases = [
        (
            "v1/ConfigMap",
            r#"{"colour":"red","data":{"k":"1","k":"2"}}"#,
            vec![r#"unknown field "colour""#, r#"duplicate field "data.k""#],
        ),
        (
            "v1/ConfigMap",
            r#"{"data":{"a":"1"},"data":{"b":"2"}}"#,
            vec![r#"duplicate field "data""#],
        ),
        (
            "v1/ConfigMap",
            r#"{"Data":{"a":"1"},"a":1,"a":2}"#,
            vec![r#"unknown field "Data""#, r#"unknown field "a""#],
        ),
        (
            "apps/v1/Deployment",
            r#"{"spec":{"template":{"spec":{"containers":[{},{"imagee":"x"}]}},"replica":3}}"#,
            vec![
                r#"unknown field "spec.template.spec.containers[1].imagee""#,
                r#"unknown field "spec.replica""#,
            ],
        ),
        (
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            r#"{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"properties":{"a":{"b":1}},"flavour":1,"items":{"c":1}}}}]}}"#,
            // The type in place of a schema has its own decoder, which is not strict.
            vec![
                r#"unknown field "spec.versions[0].schema.openAPIV3Schema.properties.a.b""#,
                r#"unknown field "spec.versions[0].schema.openAPIV3Schema.flavour""#,
            ],
        ),
    ];
    for (kind, body, expected) in cases {
        assert_eq!(read(kind, body).expect(body).1, expected);
    }
}

#[test]
fn object_with_every_field_set_round_trips() {
    for (group, version, kind, id) in KINDS {
        let ty = &TYPES[usize::from(*id)];
        let full = Value::Object(full(ty, 0));
        let decoded = decode(ty, full.clone()).expect("a good object");
        assert_eq!(
            Value::Object(decoded.object),
            full,
            "{group}/{version} {kind}"
        );
        assert_eq!(
            decoded.strict,
            Vec::<String>::new(),
            "{group}/{version} {kind}"
        );
    }
}

/// An object of the type with every field set, as decoding returns it.
pub(crate) fn full_object(ty: &'static Type) -> Map<String, Value> {
    full(ty, 0)
}

/// An object of the type with every field set; what holds itself again ends after a few levels.
fn full(ty: &'static Type, depth: usize) -> Map<String, Value> {
    let fields = ty
        .fields()
        .iter()
        .filter(|field| depth == 0 || field.embedded != "TypeMeta");
    let deep = |field: &Field| depth > 1 && matches!(field.shape.item(), Item::Object(SCHEMA));
    fields
        .filter(|field| !deep(field))
        .map(|field| (field.name.to_owned(), full_field(field, depth + 1)))
        .collect()
}

fn full_field(field: &Field, depth: usize) -> Value {
    match field.shape {
        Shape::One(item) => full_item(item, depth),
        Shape::List(item) => json!([full_item(item, depth), full_item(item, depth)]),
        Shape::Map(item) => json!({"a.b/c": full_item(item, depth)}),
        Shape::MapOfLists(item) => json!({"a": [full_item(item, depth)]}),
    }
}

fn full_item(item: Item, depth: usize) -> Value {
    match item {
        Item::Str => json!("x"),
        Item::Bool | Item::SchemaOrBool => json!(true),
        Item::Int32 | Item::Int64 => json!(7),
        Item::Double => json!(1.5),
        Item::Bytes => json!("YQ=="),
        Item::Time => json!("2024-05-01T10:20:30Z"),
        Item::MicroTime => json!("2024-05-01T10:20:30.000001Z"),
        Item::Quantity => json!("500m"),
        Item::IntOrString => json!("25%"),
        Item::Raw | Item::Owned | Item::Json => json!({"any": [1.0, null]}),
        Item::SchemaOrArray | Item::SchemaOrStrings if depth > 2 => Value::Null,
        Item::SchemaOrArray => json!([full_item(Item::Object(SCHEMA), depth)]),
        Item::SchemaOrStrings => json!(["x"]),
        Item::Object(id) => Value::Object(full(&TYPES[usize::from(id)], depth)),
    }
}

/// Replaces values of an object by others, most of them of another type or empty.
fn disturb(value: &mut Value, choices: &mut impl Iterator<Item = u8>) {
    let replacement = match choices.next() {
        Some(0) => Some(Value::Null),
        Some(1) => Some(json!({})),
        Some(2) => Some(json!([])),
        Some(3) => Some(json!("")),
        Some(4) => Some(json!(0)),
        Some(5) => Some(json!(false)),
        _ => None,
    };
    match (replacement, value) {
        (Some(replacement), value) => *value = replacement,
        (None, Value::Object(map)) => map.values_mut().for_each(|value| disturb(value, choices)),
        (None, Value::Array(items)) => items.iter_mut().for_each(|value| disturb(value, choices)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn decoding_twice_changes_nothing(kind in 0..KINDS.len(), choices in proptest::collection::vec(0..60_u8, 1..200)) {
        let ty = &TYPES[usize::from(KINDS[kind].3)];
        let mut object = Value::Object(full(ty, 0));
        disturb(&mut object, &mut choices.into_iter().cycle().take(100_000));
        if let Ok(once) = decode(ty, object) {
            let twice = decode(ty, Value::Object(once.object.clone())).expect("its own outcome");
            prop_assert_eq!(twice.object, once.object);
            prop_assert!(twice.strict.is_empty());
        }
    }
}
