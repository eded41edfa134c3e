//! Garbage collection by owner references.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{TestCluster, wait_until};

/// An owner reference.
fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "name": object.name_any(),
        "uid": object.uid(),
    })
}

fn blocking(mut owner: Value) -> Value {
    owner["blockOwnerDeletion"] = json!(true);
    owner
}

async fn config_map(
    cluster: &TestCluster,
    namespace: &str,
    name: &str,
    owners: &[Value],
) -> ConfigMap {
    let metadata = json!({"name": name, "namespace": namespace, "ownerReferences": owners});
    let applied = cluster
        .apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
        .await;
    applied.try_parse().expect("a config map")
}

async fn names(api: &Api<ConfigMap>) -> Vec<String> {
    let mut names: Vec<_> = api
        .list(&Default::default())
        .await
        .expect("a list")
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    names.retain(|name| name != "kube-root-ca.crt");
    names
}

async fn until_only_remain(api: &Api<ConfigMap>, expected: &[&str]) {
    let description = format!("only {expected:?} remain");
    wait_until(api, &description, |maps| {
        let mut names: Vec<_> = maps.iter().map(ResourceExt::name_any).collect();
        names.retain(|name| name != "kube-root-ca.crt");
        names == expected
    })
    .await;
}

async fn delete(api: &Api<ConfigMap>, name: &str, propagation: PropagationPolicy) {
    let params = DeleteParams {
        propagation_policy: Some(propagation),
        ..DeleteParams::default()
    };
    api.delete(name, &params).await.expect("it is deleted");
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_with_their_last_owner() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let b = config_map(&cluster, "default", "b", &[]).await;
    let of_a = config_map(&cluster, "default", "of-a", &[owner(&a)]).await;
    config_map(&cluster, "default", "of-of-a", &[owner(&of_a)]).await;
    config_map(&cluster, "default", "of-both", &[owner(&a), owner(&b)]).await;
    delete(&api, "a", PropagationPolicy::Background).await;
    until_only_remain(&api, &["b", "of-both"]).await;
    wait_until(
        &api,
        "the reference to the deleted owner is removed",
        |maps| {
            maps.iter()
                .filter(|map| map.name_any() == "of-both")
                .all(|map| map.owner_references().len() == 1)
        },
    )
    .await;
    delete(&api, "b", PropagationPolicy::Background).await;
    until_only_remain(&api, &[]).await;
    cluster.stop().await;
}

