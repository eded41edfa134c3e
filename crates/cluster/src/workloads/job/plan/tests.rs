//! Plans for Jobs and pods given as text.

use serde_json::{Value, json};

use super::*;
use crate::workloads::job::job_pod::{COMPLETION_INDEX_ANNOTATION, TRACKING_FINALIZER};
use crate::workloads::test_objects::{PodBuilder, pod};

const NOW: i64 = 10_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({
        "spec": { "containers": [{ "name": "main" }], "restartPolicy": spec["restartPolicy"] },
    });
    serde_json::from_value(json!({
        "metadata": { "name": "j", "uid": "j", "namespace": "default" },
        "spec": spec,
        "status": status,
    }))
    .unwrap()
}

/// `state` or `index:state` per pod. States: `running`, `ready`, `succeeded`, `failed`,
/// `terminating`; `!` before a state: without the tracking finalizer.
fn pods(text: &str) -> Vec<Arc<Pod>> {
    let parse = |(position, pod_text): (usize, &str)| {
        let (index, state) = pod_text.split_once(':').unwrap_or(("", pod_text));
        let has_finalizer = !state.starts_with('!');
        let mut builder = pod(&format!("p{position}"));
        if !index.is_empty() {
            builder = builder.annotation(COMPLETION_INDEX_ANNOTATION, index);
        }
        if has_finalizer {
            builder = builder.finalizer(TRACKING_FINALIZER);
        }
        // Finished long ago, so that there is no back-off.
        let finished =
            |builder: PodBuilder, phase: &str| builder.phase(phase).condition("Ready", "False", 0);
        match state.trim_start_matches('!') {
            "running" => builder.running(),
            "ready" => builder.running().ready(),
            "succeeded" => finished(builder, "Succeeded"),
            "failed" => finished(builder, "Failed"),
            _ => builder.running().deleting(),
        }
        .cached()
    };
    text.split_whitespace().enumerate().map(parse).collect()
}

fn plan_for(job: &Job, pod_text: &str) -> Plan {
    plan(job, job.spec.as_ref().unwrap(), &pods(pod_text), now())
}

fn summary(plan: &Plan) -> String {
    let names = |sign: &str, pods: &[Arc<Pod>]| {
        pods.iter()
            .map(|pod| format!("{sign}{}", pod.name_any()))
            .collect::<Vec<_>>()
    };
    let mut actions = match &plan.create {
        Create::NonIndexed(0) => Vec::new(),
        Create::NonIndexed(count) => vec![format!("+{count}")],
        Create::Indexed(indexes) => indexes
            .iter()
            .map(|(index, _)| format!("+[{index}]"))
            .collect(),
    };
    actions.extend(names("-", &plan.delete));
    actions.extend(names("~", &plan.discard));
    actions.extend(names("^", &plan.release));
    let conditions = plan
        .status
        .conditions
        .iter()
        .flatten()
        .map(|it| format!("{}={}", it.type_, it.reason.as_deref().unwrap_or_default()));
    actions.extend(conditions);
    actions.join(" ")
}

