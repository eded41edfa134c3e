//! Decoding: from the JSON of a source to what a cache keeps.
//! In: objects as JSON. Out: the same, decoded, transformed and in the cache's mode.
//! Guarantees: an object that cannot be decoded, or on which the transform panics, is skipped,
//! counted and logged, and costs no other object.

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bellerophon_kinds::{KindCodec, Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::TypeMeta;
use serde::Deserialize;

use crate::{
    cached::{CachedObject, DecodedLru},
    fifo::ReceivedObject,
    key::ObjectKey,
    list_watch::{ListPage, WatchEvent},
    scan::Outline,
};

/// Modifies an object.
type ModifyFn = Arc<dyn Fn(&mut dyn Any) + Send + Sync>;

/// Modifies each object before it is cached.
#[derive(Clone)]
pub(crate) enum TransformFn {
    None,
    StripManagedFields,
    Function(ModifyFn),
}

/// One page of a list, decoded.
#[derive(Debug)]
pub(super) struct ReceivedPage {
    pub(super) objects: Vec<ReceivedObject>,
    pub(super) undecodable: Vec<Undecodable>,
    pub(super) resource_version: String,
    pub(super) continue_token: Option<String>,
}

/// One event of a watch, decoded.
#[derive(Debug)]
pub(super) enum ReceivedEvent {
    Applied(ReceivedObject),
    Deleted {
        key: ObjectKey,
        object: Option<CachedObject>,
        resource_version: Option<String>,
    },
    Bookmark {
        resource_version: String,
        ends_initial_events: bool,
    },
    Undecodable(Undecodable),
}

/// An object that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undecodable {
    /// `None` if not even its metadata could be decoded.
    pub(crate) key: Option<ObjectKey>,
    pub(crate) resource_version: Option<String>,
    pub(crate) reason: String,
}

/// Enough of any object to identify it.
#[derive(Deserialize)]
struct Identified {
    metadata: ObjectMeta,
}

/// Whether an object has `apiVersion` and `kind`.
#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(rename = "apiVersion", borrow)]
    _api_version: Cow<'a, str>,
    #[serde(rename = "kind", borrow)]
    _kind: Cow<'a, str>,
}

pub(crate) struct Decoder {
    pub(crate) codec: &'static KindCodec,
    /// The `apiVersion` and `kind` of the resource, if the type does not know them.
    pub(crate) types: Option<TypeMeta>,
    pub(crate) transform: TransformFn,
    pub(crate) keeps_json: bool,
    pub(crate) lru: Arc<DecodedLru>,
}

impl Decoder {
    pub(super) fn page(&self, page: ListPage) -> ReceivedPage {
        let mut objects = Vec::with_capacity(page.items.len());
        let mut undecodable = Vec::new();
        for item in &page.items {
            match self.received(item) {
                Ok(object) => objects.push(object),
                Err(failure) => undecodable.push(failure),
            }
        }
        ReceivedPage {
            objects,
            undecodable,
            resource_version: page.resource_version,
            continue_token: page.continue_token,
        }
    }

    pub(super) fn event(&self, event: WatchEvent) -> ReceivedEvent {
        match event {
            WatchEvent::Applied(json) => match self.received(&json) {
                Ok(object) => ReceivedEvent::Applied(object),
                Err(failure) => ReceivedEvent::Undecodable(failure),
            },
            WatchEvent::Deleted(json) => self.deleted(&json),
            WatchEvent::Bookmark {
                resource_version,
                ends_initial_events,
            } => ReceivedEvent::Bookmark {
                resource_version,
                ends_initial_events,
            },
        }
    }

    fn received(&self, json: &[u8]) -> Result<ReceivedObject, Undecodable> {
        let json = self.with_types(self.strip(json));
        let object = self.codec.decode(&json);
        let mut object = object.map_err(|error| undecodable(&json, error.to_string()))?;
        // The key is taken before the transform, which may change the metadata.
        let key = key_of(self.codec.metadata(&*object));
        let transformed = self.transform(&mut object)?;
        let object = match (self.keeps_json, transformed) {
            (true, false) => CachedObject::compact(json.into(), object, self.codec, &self.lru),
            (true, true) => self.encoded(object),
            (false, _) => CachedObject::decoded(object, self.codec),
        };
        Ok(ReceivedObject { key, object })
    }

