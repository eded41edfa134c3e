//! Garbage collection, from the side of those who delete.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{World, until};

/// A reference to an object, as an owner.
fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "name": object.name_any(), "uid": object.uid()})
}

fn blocking(mut owner: Value) -> Value {
    owner["blockOwnerDeletion"] = json!(true);
    owner
}

async fn map(world: &World, namespace: &str, name: &str, owners: &[Value]) -> ConfigMap {
    let metadata = json!({"name": name, "namespace": namespace, "ownerReferences": owners});
    let applied = world
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

async fn until_only(api: &Api<ConfigMap>, wanted: &[&str]) {
    let told = format!("only {wanted:?} are left");
    until(api, &told, |maps| {
        let mut names: Vec<_> = maps.iter().map(ResourceExt::name_any).collect();
        names.retain(|name| name != "kube-root-ca.crt");
        names == wanted
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
async fn dependents_go_in_the_background_with_their_last_owner() {
    let world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let b = map(&world, "default", "b", &[]).await;
    let of_a = map(&world, "default", "of-a", &[owner(&a)]).await;
    map(&world, "default", "of-of-a", &[owner(&of_a)]).await;
    map(&world, "default", "of-both", &[owner(&a), owner(&b)]).await;
    delete(&api, "a", PropagationPolicy::Background).await;
    until_only(&api, &["b", "of-both"]).await;
    until(&api, "the lost owner is no longer named", |maps| {
        maps.iter()
            .filter(|map| map.name_any() == "of-both")
            .all(|map| map.owner_references().len() == 1)
    })
    .await;
    delete(&api, "b", PropagationPolicy::Background).await;
    until_only(&api, &[]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owner_in_the_foreground_waits_for_those_that_block_it() {
    let world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let held = map(&world, "default", "held", &[blocking(owner(&a))]).await;
    map(&world, "default", "below", &[blocking(owner(&held))]).await;
    map(&world, "default", "free", &[owner(&a)]).await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    api.patch("below", &PatchParams::default(), &Patch::Merge(&hold))
        .await
        .expect("it is held");
    delete(&api, "a", PropagationPolicy::Foreground).await;
    until_only(&api, &["a", "below", "held"]).await;
    world.pass(Duration::from_secs(600)).await;
    assert_eq!(
        names(&api).await,
        ["a", "below", "held"],
        "nothing goes before what it waits for"
    );
    let release = json!({"metadata": {"finalizers": []}});
    api.patch("below", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("it is released");
    until_only(&api, &[]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_name_no_owner() {
    let world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let b = map(&world, "default", "b", &[]).await;
    for i in 0..30 {
        map(
            &world,
            "default",
            &format!("child-{i:02}"),
            &[owner(&a), owner(&b)],
        )
        .await;
    }
    delete(&api, "a", PropagationPolicy::Orphan).await;
    let left = until(&api, "a is gone", |maps| {
        maps.iter().all(|map| map.name_any() != "a")
    })
    .await;
    let children: Vec<_> = left
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
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn object_of_an_owner_that_never_was_goes() {
    let world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let mut wrong_uid = owner(&a);
    wrong_uid["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let mut wrong_name = owner(&a);
    wrong_name["name"] = json!("b");
    for (name, owners) in [("never-1", [wrong_uid]), ("never-2", [wrong_name])] {
        map(&world, "default", name, &owners).await;
    }
    map(&world, "default", "child", &[owner(&a)]).await;
    until_only(&api, &["a", "child"]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owner_of_another_namespace_is_none_and_reported() {
    let world = World::core().await;
    world
        .apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}))
        .await;
    let owner_there = map(&world, "other", "a", &[]).await;
    let child = map(&world, "default", "child", &[owner(&owner_there)]).await;
    until_only(&world.within("default"), &[]).await;
    let events = until(
        &world.within::<Event>("default"),
        "people are told",
        |events| !events.is_empty(),
    )
    .await;
    let uid = owner_there.uid().expect("a uid");
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
    let note = format!(
        "ownerRef [v1/ConfigMap, namespace: default, name: a, uid: {uid}] does not exist in namespace \"default\""
    );
    assert_eq!(events[0].note.as_deref(), Some(&*note));
    assert_eq!(names(&world.within("other")).await, ["a"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_object_of_a_namespaced_owner_stays() {
    let world = World::core().await;
    let a = map(&world, "default", "a", &[]).await;
    let metadata = json!({"name": "n", "ownerReferences": [owner(&a)]});
    world
        .apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
        .await;
    let node: Node = world.all().get("n").await.expect("it was applied");
    map(&world, "default", "of-node", &[owner(&node)]).await;
    delete(&world.within("default"), "a", PropagationPolicy::Background).await;
    world.pass(Duration::from_secs(3600)).await;
    assert_eq!(names(&world.within("default")).await, ["of-node"]);
    world
        .all::<Node>()
        .delete("n", &Default::default())
        .await
        .expect("it is deleted");
    until_only(&world.within("default"), &[]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn circle_of_owners_goes_in_the_foreground() {
    let world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let b = map(&world, "default", "b", &[]).await;
    map(&world, "default", "a", &[blocking(owner(&b))]).await;
    map(&world, "default", "b", &[blocking(owner(&a))]).await;
    delete(&api, "a", PropagationPolicy::Foreground).await;
    until_only(&api, &[]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn custom_objects_own_and_are_owned() {
    let world = World::core().await;
    let names =
        json!({"plural": "heroes", "singular": "hero", "kind": "Hero", "listKind": "HeroList"});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let spec = json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]});
    let metadata = json!({"name": "heroes.example.com"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec});
    world.apply(definition.clone()).await;
    let hero = world
        .apply(
            json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": {"name": "icarus"}}),
        )
        .await;
    let of_hero = json!({"apiVersion": "example.com/v1", "kind": "Hero", "name": "icarus", "uid": hero.uid()});
    let wing = map(&world, "default", "wing", std::slice::from_ref(&of_hero)).await;
    let metadata = json!({"name": "child", "ownerReferences": [owner(&wing)]});
    world
        .apply(json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": metadata}))
        .await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Hero"));
    let kind = ApiResource {
        plural: "heroes".into(),
        ..kind
    };
    let heroes: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), "default", &kind);
    world.pass(Duration::from_secs(60)).await;
    heroes
        .delete("icarus", &Default::default())
        .await
        .expect("it is deleted");
    until_only(&world.within("default"), &[]).await;
    until(&heroes, "what a wing owned goes too", |heroes| {
        heroes.is_empty()
    })
    .await;
    // With the definition its objects go, and what they owned.
    let hero = world.apply(json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": {"name": "daedalus"}})).await;
    map(&world, "default", "plan", &[json!({"apiVersion": "example.com/v1", "kind": "Hero", "name": "daedalus", "uid": hero.uid()})]).await;
    world.pass(Duration::from_secs(60)).await;
    world
        .all::<CustomResourceDefinition>()
        .delete("heroes.example.com", &Default::default())
        .await
        .expect("it is deleted");
    until_only(&world.within("default"), &[]).await;
    // And all of it works again when the definition comes back.
    world.apply(definition).await;
    let hero = world
        .apply(
            json!({"apiVersion": "example.com/v1", "kind": "Hero", "metadata": {"name": "perdix"}}),
        )
        .await;
    map(&world, "default", "saw", &[json!({"apiVersion": "example.com/v1", "kind": "Hero", "name": "perdix", "uid": hero.uid()})]).await;
    world.pass(Duration::from_secs(60)).await;
    heroes
        .delete("perdix", &Default::default())
        .await
        .expect("it is deleted");
    until_only(&world.within("default"), &[]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_nobody_looked_is_made_good() {
    let mut world = World::core().await;
    let api = world.within::<ConfigMap>("default");
    let a = map(&world, "default", "a", &[]).await;
    let b = map(&world, "default", "b", &[]).await;
    map(&world, "default", "of-a", &[owner(&a)]).await;
    map(&world, "default", "of-b", &[blocking(owner(&b))]).await;
    world.pause().await;
    delete(&api, "a", PropagationPolicy::Background).await;
    delete(&api, "b", PropagationPolicy::Foreground).await;
    let metadata =
        json!({"name": "secret", "namespace": "default", "ownerReferences": [owner(&a)]});
    world
        .apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))
        .await;
    world.resume().await;
    until_only(&api, &[]).await;
    until(
        &world.within::<Secret>("default"),
        "it goes too",
        |secrets| secrets.is_empty(),
    )
    .await;
    world.stop().await;
}
