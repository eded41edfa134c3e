//! Properties of every kind: objects round-trip, and no input panics.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Envelope, decode, encode, frame, list_message, message};
use crate::{
    body::{Expected, read_typed},
    decode::Encoding,
    types::{self, Published, full_object},
};

/// Every kind whose objects have metadata and a published schema.
fn kinds() -> impl Iterator<Item = (&'static str, &'static str, &'static str, Published)> {
    types::object_kinds().filter_map(|(group, version, kind)| {
        let published = Published::of_kind(group, version, kind)?;
        Some((group, version, kind, published))
    })
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// An object with every field set that names its kind.
fn full(group: &str, version: &str, kind: &str, ty: Published) -> Value {
    let mut object = full_object(ty.type_());
    object.insert("apiVersion".into(), api_version(group, version).into());
    object.insert("kind".into(), kind.into());
    Value::Object(object)
}

#[test]
fn full_objects_of_every_kind_round_trip() {
    for (group, version, kind, ty) in kinds() {
        let object = full(group, version, kind, ty);
        let bytes = encode(&object).expect("a built-in kind");
        let envelope = Envelope::open(&bytes).expect("its own envelope");
        assert_eq!(
            envelope.api_version.as_str(),
            api_version(group, version).as_str()
        );
        assert_eq!(envelope.kind.as_str(), kind);
        let mut back = decode(ty, envelope.message)
            .expect("its own message")
            .into_raw();
        back["apiVersion"] = object["apiVersion"].clone();
        back["kind"] = object["kind"].clone();
        let back = types::decode(ty.type_(), back)
            .expect("a good object")
            .object;
        assert_eq!(Value::Object(back), object, "{group}/{version} {kind}");
    }
}

#[test]
fn empty_objects_of_every_kind_are_those_of_json() {
    for (group, version, kind, ty) in kinds() {
        let bare = json!({"apiVersion": api_version(group, version), "kind": kind});
        let from_json = types::decode(ty.type_(), bare.clone())
            .expect("an empty object")
            .object;
        let bytes = encode(&Value::Object(from_json.clone())).expect("a built-in kind");
        let expected = Expected::of(group, version, kind).expect("a built-in kind");
        let back = read_typed(&bytes, Encoding::Protobuf, &expected).expect("its own bytes");
        assert_eq!(
            back.object.to_value(),
            Value::Object(from_json),
            "{group}/{version} {kind}"
        );
    }
}

#[test]
fn config_map_has_the_bytes_of_the_real_server() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let metadata = b"\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00";
    let message = [
        b"\x0a\x11",
        metadata.as_slice(),
        b"\x12\x06\x0a\x01k\x12\x01v",
    ]
    .concat();
    let envelope = [
        b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x1b",
        message.as_slice(),
        b"\x1a\x00\x22\x00",
    ]
    .concat();
    assert_eq!(encode(&object), Some(envelope));
}

#[test]
fn kinds_without_a_type_have_no_protobuf() {
    assert_eq!(
        encode(&json!({"apiVersion": "example.com/v1", "kind": "Jar", "metadata": {"name": "j"}})),
        None
    );
    assert_eq!(
        encode(&json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1"})),
        None
    );
}

#[test]
fn lists_are_their_items_behind_a_head() {
    let names = ["a", "b"]
        .map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}));
    let messages: Vec<Vec<u8>> = names
        .iter()
        .filter_map(|object| message(object.as_object()?))
        .collect();
    let list = list_message(
        json!({"resourceVersion": "7"}),
        messages.iter().map(Vec::as_slice),
    );
    let whole = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": names});
    assert_eq!(Some(list), whole.as_object().and_then(message));
}

#[test]
fn watch_frames_carry_their_length() {
    let mut out = bytes::BytesMut::new();
    frame("ADDED", b"object", &mut out);
    assert_eq!(&out[..], b"\0\0\0\x11\x0a\x05ADDED\x12\x08\x0a\x06object");
}

#[test]
fn metadata_alone_has_a_protobuf_form() {
    let partial = |name: &str| json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": name}});
    let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": [partial("a"), partial("b")]});
    let items: Vec<Vec<u8>> = ["a", "b"]
        .iter()
        .filter_map(|name| message(partial(name).as_object()?))
        .collect();
    assert_eq!(items.len(), 2);
    assert_eq!(
        list.as_object().and_then(message),
        Some(list_message(json!({}), items.iter().map(Vec::as_slice)))
    );
}

#[test]
fn messages_nested_without_end_are_refused() {
    // A schema that is the `not` of a schema that is the `not` of a schema.
    let mut schema = Vec::new();
    for _ in 0..5000 {
        let mut outer = vec![0xe2, 0x01];
        let mut length = schema.len();
        while length >= 0x80 {
            outer.push(u8::try_from(length & 0x7f | 0x80).expect("seven bits and one"));
            length >>= 7;
        }
        outer.push(u8::try_from(length).expect("less than 128"));
        outer.extend(schema);
        schema = outer;
    }
    let ty = Published::of_item(types::schema()).expect("schemas have a type");
    assert_eq!(
        decode(ty, &schema),
        Err("proto: JSONSchemaProps: messages are nested too deeply".to_owned())
    );
}

proptest! {
    #[test]
    fn broken_messages_are_read_or_refused(kind in 0..types::object_kinds().count(), cuts in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..12), keep in any::<u16>()) {
        let (group, version, name) = types::object_kinds().nth(kind).expect("within the range");
        if let (Some(expected), Some(ty)) =
            (Expected::of(group, version, name), Published::of_kind(group, version, name))
        {
            let mut bytes = encode(&full(group, version, name, ty)).expect("a built-in kind");
            for (at, byte) in cuts {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len().min(usize::from(keep) * 4));
            if let Ok(typed) = read_typed(&bytes, Encoding::Protobuf, &expected) {
                prop_assert_eq!(typed.object.kind, name);
            }
        }
    }
}
