//! Entry points of the fuzz targets: one function for each parser of untrusted bytes.
//! In: any bytes. Out: nothing; a panic is a finding, in the parser or in an invariant asserted
//! here. Not part of the API: compiled only with the feature `fuzzing`, for the targets in `fuzz/`,
//! and in tests, so that it is always compiled.

use std::collections::BTreeMap;
#[cfg(feature = "fuzzing")]
use std::{sync::Arc, time::Duration};

use bellerophon_apimachinery::label_selector::LabelSelector;
use bellerophon_codec::{
    decode::{self, DEPTH_MAX, Media},
    object::Object,
    patch::{JsonPatch, merge},
};
use bellerophon_crd::{CustomSchema, Definition, validate_definition};
use bellerophon_storage::{FieldSelector, ObjectKey};
#[cfg(feature = "fuzzing")]
use http::Method;
use serde_json::{Map, Value, json};

#[cfg(feature = "fuzzing")]
use crate::{
    auth::User,
    flow_control::{FlowControl, Work},
    http::{request_info::RequestInfo, route::ResourcePath},
    limits::RequestLimits,
};
use crate::{
    http::{
        query::{ListOptions, Query},
        route::Route,
    },
    verbs::Page,
};

/// Flow control as requests pass through it: classified, admitted and ended, one after the other.
#[cfg(feature = "fuzzing")]
#[derive(Debug)]
pub struct FlowControlRounds {
    flow_control: FlowControl,
    user: User,
    request_info: Arc<RequestInfo>,
}

#[cfg(feature = "fuzzing")]
impl FlowControlRounds {
    /// Requests of one user of this group.
    pub fn new(group: &str) -> Self {
        let path = ResourcePath {
            version: "v1".into(),
            namespace: "default".into(),
            resource: "configmaps".into(),
            name: "settings".into(),
            ..ResourcePath::default()
        };
        let user = User {
            name: "alice".into(),
            groups: vec![group.into()],
            ..User::default()
        };
        let flow_control = FlowControl::new(RequestLimits::default());
        flow_control.use_defaults();
        Self {
            flow_control,
            user: user.authenticated(),
            request_info: Arc::new(RequestInfo::of_resource(
                &Method::GET,
                &path,
                &Query::default(),
            )),
        }
    }

    /// One request.
    pub async fn round(&self) {
        let classified = self.flow_control.classify(&self.request_info, &self.user);
        let classified = classified.expect("it is subject to flow control");
        let wait_max = Duration::from_secs(15);
        let permit = self.flow_control.acquire(&classified, Work::ONE, wait_max);
        drop(permit.await.expect("there are seats"));
    }
}

/// Paths: the parts of a resource path hold no slash, no NUL and do not climb.
pub fn path(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Route::Resource(path) = Route::parse(&text) {
        for part in [
            &path.group,
            &path.version,
            &path.namespace,
            &path.resource,
            &path.name,
        ] {
            assert!(
                !part.contains(['/', '\0']) && part != "." && part != "..",
                "{part:?} of {text:?}"
            );
        }
        let key = ObjectKey::new(&path.namespace, &path.name);
        assert_eq!(key.namespace(), path.namespace.as_str(), "{text:?}");
        assert_eq!(key.name(), path.name.as_str(), "{text:?}");
    }
}

/// Bodies in JSON: what is read can be written and read again.
pub fn json_body(data: &[u8]) {
    body(data, Media::Json);
}

/// Bodies in YAML: what is read can be written and read again.
pub fn yaml_body(data: &[u8]) {
    body(data, Media::Yaml);
}

fn body(data: &[u8], media: Media) {
    if let Ok(read) = decode::read(data, media) {
        let value = Value::Object(read.object);
        assert!(depth(&value) <= DEPTH_MAX, "deeper than the reader allows");
        let again = json_of(value.to_string().as_bytes());
        assert_eq!(again.as_ref(), Some(&value), "read again as something else");
    }
}

/// JSON patches: an object on the first line, the patch behind it. The outcome is no deeper than an
/// object may be.
pub fn json_patch(data: &[u8]) {
    let (object, patch) = halves(data);
    let (Some(mut object), Some(patch)) = (json_of(object), json_of(patch)) else {
        return;
    };
    if let Ok(patch) = JsonPatch::read(patch)
        && patch.apply(&mut object).is_ok()
    {
        assert!(depth(&object) <= DEPTH_MAX, "the patch buried the object");
    }
}

/// Merge patches: an object on the first line, the patch behind it. From the second time on they
/// change nothing.
pub fn merge_patch(data: &[u8]) {
    let (object, patch) = halves(data);
    let (Some(mut object), Some(patch)) = (json_of(object), json_of(patch)) else {
        return;
    };
    // The first time, lists that replace maps keep the nulls in them.
    merge(&mut object, patch.clone());
    merge(&mut object, patch.clone());
    let twice = object.clone();
    merge(&mut object, patch);
    assert_eq!(object, twice);
}

