//! Label selectors inside objects: `matchLabels` and `matchExpressions`.
//! In: the selector's JSON. Out: whether labels match, and its text form.
//! Guarantees: an absent selector matches nothing; an empty one matches everything.

use std::borrow::Cow;
use std::fmt;

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    json_ext::JsonExt,
    names,
};
use serde_json::{Map, Value};

/// A label selector, ready to be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector<'a> {
    /// Absent: matches nothing.
    Nothing,
    /// Everything that meets all of these, sorted by key.
    Terms(Vec<Term<'a>>),
}

/// One demand on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term<'a> {
    key: Cow<'a, str>,
    test: Test<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test<'a> {
    Equals(Cow<'a, str>),
    In(Vec<Cow<'a, str>>),
    NotIn(Vec<Cow<'a, str>>),
    Exists,
    Absent,
}

impl<'a> Selector<'a> {
    /// Parses a selector; `None` when one of its terms is invalid.
    pub fn read(value: Option<&'a Value>) -> Option<Self> {
        let Some(value) = value.filter(|v| !v.is_null()) else {
            return Some(Self::Nothing);
        };
        let mut terms = Vec::new();
        for (key, wanted) in value.entries("matchLabels") {
            terms.push(Term {
                key: key.into(),
                test: Test::Equals(wanted.as_str().unwrap_or_default().into()),
            });
        }
        for expression in value.list("matchExpressions") {
            let mut values: Vec<Cow<'a, str>> =
                expression.texts("values").map(Cow::Borrowed).collect();
            values.sort_unstable();
            let test = match (expression.text("operator"), values.is_empty()) {
                ("In", false) => Test::In(values),
                ("NotIn", false) => Test::NotIn(values),
                ("Exists", true) => Test::Exists,
                ("DoesNotExist", true) => Test::Absent,
                _ => return None,
            };
            terms.push(Term {
                key: expression.text("key").into(),
                test,
            });
        }
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        terms
            .iter()
            .all(Term::is_sound)
            .then_some(Self::Terms(terms))
    }

    /// The selector of a map of labels, as a ReplicationController has it.
    pub fn of_labels(labels: Option<&'a Map<String, Value>>) -> Self {
        let term = |(key, value): (&'a String, &'a Value)| Term {
            key: key.into(),
            test: Test::Equals(value.as_str().unwrap_or_default().into()),
        };
        Self::Terms(labels.into_iter().flatten().map(term).collect())
    }

    /// The same selector, without what it was read from.
    pub fn into_owned(self) -> Selector<'static> {
        match self {
            Self::Nothing => Selector::Nothing,
            Self::Terms(terms) => {
                Selector::Terms(terms.into_iter().map(Term::into_owned).collect())
            }
        }
    }

    /// Whether it lets everything through.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Terms(terms) if terms.is_empty())
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches_label(|key| labels?.get(key)?.as_str())
    }

    /// Whether an object is selected whose labels have these values.
    pub fn matches_label<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Terms(terms) => terms.iter().all(|term| term.matches(label(&term.key))),
        }
    }
}

impl Term<'_> {
    fn into_owned(self) -> Term<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let all = |values: Vec<Cow<'_, str>>| values.into_iter().map(owned).collect();
        Term {
            key: owned(self.key),
            test: match self.test {
                Test::Equals(value) => Test::Equals(owned(value)),
                Test::In(values) => Test::In(all(values)),
                Test::NotIn(values) => Test::NotIn(all(values)),
                Test::Exists => Test::Exists,
                Test::Absent => Test::Absent,
            },
        }
    }

    fn is_sound(&self) -> bool {
        let values = match &self.test {
            Test::Equals(value) => std::slice::from_ref(value),
            Test::In(values) | Test::NotIn(values) => values,
            Test::Exists | Test::Absent => &[],
        };
        names::qualified_name(&self.key).is_empty()
            && values.iter().all(|v| names::label_value(v).is_empty())
    }

    fn matches(&self, label: Option<&str>) -> bool {
        match (&self.test, label) {
            (Test::Equals(wanted), Some(label)) => *wanted == label,
            (Test::In(values), Some(label)) => values.iter().any(|value| value == label),
            (Test::NotIn(values), Some(label)) => values.iter().all(|value| value != label),
            (Test::NotIn(_) | Test::Absent, None) | (Test::Exists, Some(_)) => true,
            (Test::Equals(_) | Test::In(_) | Test::Exists, None) | (Test::Absent, Some(_)) => false,
        }
    }
}

impl fmt::Display for Selector<'_> {
    /// As a query would write it: `app=web,tier in (a,b)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Terms(terms) = self else {
            return Ok(());
        };
        for (i, term) in terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let key = &term.key;
            match &term.test {
                Test::Equals(value) => write!(f, "{key}={value}")?,
                Test::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Test::Exists => f.write_str(key)?,
                Test::Absent => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

/// How a message shows a selector: labels before expressions.
pub(crate) fn shown(selector: Option<&Value>) -> String {
    let Some(selector) = selector else {
        return "null".into();
    };
    let parts: Vec<String> = ["matchLabels", "matchExpressions"]
        .iter()
        .filter_map(|n| Some(format!("\"{n}\":{}", selector.get_set(n)?)))
        .collect();
    format!("{{{}}}", parts.join(","))
}

/// `Invalid value: SELECTOR: detail`.
pub(crate) fn invalid(selector: Option<&Value>, path: Path<'_>, detail: &str) -> FieldError {
    FieldError::invalid(path, Verbatim(&shown(selector)), detail)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_a_query_would() {
        let labels = json!({"app": "web", "tier": "front"});
        let cases = [
            (json!({"matchLabels": {"app": "web"}}), true, "app=web"),
            (json!({}), true, ""),
            (json!(null), false, ""),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["back", "front"]}]}),
                true,
                "tier in (back,front)",
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}),
                false,
                "tier notin (front)",
            ),
            (
                json!({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}, {"key": "app", "operator": "Exists"}]}),
                true,
                "app,!zone",
            ),
        ];
        for (selector, matches, text) in cases {
            let read = Selector::read(Some(&selector)).expect("a sound selector");
            assert_eq!(read.matches(labels.as_object()), matches, "{selector}");
            assert_eq!(read.to_string().as_str(), text, "{selector}");
        }
    }

    #[test]
    fn senseless_terms_make_no_selector() {
        for expression in [
            json!({"key": "a", "operator": "Is", "values": ["b"]}),
            json!({"key": "a", "operator": "In"}),
            json!({"key": "", "operator": "Exists"}),
        ] {
            assert!(Selector::read(Some(&json!({ "matchExpressions": [expression] }))).is_none());
        }
    }
}
