//! Jobs played out on the plan alone, and single judgements.

use serde_json::{Value, json};

use super::*;
use crate::workloads::job::member::{INDEX, TRACKING};
use crate::workloads::test_objects::{PodBuilder, pod};

const NOW: i64 = 10_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({ "spec": { "containers": [{ "name": "main" }], "restartPolicy": spec["restartPolicy"] } });
    serde_json::from_value(json!({ "metadata": { "name": "j", "uid": "j", "namespace": "default" }, "spec": spec, "status": status }))
        .unwrap()
}

/// `state` or `index:state` for each pod; states are run, ready, ok, bad, going. `!` before a state: it lost its finalizer.
fn pods(forms: &str) -> Vec<Arc<Pod>> {
    let one = |(position, form): (usize, &str)| {
        let (index, state) = form.split_once(':').unwrap_or(("", form));
        let tracked = !state.starts_with('!');
        let mut sample = pod(&format!("p{position}"));
        if !index.is_empty() {
            sample = sample.annotation(INDEX, index);
        }
        if tracked {
            sample = sample.finalizer(TRACKING);
        }
        // Ended long ago, so that no back-off is in the way.
        let ended =
            |sample: PodBuilder, phase: &str| sample.phase(phase).condition("Ready", "False", 0);
        match state.trim_start_matches('!') {
            "run" => sample.running(),
            "ready" => sample.running().ready(),
            "ok" => ended(sample, "Succeeded"),
            "bad" => ended(sample, "Failed"),
            _ => sample.running().deleting(),
        }
        .cached()
    };
    forms.split_whitespace().enumerate().map(one).collect()
}

fn made(job: &Job, there: &str) -> Plan {
    plan(job, job.spec.as_ref().unwrap(), &pods(there), now())
}

fn told(plan: &Plan) -> String {
    let names = |sign: &str, pods: &[Arc<Pod>]| {
        pods.iter()
            .map(|pod| format!("{sign}{}", pod.name_any()))
            .collect::<Vec<_>>()
    };
    let mut steps = match &plan.create {
        Create::Plain(0) => Vec::new(),
        Create::Plain(count) => vec![format!("+{count}")],
        Create::Indexed(indexes) => indexes
            .iter()
            .map(|(index, _)| format!("+[{index}]"))
            .collect(),
    };
    steps.extend(names("-", &plan.end));
    steps.extend(names("~", &plan.discard));
    steps.extend(names("^", &plan.release));
    let conditions = plan
        .status
        .conditions
        .iter()
        .flatten()
        .map(|it| format!("{}={}", it.type_, it.reason.as_deref().unwrap_or_default()));
    steps.extend(conditions);
    steps.join(" ")
}