#[test]
fn pods_are_created_until_completions_are_reached() {
    let three = json!({ "completions": 3, "parallelism": 2 });
    for (case, status, pods, expected) in [
        ("up to parallelism", json!({}), "", "+2"),
        (
            "one more after a success",
            json!({}),
            "succeeded running",
            "+1 ^p0",
        ),
        (
            "one is counted",
            json!({ "succeeded": 1 }),
            "!succeeded running running",
            "",
        ),
        (
            "up to the remaining completions",
            json!({ "succeeded": 2 }),
            "",
            "+1",
        ),
        (
            "surplus pods",
            json!({ "succeeded": 2 }),
            "running ready",
            "~p0",
        ),
        (
            "failed pod is replaced",
            json!({}),
            "failed running",
            "+1 ^p0",
        ),
        (
            "complete",
            json!({ "succeeded": 2 }),
            "succeeded",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
        (
            "uncounted, not released yet",
            json!({ "succeeded": 2, "uncountedTerminatedPods": { "succeeded": ["p0"] } }),
            "succeeded",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
        (
            "counted",
            json!({ "succeeded": 2, "uncountedTerminatedPods": { "succeeded": ["p0"] } }),
            "!succeeded",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached",
        ),
    ] {
        assert_eq!(
            summary(&plan_for(&job(three.clone(), status), pods)),
            expected,
            "{case}"
        );
    }
}

#[test]
fn job_without_completions_completes_after_one_success() {
    let queue = json!({ "parallelism": 3 });
    assert_eq!(
        summary(&plan_for(&job(queue.clone(), json!({})), "running")),
        "+2"
    );
    assert_eq!(
        summary(&plan_for(
            &job(queue.clone(), json!({})),
            "succeeded running running"
        )),
        "^p0",
        "running pods are not deleted"
    );
    assert_eq!(
        summary(&plan_for(
            &job(queue, json!({ "succeeded": 1 })),
            "!succeeded succeeded failed"
        )),
        "^p1 ^p2 SuccessCriteriaMet=CompletionsReached"
    );
}

#[test]
fn back_off_limit_fails_the_job() {
    let spec = json!({ "completions": 2, "parallelism": 2, "backoffLimit": 1 });
    assert_eq!(
        summary(&plan_for(&job(spec.clone(), json!({})), "failed running")),
        "+1 ^p0"
    );
    let failed = plan_for(&job(spec.clone(), json!({ "failed": 1 })), "failed running");
    assert_eq!(
        summary(&failed),
        "-p1 ^p0 ^p1 FailureTarget=BackoffLimitExceeded"
    );
    assert_eq!(
        failed
            .status
            .uncounted_terminated_pods
            .unwrap()
            .failed
            .unwrap(),
        ["p0", "p1"],
        "deleted active pods count as failed"
    );
    assert_eq!(failed.status.active, None);
    assert_eq!(failed.status.terminating, Some(1));
    let interim = json!({
        "failed": 3,
        "conditions": [
            { "type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded" },
        ],
    });
    assert_eq!(
        summary(&plan_for(
            &job(spec.clone(), interim.clone()),
            "!terminating"
        )),
        "FailureTarget=BackoffLimitExceeded",
        "not failed while a pod is terminating"
    );
    let terminal = plan_for(&job(spec, interim), "");
    assert_eq!(
        summary(&terminal),
        "FailureTarget=BackoffLimitExceeded Failed=BackoffLimitExceeded"
    );
    assert_eq!(terminal.events[0].reason, "BackoffLimitExceeded");
    let on_failure = json!({
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 2,
        "restartPolicy": "OnFailure",
    });
    let restarted = [pod("p")
        .finalizer(TRACKING_FINALIZER)
        .running()
        .restarts(2)
        .cached()];
    let job = job(on_failure, json!({}));
    assert_eq!(
        summary(&plan(&job, job.spec.as_ref().unwrap(), &restarted, now())),
        "-p ^p FailureTarget=BackoffLimitExceeded"
    );
}

#[test]
fn failures_delay_new_pods_by_back_off() {
    let job = job(
        json!({ "completions": 1, "parallelism": 1, "backoffLimit": 6 }),
        json!({}),
    );
    let failed = [pod("p")
        .finalizer(TRACKING_FINALIZER)
        .phase("Failed")
        .condition("Ready", "False", NOW - 3)
        .cached()];
    let plan = plan(&job, job.spec.as_ref().unwrap(), &failed, now());
    assert_eq!(summary(&plan).as_str(), "^p");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(7)));
}

#[test]
fn active_deadline_fails_the_job_unless_suspended() {
    let spec = json!({ "completions": 1, "parallelism": 1, "activeDeadlineSeconds": 60 });
    let since =
        |seconds: i64| json!({ "startTime": Timestamp::from_second(NOW - seconds).unwrap() });
    assert_eq!(
        plan_for(&job(spec.clone(), since(50)), "running").requeue_after,
        Some(Duration::from_secs(10))
    );
    assert_eq!(
        summary(&plan_for(&job(spec.clone(), since(60)), "running")),
        "-p0 ^p0 FailureTarget=DeadlineExceeded"
    );
    let mut suspended = spec;
    suspended["suspend"] = json!(true);
    let suspended_plan = plan_for(&job(suspended.clone(), since(60)), "running");
    assert_eq!(summary(&suspended_plan), "~p0 Suspended=JobSuspended");
    assert_eq!(
        suspended_plan.status.failed, None,
        "suspension is no failure"
    );
    assert_eq!(
        suspended_plan.status.start_time, None,
        "suspension is no failure"
    );
    suspended["suspend"] = json!(false);
    let mut status = since(3600);
    status["conditions"] = json!([
        {
            "type": "Suspended",
            "status": "True",
            "reason": "JobSuspended",
            "message": "Job suspended",
        },
    ]);
    // The start time is reset on resume.
    let resumed = job(
        json!({ "completions": 1, "parallelism": 1, "suspend": false }),
        status,
    );
    let plan = plan_for(&resumed, "");
    assert_eq!(summary(&plan), "+1 Suspended=JobResumed");
    assert_eq!(plan.status.start_time, Some(Time(now())));
}

