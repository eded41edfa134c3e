//! Labels and label selectors in words.

use serde_json::{Map, Value};

use super::field::Fields;

/// `app=web,tier=front`, by key; `<none>` for no labels.
pub(super) fn labels(labels: Option<&Map<String, Value>>) -> String {
    let mut pairs: Vec<(&str, &str)> =
        labels.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())).collect();
    pairs.sort_unstable();
    let words: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if words.is_empty() { "<none>".into() } else { words.join(",") }
}

/// A selector as it would be typed, `<none>` when it says nothing.
pub(super) fn selector_or_none(selector: Option<&Value>) -> String {
    match selector_text(selector) {
        None => "<error>".into(),
        Some(text) if text.is_empty() => "<none>".into(),
        Some(text) => text,
    }
}

/// A selector as it would be typed: `app=web,tier in (a,b),!old`, by key. Nothing when an operator is unknown.
pub(super) fn selector_text(selector: Option<&Value>) -> Option<String> {
    let Some(selector) = selector else { return Some(String::new()) };
    let mut terms: Vec<(&str, String)> = Vec::new();
    for (key, value) in selector.map("matchLabels").into_iter().flatten() {
        terms.push((key, format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    for expression in selector.list("matchExpressions") {
        terms.push((expression.text("key"), term(expression)?));
    }
    terms.sort_by_key(|(key, _)| *key);
    Some(terms.into_iter().map(|(_, words)| words).collect::<Vec<_>>().join(","))
}

fn term(expression: &Value) -> Option<String> {
    let key = expression.text("key");
    let mut values = expression.texts("values");
    values.sort_unstable();
    Some(match expression.text("operator") {
        "In" => format!("{key} in ({})", values.join(",")),
        "NotIn" => format!("{key} notin ({})", values.join(",")),
        "Exists" => key.into(),
        "DoesNotExist" => format!("!{key}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_read_as_they_are_typed() {
        let selector = json!({
            "matchLabels": { "tier": "front", "app": "web" },
            "matchExpressions": [
                { "key": "zone", "operator": "In", "values": ["b", "a"] },
                { "key": "old", "operator": "DoesNotExist" },
                { "key": "os", "operator": "NotIn", "values": ["plan9"] },
                { "key": "here", "operator": "Exists" },
            ],
        });
        assert_eq!(selector_or_none(Some(&selector)), "app=web,here,!old,os notin (plan9),tier=front,zone in (a,b)");
        assert_eq!(selector_or_none(None), "<none>");
        assert_eq!(selector_or_none(Some(&json!({}))), "<none>");
        assert_eq!(selector_text(Some(&json!({}))).as_deref(), Some(""));
        assert_eq!(selector_or_none(Some(&json!({ "matchExpressions": [{ "key": "a", "operator": "Like" }] }))), "<error>");
    }

    #[test]
    fn labels_are_sorted() {
        assert_eq!(labels(json!({ "b": "2", "a": "" }).as_object()), "a=,b=2");
        assert_eq!(labels(None), "<none>");
    }
}
