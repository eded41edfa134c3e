//! Job controller.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{finish, is_active, list, make_all_ready, patch, pods, template, test_cluster};
use bellerophon_testkit::{TestCluster, wait_until};

fn job(spec: Value) -> Value {
    let mut spec = spec;
    spec["template"] = template("work", "work:1");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work" }, "spec": spec })
}

fn condition(job: &Job, type_: &str) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")?
        .reason
        .clone()
}

async fn until_condition(cluster: &TestCluster, type_: &str) -> Job {
    wait_until(&cluster.namespaced::<Job>("default"), type_, |jobs| {
        condition(&jobs[0], type_).is_some()
    })
    .await
    .remove(0)
}

/// Sets the phase of all active pods.
async fn finish_all(cluster: &TestCluster, phase: &str) {
    for pod in cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap()
        .iter()
        .filter(|pod| is_active(pod))
    {
        finish(cluster, pod, phase).await;
    }
}

fn has_tracking_finalizer(pod: &Pod) -> bool {
    pod.finalizers()
        .iter()
        .any(|finalizer| finalizer == "batch.kubernetes.io/job-tracking")
}

#[tokio::test(start_paused = true)]
async fn job_completes_after_its_completions() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(json!({ "completions": 3, "parallelism": 2 })))
        .await;
    let two = pods(&cluster, 2).await;
    assert!(two.iter().all(has_tracking_finalizer));
    make_all_ready(&cluster).await;
    wait_until(
        &cluster.namespaced::<Job>("default"),
        "two active and ready",
        |jobs| {
            jobs[0].status.as_ref().is_some_and(|status| {
                status.active == Some(2) && status.ready == Some(2) && status.start_time.is_some()
            })
        },
    )
    .await;
    finish_all(&cluster, "Succeeded").await;
    pods(&cluster, 1).await;
    finish_all(&cluster, "Succeeded").await;
    let complete = until_condition(&cluster, "Complete").await;
    let status = complete.status.clone().unwrap();
    assert_eq!(status.succeeded, Some(3));
    assert_eq!(status.failed, None);
    assert_eq!(status.active, None);
    assert!(status.completion_time.is_some());
    assert_eq!(
        condition(&complete, "SuccessCriteriaMet").as_deref(),
        Some("CompletionsReached")
    );
    let remaining = cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(
        remaining.items.len(),
        3,
        "finished pods are kept without finalizer"
    );
    assert!(
        !remaining.iter().any(has_tracking_finalizer),
        "finished pods are kept without finalizer"
    );
    wait_until(
        &cluster.namespaced::<Event>("default"),
        "an event is recorded",
        |events| {
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some("Completed"))
        },
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_job_retries_with_back_off_until_its_limit() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(
            json!({ "completions": 1, "parallelism": 1, "backoffLimit": 3 }),
        ))
        .await;
    let mut delays = Vec::new();
    for _ in 0..3 {
        pods(&cluster, 1).await;
        finish_all(&cluster, "Failed").await;
        let before = super::now(&cluster);
        pods(&cluster, 1).await;
        delays.push(super::now(&cluster).duration_since(before).as_secs());
    }
    // Timestamps have a resolution of one second.
    assert!(
        delays
            .iter()
            .zip([10, 20, 40])
            .all(|(delay, expected)| (expected - 1..=expected).contains(delay)),
        "{delays:?}"
    );
    finish_all(&cluster, "Failed").await;
    let failed = until_condition(&cluster, "Failed").await;
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("BackoffLimitExceeded")
    );
    assert_eq!(failed.status.unwrap().failed, Some(4));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn active_deadline_deletes_active_pods() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(
            json!({ "completions": 2, "parallelism": 2, "activeDeadlineSeconds": 30 }),
        ))
        .await;
    pods(&cluster, 2).await;
    let failed = until_condition(&cluster, "Failed").await;
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("DeadlineExceeded")
    );
    assert_eq!(failed.status.unwrap().failed, Some(2));
    pods(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn suspended_job_has_no_pods_until_resumed() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(json!({ "completions": 2, "parallelism": 2 })))
        .await;
    pods(&cluster, 2).await;
    patch(
        &cluster.namespaced::<Job>("default"),
        "work",
        json!({ "spec": { "suspend": true } }),
    )
    .await;
    pods(&cluster, 0).await;
    let suspended = until_condition(&cluster, "Suspended").await;
    assert_eq!(suspended.status.unwrap().failed, None);
    patch(
        &cluster.namespaced::<Job>("default"),
        "work",
        json!({ "spec": { "suspend": false } }),
    )
    .await;
    pods(&cluster, 2).await;
    finish_all(&cluster, "Succeeded").await;
    until_condition(&cluster, "Complete").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn indexed_job_retries_each_index() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(json!({
            "completions": 4,
            "parallelism": 4,
            "completionMode": "Indexed",
            "backoffLimitPerIndex": 1,
        })))
        .await;
    let four = pods(&cluster, 4).await;
    let index = |pod: &Pod| pod.annotations()["batch.kubernetes.io/job-completion-index"].clone();
    let mut indexes: Vec<_> = four.iter().map(index).collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2", "3"]);
    assert!(
        four.iter()
            .all(|pod| pod.name_any().starts_with(&format!("work-{}-", index(pod))))
    );
    for pod in &four {
        finish(
            &cluster,
            pod,
            if index(pod) == "2" {
                "Failed"
            } else {
                "Succeeded"
            },
        )
        .await;
    }
    let retried = pods(&cluster, 1).await;
    assert_eq!(index(&retried[0]).as_str(), "2");
    assert_eq!(
        retried[0].annotations()["batch.kubernetes.io/job-index-failure-count"].as_str(),
        "1"
    );
    finish(&cluster, &retried[0], "Failed").await;
    let failed = until_condition(&cluster, "Failed").await;
    let status = failed.status.clone().unwrap();
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("FailedIndexes")
    );
    assert_eq!(status.completed_indexes.as_deref(), Some("0,1,3"));
    assert_eq!(status.failed_indexes.as_deref(), Some("2"));
    assert_eq!(status.succeeded, Some(3));
    assert_eq!(status.failed, Some(2));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_pod_is_counted_once_despite_restarts() {
    let mut cluster = test_cluster().await;
    cluster
        .apply(job(json!({ "completions": 30, "parallelism": 10 })))
        .await;
    for round in 0..3 {
        pods(&cluster, 10).await;
        finish_all(&cluster, "Succeeded").await;
        if round < 2 {
            cluster.restart_controllers().await;
        }
    }
    cluster.restart_controllers().await;
    let complete = until_condition(&cluster, "Complete").await;
    assert_eq!(complete.status.unwrap().succeeded, Some(30));
    assert_eq!(list::<Pod>(&cluster).await.len(), 30);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_job_are_deleted() {
    let cluster = test_cluster().await;
    cluster
        .apply(job(json!({ "completions": 3, "parallelism": 3 })))
        .await;
    pods(&cluster, 3).await;
    for params in [DeleteParams::background(), DeleteParams::foreground()] {
        cluster
            .namespaced::<Job>("default")
            .delete("work", &params)
            .await
            .unwrap();
        wait_until(
            &cluster.namespaced::<Pod>("default"),
            "all pods are deleted",
            |pods| pods.is_empty(),
        )
        .await;
        wait_until(
            &cluster.namespaced::<Job>("default"),
            "the Job is deleted",
            |jobs| jobs.is_empty(),
        )
        .await;
        cluster.advance(Duration::from_secs(60)).await;
        cluster
            .apply(job(json!({ "completions": 3, "parallelism": 3 })))
            .await;
        pods(&cluster, 3).await;
    }
    cluster.stop().await;
}
