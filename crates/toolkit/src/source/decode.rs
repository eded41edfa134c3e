//! What a server answered, decoded object by object.
//! In: a page of a list, a line of a watch. Out: objects and events.
//! Holds: one object that cannot be decoded is named and passed over; managedFields that are dropped are not looked into.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::{Resource, core::WatchEvent};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{Page, Received, SourceError, SourceEvent, Undecodable};
use crate::key::ObjectKey;

/// The annotation of the bookmark after the last initial event.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Whether objects are read with `metadata.managedFields`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagedFields {
    Kept,
    Dropped,
}

impl ManagedFields {
    fn decode<K: DeserializeOwned>(self, json: &[u8]) -> Result<Received<K>, serde_json::Error> {
        match self {
            Self::Kept => Received::from_json(json),
            Self::Dropped => Received::from_json_without_managed_fields(json),
        }
    }
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    // Some servers write the empty list as null.
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// Enough of any object to name it.
#[derive(Clone, Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

impl Named {
    fn key(&self) -> Option<ObjectKey> {
        Some(ObjectKey::new(
            self.metadata.namespace.as_deref(),
            self.metadata.name.as_deref()?,
        ))
    }
}

/// One page of a list.
pub(super) fn page<K: DeserializeOwned>(
    text: &[u8],
    managed_fields: ManagedFields,
) -> Result<Page<Received<K>>, SourceError> {
    let nonsense =
        |error: serde_json::Error| SourceError::Other(format!("the list cannot be read: {error}"));
    let list: List<'_> = serde_json::from_slice(text).map_err(nonsense)?;
    let items = list.items.unwrap_or_default();
    let (mut objects, mut undecodable) = (Vec::with_capacity(items.len()), Vec::new());
    for item in items {
        match managed_fields.decode(item.get().as_bytes()) {
            Ok(object) => objects.push(object),
            Err(error) => undecodable.push(unreadable(
                serde_json::from_str(item.get()).ok(),
                error.to_string(),
            )),
        }
    }
    Ok(Page {
        objects,
        undecodable,
        resource_version: list.metadata.resource_version.unwrap_or_default(),
        continue_token: list.metadata.continue_.filter(|token| !token.is_empty()),
    })
}

/// One line of a watch; `None` for a line that the end of the stream cut short: the change will be told again.
pub(super) fn event<K: DeserializeOwned + Resource>(
    line: &[u8],
    managed_fields: ManagedFields,
) -> Option<Result<SourceEvent<Received<K>>, SourceError>> {
    if let Some((change, object)) = Change::in_line(line)
        && let Ok(object) = managed_fields.decode(object)
    {
        return Some(Ok(change.of(object)));
    }
    let error = match serde_json::from_slice::<WatchEvent<K>>(line) {
        Ok(event) => return Some(translate(event)),
        Err(error) if error.is_eof() => return None,
        Err(error) => error.to_string(),
    };
    Some(match serde_json::from_slice::<WatchEvent<Named>>(line) {
        Ok(WatchEvent::Deleted(named)) if named.metadata.name.is_some() => {
            let key = named.key().expect("a name makes a key");
            Ok(SourceEvent::Deleted {
                key,
                object: None,
                resource_version: named.metadata.resource_version,
            })
        }
        Ok(WatchEvent::Added(named) | WatchEvent::Modified(named)) => {
            Ok(SourceEvent::Undecodable(unreadable(Some(named), error)))
        }
        _ => Ok(SourceEvent::Undecodable(unreadable(None, error))),
    })
}

/// What happened to an object.
#[derive(Clone, Copy)]
enum Change {
    Applied,
    Deleted,
}

impl Change {
    /// Splits a line that is written as servers write it, which is how nearly all come. Whether the object is one is
    /// found out by decoding it.
    fn in_line(line: &[u8]) -> Option<(Self, &[u8])> {
        const BEGINNINGS: [(&[u8], Change); 3] = [
            (br#"{"type":"ADDED","object":"#, Change::Applied),
            (br#"{"type":"MODIFIED","object":"#, Change::Applied),
            (br#"{"type":"DELETED","object":"#, Change::Deleted),
        ];
        let line = line.trim_ascii_end().strip_suffix(b"}")?;
        BEGINNINGS
            .iter()
            .find_map(|(beginning, change)| Some((*change, line.strip_prefix(*beginning)?)))
    }

    fn of<K: Resource>(self, object: Received<K>) -> SourceEvent<Received<K>> {
        match self {
            Self::Applied => SourceEvent::Applied(object),
            Self::Deleted => {
                let (key, resource_version) = (
                    ObjectKey::of(&*object),
                    object.meta().resource_version.clone(),
                );
                SourceEvent::Deleted {
                    key,
                    object: Some(object),
                    resource_version,
                }
            }
        }
    }
}

fn translate<K: Resource>(event: WatchEvent<K>) -> Result<SourceEvent<Received<K>>, SourceError> {
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            Change::Applied.of(object.into())
        }
        WatchEvent::Deleted(object) => Change::Deleted.of(object.into()),
        WatchEvent::Bookmark(bookmark) => SourceEvent::Bookmark {
            ends_initial_events: bookmark
                .metadata
                .annotations
                .get(INITIAL_EVENTS_END)
                .is_some_and(|value| value == "true"),
            resource_version: bookmark.metadata.resource_version,
        },
        WatchEvent::Error(status) => return Err(SourceError::from_status(&status)),
    })
}

fn unreadable(named: Option<Named>, reason: String) -> Undecodable {
    let key = named.as_ref().and_then(Named::key);
    Undecodable {
        key,
        resource_version: named.and_then(|named| named.metadata.resource_version),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn print(line: &str) -> String {
        match event::<ConfigMap>(line.as_bytes(), ManagedFields::Dropped) {
            None => "cut short".into(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(SourceEvent::Applied(object))) => format!("+{}", ObjectKey::of(&*object)),
            Some(Ok(SourceEvent::Deleted {
                key,
                object,
                resource_version,
            })) => {
                format!(
                    "-{key} {} {}",
                    if object.is_some() {
                        "readable"
                    } else {
                        "unreadable"
                    },
                    resource_version.unwrap_or_default()
                )
            }
            Some(Ok(SourceEvent::Bookmark {
                resource_version,
                ends_initial_events,
            })) => {
                format!("^{resource_version} {ends_initial_events}")
            }
            Some(Ok(SourceEvent::Undecodable(Undecodable {
                key,
                resource_version,
                ..
            }))) => {
                format!(
                    "?{} {}",
                    key.map(|key| key.to_string()).unwrap_or_default(),
                    resource_version.unwrap_or_default()
                )
            }
        }
    }

    #[test]
    fn lines_of_a_watch_become_events() {
        let cases = [
            (
                r#"{"type":"ADDED","object":{"metadata":{"namespace":"n","name":"a"}}}"#,
                "+n/a",
            ),
            (
                r#"{"object":{"metadata":{"name":"a"}},"type":"MODIFIED"}"#,
                "+a",
            ),
            (
                r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#,
                "-a readable 7",
            ),
            (
                r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"7"},"data":5}}"#,
                "-a unreadable 7",
            ),
            (
                r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},"data":5}}"#,
                "?a 7",
            ),
            (r#"{"type":"SURPRISE","object":{}}"#, "? "),
            (
                r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}"#,
                "^9 false",
            ),
            (
                r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
                "^9 true",
            ),
            (
                r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}}"#,
                "the version is too old: m",
            ),
            (r#"{"type":"ADDED","object":{"metadata":{"na"#, "cut short"),
        ];
        for (line, wanted) in cases {
            assert_eq!(print(line), wanted, "{line}");
        }
    }

    #[test]
    fn one_unreadable_item_costs_no_other_of_its_page() {
        let text = r#"{"metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"data":5}]}"#;
        let read: Page<Received<ConfigMap>> =
            page(text.as_bytes(), ManagedFields::Kept).expect("a page");
        let unreadable: Vec<_> = read
            .undecodable
            .iter()
            .map(|undecodable| undecodable.key.clone())
            .collect();
        assert_eq!(
            (read.objects.len(), unreadable),
            (1, vec![Some(ObjectKey::cluster("b"))])
        );
        assert_eq!(
            (
                read.resource_version.as_str(),
                read.continue_token.as_deref()
            ),
            ("9", Some("t"))
        );
    }

    #[test]
    fn empty_list_may_be_null_and_end_with_an_empty_token() {
        let text = br#"{"metadata":{"resourceVersion":"9","continue":""},"items":null}"#;
        let read: Page<Received<ConfigMap>> = page(text, ManagedFields::Kept).expect("a page");
        assert_eq!((read.objects.len(), read.continue_token), (0, None));
        assert!(page::<ConfigMap>(b"<html>", ManagedFields::Kept).is_err());
    }

    #[test]
    fn managed_fields_are_never_decoded_when_they_are_dropped() {
        // What stands for them is no list of entries, so decoding it would fail.
        let object = r#"{"metadata":{"managedFields":7,"name":"a","labels":{"managedFields":"x"}},"data":{"managedFields":"y"}}"#;
        for line in [
            format!(r#"{{"type":"ADDED","object":{object}}}"#),
            format!("{{\"type\":\"ADDED\",\"object\":{object}}}\r\n"),
        ] {
            let Some(Ok(SourceEvent::Applied(read))) =
                event::<ConfigMap>(line.as_bytes(), ManagedFields::Dropped)
            else {
                panic!("{line} is an event");
            };
            let json = read.json.as_ref().expect("it came as JSON");
            assert_eq!(
                *json.bytes,
                *object.replace("\"managedFields\":7,", "").as_bytes()
            );
            assert_eq!(
                read.data,
                Some([("managedFields".to_owned(), "y".to_owned())].into())
            );
            assert!(matches!(
                event::<ConfigMap>(line.as_bytes(), ManagedFields::Kept),
                Some(Ok(SourceEvent::Undecodable(_)))
            ));
        }
    }
}