    /// A deletion whose object cannot be decoded is one all the same.
    fn deleted(&self, json: &[u8]) -> ReceivedEvent {
        let json = self.strip(json);
        let Ok(mut object) = self.codec.decode(&json) else {
            let failure = undecodable(&json, "the last state cannot be decoded".into());
            return match failure.key.clone() {
                None => ReceivedEvent::Undecodable(failure),
                Some(key) => ReceivedEvent::Deleted {
                    key,
                    object: None,
                    resource_version: failure.resource_version,
                },
            };
        };
        let metadata = self.codec.metadata(&*object);
        let key = key_of(metadata);
        let resource_version = metadata.resource_version.clone();
        let transformed = self.transform(&mut object).is_ok();
        ReceivedEvent::Deleted {
            key,
            object: transformed.then(|| CachedObject::decoded(object, self.codec)),
            resource_version,
        }
    }

    /// The JSON without `metadata.managedFields`, which are then never decoded.
    fn strip<'a>(&self, json: &'a [u8]) -> Cow<'a, [u8]> {
        let TransformFn::StripManagedFields = self.transform else {
            return Cow::Borrowed(json);
        };
        let outline = Outline::of(json).ok();
        match outline.and_then(|outline| outline.managed_fields) {
            Some(cut) => Cow::Owned([&json[..cut.start], &json[cut.end..]].concat()),
            None => Cow::Borrowed(json),
        }
    }

    /// The JSON with `apiVersion` and `kind`, which servers omit in the items of a list. Objects of
    /// a type that does not know its kind are identified by them.
    fn with_types<'a>(&self, json: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let Some(types) = &self.types else {
            return json;
        };
        let has_types = serde_json::from_slice::<Typed<'_>>(&json).is_ok();
        let members = json.trim_ascii_start().strip_prefix(b"{");
        match (has_types, members, serde_json::to_vec(types)) {
            (false, Some(members), Ok(mut typed)) => {
                let is_empty = members.trim_ascii_start().starts_with(b"}");
                // The closing brace of the types makes room for the members of the object.
                typed.pop();
                typed.extend_from_slice(if is_empty { b"" } else { b"," });
                typed.extend_from_slice(members);
                Cow::Owned(typed)
            }
            _ => json,
        }
    }

    /// Whether a function modified the object.
    fn transform(&self, object: &mut Object) -> Result<bool, Undecodable> {
        let TransformFn::Function(function) = &self.transform else {
            return Ok(false);
        };
        let metadata = self.codec.metadata(&**object);
        let key = key_of(metadata);
        let resource_version = metadata.resource_version.clone();
        let object = Arc::get_mut(object).expect("it was decoded just now");
        match catch_unwind(AssertUnwindSafe(|| function(object))) {
            Ok(()) => Ok(true),
            Err(_) => Err(Undecodable {
                key: Some(key),
                resource_version,
                reason: "its transform panicked".into(),
            }),
        }
    }

    /// A transformed object, compact if it can be decoded from its new JSON.
    fn encoded(&self, object: Object) -> CachedObject {
        let json = self.codec.encode(&*object).ok();
        match json.and_then(|json| Some((self.codec.decode(&json).ok()?, json))) {
            Some((object, json)) => {
                CachedObject::compact(json.into(), object, self.codec, &self.lru)
            }
            None => CachedObject::decoded(object, self.codec),
        }
    }
}

fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    let name = metadata.name.as_deref().unwrap_or_default();
    ObjectKey::new(metadata.namespace.as_deref(), name)
}

