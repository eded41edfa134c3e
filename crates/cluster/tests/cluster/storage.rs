//! Volume binding.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::pods::{condition, is_ready, test_cluster, until_pod};
use bellerophon_testkit::wait_until;

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

#[tokio::test(start_paused = true)]
async fn volumes_are_provisioned_and_deleted_with_their_claims() {
    let cluster = test_cluster(2).await;
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [{"name": "db", "image": "db"}]},
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                },
            ],
        },
    });
    cluster.apply(set).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    wait_until(&pods, "both pods are ready", |pods| {
        pods.len() == 2 && pods.iter().all(is_ready)
    })
    .await;
    let claims: Api<PersistentVolumeClaim> = cluster.namespaced("default");
    let bound = wait_until(&claims, "both claims are bound", |claims| {
        claims.iter().all(|claim| phase(claim) == Some("Bound"))
    })
    .await;
    assert_eq!(bound.len(), 2);
    let volumes: Api<PersistentVolume> = cluster.all();
    let volume_phase = |volume: &PersistentVolume| {
        volume
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
    };
    wait_until(&volumes, "both volumes are bound", |volumes| {
        volumes.len() == 2
            && volumes
                .iter()
                .all(|v| volume_phase(v).as_deref() == Some("Bound"))
    })
    .await;
    cluster
        .delete(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}}))
        .await;
    wait_until(&pods, "the pods are deleted", |pods| pods.is_empty()).await;
    for claim in bound {
        claims
            .delete(&claim.name_any(), &Default::default())
            .await
            .unwrap();
    }
    wait_until(&volumes, "released volumes are deleted", |volumes| {
        volumes.is_empty()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_waits_for_its_claim_and_runs_on_the_volumes_node() {
    let cluster = test_cluster(3).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "image": "nginx"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    cluster.apply(pod).await;
    let pending = until_pod(&cluster, "web", "the pod is unschedulable", |pod| {
        condition(pod, "PodScheduled").is_some()
    })
    .await;
    let message = condition(&pending, "PodScheduled")
        .unwrap()
        .message
        .clone()
        .unwrap();
    assert!(
        message.starts_with("0/3 nodes are available: persistentvolumeclaim \"data\" not found."),
        "{message}"
    );
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "5Gi"},
            "storageClassName": "local",
            "local": {"path": "/disk"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "kubernetes.io/hostname",
                                    "operator": "In",
                                    "values": ["node-2"],
                                },
                            ],
                        },
                    ],
                },
            },
        },
    });
    cluster.apply(volume).await;
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "resources": {"requests": {"storage": "2Gi"}},
        },
    });
    cluster.apply(claim).await;
    let web = until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    assert_eq!(web.spec.unwrap().node_name.as_deref(), Some("node-2"));
    cluster.stop().await;
}
