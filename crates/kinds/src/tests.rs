//! Tests of codecs of all kinds of types.

use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta, TypeMeta};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::*;

fn parse(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("valid JSON")
}

/// Decodes and encodes an object that has nothing but types and metadata.
pub(crate) fn assert_round_trip<K: Kind<DynamicType = ()>>() {
    let codec = K::codec();
    let resource = codec.resource().expect("the type knows its kind");
    let kind = resource.kind.as_str();
    assert_eq!(resource, ApiResource::erase::<K>(&()));
    assert!(!codec.is_metadata_only(), "{kind}");
    assert_ne!(codec.scope(), KindScope::Dynamic, "{kind}");
    let minimal = json!({
        "apiVersion": resource.api_version,
        "kind": kind,
        "metadata": { "name": "a", "labels": { "app": "x" }, "resourceVersion": "7" },
    });
    let object = codec.decode(minimal.to_string().as_bytes());
    let object = object.expect("the minimal object is valid");
    assert_eq!(codec.metadata(&*object).name.as_deref(), Some("a"));
    assert_eq!(codec.types(&*object), None);
    let json = codec.encode(&*object).expect("it can be encoded");
    let encoded = parse(&json);
    for field in ["apiVersion", "kind", "metadata"] {
        assert_eq!(encoded[field], minimal[field], "{field} of {kind}");
    }
    let again = codec.decode(&json).expect("its own JSON is valid");
    let again = codec.encode(&*again).expect("it can be encoded");
    assert_eq!(parse(&again), encoded, "{kind}");
    assert!(codec.decode(br#"{"metadata":7}"#).is_err(), "{kind}");
    assert!(codec.decode(b"<html>").is_err(), "{kind}");
}

#[test]
fn codec_of_a_kind_is_one_static() {
    fn codec<K: Kind>() -> &'static KindCodec {
        K::codec()
    }
    assert!(std::ptr::eq(codec::<ConfigMap>(), ConfigMap::codec()));
    assert!(std::ptr::eq(
        codec::<DynamicObject>(),
        DynamicObject::codec()
    ));
    assert!(!std::ptr::eq(codec::<ConfigMap>(), codec::<Pod>()));
    let from_another_thread = std::thread::spawn(codec::<ConfigMap>).join();
    let from_another_thread = from_another_thread.expect("it does not panic");
    assert!(std::ptr::eq(from_another_thread, ConfigMap::codec()));
}

#[test]
fn scope_is_that_of_the_type() {
    assert_eq!(ConfigMap::codec().scope(), KindScope::Namespaced);
    assert_eq!(Namespace::codec().scope(), KindScope::Cluster);
    assert_eq!(DynamicObject::codec().scope(), KindScope::Dynamic);
    let metadata = PartialObjectMeta::<Namespace>::codec();
    assert_eq!(metadata.scope(), KindScope::Cluster);
    let metadata = PartialObjectMeta::<DynamicObject>::codec();
    assert_eq!(metadata.scope(), KindScope::Dynamic);
    assert_eq!(External::<Namespace>::codec().scope(), KindScope::Cluster);
}

#[test]
fn metadata_of_any_kind_is_decoded_without_the_rest() {
    // The spec would not be decoded as that of a pod.
    let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":7}"#;
    assert!(decode::<Pod>(json).is_err());
    let pod = decode::<PartialObjectMeta<Pod>>(json).expect("metadata");
    assert_eq!(pod.name_any(), "web");
    let codec = PartialObjectMeta::<Pod>::codec();
    assert!(codec.is_metadata_only());
    assert_eq!(codec.resource(), Some(ApiResource::erase::<Pod>(&())));
    let encoded = encode(&*pod).expect("it can be encoded");
    let expected = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}"#;
    assert_eq!(parse(&encoded), parse(expected));
}