fn undecodable(json: &[u8], reason: String) -> Undecodable {
    // With a key, the object counts as existing: a relist does not report it as deleted.
    let metadata = serde_json::from_slice::<Identified>(json)
        .ok()
        .map(|object| object.metadata);
    let key = metadata
        .as_ref()
        .filter(|metadata| metadata.name.is_some())
        .map(key_of);
    Undecodable {
        key,
        resource_version: metadata.and_then(|metadata| metadata.resource_version),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use bellerophon_kinds::Kind;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::DynamicObject;

    use super::*;

    fn decoder(transform: TransformFn) -> Decoder {
        Decoder {
            codec: ConfigMap::codec(),
            types: None,
            transform,
            keeps_json: true,
            lru: Arc::new(DecodedLru::new(1)),
        }
    }

    fn print(event: ReceivedEvent) -> String {
        let version = |version: Option<String>| version.unwrap_or_default();
        match event {
            ReceivedEvent::Applied(object) => format!("+{}", object.key),
            ReceivedEvent::Deleted {
                key,
                object,
                resource_version,
            } => {
                let state = if object.is_some() {
                    "decoded"
                } else {
                    "undecodable"
                };
                format!("-{key} {state} {}", version(resource_version))
            }
            ReceivedEvent::Bookmark { .. } => "bookmark".into(),
            ReceivedEvent::Undecodable(failure) => {
                let key = failure.key.map(|key| key.to_string()).unwrap_or_default();
                format!("?{key} {}", version(failure.resource_version))
            }
        }
    }

    #[test]
    fn undecodable_object_is_identified_if_its_metadata_can_be_decoded() {
        let decoder = decoder(TransformFn::None);
        let whole = r#"{"metadata":{"namespace":"n","name":"a","resourceVersion":"7"}}"#;
        let broken = r#"{"metadata":{"name":"a","resourceVersion":"7"},"data":5}"#;
        let cases: [(WatchEvent, &str); 5] = [
            (WatchEvent::Applied(whole.into()), "+n/a"),
            (WatchEvent::Deleted(whole.into()), "-n/a decoded 7"),
            (WatchEvent::Applied(broken.into()), "?a 7"),
            (WatchEvent::Deleted(broken.into()), "-a undecodable 7"),
            (WatchEvent::Applied("{}}".into()), "? "),
        ];
        for (event, printed) in cases {
            assert_eq!(print(decoder.event(event.clone())), printed, "{event:?}");
        }
    }

    #[test]
    fn one_undecodable_item_costs_no_other_of_its_page() {
        let items = [
            r#"{"metadata":{"name":"a"}}"#,
            r#"{"metadata":{"name":"b"},"data":5}"#,
        ];
        let page = decoder(TransformFn::None).page(ListPage {
            items: items.map(Into::into).into(),
            resource_version: "9".into(),
            continue_token: None,
        });
        let skipped: Vec<_> = page
            .undecodable
            .into_iter()
            .map(|skipped| skipped.key)
            .collect();
        assert_eq!(page.objects.len(), 1);
        assert_eq!(skipped, [Some(ObjectKey::cluster("b"))]);
    }

    #[test]
    fn dynamic_object_of_a_list_gets_the_types_of_its_resource() {
        let dynamic = Decoder {
            codec: DynamicObject::codec(),
            types: Some(TypeMeta::resource::<ConfigMap>()),
            ..decoder(TransformFn::StripManagedFields)
        };
        for (json, kind) in [
            (
                r#"{"metadata":{"name":"a","uid":"u"},"data":{}}"#,
                "ConfigMap",
            ),
            (
                r#" { "metadata" : { "name" : "a", "uid": "u" } }"#,
                "ConfigMap",
            ),
            (
                r#"{"kind":"Other","metadata":{"name":"a","uid":"u"},"apiVersion":"v2"}"#,
                "Other",
            ),
        ] {
            let received = dynamic.received(json.as_bytes()).expect("an object");
            assert!(
                matches!(received.object, CachedObject::Compact(_)),
                "{json}"
            );
            let object = received.object.read_uncached();
            let object = object.downcast_ref::<DynamicObject>().expect("dynamic");
            let types = object.types.as_ref().expect("types");
            assert_eq!(types.kind, kind, "{json}");
            assert_eq!(object.metadata.name.as_deref(), Some("a"), "{json}");
        }
    }

    #[test]
    fn stripped_managed_fields_are_never_decoded() {
        // A number instead of a list: decoding it would fail.
        let json = r#"{"metadata":{"managedFields":7,"name":"a","labels":{"managedFields":"x"}},"data":{"managedFields":"y"}}"#;
        let stripped = decoder(TransformFn::StripManagedFields);
        let object = stripped.received(json.as_bytes()).expect("an object");
        let map = object.object.read_uncached();
        let map = map.downcast_ref::<ConfigMap>().expect("a config map");
        assert_eq!(
            map.data,
            Some([("managedFields".to_owned(), "y".to_owned())].into())
        );
        assert_eq!(map.metadata.managed_fields, None);
        assert!(
            decoder(TransformFn::None)
                .received(json.as_bytes())
                .is_err()
        );
    }
}
