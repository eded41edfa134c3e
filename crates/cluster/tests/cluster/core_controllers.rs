//! ClusterRole aggregation, TTL-after-finished, PV and PVC protection.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use bellerophon_testkit::{TestCluster, wait_until};

#[tokio::test(start_paused = true)]
async fn aggregated_cluster_roles_follow_their_sources() {
    let cluster = TestCluster::with_core_controllers().await;
    let roles: Api<ClusterRole> = cluster.all();
    let rules_of = |all: &[ClusterRole], name: &str| {
        all.iter()
            .find(|role| role.name_any() == name)
            .and_then(|role| role.rules.clone())
            .unwrap_or_default()
    };
    wait_until(&roles, "the built-in roles are aggregated", |all| {
        ["admin", "edit", "view"]
            .iter()
            .all(|name| !rules_of(all, name).is_empty())
    })
    .await;
    let rule = json!([{"apiGroups": ["example.com"], "resources": ["heroes"], "verbs": ["get"]}]);
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let source = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "heroes", "labels": labels}, "rules": rule
    });
    cluster.apply(source.clone()).await;
    let has_rule = |all: &[ClusterRole], name: &str| {
        rules_of(all, name)
            .iter()
            .any(|rule| rule.resources.as_deref() == Some(&["heroes".to_owned()][..]))
    };
    // `view` is aggregated to `edit`, and `edit` to `admin`.
    let all = wait_until(&roles, "all aggregated roles have the rule", |all| {
        ["admin", "edit", "view"]
            .iter()
            .all(|name| has_rule(all, name))
    })
    .await;
    let view = all
        .iter()
        .find(|role| role.name_any() == "view")
        .expect("a built-in role");
    assert!(
        view.managed_fields()
            .iter()
            .any(|entry| entry.manager.as_deref() == Some("clusterrole-aggregation-controller"))
    );
    cluster.delete(source).await;
    wait_until(&roles, "no role has the rule", |all| {
        ["admin", "edit", "view"]
            .iter()
            .all(|name| !has_rule(all, name))
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finished_job_is_deleted_after_its_ttl() {
    let cluster = TestCluster::with_core_controllers().await;
    let jobs: Api<Job> = cluster.namespaced("default");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"ttlSecondsAfterFinished": 100, "template": template});
    cluster
        .apply(json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": spec,
        }))
        .await;
    cluster.advance(Duration::from_secs(1000)).await;
    let now = jiff::Timestamp::from_second(cluster.clock.now().as_second()).expect("a time");
    let condition = |type_: &str| {
        json!({
            "type": type_,
            "status": "True",
            "lastTransitionTime": now,
            "lastProbeTime": now,
        })
    };
    let status = json!({
        "status": {
            "startTime": now,
            "completionTime": now,
            "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        },
    });
    jobs.patch_status("j", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .expect("the status is patched");
    cluster.advance(Duration::from_secs(90)).await;
    assert!(
        jobs.get_opt("j").await.expect("a response").is_some(),
        "its TTL has not passed"
    );
    wait_until(&jobs, "the object is deleted", |all| all.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn claim_is_kept_while_a_pod_uses_it() {
    let cluster = TestCluster::with_core_controllers().await;
    let claims: Api<PersistentVolumeClaim> = cluster.namespaced("default");
    let pods: Api<Pod> = cluster.namespaced("default");
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c"},
            "spec": spec,
        }))
        .await;
    wait_until(
        &cluster.namespaced::<k8s_openapi::api::core::v1::ServiceAccount>("default"),
        "the default service account",
        |all| !all.is_empty(),
    )
    .await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let spec =
        json!({"nodeName": "n", "volumes": volumes, "containers": [{"name": "c", "image": "i"}]});
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
        .await;
    claims
        .delete("c", &Default::default())
        .await
        .expect("it is deleted");
    cluster.advance(Duration::from_secs(600)).await;
    assert!(
        claims.get_opt("c").await.expect("a response").is_some(),
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
    wait_until(&claims, "the object is deleted", |all| all.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn volume_is_kept_while_it_is_bound() {
    let cluster = TestCluster::with_core_controllers().await;
    let volumes: Api<PersistentVolume> = cluster.all();
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/x"},
    });
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "v"},
            "spec": spec,
        }))
        .await;
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    volumes
        .patch_status("v", &PatchParams::default(), &Patch::Merge(&phase("Bound")))
        .await
        .expect("it is bound");
    volumes
        .delete("v", &Default::default())
        .await
        .expect("it is deleted");
    cluster.advance(Duration::from_secs(600)).await;
    assert!(
        volumes.get_opt("v").await.expect("a response").is_some(),
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
    wait_until(&volumes, "the object is deleted", |all| all.is_empty()).await;
    cluster.stop().await;
}
