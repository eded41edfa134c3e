//! Field selectors: `metadata.name=a,status.phase!=Running`.
//! Guarantees: selectable fields of a kind are extracted when it is written; other fields are
//! rejected before this stage.

use std::borrow::Cow;

use bellerophon_apimachinery::names;
use serde_json::Value;

use crate::{ObjectKey, Scope, Stored};

/// A list of comparisons that must all hold; none selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// The sentence Kubernetes answers with.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            if part.is_empty() {
                continue;
            }
            let (field, equal, value) = split_term(part)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            let value = unescape(value)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            terms.push(Term {
                field: field.to_owned(),
                equal,
                value,
            });
        }
        Ok(Self { terms })
    }

    /// Whether there is no comparison.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The fields compared.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|t| t.field.as_str())
    }

    /// The value that the selector requires of a field.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }

    /// The scope of objects that can match: one object where the name is given, none where no
    /// object can have that name.
    pub fn narrow(&self, scope: Scope, namespaced: bool) -> Scope {
        let name = self.required("metadata.name");
        let namespace = self
            .required("metadata.namespace")
            .filter(|_| namespaced && scope == Scope::All);
        if [name, namespace].into_iter().flatten().any(is_no_name) {
            return Scope::Nothing;
        }
        match (name, &scope) {
            (Some(name), Scope::Namespace(namespace)) => {
                Scope::Object(ObjectKey::new(namespace, name))
            }
            (Some(name), Scope::All) if !namespaced => Scope::Object(ObjectKey::new("", name)),
            _ => match namespace {
                Some(namespace) => Scope::Namespace(namespace.to_owned()),
                None => scope,
            },
        }
    }

    /// Whether this object is selected.
    pub fn matches(&self, object: &Stored) -> bool {
        self.terms
            .iter()
            .all(|t| (object.field(&t.field) == t.value) == t.equal)
    }
}

/// Whether no object can have this name: it is empty, or cannot be one segment of a path.
fn is_no_name(name: &str) -> bool {
    name.is_empty() || !names::path_segment(name).is_empty()
}

impl Stored {
    /// The text of a field, empty when it has none. Fields that were selectable when the object was
    /// written cost a look-up; others are read from its bytes.
    pub fn field(&self, field: &str) -> Cow<'_, str> {
        match field {
            "metadata.name" => Cow::Borrowed(self.key.name()),
            "metadata.namespace" => Cow::Borrowed(self.key.namespace()),
            _ => match self
                .attributes
                .fields
                .iter()
                .find(|(name, _)| &**name == field)
            {
                Some((_, text)) => Cow::Borrowed(text),
                None => Cow::Owned(
                    self.encoded
                        .decode()
                        .at(field)
                        .map(scalar_text)
                        .unwrap_or_default(),
                ),
            },
        }
    }
}

/// A scalar as field selectors compare it.
pub(crate) fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => String::new(),
    }
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(part: &str) -> Option<(&str, bool, &str)> {
    for (i, _) in part.char_indices() {
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = part[i..].strip_prefix(operator) {
                return Some((&part[..i], equal, value));
            }
        }
    }
    None
}

/// Undoes `\\`, `\,` and `\=`; a bare `,` or `=`, or another escape, is rejected.
fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return None,
            },
            ',' | '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_read_with_their_escapes() {
        let selector = FieldSelector::parse(r"a=1,b!=2\,3,c==x,,").expect("a good selector");
        let terms: Vec<_> = selector
            .terms
            .iter()
            .map(|t| (t.field.as_str(), t.equal, t.value.as_str()))
            .collect();
        assert_eq!(
            terms,
            [("a", true, "1"), ("b", false, "2,3"), ("c", true, "x")]
        );
        assert_eq!(
            FieldSelector::parse("metadata.name"),
            Err("invalid selector: 'metadata.name'; can't understand 'metadata.name'".to_owned())
        );
    }

    #[test]
    fn name_narrows_a_list_to_one_object() {
        let by_name = FieldSelector::parse("metadata.name=a").expect("a good selector");
        assert_eq!(
            by_name.narrow(Scope::Namespace("n".into()), true),
            Scope::Object(ObjectKey::new("n", "a"))
        );
        assert_eq!(by_name.narrow(Scope::All, true), Scope::All);
    }

    #[test]
    fn names_that_no_object_has_select_nothing() {
        for text in ["metadata.name=", "metadata.name=a/b", "metadata.name=.."] {
            let selector = FieldSelector::parse(text).expect("a good selector");
            for scope in [Scope::Namespace("n".into()), Scope::All] {
                assert_eq!(selector.narrow(scope, true), Scope::Nothing, "{text}");
            }
            assert_eq!(selector.narrow(Scope::All, false), Scope::Nothing, "{text}");
        }
        for text in ["metadata.namespace=", "metadata.namespace=a/b"] {
            let selector = FieldSelector::parse(text).expect("a good selector");
            assert_eq!(selector.narrow(Scope::All, true), Scope::Nothing, "{text}");
        }
    }
}