#[test]
fn each_index_is_completed_once() {
    let spec = json!({ "completions": 4, "parallelism": 2, "completionMode": "Indexed" });
    for (case, status, pods, expected) in [
        ("first indexes", json!({}), "", "+[0] +[1]"),
        (
            "next index",
            json!({ "completedIndexes": "0", "succeeded": 1 }),
            "!succeeded 1:running",
            "+[2]",
        ),
        (
            "failed index is retried",
            json!({}),
            "0:failed 1:running",
            "+[0] ^p0",
        ),
        ("duplicate index", json!({}), "0:running 0:ready", "~p0"),
        ("without index", json!({}), "running", "~p0"),
        ("index beyond completions", json!({}), "9:running", "~p0"),
        (
            "all indexes",
            json!({ "completedIndexes": "0-2", "succeeded": 3 }),
            "3:succeeded",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
    ] {
        assert_eq!(
            summary(&plan_for(&job(spec.clone(), status), pods)),
            expected,
            "{case}"
        );
    }
    let done = plan_for(
        &job(spec, json!({ "completedIndexes": "0,2", "succeeded": 2 })),
        "1:succeeded 3:running",
    )
    .status;
    assert_eq!(done.completed_indexes.as_deref(), Some("0-2"));
    assert_eq!(done.succeeded, Some(3));
}

#[test]
fn back_off_limit_per_index_fails_the_index() {
    let spec = json!({
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 0,
        "backoffLimit": 99,
    });
    let first = plan_for(&job(spec.clone(), json!({})), "0:failed 1:running");
    assert_eq!(summary(&first), "^p0");
    assert_eq!(first.status.failed_indexes.as_deref(), Some("0"));
    let failed = plan_for(
        &job(spec.clone(), json!({ "failedIndexes": "0", "failed": 1 })),
        "1:succeeded",
    );
    assert_eq!(summary(&failed), "^p0 FailureTarget=FailedIndexes");
    let mut strict = spec.clone();
    strict["maxFailedIndexes"] = json!(0);
    assert_eq!(
        summary(&plan_for(&job(strict, json!({})), "0:failed 1:running")),
        "-p1 ^p0 ^p1 FailureTarget=MaxFailedIndexesExceeded"
    );
    let mut retry_once = spec;
    retry_once["backoffLimitPerIndex"] = json!(1);
    let retried = plan_for(&job(retry_once, json!({})), "0:failed 1:running");
    assert_eq!(
        retried.create,
        Create::Indexed(vec![(0, (1, 0))]),
        "the replacement inherits the failure count"
    );
    assert!(
        retried.release.is_empty(),
        "the failed pod is kept until it is replaced"
    );
}

#[test]
fn success_policy_completes_the_job_early() {
    let spec = json!({
        "completions": 5,
        "parallelism": 2,
        "completionMode": "Indexed",
        "successPolicy": { "rules": [{ "succeededIndexes": "0" }] },
    });
    let plan = plan_for(&job(spec, json!({})), "0:succeeded 1:running");
    assert_eq!(
        summary(&plan),
        "-p1 ^p0 ^p1 SuccessCriteriaMet=SuccessPolicy"
    );
    assert_eq!(
        plan.status.uncounted_terminated_pods.unwrap().failed,
        None,
        "pods deleted on success do not count as failed"
    );
}

#[test]
fn pod_replacement_policy_failed_waits_for_terminating_pods() {
    let spec = |policy: &str| {
        json!({
            "completions": 2,
            "parallelism": 2,
            "podReplacementPolicy": policy,
        })
    };
    assert_eq!(
        summary(&plan_for(
            &job(spec("Failed"), json!({})),
            "terminating running"
        )),
        ""
    );
    assert_eq!(
        summary(&plan_for(
            &job(spec("TerminatingOrFailed"), json!({})),
            "terminating running"
        )),
        "+1 ^p0"
    );
}

#[test]
fn uncounted_pods_are_limited() {
    let job = job(
        json!({ "completions": 2000, "parallelism": 2000 }),
        json!({}),
    );
    let plan = plan_for(&job, &"succeeded ".repeat(1200));
    assert_eq!(plan.release.len(), MAX_UNCOUNTED_PODS);
    assert_eq!(
        plan.status
            .uncounted_terminated_pods
            .unwrap()
            .succeeded
            .unwrap()
            .len(),
        MAX_UNCOUNTED_PODS
    );
    assert_eq!(plan.create, Create::NonIndexed(500));
}
