//! Update strategies: counts and percentages that several workloads share; and counts in a status.
//! In: fields of a workload's spec or status. Out: their errors.
//! Mirrors `ValidateRollingUpdateDeployment` and the status checks of `pkg/apis/apps/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use serde_json::Value;

use super::super::validation;

/// A count, or a percentage of all.
pub(super) fn validate_count(value: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match value {
        Value::String(text) if percent(value).is_none() => {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            out.push(FieldError::invalid(at, text, detail));
        }
        Value::Number(number) => {
            validation::not_negative(at, number.as_i64().unwrap_or_default(), out)
        }
        _ => {}
    }
}

/// A percentage may not exceed 100%.
pub(super) fn validate_partial_count(value: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if percent(value).is_some_and(|p| p > 100) {
        out.push(FieldError::invalid(
            at,
            value,
            "must not be greater than 100%",
        ));
    }
}

fn percent(value: &Value) -> Option<i64> {
    let digits = value.as_str()?.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// Whether a count or percentage is zero.
pub(super) fn is_zero(value: &Value) -> bool {
    percent(value)
        .or_else(|| value.as_str().and_then(|s| s.parse().ok()))
        .or_else(|| value.as_i64())
        .unwrap_or_default()
        == 0
}

/// Counts in the status of a workload.
pub(super) struct Counts {
    /// None of these may be negative.
    pub(super) all: &'static [&'static str],
    /// None of these may be more than `replicas`.
    pub(super) parts: &'static [&'static str],
    /// The name of the count of ready replicas when available ones exceed it; empty where this is
    /// not validated.
    pub(super) ready: &'static str,
}

impl Counts {
    /// The errors of the counts of a new status, next to the old.
    pub(super) fn validate(&self, status: &Value, old: &Value, out: &mut Vec<FieldError>) {
        let at = Path::field("status");
        for field in self.all {
            validation::not_negative(&at.child(field), status.number(field), out);
        }
        for field in self
            .parts
            .iter()
            .filter(|f| status.number(f) > status.number("replicas"))
        {
            out.push(FieldError::invalid(
                at.child(field),
                status.number(field),
                "cannot be greater than status.replicas",
            ));
        }
        let available = status.number("availableReplicas");
        if !self.ready.is_empty() && available > status.number("readyReplicas") {
            out.push(FieldError::invalid(
                at.child("availableReplicas"),
                available,
                &format!("cannot be greater than {}", self.ready),
            ));
        }
        let count = status.int("collisionCount");
        let before = old.int("collisionCount");
        if self.all.contains(&"collisionCount")
            && before.is_some_and(|b| count.is_none_or(|c| c < b))
        {
            out.push(FieldError::invalid(
                at.child("collisionCount"),
                count.unwrap_or_default(),
                "cannot be decremented",
            ));
        }
    }
}
