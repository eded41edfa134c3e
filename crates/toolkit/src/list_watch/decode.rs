//! The server's responses, split into objects.
//! In: a page of a list, a line of a watch. Out: the JSON of each object.
//! Guarantees: an object is not looked into, so one that cannot be decoded costs no other.

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ListPage, ListWatchError, WatchEvent};

/// The annotation of the bookmark after the last initial event.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    // Some servers write the empty list as null.
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: ObjectMeta,
}

/// One page of a list.
pub(super) fn page(text: &Bytes) -> Result<ListPage, ListWatchError> {
    let list: List<'_> = serde_json::from_slice(text)
        .map_err(|error| ListWatchError::Other(format!("the list cannot be decoded: {error}")))?;
    let items = list.items.unwrap_or_default().into_iter();
    Ok(ListPage {
        items: items
            .map(|item| text.slice_ref(item.get().as_bytes()))
            .collect(),
        resource_version: list.metadata.resource_version.unwrap_or_default(),
        continue_token: list.metadata.continue_.filter(|token| !token.is_empty()),
    })
}

/// One line of a watch; `None` for a line that the end of the stream cut short, whose event the
/// next watch sends again, and for an event type that is not known.
pub(super) fn event(line: &Bytes) -> Option<Result<WatchEvent, ListWatchError>> {
    // Parsing finds the end of the object by reading all of it; the decoder does that again.
    if let Some((event, object)) = split(line) {
        return Some(Ok(event(line.slice_ref(object))));
    }
    let Line { event, object } = serde_json::from_slice(line).ok()?;
    let bytes = object.get().as_bytes();
    match event {
        "ADDED" | "MODIFIED" => Some(Ok(WatchEvent::Applied(line.slice_ref(bytes)))),
        "DELETED" => Some(Ok(WatchEvent::Deleted(line.slice_ref(bytes)))),
        "BOOKMARK" => Some(bookmark(bytes)),
        "ERROR" => Some(Err(error(bytes))),
        unknown => {
            tracing::warn!(event = unknown, "skipping a watch event of an unknown type");
            None
        }
    }
}

/// Makes the event of an object.
type ToEvent = fn(Bytes) -> WatchEvent;

/// Splits a line that is written as servers write it, which nearly all are, without parsing it.
fn split(line: &[u8]) -> Option<(ToEvent, &[u8])> {
    const BEGINNINGS: [(&[u8], ToEvent); 3] = [
        (br#"{"type":"ADDED","object":"#, WatchEvent::Applied),
        (br#"{"type":"MODIFIED","object":"#, WatchEvent::Applied),
        (br#"{"type":"DELETED","object":"#, WatchEvent::Deleted),
    ];
    // A line without its newline may have been cut short.
    let line = line.strip_suffix(b"\n")?;
    let line = line.trim_ascii_end().strip_suffix(b"}")?;
    let split =
        |(beginning, event): &(&[u8], ToEvent)| Some((*event, line.strip_prefix(*beginning)?));
    BEGINNINGS.iter().find_map(split)
}

fn bookmark(object: &[u8]) -> Result<WatchEvent, ListWatchError> {
    let Bookmark { metadata } = serde_json::from_slice(object)
        .map_err(|error| ListWatchError::Other(format!("a bookmark cannot be decoded: {error}")))?;
    let annotations = metadata.annotations.unwrap_or_default();
    Ok(WatchEvent::Bookmark {
        resource_version: metadata.resource_version.unwrap_or_default(),
        // Bookmarks within the initial events do not have the annotation.
        ends_initial_events: annotations
            .get(INITIAL_EVENTS_END)
            .is_some_and(|end| end == "true"),
    })
}

fn error(object: &[u8]) -> ListWatchError {
    match serde_json::from_slice::<Status>(object) {
        Ok(status) => ListWatchError::from_status(&status),
        Err(error) => ListWatchError::Other(format!("an error cannot be decoded: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(line: &str) -> String {
        let text = |object: &Bytes| String::from_utf8_lossy(object).into_owned();
        match event(&Bytes::copy_from_slice(line.as_bytes())) {
            None => "skipped".into(),
            Some(Err(error)) => error.to_string(),
            Some(Ok(WatchEvent::Applied(object))) => format!("+{}", text(&object)),
            Some(Ok(WatchEvent::Deleted(object))) => format!("-{}", text(&object)),
            Some(Ok(WatchEvent::Bookmark {
                resource_version,
                ends_initial_events,
            })) => {
                format!("^{resource_version} {ends_initial_events}")
            }
        }
    }

    #[test]
    fn lines_of_a_watch_become_events() {
        let a = r#"{"metadata":{"name":"a"}}"#;
        let bookmark =
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#;
        let end = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
        let expired =
            r#"{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}"#;
        let cases = [
            (
                format!("{{\"type\":\"ADDED\",\"object\":{a}}}\n"),
                format!("+{a}"),
            ),
            (
                format!("{{\"type\":\"ADDED\",\"object\":{a}}}\r\n"),
                format!("+{a}"),
            ),
            (
                format!("{{\"object\":{a},\"type\":\"MODIFIED\"}}\n"),
                format!("+{a}"),
            ),
            (
                format!("{{\"type\":\"DELETED\",\"object\":{a}}}"),
                format!("-{a}"),
            ),
            (
                format!("{{\"type\":\"SURPRISE\",\"object\":{a}}}\n"),
                "skipped".into(),
            ),
            (
                format!("{{\"type\":\"BOOKMARK\",\"object\":{bookmark}}}\n"),
                "^9 false".into(),
            ),
            (
                format!("{{\"type\":\"BOOKMARK\",\"object\":{end}}}\n"),
                "^9 true".into(),
            ),
            (
                format!("{{\"type\":\"ERROR\",\"object\":{expired}}}\n"),
                "the resource version is too old: m".into(),
            ),
            (
                r#"{"type":"ADDED","object":{"metadata":{"na"#.into(),
                "skipped".into(),
            ),
            (
                r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}"#.into(),
                "skipped".into(),
            ),
        ];
        for (line, event) in cases {
            assert_eq!(print(&line), event, "{line}");
        }
    }

    #[test]
    fn page_is_split_into_its_objects() {
        let text = r#"{"metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":7}]}"#;
        let page = page(&Bytes::from_static(text.as_bytes())).expect("a page");
        assert_eq!(
            page.items,
            [&br#"{"metadata":{"name":"a"}}"#[..], br#"{"metadata":7}"#]
        );
        assert_eq!(page.resource_version, "9");
        assert_eq!(page.continue_token.as_deref(), Some("t"));
    }

    #[test]
    fn empty_list_may_be_null_and_end_with_an_empty_token() {
        let text = br#"{"metadata":{"resourceVersion":"9","continue":""},"items":null}"#;
        let read = page(&Bytes::from_static(text)).expect("a page");
        assert_eq!(read.items.len(), 0);
        assert_eq!(read.continue_token, None);
        assert!(page(&Bytes::from_static(b"<html>")).is_err());
    }
}