/// The name in an owner reference used to be part of the path as it is.
#[tokio::test(start_paused = true)]
async fn name_of_an_owner_reference_is_not_a_path() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    for name in ["a?x=", "b/../a", "a#"] {
        let mut owner = owner(&a);
        owner["name"] = json!(name);
        config_map(&cluster, "default", "dependent", &[owner]).await;
        until_only_remain(&api, &["a"]).await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_waits_for_blocking_dependents() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let held = config_map(&cluster, "default", "held", &[blocking(owner(&a))]).await;
    config_map(&cluster, "default", "below", &[blocking(owner(&held))]).await;
    config_map(&cluster, "default", "free", &[owner(&a)]).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    api.patch("below", &PatchParams::default(), &Patch::Merge(&hold))
        .await
        .expect("the finalizer is added");
    delete(&api, "a", PropagationPolicy::Foreground).await;
    until_only_remain(&api, &["a", "below", "held"]).await;
    cluster.advance(Duration::from_secs(600)).await;
    assert_eq!(
        names(&api).await,
        ["a", "below", "held"],
        "no owner is deleted before its blocking dependents"
    );
    let release = json!({"metadata": {"finalizers": []}});
    api.patch("below", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("the finalizer is removed");
    until_only_remain(&api, &[]).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphaned_dependents_are_kept_without_owner() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let b = config_map(&cluster, "default", "b", &[]).await;
    for i in 0..30 {
        config_map(
            &cluster,
            "default",
            &format!("child-{i:02}"),
            &[owner(&a), owner(&b)],
        )
        .await;
    }
    delete(&api, "a", PropagationPolicy::Orphan).await;
    let remaining = wait_until(&api, "a is deleted", |maps| {
        maps.iter().all(|map| map.name_any() != "a")
    })
    .await;
    let children: Vec<_> = remaining
        .iter()
        .filter(|map| map.name_any().starts_with("child"))
        .collect();
    assert_eq!(children.len(), 30);
    assert!(children.iter().all(|child| {
        child
            .owner_references()
            .iter()
            .all(|owner| owner.name == "b")
    }));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dependent_of_an_absent_owner_is_deleted() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let mut wrong_uid = owner(&a);
    wrong_uid["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let mut wrong_name = owner(&a);
    wrong_name["name"] = json!("b");
    for (name, owners) in [("never-1", [wrong_uid]), ("never-2", [wrong_name])] {
        config_map(&cluster, "default", name, &owners).await;
    }
    config_map(&cluster, "default", "child", &[owner(&a)]).await;
    until_only_remain(&api, &["a", "child"]).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owner_in_another_namespace_is_absent_and_reported() {
    let cluster = TestCluster::with_core_controllers().await;
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}))
        .await;
    let owner_in_other_namespace = config_map(&cluster, "other", "a", &[]).await;
    let child = config_map(
        &cluster,
        "default",
        "child",
        &[owner(&owner_in_other_namespace)],
    )
    .await;
    until_only_remain(&cluster.namespaced("default"), &[]).await;
    let events = wait_until(
        &cluster.namespaced::<Event>("default"),
        "an event is recorded",
        |events| !events.is_empty(),
    )
    .await;
    let uid = owner_in_other_namespace.uid().expect("a uid");
    assert_eq!(
        events[0].reason.as_deref(),
        Some("OwnerRefInvalidNamespace")
    );
    assert_eq!(events[0].type_.as_deref(), Some("Warning"));
    assert_eq!(
        events[0].reporting_controller.as_deref(),
        Some("garbage-collector-controller")
    );
    assert_eq!(
        events[0]
            .regarding
            .as_ref()
            .and_then(|object| object.uid.clone()),
        child.uid()
    );
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: default, name: a, uid: {uid}] does not exist in \
            namespace \"default\""
    );
    assert_eq!(events[0].note.as_deref(), Some(&*message));
    assert_eq!(names(&cluster.namespaced("other")).await, ["a"]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_dependent_of_a_namespaced_owner_is_kept() {
    let cluster = TestCluster::with_core_controllers().await;
    let a = config_map(&cluster, "default", "a", &[]).await;
    let metadata = json!({"name": "n", "ownerReferences": [owner(&a)]});
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
        .await;
    let node: Node = cluster.all().get("n").await.expect("it was applied");
    config_map(&cluster, "default", "of-node", &[owner(&node)]).await;
    delete(
        &cluster.namespaced("default"),
        "a",
        PropagationPolicy::Background,
    )
    .await;
    cluster.advance(Duration::from_secs(3600)).await;
    assert_eq!(names(&cluster.namespaced("default")).await, ["of-node"]);
    cluster
        .all::<Node>()
        .delete("n", &Default::default())
        .await
        .expect("it is deleted");
    until_only_remain(&cluster.namespaced("default"), &[]).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cycle_of_owners_is_deleted_in_the_foreground() {
    let cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let b = config_map(&cluster, "default", "b", &[]).await;
    config_map(&cluster, "default", "a", &[blocking(owner(&b))]).await;
    config_map(&cluster, "default", "b", &[blocking(owner(&a))]).await;
    delete(&api, "a", PropagationPolicy::Foreground).await;
    until_only_remain(&api, &[]).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn custom_resources_can_own_and_be_owned() {
    let cluster = TestCluster::with_core_controllers().await;
    let names =
        json!({"plural": "heroes", "singular": "hero", "kind": "Hero", "listKind": "HeroList"});
    let version = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    });
    let spec = json!({
        "group": "example.com",
        "scope": "Namespaced",
        "names": names,
        "versions": [version],
    });
    let metadata = json!({"name": "heroes.example.com"});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    });
    cluster.apply(definition.clone()).await;
    let hero = cluster
        .apply(
            json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": {"name": "icarus"}}),
        )
        .await;
    let of_hero = json!({
        "apiVersion": "example.com/v1",
        "kind": "Hero",
        "name": "icarus",
        "uid": hero.uid(),
    });
    let wing = config_map(&cluster, "default", "wing", std::slice::from_ref(&of_hero)).await;
    let metadata = json!({"name": "child", "ownerReferences": [owner(&wing)]});
    cluster
        .apply(json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": metadata}))
        .await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Hero"));
    let kind = ApiResource {
        plural: "heroes".into(),
        ..kind
    };
    let heroes: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &kind);
    cluster.advance(Duration::from_secs(60)).await;
    heroes
        .delete("icarus", &Default::default())
        .await
        .expect("it is deleted");
    until_only_remain(&cluster.namespaced("default"), &[]).await;
    wait_until(
        &heroes,
        "dependents of the ConfigMap are deleted",
        |heroes| heroes.is_empty(),
    )
    .await;
    // The objects of a deleted CustomResourceDefinition and their dependents are deleted.
    let hero = cluster
        .apply(json!({
            "apiVersion": "example.com/v1",
            "kind": "Hero",
            "metadata": {"name": "daedalus"},
        }))
        .await;
    config_map(
        &cluster,
        "default",
        "plan",
        &[json!({
            "apiVersion": "example.com/v1",
            "kind": "Hero",
            "name": "daedalus",
            "uid": hero.uid(),
        })],
    )
    .await;
    cluster.advance(Duration::from_secs(60)).await;
    cluster
        .all::<CustomResourceDefinition>()
        .delete("heroes.example.com", &Default::default())
        .await
        .expect("it is deleted");
    until_only_remain(&cluster.namespaced("default"), &[]).await;
    // A recreated definition is monitored again.
    cluster.apply(definition).await;
    let hero = cluster
        .apply(
            json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": {"name": "perdix"}}),
        )
        .await;
    config_map(
        &cluster,
        "default",
        "saw",
        &[json!({
            "apiVersion": "example.com/v1",
            "kind": "Hero",
            "name": "perdix",
            "uid": hero.uid(),
        })],
    )
    .await;
    cluster.advance(Duration::from_secs(60)).await;
    heroes
        .delete("perdix", &Default::default())
        .await
        .expect("it is deleted");
    until_only_remain(&cluster.namespaced("default"), &[]).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deletions_while_stopped_are_processed_on_restart() {
    let mut cluster = TestCluster::with_core_controllers().await;
    let api = cluster.namespaced::<ConfigMap>("default");
    let a = config_map(&cluster, "default", "a", &[]).await;
    let b = config_map(&cluster, "default", "b", &[]).await;
    config_map(&cluster, "default", "of-a", &[owner(&a)]).await;
    config_map(&cluster, "default", "of-b", &[blocking(owner(&b))]).await;
    cluster.stop_controllers().await;
    delete(&api, "a", PropagationPolicy::Background).await;
    delete(&api, "b", PropagationPolicy::Foreground).await;
    let metadata =
        json!({"name": "secret", "namespace": "default", "ownerReferences": [owner(&a)]});
    cluster
        .apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))
        .await;
    cluster.start_controllers().await;
    until_only_remain(&api, &[]).await;
    wait_until(
        &cluster.namespaced::<Secret>("default"),
        "the Secret is deleted",
        |secrets| secrets.is_empty(),
    )
    .await;
    cluster.stop().await;
}
