//! Policies of a job: pod failure policy, success policy, pod replacement policy; and lists of
//! indexes.
//! In: the spec of a job. Out: the errors of its policies.
//! Mirrors `validatePodFailurePolicy` and `validateSuccessPolicy` in `pkg/apis/batch/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    json_ext::JsonExt,
    names,
};
use bellerophon_codec::types::Internal;
use serde_json::Value;

use super::super::validation;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const PATTERNS_MAX: usize = 20;
const INDEXES_BYTES_MAX: usize = 64 * 1024;

/// The errors of the policies of a job.
pub(super) fn validate(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if spec.has("podFailurePolicy") {
        validate_failures(spec, &at.child("podFailurePolicy"), out);
    }
    if let Some(policy) = spec.get_set("successPolicy") {
        let at = at.child("successPolicy");
        if spec.text("completionMode") == "Indexed" {
            validate_success(policy, spec.number("completions"), &at, out);
        } else {
            out.push(FieldError::invalid(
                at,
                Internal::one("batch.SuccessPolicy", policy),
                "requires indexed completion mode",
            ));
        }
    }
    if let Some(policy) = spec.field("podReplacementPolicy").as_str() {
        let supported: &[&str] = if spec.has("podFailurePolicy") {
            &["Failed"]
        } else {
            &["Failed", "TerminatingOrFailed"]
        };
        validation::one_of(&at.child("podReplacementPolicy"), policy, supported, out);
    }
}

/// `Invalid value: detail`, for a value too large to show.
pub(super) fn invalid_unshown(at: &Path<'_>, detail: &str) -> FieldError {
    FieldError::invalid(at, Verbatim(detail), "")
}

fn validate_failures(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let rules_at = at.child("rules");
    let rules = spec.field("podFailurePolicy").list("rules");
    if rules.len() > RULES_MAX {
        out.push(FieldError::too_many(rules_at, rules.len(), RULES_MAX));
    }
    let pods = spec.field("template").field("spec");
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|l| pods.list(l))
        .map(|c| c.text("name"))
        .collect();
    for (i, rule) in rules.iter().enumerate() {
        validate_rule(rule, spec, &containers, &rules_at.index(i), out);
    }
}

fn validate_rule(
    rule: &Value,
    spec: &Value,
    containers: &BTreeSet<&str>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let action_at = at.child("action");
    match rule.text("action") {
        "FailIndex" if !spec.has("backoffLimitPerIndex") => {
            out.push(FieldError::invalid(
                action_at,
                "FailIndex",
                "requires the backoffLimitPerIndex to be set",
            ));
        }
        action => validate_word(
            action,
            &["Count", "FailIndex", "FailJob", "Ignore"],
            &action_at,
            out,
        ),
    }
    let codes = rule.get_set("onExitCodes");
    let patterns = rule.list("onPodConditions");
    if let Some(codes) = codes {
        validate_codes(codes, containers, &at.child("onExitCodes"), out);
    }
    validate_patterns(patterns, &at.child("onPodConditions"), out);
    match (codes, patterns.is_empty()) {
        (Some(_), false) => out.push(invalid_unshown(
            at,
            "specifying both OnExitCodes and OnPodConditions is not supported",
        )),
        (None, true) => out.push(invalid_unshown(
            at,
            "specifying one of OnExitCodes and OnPodConditions is required",
        )),
        _ => {}
    }
}

/// A required enumeration value; the error lists the supported ones.
fn validate_word(word: &str, supported: &[&str], at: &Path<'_>, out: &mut Vec<FieldError>) {
    if word.is_empty() {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        out.push(FieldError::required(
            at,
            &format!("valid values: [{}]", list.join(" ")),
        ));
    } else {
        validation::one_of(at, word, supported, out);
    }
}

fn validate_codes(
    codes: &Value,
    containers: &BTreeSet<&str>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate_word(
        codes.text("operator"),
        &["In", "NotIn"],
        &at.child("operator"),
        out,
    );
    if let Some(name) = codes
        .field("containerName")
        .as_str()
        .filter(|n| !containers.contains(n))
    {
        let detail = "must be one of the container or initContainer names in the pod template";
        out.push(FieldError::invalid(at.child("containerName"), name, detail));
    }
    let values_at = at.child("values");
    let values = codes.list("values");
    if values.is_empty() {
        out.push(FieldError::invalid(
            values_at,
            codes.field("values"),
            "at least one value is required",
        ));
    } else if values.len() > EXIT_CODES_MAX {
        out.push(FieldError::too_many(
            values_at,
            values.len(),
            EXIT_CODES_MAX,
        ));
    }
    let mut seen = BTreeSet::new();
    let numbers: Vec<i64> = values
        .iter()
        .map(|v| v.as_i64().unwrap_or_default())
        .collect();
    for (i, code) in numbers.iter().enumerate() {
        if codes.text("operator") == "In" && *code == 0 {
            out.push(FieldError::invalid(
                values_at.index(i),
                *code,
                "must not be 0 for the In operator",
            ));
        }
        if !seen.insert(*code) {
            out.push(FieldError::duplicate(values_at.index(i), *code));
        }
    }
    if !numbers.is_sorted() {
        out.push(FieldError::invalid(
            values_at,
            codes.field("values"),
            "must be ordered",
        ));
    }
}

