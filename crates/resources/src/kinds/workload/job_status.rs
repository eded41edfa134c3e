//! Validates updates of the status of a job.
//! In: the new and the old Job of a status write. Out: the errors of the new status.
//! Mirrors `ValidateJobStatus` and `ValidateJobUpdateStatus` in `pkg/apis/batch/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonExt, same},
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    super::validation,
    job_policy::{intervals, invalid_unshown},
};

/// Whether a condition holds.
pub(super) fn has_condition(status: &Value, kind: &str) -> bool {
    status
        .list("conditions")
        .iter()
        .any(|c| c.text("type") == kind && c.text("status") == "True")
}

/// The state that a status reports.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    complete: bool,
    failed: bool,
    failing: bool,
    succeeding: bool,
}

impl State {
    fn by(status: &Value) -> Self {
        let has = |kind| has_condition(status, kind);
        Self {
            complete: has("Complete"),
            failed: has("Failed"),
            failing: has("FailureTarget"),
            succeeding: has("SuccessCriteriaMet"),
        }
    }

    fn finished(self) -> bool {
        self.complete || self.failed
    }
}

/// The errors of the new status.
pub(super) fn validate(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let spec = new.body.field("spec");
    let before = old.body.field("status");
    let status = new.body.field("status");
    let at = Path::field("status");
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        validation::not_negative(&at.child(field), status.number(field), out);
    }
    validate_uncounted(status, &at.child("uncountedTerminatedPods"), out);
    let now = State::by(status);
    let was = State::by(before);
    validate_conditions(now, &at.child("conditions"), out);
    validate_times(spec, status, before, (now, was), &at, out);
    if now.finished() {
        validate_finished(status, &at, out);
    }
    validate_indexes(spec, status, before, &at, out);
    if status
        .int("ready")
        .is_some_and(|ready| ready > status.number("active"))
    {
        out.push(FieldError::invalid(
            at.child("ready"),
            status.number("ready"),
            "cannot set more ready pods than active",
        ));
    }
    validate_steps(spec, status, before, &at, out);
    validate_kept(now, was, &at.child("conditions"), out);
}

fn validate_uncounted(status: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        let list_at = at.child(list);
        for (i, uid) in status
            .field("uncountedTerminatedPods")
            .texts(list)
            .enumerate()
        {
            if uid.is_empty() {
                out.push(FieldError::invalid(
                    list_at.index(i),
                    uid,
                    "must not be empty",
                ));
            } else if !seen.insert(uid) {
                out.push(FieldError::duplicate(list_at.index(i), uid));
            }
        }
    }
}

