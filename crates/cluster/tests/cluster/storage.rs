//! Claims get volumes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::look::{condition, is_ready, until_pod, world};
use bellerophon_testkit::until;

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

#[tokio::test(start_paused = true)]
async fn members_with_storage_run_and_their_volumes_go_with_the_claims() {
    let world = world(2).await;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "db"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
        },
    });
    world.apply(set).await;
    let pods: Api<Pod> = world.within("default");
    until(&pods, "both members run", |pods| {
        pods.len() == 2 && pods.iter().all(is_ready)
    })
    .await;
    let claims: Api<PersistentVolumeClaim> = world.within("default");
    let bound = until(&claims, "both claims are bound", |claims| {
        claims.iter().all(|claim| phase(claim) == Some("Bound"))
    })
    .await;
    assert_eq!(bound.len(), 2);
    let volumes: Api<PersistentVolume> = world.all();
    let volume_phase = |volume: &PersistentVolume| {
        volume
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
    };
    until(&volumes, "both volumes say so", |volumes| {
        volumes.len() == 2
            && volumes
                .iter()
                .all(|v| volume_phase(v).as_deref() == Some("Bound"))
    })
    .await;
    world
        .delete(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}}))
        .await;
    until(&pods, "the members are gone", |pods| pods.is_empty()).await;
    for claim in bound {
        claims
            .delete(&claim.name_any(), &Default::default())
            .await
            .unwrap();
    }
    until(&volumes, "volumes nobody claims are gone", |volumes| {
        volumes.is_empty()
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_waits_for_its_claim_and_runs_where_the_volume_is() {
    let world = world(3).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "image": "nginx"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    world.apply(pod).await;
    let waits = until_pod(&world, "web", "the pod waits", |pod| {
        condition(pod, "PodScheduled").is_some()
    })
    .await;
    let why = condition(&waits, "PodScheduled")
        .unwrap()
        .message
        .clone()
        .unwrap();
    assert!(
        why.starts_with("0/3 nodes are available: persistentvolumeclaim \"data\" not found."),
        "{why}"
    );
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}, "storageClassName": "local",
            "local": {"path": "/disk"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]}]}]}}},
    });
    world.apply(volume).await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": {"requests": {"storage": "2Gi"}}},
    });
    world.apply(claim).await;
    let web = until_pod(&world, "web", "the pod runs", is_ready).await;
    assert_eq!(web.spec.unwrap().node_name.as_deref(), Some("node-2"));
    world.stop().await;
}
