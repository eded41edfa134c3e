//! A response in a form that can be compared: names for values that differ between runs, and only the
//! headers that are compared.

mod names; // run-dependent values get names that stay

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use indexmap::IndexMap;

use crate::json::Json;

pub(crate) use names::Names;

/// The headers that clients act on.
const KEPT: &[&str] = &[
    "content-type",
    "warning",
    "retry-after",
    "location",
    "cache-control",
    "vary",
    "allow",
];

/// Separates the values of a header that came more than once.
const BETWEEN: &str = " | ";

/// The kept headers, with run-dependent values named. Warnings come in no particular order, so they are sorted.
pub(crate) fn headers_of(headers: &HeaderMap, names: &mut Names) -> Json {
    let mut kept: IndexMap<&str, String> = IndexMap::new();
    for (name, value) in headers
        .iter()
        .filter(|(name, _)| KEPT.contains(&name.as_str()))
    {
        // Header bytes are Latin-1, as in the recordings.
        let value: String = value.as_bytes().iter().copied().map(char::from).collect();
        kept.entry(name.as_str())
            .and_modify(|all| all.extend([BETWEEN, &value]))
            .or_insert(value);
    }
    if let Some(warning) = kept.get_mut("warning") {
        let mut single: Vec<&str> = warning.split(BETWEEN).collect();
        single.sort_unstable();
        *warning = single.join(BETWEEN);
    }
    Json::Map(
        kept.into_iter()
            .map(|(name, value)| (name.to_owned(), Json::Text(names.text(&value))))
            .collect(),
    )
}

/// The body as JSON, as text if it is none, as null if it is empty.
pub(crate) fn body_of(bytes: &Bytes) -> Json {
    if bytes.is_empty() {
        return Json::Null;
    }
    Json::parse(bytes).unwrap_or_else(|_| Json::text(String::from_utf8_lossy(bytes)))
}

/// An answer to a request, ready to compare.
pub(crate) fn answer(status: StatusCode, headers: Json, body: Json, names: &mut Names) -> Json {
    Json::map([
        ("status", Json::number(status.as_u16())),
        ("headers", headers),
        ("body", names.value(body, "")),
    ])
}

/// The answer to the opening of a watch.
pub(crate) fn opened(status: StatusCode) -> Json {
    Json::map([("status", Json::number(status.as_u16()))])
}

/// What a watch delivered. Periodic bookmarks come when they come, so only the one that ends the initial events counts.
pub(crate) fn collected(status: StatusCode, events: Vec<Json>, names: &mut Names) -> Json {
    let counts = |event: &Json| {
        event.get("type").and_then(Json::as_text) != Some("BOOKMARK")
            || event.to_string().contains("k8s.io/initial-events-end")
    };
    let events = events
        .into_iter()
        .filter(counts)
        .map(|event| names.value(event, ""))
        .collect();
    Json::map([
        ("status", Json::number(status.as_u16())),
        ("events", Json::List(events)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn kept_headers_are_joined_and_warnings_sorted() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("warning", "b"),
            ("date", "now"),
            ("warning", "a"),
            ("content-type", "application/json"),
            ("allow", "GET"),
            ("allow", "PUT"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let kept = headers_of(&headers, &mut Names::new("vx", "x"));
        let wanted = Json::map([
            ("warning", Json::text("a | b")),
            ("content-type", Json::text("application/json")),
            ("allow", Json::text("GET | PUT")),
        ]);
        assert_eq!(kept, wanted);
    }

    #[test]
    fn periodic_bookmarks_do_not_count() {
        let event = |text: &str| Json::parse(text.as_bytes()).expect("the test wrote JSON");
        let events = vec![
            event(r#"{"type":"BOOKMARK","object":{}}"#),
            event(
                r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            ),
            event(r#"{"type":"ADDED"}"#),
        ];
        let kept = collected(StatusCode::OK, events.clone(), &mut Names::new("vx", "x"));
        assert_eq!(kept.get("events"), Some(&Json::List(events[1..].to_vec())));
    }

    #[test]
    fn bodies_are_json_text_or_nothing() {
        for (bytes, body) in [
            ("", Json::Null),
            ("ok", Json::text("ok")),
            ("[1]", Json::List(vec![Json::number(1)])),
        ] {
            assert_eq!(body_of(&Bytes::from_static(bytes.as_bytes())), body);
        }
    }
}
