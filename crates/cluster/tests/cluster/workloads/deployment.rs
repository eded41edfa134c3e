//! Deployments.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::{controller, image, is_active, is_ready, make_all_ready, patch, pods, template, world};
use bellerophon_testkit::{World, until};

fn deployment(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": template(name, image) },
    })
}

/// Makes pods ready as they come, those whose image is `broken` excepted, until the Deployment is as wanted.
async fn run_until(world: &World, wanted: &str, so: impl Fn(&Deployment) -> bool) -> Deployment {
    for _ in 0..100 {
        let deployment = world
            .within::<Deployment>("default")
            .get("web")
            .await
            .unwrap();
        if so(&deployment) {
            return deployment;
        }
        let pods = world
            .within::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap();
        for pod in pods
            .iter()
            .filter(|pod| is_active(pod) && !is_ready(pod) && image(pod) != "broken")
        {
            super::make_ready(world, pod).await;
        }
        world.pass(Duration::from_secs(1)).await;
    }
    panic!("{wanted}: not within 100 s");
}

fn is_complete(deployment: &Deployment) -> bool {
    let (spec, Some(status)) = (deployment.spec.as_ref().unwrap(), &deployment.status) else {
        return false;
    };
    status.observed_generation == deployment.metadata.generation
        && status.updated_replicas == spec.replicas
        && status.replicas == spec.replicas
        && status.available_replicas == spec.replicas
}

fn reason(deployment: &Deployment, type_: &str) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_)?
        .reason
        .clone()
}

async fn sets(world: &World) -> Vec<ReplicaSet> {
    let mut sets = world
        .within::<ReplicaSet>("default")
        .list(&Default::default())
        .await
        .unwrap()
        .items;
    sets.sort_by_key(|set| set.annotations()["deployment.kubernetes.io/revision"].clone());
    sets
}

