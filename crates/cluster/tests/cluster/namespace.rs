//! Default objects and deletion of namespaces.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{ROOT_CA, TestCluster, wait_until};

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

async fn until_deleted(cluster: &TestCluster, name: &str) {
    wait_until(
        &cluster.all::<Namespace>(),
        "the namespace is deleted",
        |all| all.iter().all(|namespace| namespace.name_any() != name),
    )
    .await;
}

/// The status, reason and message of a condition.
fn condition_of(namespace: &Namespace, type_: &str) -> (String, String, String) {
    let conditions = namespace
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .cloned();
    condition
        .map(|c| {
            (
                c.status,
                c.reason.unwrap_or_default(),
                c.message.unwrap_or_default(),
            )
        })
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn every_namespace_has_service_account_and_root_ca() {
    let cluster = TestCluster::with_core_controllers().await;
    cluster.apply(namespace("team-a")).await;
    for name in ["default", "kube-system", "team-a"] {
        let accounts: Api<ServiceAccount> = cluster.namespaced(name);
        let maps: Api<ConfigMap> = cluster.namespaced(name);
        wait_until(&accounts, "the default service account", |all| {
            all.iter().any(|account| account.name_any() == "default")
        })
        .await;
        let all = wait_until(&maps, "the root CA ConfigMap", |all| {
            all.iter().any(|map| map.name_any() == "kube-root-ca.crt")
        })
        .await;
        let map = all
            .into_iter()
            .find(|map| map.name_any() == "kube-root-ca.crt")
            .expect("the predicate matched it");
        assert_eq!(
            map.data
                .as_ref()
                .and_then(|data| data.get("ca.crt"))
                .map(String::as_str),
            Some(ROOT_CA)
        );
        assert!(map.annotations()["kubernetes.io/description"].starts_with("Contains a CA bundle"));
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn default_objects_are_recreated_and_updated() {
    let cluster = TestCluster::with_core_controllers().await;
    let accounts: Api<ServiceAccount> = cluster.namespaced("default");
    let maps: Api<ConfigMap> = cluster.namespaced("default");
    let before = wait_until(&accounts, "the default service account", |all| {
        all.len() == 1
    })
    .await;
    wait_until(&maps, "the root CA ConfigMap", |all| all.len() == 1).await;
    accounts
        .delete("default", &Default::default())
        .await
        .expect("it is deleted");
    wait_until(&accounts, "a new service account", |all| {
        all.len() == 1 && all[0].uid() != before[0].uid()
    })
    .await;
    let modified = json!({
        "data": {"ca.crt": "mine", "more": "x"},
        "metadata": {"annotations": null, "labels": {"kept": "yes"}},
    });
    maps.patch(
        "kube-root-ca.crt",
        &PatchParams::default(),
        &Patch::Merge(&modified),
    )
    .await
    .expect("it is changed");
    let restored = wait_until(&maps, "the data is restored", |all| {
        all[0]
            .data
            .as_ref()
            .is_some_and(|data| data["ca.crt"] == ROOT_CA)
    })
    .await;
    assert_eq!(restored[0].data.as_ref().map(|data| data.len()), Some(1));
    assert_eq!(restored[0].annotations().len(), 1);
    assert_eq!(restored[0].labels()["kept"].as_str(), "yes");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_is_deleted_with_its_content() {
    let cluster = TestCluster::with_core_controllers().await;
    cluster.apply(namespace("team-a")).await;
    for (api_version, kind) in [
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("coordination.k8s.io/v1", "Lease"),
        ("v1", "ServiceAccount"),
    ] {
        for name in ["one", "two"] {
            cluster
                .apply(json!({
                    "apiVersion": api_version,
                    "kind": kind,
                    "metadata": {"name": name, "namespace": "team-a"},
                }))
                .await;
        }
    }
    cluster.delete(namespace("team-a")).await;
    until_deleted(&cluster, "team-a").await;
    assert_eq!(
        cluster
            .namespaced::<ConfigMap>("team-a")
            .list(&Default::default())
            .await
            .expect("a list")
            .items
            .len(),
        0
    );
    // A recreated namespace has its default objects.
    cluster.apply(namespace("team-a")).await;
    wait_until(
        &cluster.namespaced::<ServiceAccount>("team-a"),
        "the default service account",
        |all| all.len() == 1,
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn remaining_finalizers_are_reported_in_conditions() {
    let mut cluster = TestCluster::with_core_controllers().await;
    cluster.apply(namespace("team-a")).await;
    let metadata =
        json!({"name": "held", "namespace": "team-a", "finalizers": ["example.com/hold"]});
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
        .await;
    cluster.delete(namespace("team-a")).await;
    let stuck = |all: &[Namespace]| {
        let namespace = all
            .iter()
            .find(|namespace| namespace.name_any() == "team-a")
            .expect("the namespace exists");
        condition_of(namespace, "NamespaceFinalizersRemaining").0 == "True"
    };
    let all = wait_until(&cluster.all::<Namespace>(), "the condition is true", stuck).await;
    let namespace = all
        .iter()
        .find(|namespace| namespace.name_any() == "team-a")
        .expect("the namespace exists");
    let message = "Some resources are remaining: configmaps. has 1 resource instances";
    assert_eq!(
        condition_of(namespace, "NamespaceContentRemaining"),
        ("True".into(), "SomeResourcesRemain".into(), message.into())
    );
    let message = "Some content in the namespace has finalizers remaining: example.com/hold in 1 \
        resource instances";
    assert_eq!(
        condition_of(namespace, "NamespaceFinalizersRemaining"),
        ("True".into(), "SomeFinalizersRemain".into(), message.into())
    );
    assert_eq!(
        condition_of(namespace, "NamespaceDeletionContentFailure").1,
        "ContentDeleted"
    );
    cluster.advance(Duration::from_secs(600)).await;
    cluster.restart_controllers().await;
    let now = cluster
        .all::<Namespace>()
        .get("team-a")
        .await
        .expect("the namespace exists");
    assert_eq!(
        now.resource_version(),
        namespace.resource_version(),
        "unchanged conditions are not written"
    );
    let maps = cluster.namespaced::<ConfigMap>("team-a");
    let release = json!({"metadata": {"finalizers": []}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("the finalizer is removed");
    until_deleted(&cluster, "team-a").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_deleted_before_other_content() {
    let cluster = TestCluster::with_core_controllers().await;
    cluster.apply(namespace("team-a")).await;
    wait_until(
        &cluster.namespaced::<ServiceAccount>("team-a"),
        "the default service account",
        |all| all.len() == 1,
    )
    .await;
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "needed", "namespace": "team-a"},
        }))
        .await;
    let metadata = json!({"name": "p", "namespace": "team-a", "finalizers": ["example.com/hold"]});
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
        .await;
    cluster.delete(namespace("team-a")).await;
    cluster.advance(Duration::from_secs(300)).await;
    assert!(
        cluster
            .namespaced::<ConfigMap>("team-a")
            .get_opt("needed")
            .await
            .expect("a response")
            .is_some()
    );
    let release = json!({"metadata": {"finalizers": []}});
    cluster
        .namespaced::<Pod>("team-a")
        .patch("p", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("the finalizer is removed");
    until_deleted(&cluster, "team-a").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_namespace_finalizers_are_kept() {
    let cluster = TestCluster::with_core_controllers().await;
    let mut held = namespace("team-a");
    held["spec"] = json!({"finalizers": ["example.com/hold"]});
    cluster.apply(held).await;
    cluster.delete(namespace("team-a")).await;
    let released = |all: &[Namespace]| {
        let namespace = all
            .iter()
            .find(|namespace| namespace.name_any() == "team-a")
            .expect("the namespace exists");
        namespace
            .spec
            .as_ref()
            .and_then(|spec| spec.finalizers.clone())
            == Some(vec!["example.com/hold".into()])
    };
    wait_until(
        &cluster.all::<Namespace>(),
        "only the finalizer kubernetes is removed",
        released,
    )
    .await;
    cluster.stop().await;
}
