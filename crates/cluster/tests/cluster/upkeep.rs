//! Upkeep: sums of roles, jobs that nobody needs any more, storage that is in use.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use bellerophon_testkit::{World, until};

#[tokio::test(start_paused = true)]
async fn roles_that_are_sums_follow_their_parts() {
    let world = World::core().await;
    let roles: Api<ClusterRole> = world.all();
    let rules_of = |all: &[ClusterRole], name: &str| {
        all.iter()
            .find(|role| role.name_any() == name)
            .and_then(|role| role.rules.clone())
            .unwrap_or_default()
    };
    until(&roles, "the built-in sums are made", |all| {
        ["admin", "edit", "view"]
            .iter()
            .all(|name| !rules_of(all, name).is_empty())
    })
    .await;
    let rule = json!([{"apiGroups": ["example.com"], "resources": ["heroes"], "verbs": ["get"]}]);
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let part = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "heroes", "labels": labels}, "rules": rule
    });
    world.apply(part.clone()).await;
    let has = |all: &[ClusterRole], name: &str| {
        rules_of(all, name)
            .iter()
            .any(|rule| rule.resources.as_deref() == Some(&["heroes".to_owned()][..]))
    };
    // `view` is a part of `edit`, and `edit` of `admin`.
    let all = until(&roles, "all sums have it", |all| {
        ["admin", "edit", "view"].iter().all(|name| has(all, name))
    })
    .await;
    let view = all
        .iter()
        .find(|role| role.name_any() == "view")
        .expect("it is built in");
    assert!(
        view.managed_fields()
            .iter()
            .any(|entry| entry.manager.as_deref() == Some("clusterrole-aggregation-controller"))
    );
    world.delete(part).await;
    until(&roles, "none has it", |all| {
        ["admin", "edit", "view"].iter().all(|name| !has(all, name))
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finished_job_goes_after_its_time() {
    let world = World::core().await;
    let jobs: Api<Job> = world.within("default");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"ttlSecondsAfterFinished": 100, "template": template});
    world.apply(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec})).await;
    world.pass(Duration::from_secs(1000)).await;
    let now = jiff::Timestamp::from_second(world.clock.now().as_second()).expect("a time");
    let done = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now, "lastProbeTime": now});
    let status = json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1, "conditions": [done("SuccessCriteriaMet"), done("Complete")]
    }});
    jobs.patch_status("j", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .expect("it is finished");
    world.pass(Duration::from_secs(90)).await;
    assert!(
        jobs.get_opt("j").await.expect("an answer").is_some(),
        "its time is not over"
    );
    until(&jobs, "it goes", |all| all.is_empty()).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn claim_stays_while_a_pod_uses_it() {
    let world = World::core().await;
    let claims: Api<PersistentVolumeClaim> = world.within("default");
    let pods: Api<Pod> = world.within("default");
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    world.apply(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": spec})).await;
    until(
        &world.within::<k8s_openapi::api::core::v1::ServiceAccount>("default"),
        "an account",
        |all| !all.is_empty(),
    )
    .await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let spec =
        json!({"nodeName": "n", "volumes": volumes, "containers": [{"name": "c", "image": "i"}]});
    world
        .apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
        .await;
    claims
        .delete("c", &Default::default())
        .await
        .expect("it is deleted");
    world.pass(Duration::from_secs(600)).await;
    assert!(
        claims.get_opt("c").await.expect("an answer").is_some(),
        "the pod uses it"
    );
    pods.delete(
        "p",
        &DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        },
    )
    .await
    .expect("it is deleted");
    until(&claims, "it goes", |all| all.is_empty()).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volume_stays_while_a_claim_is_bound_to_it() {
    let world = World::core().await;
    let volumes: Api<PersistentVolume> = world.all();
    let spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
    world.apply(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec})).await;
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    volumes
        .patch_status("v", &PatchParams::default(), &Patch::Merge(&phase("Bound")))
        .await
        .expect("it is bound");
    volumes
        .delete("v", &Default::default())
        .await
        .expect("it is deleted");
    world.pass(Duration::from_secs(600)).await;
    assert!(
        volumes.get_opt("v").await.expect("an answer").is_some(),
        "it is bound"
    );
    volumes
        .patch_status(
            "v",
            &PatchParams::default(),
            &Patch::Merge(&phase("Released")),
        )
        .await
        .expect("it is released");
    until(&volumes, "it goes", |all| all.is_empty()).await;
    world.stop().await;
}
