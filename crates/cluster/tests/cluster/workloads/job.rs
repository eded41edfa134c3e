//! Jobs.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{finish, is_active, make_all_ready, patch, pods, template, world};
use bellerophon_testkit::{World, until};

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

async fn until_condition(world: &World, type_: &str) -> Job {
    until(&world.within::<Job>("default"), type_, |jobs| {
        condition(&jobs[0], type_).is_some()
    })
    .await
    .remove(0)
}

/// Ends every active pod.
async fn finish_all(world: &World, phase: &str) {
    for pod in world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap()
        .iter()
        .filter(|pod| is_active(pod))
    {
        finish(world, pod, phase).await;
    }
}

fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers()
        .iter()
        .any(|finalizer| finalizer == "batch.kubernetes.io/job-tracking")
}

#[tokio::test(start_paused = true)]
async fn job_runs_so_many_pods_to_their_end() {
    let world = world().await;
    world
        .apply(job(json!({ "completions": 3, "parallelism": 2 })))
        .await;
    let two = pods(&world, 2).await;
    assert!(two.iter().all(is_tracked));
    make_all_ready(&world).await;
    until(
        &world.within::<Job>("default"),
        "two active and ready",
        |jobs| {
            jobs[0].status.as_ref().is_some_and(|status| {
                status.active == Some(2) && status.ready == Some(2) && status.start_time.is_some()
            })
        },
    )
    .await;
    finish_all(&world, "Succeeded").await;
    pods(&world, 1).await;
    finish_all(&world, "Succeeded").await;
    let done = until_condition(&world, "Complete").await;
    let status = done.status.clone().unwrap();
    assert_eq!(status.succeeded, Some(3));
    assert_eq!(status.failed, None);
    assert_eq!(status.active, None);
    assert!(status.completion_time.is_some());
    assert_eq!(
        condition(&done, "SuccessCriteriaMet").as_deref(),
        Some("CompletionsReached")
    );
    let left = world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap();
    assert!(
        left.items.len() == 3,
        "finished pods stay, for people to look at, and are free to go"
    );
    assert!(
        !left.iter().any(is_tracked),
        "finished pods stay, for people to look at, and are free to go"
    );
    until(
        &world.within::<Event>("default"),
        "an event tells",
        |events| {
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some("Completed"))
        },
    )
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_job_backs_off_and_gives_up() {
    let world = world().await;
    world
        .apply(job(
            json!({ "completions": 1, "parallelism": 1, "backoffLimit": 3 }),
        ))
        .await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        pods(&world, 1).await;
        finish_all(&world, "Failed").await;
        let before = super::now(&world);
        pods(&world, 1).await;
        waits.push(super::now(&world).duration_since(before).as_secs());
    }
    // Objects tell whole seconds.
    assert!(
        waits
            .iter()
            .zip([10, 20, 40])
            .all(|(waited, expected)| (expected - 1..=expected).contains(waited)),
        "{waits:?}"
    );
    finish_all(&world, "Failed").await;
    let failed = until_condition(&world, "Failed").await;
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("BackoffLimitExceeded")
    );
    assert_eq!(failed.status.unwrap().failed, Some(4));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_what_runs() {
    let world = world().await;
    world
        .apply(job(
            json!({ "completions": 2, "parallelism": 2, "activeDeadlineSeconds": 30 }),
        ))
        .await;
    pods(&world, 2).await;
    let failed = until_condition(&world, "Failed").await;
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("DeadlineExceeded")
    );
    assert_eq!(failed.status.unwrap().failed, Some(2));
    pods(&world, 0).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn suspended_job_runs_nothing_until_it_is_resumed() {
    let world = world().await;
    world
        .apply(job(json!({ "completions": 2, "parallelism": 2 })))
        .await;
    pods(&world, 2).await;
    patch(
        &world.within::<Job>("default"),
        "work",
        json!({ "spec": { "suspend": true } }),
    )
    .await;
    pods(&world, 0).await;
    let suspended = until_condition(&world, "Suspended").await;
    assert_eq!(suspended.status.unwrap().failed, None);
    patch(
        &world.within::<Job>("default"),
        "work",
        json!({ "spec": { "suspend": false } }),
    )
    .await;
    pods(&world, 2).await;
    finish_all(&world, "Succeeded").await;
    until_condition(&world, "Complete").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn indexed_job_runs_each_index() {
    let world = world().await;
    world.apply(job(json!({ "completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 1 }))).await;
    let four = pods(&world, 4).await;
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
            &world,
            pod,
            if index(pod) == "2" {
                "Failed"
            } else {
                "Succeeded"
            },
        )
        .await;
    }
    let again = pods(&world, 1).await;
    assert_eq!(index(&again[0]).as_str(), "2");
    assert_eq!(
        again[0].annotations()["batch.kubernetes.io/job-index-failure-count"].as_str(),
        "1"
    );
    finish(&world, &again[0], "Failed").await;
    let failed = until_condition(&world, "Failed").await;
    let status = failed.status.clone().unwrap();
    assert_eq!(
        condition(&failed, "Failed").as_deref(),
        Some("FailedIndexes")
    );
    assert_eq!(status.completed_indexes.as_deref(), Some("0,1,3"));
    assert_eq!(status.failed_indexes.as_deref(), Some("2"));
    assert_eq!(status.succeeded, Some(3));
    assert_eq!(status.failed, Some(2));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_pod_is_counted_once_whatever_dies() {
    let mut world = world().await;
    world
        .apply(job(json!({ "completions": 30, "parallelism": 10 })))
        .await;
    for round in 0..3 {
        pods(&world, 10).await;
        finish_all(&world, "Succeeded").await;
        if round < 2 {
            world.restart().await;
        }
    }
    world.restart().await;
    let done = until_condition(&world, "Complete").await;
    assert_eq!(done.status.unwrap().succeeded, Some(30));
    assert_eq!(
        world
            .within::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len(),
        30
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_job_go_with_it() {
    let world = world().await;
    world
        .apply(job(json!({ "completions": 3, "parallelism": 3 })))
        .await;
    pods(&world, 3).await;
    for params in [DeleteParams::background(), DeleteParams::foreground()] {
        world
            .within::<Job>("default")
            .delete("work", &params)
            .await
            .unwrap();
        until(&world.within::<Pod>("default"), "no pod is left", |pods| {
            pods.is_empty()
        })
        .await;
        until(&world.within::<Job>("default"), "no job is left", |jobs| {
            jobs.is_empty()
        })
        .await;
        world.pass(Duration::from_secs(60)).await;
        world
            .apply(job(json!({ "completions": 3, "parallelism": 3 })))
            .await;
        pods(&world, 3).await;
    }
    world.stop().await;
}
