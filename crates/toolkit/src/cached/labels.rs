//! Labels: matches selectors against labels in JSON.
//! In: a selector, prepared once. Out: whether labels match.
//! Guarantees: the result is that of decoded labels; labels without escapes cost no allocation.

use std::collections::BTreeMap;

use kube::core::{Expression, Selector, SelectorExt};

use crate::scan::Members;

/// A selector, ready for many objects.
pub(crate) struct Matcher {
    selector: Selector,
    expressions: Vec<Expression>,
}

impl Matcher {
    pub(crate) fn new(selector: &Selector) -> Self {
        Self {
            selector: selector.clone(),
            expressions: selector.clone().into_iter().collect(),
        }
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.matches(labels)
    }

    /// The same for the value of `metadata.labels`, which was decoded once.
    pub(crate) fn matches_json(&self, labels: &[u8]) -> bool {
        // Escapes are rare in labels: their syntax allows no character that JSON has to escape.
        if labels.contains(&b'\\') {
            return self.matches(&serde_json::from_slice(labels).unwrap_or_default());
        }
        self.expressions
            .iter()
            .all(|expression| holds(expression, labels))
    }
}

fn holds(expression: &Expression, labels: &[u8]) -> bool {
    match expression {
        Expression::In(key, values) => {
            value_of(key, labels).is_some_and(|value| values.contains(value))
        }
        Expression::NotIn(key, values) => {
            // As Requirement.Matches of apimachinery: NotIn also matches objects without the label.
            value_of(key, labels).is_none_or(|value| !values.contains(value))
        }
        Expression::Equal(key, value) => value_of(key, labels) == Some(value),
        Expression::NotEqual(key, value) => value_of(key, labels) != Some(value),
        Expression::Exists(key) => value_of(key, labels).is_some(),
        Expression::DoesNotExist(key) => value_of(key, labels).is_none(),
    }
}

/// The value of a label; the last one if it is written twice, as in a decoder.
fn value_of<'a>(key: &str, labels: &'a [u8]) -> Option<&'a str> {
    let mut members = Members::of(labels, 0).ok()?;
    let mut found = None;
    while let Ok(Some(member)) = members.next() {
        if &labels[member.key] == key.as_bytes() {
            found = labels[member.value]
                .strip_prefix(b"\"")
                .and_then(|value| value.strip_suffix(b"\""));
        }
    }
    found.and_then(|value| std::str::from_utf8(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_decoded_labels_match_alike() {
        let labels = [
            "{}",
            r#"{"app":"web"}"#,
            r#"{"a":"1","app":"db","z":""}"#,
            "{ \"app\" : \"web\" , \"tier\" : \"front\" }",
            r#"{"app":"we\u0062","x":"<"}"#,
            r#"{"\u0061pp":"web"}"#,
            r#"{"app":"web","app":"db"}"#,
        ];
        let set = || ["web".to_owned(), "mail".to_owned()].into();
        let expressions = [
            Expression::Equal("app".into(), "web".into()),
            Expression::NotEqual("app".into(), "web".into()),
            Expression::In("app".into(), set()),
            Expression::NotIn("app".into(), set()),
            Expression::Exists("tier".into()),
            Expression::DoesNotExist("tier".into()),
            Expression::Equal("z".into(), String::new()),
        ];
        for json in labels {
            let decoded = serde_json::from_str(json).expect("labels");
            for (i, one) in expressions.iter().enumerate() {
                for other in &expressions[i..] {
                    let matcher = Matcher::new(&[one.clone(), other.clone()].into_iter().collect());
                    assert_eq!(
                        matcher.matches_json(json.as_bytes()),
                        matcher.matches(&decoded),
                        "{one:?} and {other:?} on {json}"
                    );
                }
            }
            assert!(Matcher::new(&Selector::default()).matches_json(json.as_bytes()));
        }
    }
}