fn validate_patterns(patterns: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    if patterns.len() > PATTERNS_MAX {
        out.push(FieldError::too_many(at, patterns.len(), PATTERNS_MAX));
    }
    for (i, pattern) in patterns.iter().enumerate() {
        let at = at.index(i);
        validation::named(
            &at.child("type"),
            pattern.text("type"),
            names::qualified_name(pattern.text("type")),
            out,
        );
        validate_word(
            pattern.text("status"),
            &["False", "True", "Unknown"],
            &at.child("status"),
            out,
        );
    }
}

fn validate_success(policy: &Value, completions: i64, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let rules_at = at.child("rules");
    let rules = policy.list("rules");
    if rules.is_empty() {
        out.push(FieldError::required(
            rules_at,
            "at least one rules must be specified when the successPolicy is specified",
        ));
    }
    if rules.len() > RULES_MAX {
        out.push(FieldError::too_many(rules_at, rules.len(), RULES_MAX));
    }
    for (i, rule) in rules.iter().enumerate() {
        validate_success_rule(rule, completions, &rules_at.index(i), out);
    }
}

fn validate_success_rule(rule: &Value, completions: i64, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let count = rule.int("succeededCount");
    let list = rule.field("succeededIndexes").as_str();
    if count.is_none() && list.is_none() {
        out.push(FieldError::required(
            at,
            "at least one of succeededCount or succeededIndexes must be specified",
        ));
    }
    let mut total = 0;
    if let Some(list) = list {
        let at = at.child("succeededIndexes");
        if list.len() > INDEXES_BYTES_MAX {
            out.push(FieldError::too_long(at, INDEXES_BYTES_MAX));
        }
        match intervals(list, completions) {
            Ok(found) => total = found.iter().map(|(first, last)| last - first + 1).sum(),
            Err(why) => out.push(FieldError::invalid(
                at,
                list,
                &format!("error parsing succeededIndexes: {why}"),
            )),
        }
    }
    let Some(count) = count else { return };
    let at = at.child("succeededCount");
    validation::not_negative(&at, count, out);
    if count > completions {
        let detail = format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        );
        out.push(FieldError::invalid(at, count, &detail));
    }
    if list.is_some() && count > total {
        let detail = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        out.push(FieldError::invalid(at, count, &detail));
    }
}

/// Parses a list of indexes such as `1,3-5`: increasing, and below `completions`.
///
/// # Errors
/// The errors of the list.
pub(super) fn intervals(list: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    for part in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = interval(part, completions)?;
        if let Some((_, previous)) = found.last().filter(|(_, previous)| *previous >= first) {
            return Err(format!(
                "non-increasing order, previous: {previous}, current: {first}"
            ));
        }
        found.push((first, last));
    }
    Ok(found)
}

fn interval(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let ends: Vec<&str> = part.split('-').collect();
    if ends.len() > 2 {
        return Err(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|_| format!("cannot convert string to integer for index: {text:?}"))
    };
    let below = |index: i64, text: &str| {
        if index >= completions {
            Err(format!("too large index: {text:?}"))
        } else {
            Ok(index)
        }
    };
    let first = below(number(ends[0])?, ends[0])?;
    let Some(text) = ends.get(1) else {
        return Ok((first, first));
    };
    let last = below(number(text)?, text)?;
    if first >= last {
        return Err(format!(
            "non-increasing order, previous: {first}, current: {last}"
        ));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_lists_grow_and_stay_below_completions() {
        assert_eq!(intervals("", 5), Ok(vec![]));
        assert_eq!(intervals("0,2-4", 5), Ok(vec![(0, 0), (2, 4)]));
        assert_eq!(
            intervals("3,1", 5),
            Err("non-increasing order, previous: 3, current: 1".into())
        );
        assert_eq!(
            intervals("1-2-3", 5).map_err(|e| e.contains("at most two parts")),
            Err(true)
        );
        assert_eq!(intervals("7", 5), Err("too large index: \"7\"".into()));
        assert_eq!(
            intervals("x", 5),
            Err("cannot convert string to integer for index: \"x\"".into())
        );
    }
}
