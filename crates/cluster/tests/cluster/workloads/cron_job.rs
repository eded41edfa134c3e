//! CronJob controller.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{finish, is_active, list, template, test_cluster};
use bellerophon_testkit::{TestCluster, wait_until};

fn cron_job(more: Value) -> Value {
    let mut pod = template("tick", "tick:1");
    pod["spec"]["restartPolicy"] = json!("Never");
    let mut spec =
        json!({ "schedule": "*/10 * * * *", "jobTemplate": { "spec": { "template": pod } } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": { "name": "tick" },
        "spec": spec,
    })
}

async fn finish_all(cluster: &TestCluster) {
    for pod in cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap()
        .iter()
        .filter(|pod| is_active(pod))
    {
        finish(cluster, pod, "Succeeded").await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_are_created_on_schedule_and_history_is_limited() {
    let cluster = test_cluster().await;
    cluster
        .apply(cron_job(json!({ "successfulJobsHistoryLimit": 2 })))
        .await;
    for round in 0..5 {
        wait_until(
            &cluster.namespaced::<CronJob>("default"),
            "one Job is active",
            |cron_jobs| {
                cron_jobs[0].status.as_ref().is_some_and(|status| {
                    status
                        .active
                        .as_ref()
                        .is_some_and(|active| active.len() == 1)
                })
            },
        )
        .await;
        wait_until(
            &cluster.namespaced::<Pod>("default"),
            "its pod is active",
            |pods| pods.iter().any(is_active),
        )
        .await;
        assert_eq!(super::now(&cluster).as_second() % 600, 0, "round {round}");
        finish_all(&cluster).await;
        wait_until(
            &cluster.namespaced::<CronJob>("default"),
            "the Job has finished",
            |cron_jobs| {
                cron_jobs[0].status.as_ref().is_some_and(|status| {
                    status.active.is_none() && status.last_successful_time.is_some()
                })
            },
        )
        .await;
    }
    wait_until(
        &cluster.namespaced::<Job>("default"),
        "two Jobs are kept",
        |jobs| jobs.len() == 2,
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn concurrency_policy_applies_to_overlapping_jobs() {
    let cluster = test_cluster().await;
    cluster
        .apply(cron_job(json!({ "concurrencyPolicy": "Forbid" })))
        .await;
    let first = wait_until(
        &cluster.namespaced::<Job>("default"),
        "the first job",
        |jobs| jobs.len() == 1,
    )
    .await
    .remove(0);
    cluster.advance(Duration::from_secs(3600)).await;
    let jobs = cluster
        .namespaced::<Job>("default")
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(
        jobs.iter().map(|job| job.uid()).collect::<Vec<_>>(),
        [first.uid()],
        "no other Job is created while it is active"
    );
    cluster
        .apply(cron_job(json!({ "concurrencyPolicy": "Replace" })))
        .await;
    wait_until(
        &cluster.namespaced::<Job>("default"),
        "another Job replaces it",
        |jobs| jobs.len() == 1 && jobs[0].uid() != first.uid(),
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn missed_schedule_times_create_one_job() {
    let mut cluster = test_cluster().await;
    cluster.apply(cron_job(json!({}))).await;
    wait_until(
        &cluster.namespaced::<Job>("default"),
        "the first job",
        |jobs| jobs.len() == 1,
    )
    .await;
    cluster.stop_controllers().await;
    cluster.advance(Duration::from_secs(5 * 3600)).await;
    cluster.start_controllers().await;
    wait_until(
        &cluster.namespaced::<Job>("default"),
        "one Job for the missed times",
        |jobs| jobs.len() == 2,
    )
    .await;
    cluster.advance(Duration::from_secs(30)).await;
    assert_eq!(list::<Job>(&cluster).await.len(), 2);
    cluster.stop().await;
}
