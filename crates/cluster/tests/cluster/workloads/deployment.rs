//! Deployments.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::{
    controller, image, is_active, is_ready, list, make_all_ready, patch, pods, template,
    test_cluster,
};
use bellerophon_testkit::{TestCluster, wait_until};

fn deployment(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": template(name, image),
        },
    })
}

/// Sets pods ready, except those with image `broken`, until the Deployment satisfies the predicate.
async fn run_until(
    cluster: &TestCluster,
    description: &str,
    predicate: impl Fn(&Deployment) -> bool,
) -> Deployment {
    for _ in 0..100 {
        let deployment = cluster
            .namespaced::<Deployment>("default")
            .get("web")
            .await
            .unwrap();
        if predicate(&deployment) {
            return deployment;
        }
        let pods = cluster
            .namespaced::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap();
        for pod in pods
            .iter()
            .filter(|pod| is_active(pod) && !is_ready(pod) && image(pod) != "broken")
        {
            super::make_ready(cluster, pod).await;
        }
        cluster.advance(Duration::from_secs(1)).await;
    }
    panic!("{description}: not within 100 s");
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

async fn sets(cluster: &TestCluster) -> Vec<ReplicaSet> {
    let mut sets = list::<ReplicaSet>(cluster).await;
    sets.sort_by_key(|set| set.annotations()["deployment.kubernetes.io/revision"].clone());
    sets
}

#[tokio::test(start_paused = true)]
async fn template_is_rolled_out_and_back() {
    let cluster = test_cluster().await;
    cluster.apply(deployment("web", 3, "web:1")).await;
    let complete = run_until(&cluster, "the first rollout", is_complete).await;
    assert_eq!(
        complete.annotations()["deployment.kubernetes.io/revision"],
        "1"
    );
    assert_eq!(
        reason(&complete, "Progressing").as_deref(),
        Some("NewReplicaSetAvailable")
    );
    assert_eq!(
        reason(&complete, "Available").as_deref(),
        Some("MinimumReplicasAvailable")
    );
    assert_eq!(complete.status.as_ref().unwrap().unavailable_replicas, None);

    cluster.apply(deployment("web", 3, "web:2")).await;
    run_until(&cluster, "the second rollout", is_complete).await;
    let now = pods(&cluster, 3).await;
    assert!(now.iter().all(|pod| image(pod) == "web:2"));
    let two = sets(&cluster).await;
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
    cluster.apply(deployment("web", 3, "web:1")).await;
    let complete = run_until(&cluster, "the rollback", is_complete).await;
    assert_eq!(
        complete.annotations()["deployment.kubernetes.io/revision"],
        "3"
    );
    let two = sets(&cluster).await;
    assert_eq!(two.len(), 2);
    assert_eq!(
        two[1].annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
    let events = cluster
        .namespaced::<Event>("default")
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
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failing_rollout_keeps_old_pods_and_exceeds_its_deadline() {
    let cluster = test_cluster().await;
    cluster.apply(deployment("web", 4, "web:1")).await;
    run_until(&cluster, "the first rollout", is_complete).await;
    cluster.apply(deployment("web", 4, "broken")).await;
    let mut stuck = wait_until(
        &cluster.namespaced::<Deployment>("default"),
        "the progress deadline is exceeded",
        |all| reason(&all[0], "Progressing").as_deref() == Some("ProgressDeadlineExceeded"),
    )
    .await;
    let stuck = stuck.remove(0);
    let status = stuck.status.unwrap();
    assert_eq!(
        status.available_replicas,
        Some(3),
        "maxSurge and maxUnavailable are 25%"
    );
    assert_eq!(
        status.updated_replicas,
        Some(2),
        "maxSurge and maxUnavailable are 25%"
    );
    assert_eq!(
        status.replicas,
        Some(5),
        "maxSurge and maxUnavailable are 25%"
    );
    let working = pods(&cluster, 5)
        .await
        .iter()
        .filter(|pod| image(pod) == "web:1" && is_ready(pod))
        .count();
    assert_eq!(working, 3);
    cluster.apply(deployment("web", 4, "web:1")).await;
    run_until(&cluster, "the rollback", is_complete).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn recreate_deletes_old_pods_before_creating_new_ones() {
    let cluster = test_cluster().await;
    let recreate = |image: &str| {
        let mut web = deployment("web", 2, image);
        web["spec"]["strategy"] = json!({ "type": "Recreate" });
        web
    };
    cluster.apply(recreate("web:1")).await;
    run_until(&cluster, "the first rollout", is_complete).await;
    // A finalizer delays the deletion of this pod.
    let slow = pods(&cluster, 2).await.remove(0);
    patch(
        &cluster.namespaced::<Pod>("default"),
        &slow.name_any(),
        json!({ "metadata": { "finalizers": ["example.org/hold"] } }),
    )
    .await;
    cluster.apply(recreate("web:2")).await;
    wait_until(
        &cluster.namespaced::<Pod>("default"),
        "one old pod remains",
        |pods| pods.len() == 1 && !is_active(&pods[0]),
    )
    .await;
    cluster.advance(Duration::from_secs(5)).await;
    assert_eq!(
        list::<Pod>(&cluster).await.len(),
        1,
        "no new pod is created while it exists"
    );
    patch(
        &cluster.namespaced::<Pod>("default"),
        &slow.name_any(),
        json!({ "metadata": { "finalizers": null } }),
    )
    .await;
    run_until(&cluster, "the second rollout", is_complete).await;
    assert!(
        pods(&cluster, 2)
            .await
            .iter()
            .all(|pod| image(pod) == "web:2")
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn taken_name_increments_the_collision_count() {
    let cluster = test_cluster().await;
    cluster.apply(deployment("web", 1, "web:1")).await;
    run_until(&cluster, "the first rollout", is_complete).await;
    let set = sets(&cluster).await.remove(0);
    cluster
        .namespaced::<Deployment>("default")
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    wait_until(
        &cluster.namespaced::<ReplicaSet>("default"),
        "no set",
        |sets| sets.is_empty(),
    )
    .await;
    // Another ReplicaSet takes the name of this template's ReplicaSet.
    let mut other_set = set.clone();
    other_set.metadata = kube::api::ObjectMeta {
        name: set.metadata.name.clone(),
        ..Default::default()
    };
    let spec = other_set.spec.as_mut().unwrap();
    spec.replicas = Some(0);
    spec.selector = serde_json::from_value(json!({ "matchLabels": { "app": "other" } })).unwrap();
    spec.template = serde_json::from_value(template("other", "web:9")).unwrap();
    other_set.status = None;
    cluster
        .namespaced::<ReplicaSet>("default")
        .create(&PostParams::default(), &other_set)
        .await
        .unwrap();
    cluster.apply(deployment("web", 1, "web:1")).await;
    let complete = run_until(&cluster, "the rollout with another name", is_complete).await;
    assert_eq!(complete.status.unwrap().collision_count, Some(1));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphaned_replica_sets_are_adopted() {
    let cluster = test_cluster().await;
    cluster.apply(deployment("web", 2, "web:1")).await;
    run_until(&cluster, "the first rollout", is_complete).await;
    let before = pods(&cluster, 2).await;
    let name = sets(&cluster).await[0].name_any();
    cluster
        .namespaced::<Deployment>("default")
        .delete("web", &DeleteParams::orphan())
        .await
        .unwrap();
    patch(
        &cluster.namespaced::<ReplicaSet>("default"),
        &name,
        json!({ "metadata": { "ownerReferences": null } }),
    )
    .await;
    remove_finalizers(&cluster).await;
    cluster.apply(deployment("web", 2, "web:1")).await;
    run_until(&cluster, "adoption", is_complete).await;
    let adopted = sets(&cluster).await;
    assert_eq!(adopted.len(), 1);
    assert_eq!(controller(&adopted[0]), Some("web"));
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.uid()).collect::<Vec<_>>();
    assert_eq!(
        uids(&pods(&cluster, 2).await),
        uids(&before),
        "no pod was replaced"
    );
    cluster.stop().await;
}

/// Completes the orphaning in place of the garbage collector.
async fn remove_finalizers(cluster: &TestCluster) {
    let deployments = cluster.namespaced::<Deployment>("default");
    if deployments.get_opt("web").await.unwrap().is_some() {
        patch(
            &deployments,
            "web",
            json!({ "metadata": { "finalizers": null } }),
        )
        .await;
    }
    wait_until(&deployments, "the Deployment is deleted", |all| {
        all.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rollout_completes_despite_restarts() {
    let mut cluster = test_cluster().await;
    cluster.apply(deployment("web", 6, "web:1")).await;
    run_until(&cluster, "the first rollout", is_complete).await;
    cluster.apply(deployment("web", 6, "web:2")).await;
    for _ in 0..6 {
        cluster.restart_controllers().await;
        make_all_ready(&cluster).await;
        cluster.advance(Duration::from_millis(700)).await;
        let pods = cluster
            .namespaced::<Pod>("default")
            .list(&Default::default())
            .await
            .unwrap();
        assert!(
            pods.iter().filter(|pod| is_active(pod)).count() <= 8,
            "6 and 25% surge, rounded up"
        );
    }
    run_until(&cluster, "the second rollout", is_complete).await;
    assert!(
        pods(&cluster, 6)
            .await
            .iter()
            .all(|pod| image(pod) == "web:2")
    );
    assert_eq!(sets(&cluster).await.len(), 2);
    cluster.stop().await;
}
