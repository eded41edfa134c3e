//! ResourceQuotas: usage that rises at admission and falls when objects are gone.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use bellerophon_testkit::{TestCluster, wait_until};

fn quota(hard: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": hard}})
}

/// Waits until the usage of a resource is known to be this much.
async fn used(cluster: &TestCluster, resource: &str, expected: &str) {
    let quotas: Api<ResourceQuota> = cluster.namespaced("default");
    let what = format!("{resource} is {expected}");
    wait_until(&quotas, &what, |all| {
        let used = all.iter().find_map(|quota| {
            let used = quota.status.as_ref()?.used.as_ref()?;
            used.get(resource)
        });
        used.is_some_and(|quantity| quantity.0 == expected)
    })
    .await;
}

fn pod(name: &str) -> Pod {
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "300m", "memory": "64Mi"}}}]}});
    serde_json::from_value(pod).expect("a pod")
}

#[tokio::test(start_paused = true)]
async fn usage_of_pods_falls_when_they_end_and_when_they_are_deleted() {
    let cluster = TestCluster::with_core_controllers().await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let created = pods.create(&PostParams::default(), &pod("before")).await;
    created.expect("there is no quota yet");
    let hard = json!({"pods": "2", "requests.cpu": "1", "requests.memory": "1Gi"});
    cluster.apply(quota(hard)).await;
    used(&cluster, "pods", "1").await;
    used(&cluster, "requests.cpu", "300m").await;
    let created = pods.create(&PostParams::default(), &pod("second")).await;
    created.expect("it fits");
    used(&cluster, "requests.memory", "128Mi").await;
    let refused = pods.create(&PostParams::default(), &pod("third")).await;
    let refused = refused.expect_err("two pods are allowed").to_string();
    assert!(
        refused.contains("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"),
        "{refused}"
    );
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let patched = pods
        .patch_status("before", &PatchParams::default(), &ended)
        .await;
    patched.expect("a status");
    used(&cluster, "pods", "1").await;
    let now = DeleteParams::default().grace_period(0);
    pods.delete("second", &now).await.expect("it is there");
    used(&cluster, "pods", "0").await;
    used(&cluster, "requests.cpu", "0").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_any_resource_are_counted() {
    let cluster = TestCluster::with_core_controllers().await;
    let maps: Api<ConfigMap> = cluster.namespaced("default");
    // The root CA of the namespace is one of them.
    cluster.apply(quota(json!({"count/configmaps": "3"}))).await;
    used(&cluster, "count/configmaps", "1").await;
    for name in ["a", "b"] {
        let map = json!({"metadata": {"name": name}});
        let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
        maps.create(&PostParams::default(), &map)
            .await
            .expect("it fits");
    }
    used(&cluster, "count/configmaps", "3").await;
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "c"}})).expect("one");
    assert!(maps.create(&PostParams::default(), &map).await.is_err());
    maps.delete("a", &DeleteParams::default())
        .await
        .expect("it is there");
    cluster.advance(Duration::from_secs(20)).await;
    used(&cluster, "count/configmaps", "2").await;
    maps.create(&PostParams::default(), &map)
        .await
        .expect("it fits again");
    cluster.stop().await;
}

/// Counting is one list of the API server, whose objects are dropped when they are counted; admission
/// reads the status of the quota and no objects.
#[tokio::test(start_paused = true)]
async fn ten_thousand_objects_are_counted_and_the_next_is_refused() {
    const OBJECTS: usize = 10_000;
    let cluster = TestCluster::with_core_controllers().await;
    let maps: Api<ConfigMap> = cluster.namespaced("default");
    let map = |number: usize| {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        serde_json::from_value::<ConfigMap>(map).expect("a ConfigMap")
    };
    for number in 1..OBJECTS {
        let created = maps.create(&PostParams::default(), &map(number)).await;
        created.expect("there is no quota yet");
    }
    let limit = OBJECTS.to_string();
    cluster
        .apply(quota(json!({"count/configmaps": limit})))
        .await;
    // The root CA of the namespace is one of them.
    used(&cluster, "count/configmaps", "10k").await;
    let refused = maps.create(&PostParams::default(), &map(OBJECTS)).await;
    let refused = refused.expect_err("the quota is used up").to_string();
    assert!(
        refused.contains("requested: count/configmaps=1, used: count/configmaps=10k, limited: count/configmaps=10k"),
        "{refused}"
    );
    let deleted = maps.delete("m1", &DeleteParams::default()).await;
    deleted.expect("it is there");
    used(&cluster, "count/configmaps", "9999").await;
    let created = maps.create(&PostParams::default(), &map(OBJECTS)).await;
    created.expect("there is room for one");
    cluster.stop().await;
}