/// Conditions that cannot hold together, and those that need another.
fn validate_conditions(now: State, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let rules = [
        (
            now.complete && now.failed,
            "cannot set Complete=True and Failed=true conditions",
        ),
        (
            now.complete && now.failing,
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            now.failed && !now.failing,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            now.complete && !now.succeeding,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (
            now.succeeding && now.failed,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        ),
        (
            now.succeeding && now.failing,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
    ];
    out.extend(
        rules
            .iter()
            .filter(|(broken, _)| *broken)
            .map(|(_, detail)| invalid_unshown(at, detail)),
    );
}

fn validate_times(
    spec: &Value,
    status: &Value,
    before: &Value,
    (now, was): (State, State),
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let start = status.field("startTime");
    let end = status.field("completionTime");
    let start_at = at.child("startTime");
    let end_at = at.child("completionTime");
    if !end.is_null() && !now.complete {
        out.push(FieldError::invalid(
            end_at,
            end,
            "cannot set completionTime when there is no Complete=True condition",
        ));
    }
    if end.is_null() && now.complete && !was.complete {
        out.push(FieldError::required(
            end_at,
            "completionTime is required for Complete jobs",
        ));
    }
    let moment = |time: &Value| Time::parse(time.as_str().unwrap_or_default()).ok();
    if let (Some(start), Some(ended)) = (moment(start), moment(end))
        && ended < start
    {
        out.push(FieldError::invalid(
            end_at,
            end,
            "must be equal to or after `startTime`",
        ));
    }
    let unstarted = spec.is_true("suspend") && spec.int("completions") == Some(0);
    if start.is_null() && now.finished() && !was.finished() && !unstarted {
        out.push(FieldError::required(
            start_at,
            "startTime is required for finished job",
        ));
    }
    if !end.is_null() && before.has("completionTime") && !same(end, before.field("completionTime"))
    {
        out.push(FieldError::invalid(end_at, end, "field is immutable"));
    }
    let suspended = |status: &Value, value: &str| {
        status
            .list("conditions")
            .iter()
            .any(|c| c.text("type") == "Suspended" && c.text("status") == value)
    };
    let resuming = suspended(before, "True") && suspended(status, "False");
    if before.has("startTime")
        && !same(before.field("startTime"), start)
        && !resuming
        && !spec.is_true("suspend")
    {
        out.push(FieldError::invalid(
            start_at,
            start,
            "field is immutable for unsuspended job once set",
        ));
    }
}

fn validate_finished(status: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (field, detail) in [
        ("active", "active>0 is invalid for finished job"),
        ("terminating", "terminating>0 is invalid for finished job"),
    ] {
        if status.number(field) > 0 {
            out.push(FieldError::invalid(
                at.child(field),
                status.number(field),
                detail,
            ));
        }
    }
    let uncounted = status.field("uncountedTerminatedPods");
    if ["succeeded", "failed"]
        .iter()
        .any(|l| !uncounted.list(l).is_empty())
    {
        out.push(FieldError::invalid(
            at.child("uncountedTerminatedPods"),
            uncounted,
            "must be empty for finished job",
        ));
    }
}

fn validate_indexes(
    spec: &Value,
    status: &Value,
    before: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let completed = status.text("completedIndexes");
    let failed = status.field("failedIndexes").as_str();
    let completed_at = at.child("completedIndexes");
    let failed_at = at.child("failedIndexes");
    if completed == before.text("completedIndexes")
        && failed == before.field("failedIndexes").as_str()
    {
        return;
    }
    let completions = spec.int("completions");
    let read = |list: &str| intervals(list, completions.unwrap_or(i64::MAX));
    if completions.is_some()
        && let Err(why) = read(completed)
    {
        out.push(FieldError::invalid(
            completed_at,
            completed,
            &format!("error parsing completedIndexes: {why}"),
        ));
    }
    if !completed.is_empty() && spec.text("completionMode") != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        out.push(FieldError::invalid(completed_at, completed, detail));
    }
    let Some(failed) = failed else { return };
    if !spec.has("backoffLimitPerIndex") {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        out.push(FieldError::invalid(failed_at, failed, detail));
    } else if let Err(why) = read(failed) {
        out.push(FieldError::invalid(
            failed_at,
            failed,
            &format!("error parsing failedIndexes: {why}"),
        ));
    }
    if let (Ok(completed), Ok(failures)) = (read(completed), read(failed)) {
        // Intervals are in order and disjoint.
        let overlap = |(a, b): &(i64, i64)| {
            let next = failures.partition_point(|(_, d)| d < a);
            failures
                .get(next)
                .filter(|(c, _)| c <= b)
                .map(|(c, _)| *a.max(c))
        };
        if let Some(index) = completed.iter().find_map(overlap) {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
            out.push(FieldError::invalid(failed_at, failed, &detail));
        }
    }
}

/// Counters of ended pods do not go down.
fn validate_steps(
    spec: &Value,
    status: &Value,
    before: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let elastic = spec.text("completionMode") == "Indexed"
        && spec.int("completions") == spec.int("parallelism");
    for field in ["failed", "succeeded"] {
        if status.number(field) < before.number(field) && (field == "failed" || !elastic) {
            let detail = format!("cannot decrease the {field} counter");
            out.push(FieldError::invalid(
                at.child(field),
                status.number(field),
                &detail,
            ));
        }
    }
}

/// The final state of a job cannot be reverted.
fn validate_kept(now: State, was: State, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (name, was, now) in [
        ("Failed", was.failed, now.failed),
        ("Complete", was.complete, now.complete),
        ("FailureTarget", was.failing, now.failing),
    ] {
        if was && !now {
            out.push(invalid_unshown(
                at,
                &format!("cannot disable the terminal {name}=True condition"),
            ));
        }
    }
    if was.succeeding && !now.succeeding {
        out.push(invalid_unshown(
            at,
            "cannot disable the SuccessCriteriaMet=True condition",
        ));
    }
}
