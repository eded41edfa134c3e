//! Labels and label selectors as text.

use serde_json::{Map, Value};

use crate::kinds::Selector;

/// `app=web,tier=front`, by key; `<none>` for no labels.
pub(super) fn labels(labels: Option<&Map<String, Value>>) -> String {
    or_none(Selector::of_labels(labels).to_string())
}

/// A selector as in `kubectl -l`: `app=web,tier in (a,b),!old`; `<none>` when it is empty.
pub(super) fn selector_or_none(selector: Option<&Value>) -> String {
    Selector::read(selector).map_or_else(
        || "<error>".into(),
        |selector| or_none(selector.to_string()),
    )
}

/// A selector as in `kubectl -l`, empty for an empty one.
pub(super) fn selector_text(selector: Option<&Value>) -> String {
    Selector::read(selector).map_or_else(|| "<invalid>".into(), |selector| selector.to_string())
}

fn or_none(text: String) -> String {
    if text.is_empty() {
        "<none>".into()
    } else {
        text
    }
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
        assert_eq!(
            selector_or_none(Some(&selector)),
            "app=web,here,!old,os notin (plan9),tier=front,zone in (a,b)"
        );
        assert_eq!(selector_or_none(None), "<none>");
        assert_eq!(selector_or_none(Some(&json!({}))), "<none>");
        assert_eq!(selector_text(Some(&json!({}))), "");
        assert_eq!(
            selector_or_none(Some(
                &json!({ "matchExpressions": [{ "key": "a", "operator": "Like" }] })
            )),
            "<error>"
        );
    }

    #[test]
    fn labels_are_sorted() {
        assert_eq!(labels(json!({ "b": "2", "a": "" }).as_object()), "a=,b=2");
        assert_eq!(labels(None), "<none>");
    }
}
