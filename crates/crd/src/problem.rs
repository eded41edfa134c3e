//! Validation problems, before they become field errors.
//! In: failed checks of single keywords. Out: [`FieldError`]s with the value, message and path of
//! Kubernetes.
//! Guarantees: a message is reported once per outcome; the number of passed checks decides which
//! alternative of a junctor explains a failure.

use std::collections::HashSet;

use bellerophon_apimachinery::{
    error::ERRORS_MAX,
    field::{FieldError, Path, Shown, Verbatim},
};
use serde_json::Value;

use super::number::Num;

/// The result of judging one value.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    problems: Vec<Problem>,
    /// The messages of `problems`.
    texts: HashSet<String>,
    /// How many checks were made; among failed alternatives the one with most is reported.
    pub(super) matches: usize,
}

impl Outcome {
    /// One check passed, or its problem.
    pub(super) fn matched_unless(problem: Option<Problem>) -> Self {
        Self {
            matches: usize::from(problem.is_none()),
            ..problem.into()
        }
    }

    /// The problems.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Drops all problems.
    pub(super) fn clear(&mut self) {
        self.problems.clear();
        self.texts.clear();
    }

    pub(super) fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn push(&mut self, problem: Problem) {
        if self.problems.len() < ERRORS_MAX && self.texts.insert(problem.text.clone()) {
            self.problems.push(problem);
        }
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Option<Problem>>) {
        problems.into_iter().flatten().for_each(|p| self.push(p));
    }

    pub(super) fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        other.problems.into_iter().for_each(|p| self.push(p));
    }

    /// Merges the outcome of a check that applied to the value.
    pub(super) fn merge_checked(&mut self, other: Outcome) {
        self.merge(other);
        self.matches += 1;
    }
}

impl From<Option<Problem>> for Outcome {
    fn from(problem: Option<Problem>) -> Self {
        let mut outcome = Self::default();
        problem.into_iter().for_each(|p| outcome.push(p));
        outcome
    }
}

/// One failed check.
#[derive(Debug)]
pub(super) struct Problem {
    /// The path below the value that was validated; none when the check is of no single place.
    name: Option<String>,
    /// The message that distinguishes one problem from another.
    text: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Required,
    NotSupported {
        value: String,
        allowed: Vec<String>,
    },
    TooLong {
        max: i64,
    },
    TooMany {
        actual: usize,
        max: i64,
    },
    /// The value as shown.
    TypeError(String),
    /// The value as shown.
    Invalid(String),
}

impl Problem {
    fn at(path: &Path<'_>, words: &str, kind: Kind) -> Self {
        let name = path.to_string();
        Self {
            text: format!("{name} in body {words}"),
            name: Some(name),
            kind,
        }
    }

    pub(super) fn composite(text: String) -> Self {
        Self {
            name: None,
            text,
            kind: Kind::Invalid("\"\"".into()),
        }
    }

    pub(super) fn type_error(path: &Path<'_>, wanted: &str, found: &str) -> Self {
        Self::at(
            path,
            &format!("must be of type {wanted}: {}", found.shown()),
            Kind::TypeError(found.shown()),
        )
    }

    pub(super) fn invalid(path: &Path<'_>, value: impl Shown, words: &str) -> Self {
        Self::at(path, words, Kind::Invalid(value.shown()))
    }

    pub(super) fn bad_factor(path: &Path<'_>, factor: Num) -> Self {
        let name = path.to_string();
        let text = format!("factor MultipleOf declared for {name} must be positive: {factor}");
        Self {
            text,
            name: Some(name),
            kind: Kind::Invalid(factor.to_string()),
        }
    }

    pub(super) fn forbidden_property(path: &Path<'_>, property: &str) -> Self {
        let name = path.to_string();
        Self {
            text: format!("{name}.{property} in body is a forbidden property"),
            name: Some(name),
            kind: Kind::Invalid(property.shown()),
        }
    }

    pub(super) fn required(path: &Path<'_>, property: &str) -> Self {
        let name = format!("{path}.{property}");
        Self {
            text: format!("{name} in body is required"),
            name: Some(name),
            kind: Kind::Required,
        }
    }

    pub(super) fn too_long(path: &Path<'_>, max: i64) -> Self {
        Self::at(
            path,
            &format!("should be at most {max} chars long"),
            Kind::TooLong { max },
        )
    }

    pub(super) fn too_many(path: &Path<'_>, actual: usize, max: i64, what: &str) -> Self {
        Self::at(
            path,
            &format!("should have at most {max} {what}"),
            Kind::TooMany { actual, max },
        )
    }

    pub(super) fn not_supported(path: &Path<'_>, value: &Value, allowed: &[Value]) -> Self {
        let allowed: Vec<String> = allowed
            .iter()
            .map(|a| a.as_str().map_or_else(|| a.to_string(), str::to_owned))
            .collect();
        Self::at(
            path,
            &format!("should be one of [{}]", allowed.join(" ")),
            Kind::NotSupported {
                value: shown(value),
                allowed,
            },
        )
    }

    /// The field error of a value at `prefix`.
    pub(super) fn into_error(self, prefix: Option<&Path<'_>>) -> FieldError {
        let name = self
            .name
            .as_deref()
            .map(|n| n.strip_prefix('.').unwrap_or(n))
            .filter(|n| !n.is_empty());
        let field = match (prefix, name) {
            (Some(prefix), Some(name)) => prefix.child(name).to_string(),
            (Some(prefix), None) => prefix.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => NOWHERE.to_owned(),
        };
        match self.kind {
            Kind::Required => FieldError::required(field, ""),
            Kind::NotSupported { value, allowed } => {
                let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
                FieldError::not_supported(field, Verbatim(&value), &allowed)
            }
            Kind::TooLong { max } => FieldError::too_long(field, usize::try_from(max).unwrap_or(0)),
            Kind::TooMany { actual, max } => {
                FieldError::too_many(field, actual, usize::try_from(max).unwrap_or(0))
            }
            Kind::TypeError(value) => FieldError::type_invalid(field, Verbatim(&value), &self.text),
            Kind::Invalid(value) => FieldError::invalid(field, Verbatim(&value), &self.text),
        }
    }
}

/// How Kubernetes prints the place of a problem that has none.
pub(crate) const NOWHERE: &str = "<nil>";

impl Shown for Num {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A value as messages show it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Number(n) => Num::of(n).shown(),
        other => other.shown(),
    }
}
