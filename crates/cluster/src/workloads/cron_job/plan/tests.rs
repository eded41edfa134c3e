//! Plans for CronJobs at given times.

use serde_json::{Value, json};

use super::*;

fn time(text: &str) -> Timestamp {
    format!("2026-01-01T{text}:00Z").parse().unwrap()
}

/// A CronJob created at 08:00. Default schedule: hourly.
fn cron_job(more: Value, status: Value) -> CronJob {
    let mut spec = json!({
        "schedule": "0 * * * *",
        "jobTemplate": { "spec": { "template": {} } },
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let meta = json!({
        "name": "c",
        "namespace": "default",
        "uid": "c",
        "creationTimestamp": "2026-01-01T08:00:00Z",
    });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
}

/// `name:state` per Job; its uid is its name.
fn jobs(text: &str) -> Vec<Arc<Job>> {
    let parse = |job_text: &str| {
        let (name, state) = job_text.split_once(':').unwrap();
        let condition = json!([{ "type": state, "status": "True" }]);
        let status = if state == "running" {
            json!({})
        } else {
            json!({ "conditions": condition, "completionTime": "2026-01-01T09:30:00Z" })
        };
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "uid": name, "namespace": "default" },
                "status": status,
            }))
            .unwrap(),
        )
    };
    text.split_whitespace().map(parse).collect()
}

fn active(names: &[&str]) -> Value {
    json!(
        names
            .iter()
            .map(|name| json!({ "name": name, "uid": name, "namespace": "default" }))
            .collect::<Vec<_>>()
    )
}

fn plan_at(cron_job: &CronJob, job_text: &str, now: &str) -> Plan {
    plan(cron_job, &jobs(job_text), time(now))
}

fn created(plan: &Plan) -> Option<String> {
    plan.create
        .as_ref()
        .map(|job| job.annotations()[SCHEDULED_TIMESTAMP_ANNOTATION].clone())
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.events
        .iter()
        .map(|event| event.reason.as_str())
        .collect()
}

#[test]
fn job_is_created_at_its_schedule_time() {
    let last = |text: &str| json!({ "lastScheduleTime": time(text) });
    for (case, more, status, now, expected) in [
        ("not yet", json!({}), json!({}), "08:30", None),
        (
            "now",
            json!({}),
            json!({}),
            "09:00",
            Some("2026-01-01T09:00:00Z"),
        ),
        ("already scheduled", json!({}), last("09:00"), "09:30", None),
        (
            "most recent of several missed times",
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
            "after its deadline",
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
            "in its time zone",
            json!({ "schedule": "30 10 * * *", "timeZone": "Europe/Berlin" }),
            json!({}),
            "09:30",
            Some("2026-01-01T10:30:00+01:00"),
        ),
        (
            "interval",
            json!({ "schedule": "@every 45m" }),
            last("09:00"),
            "09:50",
            Some("2026-01-01T09:45:00Z"),
        ),
    ] {
        assert_eq!(
            created(&plan_at(&cron_job(more, status), "", now)).as_deref(),
            expected,
            "{case}"
        );
    }
    let plan = plan_at(&cron_job(json!({}), json!({})), "", "09:00");
    assert_eq!(
        plan.create.unwrap().name_any(),
        format!("c-{}", time("09:00").as_second() / 60)
    );
    assert_eq!(
        plan.requeue_after,
        Some(Duration::from_secs(3600) + NEXT_SCHEDULE_DELTA)
    );
    assert_eq!(
        plan_at(&cron_job(json!({}), json!({})), "", "08:30").requeue_after,
        Some(Duration::from_secs(1800) + NEXT_SCHEDULE_DELTA)
    );
}

#[test]
fn invalid_schedules_are_reported_by_events() {
    for (more, reason) in [
        (json!({ "schedule": "61 * * * *" }), "UnparseableSchedule"),
        (json!({ "timeZone": "Mars/Base" }), "UnknownTimeZone"),
    ] {
        let plan = plan_at(&cron_job(more, json!({})), "", "09:00");
        assert_eq!(reasons(&plan), vec![reason]);
        assert!(plan.create.is_none());
        assert_eq!(plan.requeue_after, None);
    }
    let plan = plan_at(
        &cron_job(json!({ "schedule": "* * * * *" }), json!({})),
        "",
        "10:00",
    );
    assert_eq!(reasons(&plan), vec!["TooManyMissedTimes"]);
    assert!(plan.create.is_some());
}

#[test]
fn concurrency_policy_applies_to_active_jobs() {
    let status = json!({ "active": active(&["a"]), "lastScheduleTime": time("09:00") });
    for (policy, creates, replaced) in [
        ("Allow", true, 0),
        ("Forbid", false, 0),
        ("Replace", true, 1),
    ] {
        let plan = plan_at(
            &cron_job(json!({ "concurrencyPolicy": policy }), status.clone()),
            "a:running",
            "10:00",
        );
        assert_eq!(plan.create.is_some(), creates, "{policy}");
        assert_eq!(plan.replace.len(), replaced, "{policy}");
    }
    let finished = plan_at(
        &cron_job(json!({ "concurrencyPolicy": "Forbid" }), status),
        "a:Complete",
        "10:00",
    );
    assert!(finished.create.is_some(), "a finished Job does not block");
}

#[test]
fn active_list_is_synced_with_the_jobs() {
    let status =
        json!({ "active": active(&["a", "b", "missing"]), "lastScheduleTime": time("09:00") });
    let plan = plan_at(
        &cron_job(json!({}), status),
        "a:running b:Complete unexpected:running",
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
    assert_eq!(plan.status.last_successful_time, Some(Time(time("09:30"))));
    let mut reasons: Vec<_> = plan
        .events
        .iter()
        .map(|event| event.reason.as_str())
        .collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["MissingJob", "SawCompletedJob", "UnexpectedJob"]);
}

#[test]
fn history_limits_apply_to_finished_jobs() {
    let plan = plan_at(
        &cron_job(json!({}), json!({ "lastScheduleTime": time("09:00") })),
        "a:Complete b:Complete c:Complete d:Failed e:Failed f:running",
        "09:30",
    );
    assert_eq!(
        plan.cleanup
            .iter()
            .map(|job| job.name_any())
            .collect::<Vec<_>>(),
        ["a", "b", "d"]
    );
}