#[test]
fn types_of_partial_metadata_are_those_of_the_object_only() {
    let codec = PartialObjectMeta::<DynamicObject>::codec();
    assert_eq!(codec.resource(), None);
    let kind_of = |json: &[u8]| {
        let object = codec.decode(json).expect("metadata");
        codec.types(&*object).map(|types| types.kind.clone())
    };
    let pod = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}"#;
    assert_eq!(kind_of(pod).as_deref(), Some("Pod"));
    // Responses of servers name no kind of an object.
    let partial =
        br#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{}}"#;
    assert_eq!(kind_of(partial), None);
    assert_eq!(kind_of(br#"{"metadata":{"name":"web"}}"#), None);
}

#[test]
fn dynamic_object_has_the_types_it_was_received_with() {
    let codec = DynamicObject::codec();
    assert_eq!(codec.resource(), None);
    assert!(!codec.is_metadata_only());
    let json = br#"{"apiVersion":"example.org/v1","kind":"Hero","metadata":{"name":"icarus"},"spec":{"a":1}}"#;
    let hero = decode::<DynamicObject>(json).expect("an object");
    let types = TypeMeta {
        api_version: "example.org/v1".into(),
        kind: "Hero".into(),
    };
    assert_eq!(codec.types(&*hero), Some(&types));
    assert_eq!(codec.metadata(&*hero).name.as_deref(), Some("icarus"));
    assert_eq!(hero.data["spec"]["a"], 1);
    let encoded = encode(&*hero).expect("it can be encoded");
    assert_eq!(parse(&encoded), parse(json));
    let untyped = decode::<DynamicObject>(br#"{"metadata":{"name":"icarus"}}"#);
    assert_eq!(codec.types(&*untyped.expect("an object")), None);
}

#[test]
fn external_type_is_encoded_as_the_type_itself() {
    let json = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"}}"#;
    let mut map = External::<ConfigMap>::clone(&decode(json).expect("a config map"));
    assert_eq!(map.name_any(), "settings");
    map.labels_mut().insert("app".into(), "x".into());
    map.data = Some([("a".to_owned(), "b".to_owned())].into());
    let encoded = encode(&map).expect("it can be encoded");
    assert_eq!(encoded, encode(&map.0).expect("it can be encoded"));
    let codec = External::<ConfigMap>::codec();
    assert_eq!(codec.resource(), ConfigMap::codec().resource());
    assert_eq!(External::<ConfigMap>::kind(&()), "ConfigMap");
}

/// A codec that is given an object of another type is a defect of the caller.
#[test]
fn object_of_another_type_is_refused() {
    let metadata = || Pod::codec().metadata(&ConfigMap::default()).clone();
    assert!(catch_unwind(metadata).is_err());
    let object: Object = Arc::new(ConfigMap::default());
    let downcast = AssertUnwindSafe(|| downcast::<Pod>(object));
    assert!(catch_unwind(downcast).is_err());
}

/// Kubernetes accepts times up to the year 9999. An object with a time that `Timestamp` cannot
/// express was not decoded, so no controller saw it.
#[test]
fn times_of_the_last_day_are_decoded_as_the_latest() {
    let late = "9999-12-31T23:59:59Z";
    let condition = |kind: String| json!({"type": kind, "lastTransitionTime": late});
    let pod = |conditions: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "annotations": {"expires": late, late: "key"}},
            "status": {
                "message": late,
                "startTime": late,
                "conditions": (0..conditions).map(|i| condition(i.to_string())).collect::<Vec<_>>(),
            },
        })
    };
    for (conditions, is_exact) in [(0, true), (5, true), (1_000, false)] {
        for json in [
            pod(conditions).to_string(),
            serde_json::to_string_pretty(&pod(conditions)).expect("JSON"),
        ] {
            let pod = decode::<Pod>(json.as_bytes()).expect("a pod");
            let status = pod.status.as_ref().expect("a status");
            let start = status.start_time.as_ref().expect("a time");
            assert_eq!(start.0.to_string(), "9999-12-30T22:00:00Z");
            assert_eq!(status.conditions.as_ref().map_or(0, Vec::len), conditions);
            // Other strings stay as they are, unless the object has many such times.
            assert_eq!(pod.annotations()["expires"] == late, is_exact);
            assert_eq!(status.message.as_deref() == Some(late), is_exact);
            assert_eq!(pod.annotations()[late], "key");
        }
    }
}

/// Kubernetes writes the zero time of a condition as null.
#[test]
fn null_is_the_zero_time_where_a_time_is_required() {
    let applied = r#"{"lastTransitionTime":null}"#;
    let condition = json!({
        "type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": null,
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "a", "creationTimestamp": null, "annotations": {"applied": applied}},
        "status": {"conditions": vec![condition; 100]},
    });
    for json in [
        service.to_string(),
        serde_json::to_string_pretty(&service).expect("JSON"),
    ] {
        let service = decode::<Service>(json.as_bytes()).expect("a service");
        let status = service.status.as_ref().expect("a status");
        let conditions = status.conditions.as_ref().expect("conditions");
        assert_eq!(conditions.len(), 100);
        let time = conditions[99].last_transition_time.0.to_string();
        assert_eq!(time, "0001-01-01T00:00:00Z");
        assert_eq!(service.annotations()["applied"], applied);
        assert_eq!(service.metadata.creation_timestamp, None);
    }
    let invalid = r#"{"metadata":{"name":"a","ownerReferences":null,"labels":{"a":null}}}"#;
    assert!(decode::<Service>(invalid.as_bytes()).is_err());
}

#[test]
fn late_times_are_decoded_in_every_sort_of_kind() {
    for time in [
        "9999-12-30T22:00:01Z",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59+00:00",
    ] {
        let entry = json!({"manager": "m", "operation": "Update", "time": time});
        let json = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "creationTimestamp": time, "managedFields": [entry]},
        });
        let json = json.to_string();
        let map = decode::<ConfigMap>(json.as_bytes()).expect("a config map");
        let metadata = [
            map.metadata.clone(),
            decode::<DynamicObject>(json.as_bytes())
                .expect("an object")
                .metadata
                .clone(),
            decode::<PartialObjectMeta<Pod>>(json.as_bytes())
                .expect("metadata")
                .metadata
                .clone(),
            decode::<External<ConfigMap>>(json.as_bytes())
                .expect("a config map")
                .0
                .metadata
                .clone(),
        ];
        for metadata in metadata {
            let created = metadata.creation_timestamp.expect("a time");
            assert_eq!(created.0.to_string(), "9999-12-30T22:00:00Z");
        }
    }
}

#[test]
fn object_with_other_errors_is_still_rejected() {
    for json in [
        r#"{"metadata":{"name":"a","creationTimestamp":"9999-12-31T23:59:59Z","labels":7}}"#,
        r#"{"metadata":{"name":"a","creationTimestamp":"9999-12-32T23:59:59Z"}}"#,
        r#"{"metadata":{"name":"9999-12-31T23:59:59Z","labels":7}}"#,
        r#"{"metadata":{"creationTimestamp":"9999-12-31T23:59:59Z""#,
        r#"{"metadata":{"creationTimestamp":"9999-12-31T"#,
    ] {
        assert!(decode::<ConfigMap>(json.as_bytes()).is_err(), "{json}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    let json = b"{\"metadata\":{\"name\":\"a\xff\"}}";
    assert!(decode::<ConfigMap>(json).is_err(), "of a type");
    assert!(decode::<DynamicObject>(json).is_err(), "of any type");
    let partial = decode::<PartialObjectMeta<Pod>>(json);
    assert!(partial.is_err(), "metadata only");
}