/// Label selectors: deciding about labels never fails.
pub fn label_selector(data: &[u8]) {
    if let Ok(selector) = LabelSelector::parse(&String::from_utf8_lossy(data)) {
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let decided = [labels(&[]), labels(&[("app", "web"), ("n", "5")])]
            .map(|labels| selector.matches(&labels));
        assert!(
            !selector.is_everything() || decided == [true, true],
            "everything is everything"
        );
    }
}

/// Field selectors, and whole queries around them.
pub fn field_selector(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = FieldSelector::parse(&text) {
        assert_eq!(
            selector.is_everything(),
            selector.fields().count() == 0,
            "{text:?}"
        );
    }
    let _options = Query::parse(&text).and_then(|query| ListOptions::read(&query));
}

/// Continue tokens: what is accepted reads back as the same place, inside its collection.
pub fn continue_token(data: &[u8]) {
    if let Ok(page) = Page::parse(&String::from_utf8_lossy(data)) {
        assert!(
            page.after
                .path()
                .split('/')
                .all(|part| part != ".." && part != "."),
            "{page:?}"
        );
        assert_eq!(Page::parse(&page.token()), Ok(page));
    }
}

/// Definitions: a schema on the first line, a value behind it. Pruning and defaulting are
/// idempotent.
pub fn schema(data: &[u8]) {
    let (schema, value) = halves(data);
    let Some(schema) = json_of(schema) else {
        return;
    };
    let Ok(definition) = Object::from_map(definition_of(schema)) else {
        return;
    };
    if !validate_definition::create(&definition).is_empty() {
        return;
    }
    let Ok(read) = Definition::read(&definition) else {
        return;
    };
    let (Some(schema), Some(Value::Object(mut map))) = (
        read.versions.first().and_then(CustomSchema::of),
        json_of(value),
    ) else {
        return;
    };
    if schema.prune(&mut map).is_err() {
        return;
    }
    if schema.default(&mut map).is_err() {
        return;
    }
    let mut again = map.clone();
    if let Ok(pruned) = schema.prune(&mut again) {
        assert!(pruned.is_empty(), "pruned a second time: {pruned:?}");
    }
    assert!(
        schema.default(&mut again).is_ok(),
        "nothing is left to fill in"
    );
    assert_eq!(again, map, "completed a second time");
    schema.validate(&Value::Object(map), None, &mut Vec::new());
}

/// Validation rules: an expression on the first line, an object behind it. A rule that is accepted
/// evaluates to the same result for an object every time.
pub fn rule(data: &[u8]) {
    let (rule, object) = halves(data);
    let rule = String::from_utf8_lossy(rule);
    let text = |max| json!({"type": "string", "maxLength": max});
    let spec = json!({
        "type": "object", "x-kubernetes-validations": [{"rule": rule, "messageExpression": "'was: ' + self.s"}],
        "properties": {
            "n": {"type": "integer"}, "d": {"type": "number"}, "s": text(20), "t": {"type": "string", "format": "date-time"},
            "p": {"x-kubernetes-int-or-string": true, "maxLength": 9}, "l": {"type": "array", "maxItems": 9, "items": text(9)},
            "m": {"type": "object", "maxProperties": 9, "additionalProperties": {"type": "integer"}},
            "o": {"type": "object", "nullable": true, "properties": {"x": {"type": "boolean"}}},
        },
    });
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let Ok(definition) = Object::from_map(definition_of(schema)) else {
        return;
    };
    if !validate_definition::create(&definition).is_empty() {
        return;
    }
    let Ok(read) = Definition::read(&definition) else {
        return;
    };
    let (Some(schema), Some(spec)) = (
        read.versions.first().and_then(CustomSchema::of),
        json_of(object),
    ) else {
        return;
    };
    let object = json!({"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec});
    let validated = || {
        let mut errors = Vec::new();
        schema.validate(&object, Some(&object), &mut errors);
        errors
    };
    assert_eq!(validated(), validated(), "validated differently: {rule:?}");
}

fn definition_of(schema: Value) -> Map<String, Value> {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Cluster", "conversion": {"strategy": "None"},
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
        "status": {"storedVersions": ["v1"]},
    });
    match definition {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The bytes before the first line end, and those behind it.
fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, b"null"),
    }
}

fn json_of(bytes: &[u8]) -> Option<Value> {
    decode::parse_json(bytes)
        .ok()?
        .into_value(&mut Vec::new())
        .ok()
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
