//! One look at the clock at a time.

use serde_json::{Value, json};

use super::*;

fn moment(text: &str) -> Timestamp {
    format!("2026-01-01T{text}:00Z").parse().unwrap()
}

/// Made at 08:00, every hour unless said.
fn cron(more: Value, status: Value) -> CronJob {
    let mut spec = json!({ "schedule": "0 * * * *", "jobTemplate": { "spec": { "template": {} } }, "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1 });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let meta = json!({ "name": "c", "namespace": "default", "uid": "c", "creationTimestamp": "2026-01-01T08:00:00Z" });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
}

/// `name:state` for each Job; its uid is its name.
fn jobs(forms: &str) -> Vec<Arc<Job>> {
    let one = |form: &str| {
        let (name, state) = form.split_once(':').unwrap();
        let condition = json!([{ "type": state, "status": "True" }]);
        let status = if state == "run" {
            json!({})
        } else {
            json!({ "conditions": condition, "completionTime": "2026-01-01T09:30:00Z" })
        };
        Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": name, "uid": name, "namespace": "default" }, "status": status })).unwrap(),
        )
    };
    forms.split_whitespace().map(one).collect()
}

fn active(names: &[&str]) -> Value {
    json!(
        names
            .iter()
            .map(|name| json!({ "name": name, "uid": name, "namespace": "default" }))
            .collect::<Vec<_>>()
    )
}

fn look(cron: &CronJob, there: &str, at: &str) -> Plan {
    plan(cron, &jobs(there), moment(at))
}

fn started(plan: &Plan) -> Option<String> {
    plan.start
        .as_ref()
        .map(|job| job.annotations()[SCHEDULED].clone())
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.notes.iter().map(|note| note.reason.as_str()).collect()
}

#[test]
fn job_is_started_when_its_time_has_come() {
    let last = |time: &str| json!({ "lastScheduleTime": moment(time) });
    for (what, more, status, at, expected) in [
        ("not yet", json!({}), json!({}), "08:30", None),
        (
            "now",
            json!({}),
            json!({}),
            "09:00",
            Some("2026-01-01T09:00:00Z"),
        ),
        ("done", json!({}), last("09:00"), "09:30", None),
        (
            "of many missed ones the latest",
            json!({}),
            last("09:00"),
            "14:10",
            Some("2026-01-01T14:00:00Z"),
        ),
        (
            "within its deadline",
            json!({ "startingDeadlineSeconds": 700 }),
            last("09:00"),
            "14:10",
            Some("2026-01-01T14:00:00Z"),
        ),
        (
            "too late",
            json!({ "startingDeadlineSeconds": 300 }),
            last("09:00"),
            "14:10",
            None,
        ),
        (
            "suspended",
            json!({ "suspend": true }),
            json!({}),
            "09:00",
            None,
        ),
        (
            "in its zone",
            json!({ "schedule": "30 10 * * *", "timeZone": "Europe/Berlin" }),
            json!({}),
            "09:30",
            Some("2026-01-01T10:30:00+01:00"),
        ),
        (
            "an interval",
            json!({ "schedule": "@every 45m" }),
            last("09:00"),
            "09:50",
            Some("2026-01-01T09:45:00Z"),
        ),
    ] {
        assert_eq!(
            started(&look(&cron(more, status), "", at)).as_deref(),
            expected,
            "{what}"
        );
    }
    let plan = look(&cron(json!({}), json!({})), "", "09:00");
    assert_eq!(
        plan.start.unwrap().name_any(),
        format!("c-{}", moment("09:00").as_second() / 60)
    );
    assert_eq!(plan.next, Some(Duration::from_secs(3600) + LATE));
    assert_eq!(
        look(&cron(json!({}), json!({})), "", "08:30").next,
        Some(Duration::from_secs(1800) + LATE)
    );
}

#[test]
fn mistakes_are_told_and_start_nothing() {
    for (more, reason) in [
        (json!({ "schedule": "61 * * * *" }), "UnparseableSchedule"),
        (json!({ "timeZone": "Mars/Base" }), "UnknownTimeZone"),
    ] {
        let plan = look(&cron(more, json!({})), "", "09:00");
        assert_eq!(reasons(&plan), vec![reason]);
        assert!(plan.start.is_none());
        assert_eq!(plan.next, None);
    }
    let plan = look(
        &cron(json!({ "schedule": "* * * * *" }), json!({})),
        "",
        "10:00",
    );
    assert_eq!(reasons(&plan), vec!["TooManyMissedTimes"]);
    assert!(plan.start.is_some());
}

#[test]
fn running_jobs_are_treated_by_the_policy() {
    let status = json!({ "active": active(&["a"]), "lastScheduleTime": moment("09:00") });
    for (policy, starts, replaced) in [
        ("Allow", true, 0),
        ("Forbid", false, 0),
        ("Replace", true, 1),
    ] {
        let plan = look(
            &cron(json!({ "concurrencyPolicy": policy }), status.clone()),
            "a:run",
            "10:00",
        );
        assert_eq!(plan.start.is_some(), starts, "{policy}");
        assert_eq!(plan.replace.len(), replaced, "{policy}");
    }
    let ended = look(
        &cron(json!({ "concurrencyPolicy": "Forbid" }), status),
        "a:Complete",
        "10:00",
    );
    assert!(ended.start.is_some(), "a finished one is not in the way");
}

#[test]
fn active_list_follows_the_jobs() {
    let status =
        json!({ "active": active(&["a", "b", "gone"]), "lastScheduleTime": moment("09:00") });
    let plan = look(
        &cron(json!({}), status),
        "a:run b:Complete stranger:run",
        "09:30",
    );
    assert_eq!(
        plan.status
            .active
            .unwrap()
            .iter()
            .map(|it| it.name.clone().unwrap())
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(
        plan.status.last_successful_time,
        Some(Time(moment("09:30")))
    );
    let mut told: Vec<_> = plan.notes.iter().map(|note| note.reason.as_str()).collect();
    told.sort_unstable();
    assert_eq!(told, ["MissingJob", "SawCompletedJob", "UnexpectedJob"]);
}

#[test]
fn finished_jobs_are_kept_to_their_limits() {
    let plan = look(
        &cron(json!({}), json!({ "lastScheduleTime": moment("09:00") })),
        "a:Complete b:Complete c:Complete d:Failed e:Failed f:run",
        "09:30",
    );
    assert_eq!(
        plan.forget
            .iter()
            .map(|job| job.name_any())
            .collect::<Vec<_>>(),
        ["a", "b", "d"]
    );
}
