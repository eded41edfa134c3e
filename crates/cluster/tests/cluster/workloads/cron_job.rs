//! CronJobs, through days of cluster life.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{finish, is_active, template, world};
use bellerophon_testkit::{World, until};

fn cron(more: Value) -> Value {
    let mut pod = template("tick", "tick:1");
    pod["spec"]["restartPolicy"] = json!("Never");
    let mut spec =
        json!({ "schedule": "*/10 * * * *", "jobTemplate": { "spec": { "template": pod } } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "tick" }, "spec": spec })
}

async fn finish_all(world: &World) {
    for pod in world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .unwrap()
        .iter()
        .filter(|pod| is_active(pod))
    {
        finish(world, pod, "Succeeded").await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_come_at_their_times_and_history_is_kept() {
    let world = world().await;
    world
        .apply(cron(json!({ "successfulJobsHistoryLimit": 2 })))
        .await;
    for round in 0..5 {
        until(
            &world.within::<CronJob>("default"),
            "one job runs",
            |crons| {
                crons[0].status.as_ref().is_some_and(|status| {
                    status
                        .active
                        .as_ref()
                        .is_some_and(|active| active.len() == 1)
                })
            },
        )
        .await;
        until(&world.within::<Pod>("default"), "its pod runs", |pods| {
            pods.iter().any(is_active)
        })
        .await;
        assert_eq!(super::now(&world).as_second() % 600, 0, "round {round}");
        finish_all(&world).await;
        until(&world.within::<CronJob>("default"), "it is over", |crons| {
            crons[0].status.as_ref().is_some_and(|status| {
                status.active.is_none() && status.last_successful_time.is_some()
            })
        })
        .await;
    }
    until(&world.within::<Job>("default"), "two are kept", |jobs| {
        jobs.len() == 2
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn policy_decides_about_overlapping_jobs() {
    let world = world().await;
    world
        .apply(cron(json!({ "concurrencyPolicy": "Forbid" })))
        .await;
    let first = until(&world.within::<Job>("default"), "the first job", |jobs| {
        jobs.len() == 1
    })
    .await
    .remove(0);
    world.pass(Duration::from_secs(3600)).await;
    let still = world
        .within::<Job>("default")
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(
        still.iter().map(|job| job.uid()).collect::<Vec<_>>(),
        [first.uid()],
        "it still runs, so no other comes"
    );
    world
        .apply(cron(json!({ "concurrencyPolicy": "Replace" })))
        .await;
    until(
        &world.within::<Job>("default"),
        "another job takes its place",
        |jobs| jobs.len() == 1 && jobs[0].uid() != first.uid(),
    )
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn missed_times_are_made_up_for_once() {
    let mut world = world().await;
    world.apply(cron(json!({}))).await;
    until(&world.within::<Job>("default"), "the first job", |jobs| {
        jobs.len() == 1
    })
    .await;
    world.pause().await;
    world.pass(Duration::from_secs(5 * 3600)).await;
    world.resume().await;
    until(
        &world.within::<Job>("default"),
        "one job for five hours",
        |jobs| jobs.len() == 2,
    )
    .await;
    world.pass(Duration::from_secs(30)).await;
    assert_eq!(
        world
            .within::<Job>("default")
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len(),
        2
    );
    world.stop().await;
}
