//! Jobs and CronJobs.
//! Mirrors `printJob` and `printCronJob` in `pkg/printers/internalversion`.

use bellerophon_apimachinery::{
    duration::{human_duration, since},
    table_column::Column,
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
    selector::selector_or_none,
    workload::{CONTAINERS, IMAGES, containers},
};

pub(super) static JOB: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Status", "Status of the job."),
        Column::text("Completions", descriptions::JOB_COMPLETIONS),
        Column::text("Duration", "Time required to complete the job."),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", descriptions::JOB_SELECTOR).wide(),
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "spec.template");
        vec![
            name(object),
            job_status(object).into(),
            job_completions(object).into(),
            job_duration(object, now).into(),
            age(object, now),
            names,
            images,
            selector_or_none(object.field("spec.selector")).into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static CRON_JOB: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Schedule", descriptions::CRON_JOB_SCHEDULE),
        Column::text("Timezone", descriptions::CRON_JOB_TIME_ZONE),
        Column::boolean("Suspend", descriptions::CRON_JOB_SUSPEND),
        Column::integer("Active", descriptions::CRON_JOB_ACTIVE),
        Column::text("Last Schedule", descriptions::CRON_JOB_LAST_SCHEDULE),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", descriptions::JOB_SELECTOR).wide(),
    ],
    cells: cron_job_cells,
    ..Printer::PLAIN
};

fn job_status(job: &Object) -> &'static str {
    let is = |condition| job.is_true("status.conditions", condition);
    if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if job.meta.deletion_timestamp.is_some() {
        "Terminating"
    } else {
        ["Suspended", "FailureTarget", "SuccessCriteriaMet"]
            .into_iter()
            .find(|condition| is(condition))
            .unwrap_or("Running")
    }
}

fn job_completions(job: &Object) -> String {
    let done = job.int("status.succeeded");
    if job.has("spec.completions") {
        return format!("{done}/{}", job.int("spec.completions"));
    }
    match job.int("spec.parallelism") {
        parallelism @ 2.. => format!("{done}/1 of {parallelism}"),
        _ => format!("{done}/1"),
    }
}

fn job_duration(job: &Object, now: Time) -> String {
    let Some(start) = job.time("status.startTime") else {
        return String::new();
    };
    let end = job.time("status.completionTime").unwrap_or(now);
    human_duration(end.as_second() - start.as_second())
}

fn cron_job_cells(object: &Object, now: Time) -> Vec<Value> {
    let [names, images] = containers(object, "spec.jobTemplate.spec.template");
    let suspend = match object.field("spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let last_schedule = object
        .time("status.lastScheduleTime")
        .map_or_else(|| "<none>".into(), |time| since(Some(time), now));
    vec![
        name(object),
        object.text("spec.schedule").into(),
        object.text_or("spec.timeZone", "<none>").into(),
        suspend.into(),
        object.list("status.active").len().into(),
        last_schedule.into(),
        age(object, now),
        names,
        images,
        selector_or_none(object.field("spec.jobTemplate.spec.selector")).into(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::{
        printer::tests::{NOW, check, object},
        workload::tests::template,
    };

    #[test]
    fn jobs_show_their_completions() {
        for (spec, status, expected) in [
            (
                json!({ "completions": 3 }),
                json!({ "succeeded": 1, "startTime": "2026-01-02T03:13:05Z" }),
                ["Running", "1/3", "60s"],
            ),
            (json!({}), json!({}), ["Running", "0/1", ""]),
            (
                json!({ "parallelism": 4 }),
                json!({ "conditions": [{ "type": "Suspended", "status": "True" }] }),
                ["Suspended", "0/1 of 4", ""],
            ),
            (
                json!({ "completions": 1, "parallelism": 1 }),
                json!({
                    "succeeded": 1, "startTime": "2026-01-02T03:05:05Z", "completionTime": "2026-01-02T03:07:10Z",
                    "conditions": [{ "type": "SuccessCriteriaMet", "status": "True" }, { "type": "Complete", "status": "True" }],
                }),
                ["Complete", "1/1", "2m5s"],
            ),
            (
                json!({}),
                json!({ "conditions": [{ "type": "Failed", "status": "True" }] }),
                ["Failed", "0/1", ""],
            ),
        ] {
            let cells = JOB
                .row(
                    &object(json!({ "spec": spec, "status": status })),
                    Time::parse(NOW).unwrap(),
                )
                .cells;
            assert_eq!(cells[1..4], expected);
        }
        let terminating = object(json!({ "metadata": { "deletionTimestamp": NOW } }));
        assert_eq!(job_status(&terminating), "Terminating");
    }

    #[test]
    fn cron_jobs_show_their_last_schedule() {
        let spec = json!({ "schedule": "15 3 * * *", "timeZone": "Europe/Zurich", "suspend": true, "jobTemplate": { "spec": { "template": template() } } });
        let status = json!({ "active": [{}], "lastScheduleTime": "2026-01-02T03:13:05Z" });
        let cells = json!([
            "x",
            "15 3 * * *",
            "Europe/Zurich",
            "True",
            1,
            "60s",
            "10m",
            "app,log",
            "app:2,log:2",
            "<none>"
        ]);
        check(
            "batch/v1",
            "CronJob",
            json!({ "spec": spec, "status": status }),
            cells,
        );
        let never = json!({ "spec": { "schedule": "@daily", "suspend": false } });
        check(
            "batch/v1",
            "CronJob",
            never,
            json!([
                "x", "@daily", "<none>", "False", 0, "<none>", "10m", "", "", "<none>"
            ]),
        );
    }
}