#[test]
fn pods_run_until_enough_have_succeeded() {
    let three = json!({ "completions": 3, "parallelism": 2 });
    for (what, status, there, expected) in [
        ("as many as may run together", json!({}), "", "+2"),
        ("one more when one is done", json!({}), "ok run", "+1 ^p0"),
        (
            "one was counted",
            json!({ "succeeded": 1 }),
            "!ok run run",
            "",
        ),
        (
            "only as many as are missing",
            json!({ "succeeded": 2 }),
            "",
            "+1",
        ),
        (
            "too many run",
            json!({ "succeeded": 2 }),
            "run ready",
            "~p0",
        ),
        ("a failed one is replaced", json!({}), "bad run", "+1 ^p0"),
        (
            "all done",
            json!({ "succeeded": 2 }),
            "ok",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
        (
            "noted, but not yet released",
            json!({ "succeeded": 2, "uncountedTerminatedPods": { "succeeded": ["p0"] } }),
            "ok",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
        (
            "counted",
            json!({ "succeeded": 2, "uncountedTerminatedPods": { "succeeded": ["p0"] } }),
            "!ok",
            "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached",
        ),
    ] {
        assert_eq!(
            told(&made(&job(three.clone(), status), there)),
            expected,
            "{what}"
        );
    }
}

#[test]
fn without_a_number_one_success_says_all_is_done() {
    let queue = json!({ "parallelism": 3 });
    assert_eq!(told(&made(&job(queue.clone(), json!({})), "run")), "+2");
    assert_eq!(
        told(&made(&job(queue.clone(), json!({})), "ok run run")),
        "^p0",
        "those that run are left to end"
    );
    assert_eq!(
        told(&made(&job(queue, json!({ "succeeded": 1 })), "!ok ok bad")),
        "^p1 ^p2 SuccessCriteriaMet=CompletionsReached"
    );
}

#[test]
fn too_many_failures_end_it() {
    let spec = json!({ "completions": 2, "parallelism": 2, "backoffLimit": 1 });
    assert_eq!(
        told(&made(&job(spec.clone(), json!({})), "bad run")),
        "+1 ^p0"
    );
    let over = made(&job(spec.clone(), json!({ "failed": 1 })), "bad run");
    assert_eq!(
        told(&over),
        "-p1 ^p0 ^p1 FailureTarget=BackoffLimitExceeded"
    );
    assert_eq!(
        over.status
            .uncounted_terminated_pods
            .unwrap()
            .failed
            .unwrap(),
        ["p0", "p1"],
        "what is ended with it has failed"
    );
    assert_eq!(over.status.active, None);
    assert_eq!(over.status.terminating, Some(1));
    let waits = json!({ "failed": 3, "conditions": [{ "type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded" }] });
    assert_eq!(
        told(&made(&job(spec.clone(), waits.clone()), "!going")),
        "FailureTarget=BackoffLimitExceeded",
        "not over while one still ends"
    );
    let last = made(&job(spec, waits), "");
    assert_eq!(
        told(&last),
        "FailureTarget=BackoffLimitExceeded Failed=BackoffLimitExceeded"
    );
    assert_eq!(last.notes[0].reason, "BackoffLimitExceeded");
    let in_place = json!({ "completions": 1, "parallelism": 1, "backoffLimit": 2, "restartPolicy": "OnFailure" });
    let restarted = [pod("p").finalizer(TRACKING).running().restarts(2).cached()];
    let it = job(in_place, json!({}));
    assert_eq!(
        told(&plan(&it, it.spec.as_ref().unwrap(), &restarted, now())),
        "-p ^p FailureTarget=BackoffLimitExceeded"
    );
}

#[test]
fn failures_in_a_row_are_waited_after() {
    let it = job(
        json!({ "completions": 1, "parallelism": 1, "backoffLimit": 6 }),
        json!({}),
    );
    let failed = [pod("p")
        .finalizer(TRACKING)
        .phase("Failed")
        .condition("Ready", "False", NOW - 3)
        .cached()];
    let plan = plan(&it, it.spec.as_ref().unwrap(), &failed, now());
    assert_eq!(told(&plan).as_str(), "^p");
    assert_eq!(plan.next, Some(Duration::from_secs(7)));
}

#[test]
fn deadline_ends_it_unless_it_is_suspended() {
    let spec = json!({ "completions": 1, "parallelism": 1, "activeDeadlineSeconds": 60 });
    let since =
        |seconds: i64| json!({ "startTime": Timestamp::from_second(NOW - seconds).unwrap() });
    assert_eq!(
        made(&job(spec.clone(), since(50)), "run").next,
        Some(Duration::from_secs(10))
    );
    assert_eq!(
        told(&made(&job(spec.clone(), since(60)), "run")),
        "-p0 ^p0 FailureTarget=DeadlineExceeded"
    );
    let mut suspended = spec;
    suspended["suspend"] = json!(true);
    let stopped = made(&job(suspended.clone(), since(60)), "run");
    assert_eq!(told(&stopped), "~p0 Suspended=JobSuspended");
    assert_eq!(stopped.status.failed, None, "suspending is no failure");
    assert_eq!(stopped.status.start_time, None, "suspending is no failure");
    suspended["suspend"] = json!(false);
    let mut status = since(3600);
    status["conditions"] = json!([{ "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended" }]);
    // Resumed before the deadline is looked at: it counts from now on.
    let resumed = job(
        json!({ "completions": 1, "parallelism": 1, "suspend": false }),
        status,
    );
    let plan = made(&resumed, "");
    assert_eq!(told(&plan), "+1 Suspended=JobResumed");
    assert_eq!(plan.status.start_time, Some(Time(now())));
}

#[test]
fn each_index_succeeds_once() {
    let spec = json!({ "completions": 4, "parallelism": 2, "completionMode": "Indexed" });
    for (what, status, there, expected) in [
        ("the first", json!({}), "", "+[0] +[1]"),
        (
            "the next",
            json!({ "completedIndexes": "0", "succeeded": 1 }),
            "!ok 1:run",
            "+[2]",
        ),
        ("a failed one again", json!({}), "0:bad 1:run", "+[0] ^p0"),
        ("an index twice", json!({}), "0:run 0:ready", "~p0"),
        ("no index", json!({}), "run", "~p0"),
        ("an index too large", json!({}), "9:run", "~p0"),
        (
            "all",
            json!({ "completedIndexes": "0-2", "succeeded": 3 }),
            "3:ok",
            "^p0 SuccessCriteriaMet=CompletionsReached",
        ),
    ] {
        assert_eq!(
            told(&made(&job(spec.clone(), status), there)),
            expected,
            "{what}"
        );
    }
    let done = made(
        &job(spec, json!({ "completedIndexes": "0,2", "succeeded": 2 })),
        "1:ok 3:run",
    )
    .status;
    assert_eq!(done.completed_indexes.as_deref(), Some("0-2"));
    assert_eq!(done.succeeded, Some(3));
}

#[test]
fn index_fails_by_its_own_limit() {
    let spec = json!({ "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "backoffLimit": 99 });
    let first = made(&job(spec.clone(), json!({})), "0:bad 1:run");
    assert_eq!(told(&first), "^p0");
    assert_eq!(first.status.failed_indexes.as_deref(), Some("0"));
    let over = made(
        &job(spec.clone(), json!({ "failedIndexes": "0", "failed": 1 })),
        "1:ok",
    );
    assert_eq!(told(&over), "^p0 FailureTarget=FailedIndexes");
    let mut strict = spec.clone();
    strict["maxFailedIndexes"] = json!(0);
    assert_eq!(
        told(&made(&job(strict, json!({})), "0:bad 1:run")),
        "-p1 ^p0 ^p1 FailureTarget=MaxFailedIndexesExceeded"
    );
    let mut twice = spec;
    twice["backoffLimitPerIndex"] = json!(1);
    let again = made(&job(twice, json!({})), "0:bad 1:run");
    assert_eq!(
        again.create,
        Create::Indexed(vec![(0, (1, 0))]),
        "the next one carries the count on"
    );
    assert!(
        again.release.is_empty(),
        "and the failed one stays until the next one is there"
    );
}

#[test]
fn success_policy_ends_it_early() {
    let spec = json!({ "completions": 5, "parallelism": 2, "completionMode": "Indexed", "successPolicy": { "rules": [{ "succeededIndexes": "0" }] } });
    let plan = made(&job(spec, json!({})), "0:ok 1:run");
    assert_eq!(told(&plan), "-p1 ^p0 ^p1 SuccessCriteriaMet=SuccessPolicy");
    assert_eq!(
        plan.status.uncounted_terminated_pods.unwrap().failed,
        None,
        "what is ended by success has not failed"
    );
}

#[test]
fn pods_on_their_way_out_are_waited_for_if_asked() {
    let spec = |policy: &str| json!({ "completions": 2, "parallelism": 2, "podReplacementPolicy": policy });
    assert_eq!(
        told(&made(&job(spec("Failed"), json!({})), "going run")),
        ""
    );
    assert_eq!(
        told(&made(
            &job(spec("TerminatingOrFailed"), json!({})),
            "going run"
        )),
        "+1 ^p0"
    );
}

#[test]
fn only_so_many_are_noted_at_once() {
    let it = job(
        json!({ "completions": 2000, "parallelism": 2000 }),
        json!({}),
    );
    let plan = made(&it, &"ok ".repeat(1200));
    assert_eq!(plan.release.len(), NOTED_MAX);
    assert_eq!(
        plan.status
            .uncounted_terminated_pods
            .unwrap()
            .succeeded
            .unwrap()
            .len(),
        NOTED_MAX
    );
    assert_eq!(plan.create, Create::Plain(500));
}