#[tokio::test(start_paused = true)]
async fn template_is_rolled_out_and_back() {
    let world = world().await;
    world.apply(deployment("web", 3, "web:1")).await;
    let done = run_until(&world, "the first rollout", is_complete).await;
    assert_eq!(done.annotations()["deployment.kubernetes.io/revision"], "1");
    assert_eq!(
        reason(&done, "Progressing").as_deref(),
        Some("NewReplicaSetAvailable")
    );
    assert_eq!(
        reason(&done, "Available").as_deref(),
        Some("MinimumReplicasAvailable")
    );
    assert_eq!(done.status.as_ref().unwrap().unavailable_replicas, None);

    world.apply(deployment("web", 3, "web:2")).await;
    run_until(&world, "the second rollout", is_complete).await;
    let now = pods(&world, 3).await;
    assert!(now.iter().all(|pod| image(pod) == "web:2"));
    let two = sets(&world).await;
    assert_eq!(
        two.iter()
            .map(|set| set.spec.as_ref().unwrap().replicas)
            .collect::<Vec<_>>(),
        [Some(0), Some(3)]
    );
    let hash = two[1].labels()["pod-template-hash"].clone();
    assert_eq!(two[1].name_any(), format!("web-{hash}"));
    assert!(
        now.iter()
            .all(|pod| pod.labels()["pod-template-hash"] == hash)
    );

    // `kubectl rollout undo` writes the template of the set it rolls back to.
    world.apply(deployment("web", 3, "web:1")).await;
    let done = run_until(&world, "the way back", is_complete).await;
    assert_eq!(done.annotations()["deployment.kubernetes.io/revision"], "3");
    let two = sets(&world).await;
    assert_eq!(two.len(), 2);
    assert_eq!(
        two[1].annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
    let events = world
        .within::<Event>("default")
        .list(&Default::default())
        .await
        .unwrap();
    let first = format!("Scaled up replica set {} from 0 to 3", two[1].name_any());
    assert!(
        events
            .iter()
            .any(|event| event.note.as_ref() == Some(&first)
                && event.reason.as_deref() == Some("ScalingReplicaSet"))
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn broken_template_leaves_the_old_pods_and_times_out() {
    let world = world().await;
    world.apply(deployment("web", 4, "web:1")).await;
    run_until(&world, "the first rollout", is_complete).await;
    world.apply(deployment("web", 4, "broken")).await;
    let mut stuck = until(
        &world.within::<Deployment>("default"),
        "the deadline is missed",
        |all| reason(&all[0], "Progressing").as_deref() == Some("ProgressDeadlineExceeded"),
    )
    .await;
    let stuck = stuck.remove(0);
    let status = stuck.status.unwrap();
    assert_eq!(status.available_replicas, Some(3), "25 % each way");
    assert_eq!(status.updated_replicas, Some(2), "25 % each way");
    assert_eq!(status.replicas, Some(5), "25 % each way");
    let working = pods(&world, 5)
        .await
        .iter()
        .filter(|pod| image(pod) == "web:1" && is_ready(pod))
        .count();
    assert_eq!(working, 3);
    world.apply(deployment("web", 4, "web:1")).await;
    run_until(&world, "the way back", is_complete).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn recreate_lets_no_two_templates_run_together() {
    let world = world().await;
    let recreate = |image: &str| {
        let mut web = deployment("web", 2, image);
        web["spec"]["strategy"] = json!({ "type": "Recreate" });
        web
    };
    world.apply(recreate("web:1")).await;
    run_until(&world, "the first rollout", is_complete).await;
    // A pod that takes its time to end: somebody holds it back.
    let slow = pods(&world, 2).await.remove(0);
    patch(
        &world.within::<Pod>("default"),
        &slow.name_any(),
        json!({ "metadata": { "finalizers": ["example.org/hold"] } }),
    )
    .await;
    world.apply(recreate("web:2")).await;
    until(
        &world.within::<Pod>("default"),
        "one old pod is left",
        |pods| pods.len() == 1 && !is_active(&pods[0]),
    )
    .await;
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(
        world
            .within::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len(),
        1,
        "nothing new while it is there"
    );
    patch(
        &world.within::<Pod>("default"),
        &slow.name_any(),
        json!({ "metadata": { "finalizers": null } }),
    )
    .await;
    run_until(&world, "the second rollout", is_complete).await;
    assert!(
        pods(&world, 2)
            .await
            .iter()
            .all(|pod| image(pod) == "web:2")
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn taken_name_is_counted_as_a_collision() {
    let world = world().await;
    world.apply(deployment("web", 1, "web:1")).await;
    run_until(&world, "the first rollout", is_complete).await;
    let set = sets(&world).await.remove(0);
    world
        .within::<Deployment>("default")
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    until(&world.within::<ReplicaSet>("default"), "no set", |sets| {
        sets.is_empty()
    })
    .await;
    // Somebody else takes the name that the set of this template would have.
    let mut squatter = set.clone();
    squatter.metadata = kube::api::ObjectMeta {
        name: set.metadata.name.clone(),
        ..Default::default()
    };
    let spec = squatter.spec.as_mut().unwrap();
    spec.replicas = Some(0);
    spec.selector =
        serde_json::from_value(json!({ "matchLabels": { "app": "squatter" } })).unwrap();
    spec.template = serde_json::from_value(template("squatter", "web:9")).unwrap();
    squatter.status = None;
    world
        .within::<ReplicaSet>("default")
        .create(&PostParams::default(), &squatter)
        .await
        .unwrap();
    world.apply(deployment("web", 1, "web:1")).await;
    let done = run_until(&world, "the rollout under another name", is_complete).await;
    assert_eq!(done.status.unwrap().collision_count, Some(1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphaned_sets_are_adopted() {
    let world = world().await;
    world.apply(deployment("web", 2, "web:1")).await;
    run_until(&world, "the first rollout", is_complete).await;
    let before = pods(&world, 2).await;
    let name = sets(&world).await[0].name_any();
    world
        .within::<Deployment>("default")
        .delete("web", &DeleteParams::orphan())
        .await
        .unwrap();
    patch(
        &world.within::<ReplicaSet>("default"),
        &name,
        json!({ "metadata": { "ownerReferences": null } }),
    )
    .await;
    patch_away_finalizers(&world).await;
    world.apply(deployment("web", 2, "web:1")).await;
    run_until(&world, "adoption", is_complete).await;
    let adopted = sets(&world).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(controller(&adopted[0]), Some("web"));
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.uid()).collect::<Vec<_>>();
    assert_eq!(
        uids(&pods(&world, 2).await),
        uids(&before),
        "no pod was replaced"
    );
    world.stop().await;
}

/// Orphaning is the garbage collector's; without it the test does its part.
async fn patch_away_finalizers(world: &World) {
    let deployments = world.within::<Deployment>("default");
    if deployments.get_opt("web").await.unwrap().is_some() {
        patch(
            &deployments,
            "web",
            json!({ "metadata": { "finalizers": null } }),
        )
        .await;
    }
    until(&deployments, "the deployment is gone", |all| all.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn restarts_in_a_rollout_change_nothing_in_the_end() {
    let mut world = world().await;
    world.apply(deployment("web", 6, "web:1")).await;
    run_until(&world, "the first rollout", is_complete).await;
    world.apply(deployment("web", 6, "web:2")).await;
    for _ in 0..6 {
        world.restart().await;
        make_all_ready(&world).await;
        world.pass(Duration::from_millis(700)).await;
        let there = world
            .within::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap();
        assert!(
            there.iter().filter(|pod| is_active(pod)).count() <= 8,
            "six and a quarter more, rounded up"
        );
    }
    run_until(&world, "the second rollout", is_complete).await;
    assert!(
        pods(&world, 6)
            .await
            .iter()
            .all(|pod| image(pod) == "web:2")
    );
    assert_eq!(sets(&world).await.len(), 2);
    world.stop().await;
}
