//! Conditions in a status: one of each type, with a CamelCase reason.
//! Mirrors `ValidateConditions` in `apimachinery/pkg/apis/meta/v1/validation`.

use std::{collections::BTreeSet, sync::LazyLock};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use regex::Regex;
use serde_json::Value;

use super::validation;

const REASON: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";
const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;

static REASON_RE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(&format!("^(?:{REASON})$")).expect("the pattern is a constant of this file")
});

/// The errors of the conditions at this place.
pub(crate) fn validate(at: &Path, conditions: &[Value], out: &mut Vec<FieldError>) {
    let mut types = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        let kind = condition.text("type");
        if !types.insert(kind) {
            out.push(FieldError::duplicate(at.child("type"), kind));
        }
        validation::named(&at.child("type"), kind, names::qualified_name(kind), out);
        validation::one_of(
            &at.child("status"),
            condition.text("status"),
            &["False", "True", "Unknown"],
            out,
        );
        if let Some(generation) = condition.int("observedGeneration").filter(|g| *g < 0) {
            out.push(FieldError::invalid(
                at.child("observedGeneration"),
                generation,
                "must be greater than or equal to zero",
            ));
        }
        if condition.get_set("lastTransitionTime").is_none() {
            out.push(FieldError::required(at.child("lastTransitionTime"), ""));
        }
        reason(&at.child("reason"), condition.text("reason"), out);
        if condition.text("message").len() > MESSAGE_MAX {
            out.push(FieldError::too_long(at.child("message"), MESSAGE_MAX));
        }
    }
}

fn reason(at: &Path, reason: &str, out: &mut Vec<FieldError>) {
    if reason.is_empty() {
        out.push(FieldError::required(at, ""));
        return;
    }
    if !REASON_RE.is_match(reason) {
        let why = format!(
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{REASON}')"
        );
        out.push(FieldError::invalid(at, reason, &why));
    }
    if reason.len() > REASON_MAX {
        out.push(FieldError::too_long(at, REASON_MAX));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_complete_and_unique() {
        let good = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "AllGood"});
        let mut out = Vec::new();
        validate(
            &Path::field("c"),
            &[
                good.clone(),
                good,
                json!({"type": "a b", "status": "Maybe", "reason": "no!"}),
            ],
            &mut out,
        );
        let fields: Vec<&str> = out.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "c[1].type",
                "c[2].type",
                "c[2].status",
                "c[2].lastTransitionTime",
                "c[2].reason"
            ]
        );
    }
}
