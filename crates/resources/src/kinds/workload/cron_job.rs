//! CronJobs: Jobs on a schedule.
//! Mirrors `ValidateCronJobCreate` in `pkg/apis/batch/validation`.

use bellerophon_apimachinery::{
    cron::{self, Schedule},
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::{
    super::{Strategy, pod::warnings, selector, validation},
    job,
};

/// A CronJob.
pub const CRON_JOB: Strategy = Strategy {
    default,
    prepare_create: |object| {
        object.body.insert("status".into(), json!({}));
    },
    validate,
    validate_create: |object, out| {
        if object.meta.name.len() > NAME_MAX {
            out.push(FieldError::invalid(
                "metadata.name",
                &object.meta.name,
                "must be no more than 52 characters",
            ));
        }
    },
    warnings: warnings_of,
    ..Strategy::WITH_STATUS
};

/// Names are extended by eleven characters to name the jobs, which must be labels.
const NAME_MAX: usize = 52;

fn default(object: &mut Object) {
    let spec = object.section("spec");
    let template = spec.map_at("jobTemplate");
    template.map_at("metadata");
    job::default_spec(template.map_at("spec"));
    spec.default_text("concurrencyPolicy", "Allow");
    spec.default_to("suspend", false);
    spec.default_to("successfulJobsHistoryLimit", 3);
    spec.default_to("failedJobsHistoryLimit", 1);
}

fn validate(object: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = object.body.field("spec");
    validate_schedule(spec.text("schedule"), &at.child("schedule"), out);
    validation::not_negative(
        &at.child("startingDeadlineSeconds"),
        spec.number("startingDeadlineSeconds"),
        out,
    );
    validate_time_zone(spec, out);
    let policy_at = at.child("concurrencyPolicy");
    match spec.text("concurrencyPolicy") {
        "" => out.push(FieldError::required(policy_at, "")),
        policy => validation::one_of(&policy_at, policy, &["Allow", "Forbid", "Replace"], out),
    }
    validate_template(
        spec.field("jobTemplate").field("spec"),
        &at.child("jobTemplate.spec"),
        out,
    );
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        validation::not_negative(&at.child(field), spec.number(field), out);
    }
}

fn validate_schedule(schedule: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if schedule.is_empty() {
        out.push(FieldError::required(at, ""));
        return;
    }
    out.extend(
        Schedule::parse(schedule, TimeZone::UTC)
            .err()
            .map(|error| FieldError::invalid(at, schedule, &error.to_string())),
    );
    if schedule.contains("TZ") {
        out.push(FieldError::invalid(
            at,
            schedule,
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        ));
    }
}

fn validate_template(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    job::validate_template_spec(spec, at, out);
    if spec.has("selector") {
        out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            "`selector` will be auto-generated",
        ));
    }
    if spec.is_true("manualSelector") {
        out.push(FieldError::not_supported(
            at.child("manualSelector"),
            true,
            &["nil", "false"],
        ));
    }
}

fn validate_time_zone(spec: &Value, out: &mut Vec<FieldError>) {
    let Some(zone) = spec.field("timeZone").as_str() else {
        return;
    };
    let detail = if zone.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if zone.eq_ignore_ascii_case("Local") {
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
            .to_owned()
    } else if cron::time_zone(zone).is_none() {
        format!("unknown time zone {zone}")
    } else {
        return;
    };
    out.push(FieldError::invalid("spec.timeZone", zone, &detail));
}

fn warnings_of(new: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() {
        warnings::of_name(new, &mut out);
    }
    let spec = new.body.field("spec");
    if old.is_none_or(|old| old.body.field("spec") != spec) {
        out.extend(job::warnings_of_spec(
            spec.field("jobTemplate").field("spec"),
            &Path::field("spec.jobTemplate.spec"),
        ));
    }
    if old.is_some() && spec.text("schedule").contains("TZ") {
        out.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".into());
    }
    out
}
