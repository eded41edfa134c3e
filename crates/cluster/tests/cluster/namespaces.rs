//! Namespaces: what every one has, and how they go.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{ROOT_CA, World, until};

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

async fn until_gone(world: &World, name: &str) {
    until(&world.all::<Namespace>(), "the namespace is gone", |all| {
        all.iter().all(|namespace| namespace.name_any() != name)
    })
    .await;
}

/// The status, reason and message of a condition.
fn said(namespace: &Namespace, type_: &str) -> (String, String, String) {
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
async fn every_namespace_has_an_account_and_a_root_certificate() {
    let world = World::core().await;
    world.apply(namespace("team-a")).await;
    for name in ["default", "kube-system", "team-a"] {
        let accounts: Api<ServiceAccount> = world.within(name);
        let maps: Api<ConfigMap> = world.within(name);
        until(&accounts, "an account", |all| {
            all.iter().any(|account| account.name_any() == "default")
        })
        .await;
        let all = until(&maps, "a root certificate", |all| {
            all.iter().any(|map| map.name_any() == "kube-root-ca.crt")
        })
        .await;
        let map = all
            .into_iter()
            .find(|map| map.name_any() == "kube-root-ca.crt")
            .expect("it is there");
        assert_eq!(
            map.data
                .as_ref()
                .and_then(|data| data.get("ca.crt"))
                .map(String::as_str),
            Some(ROOT_CA)
        );
        assert!(map.annotations()["kubernetes.io/description"].starts_with("Contains a CA bundle"));
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_every_namespace_has_comes_back_and_is_repaired() {
    let world = World::core().await;
    let accounts: Api<ServiceAccount> = world.within("default");
    let maps: Api<ConfigMap> = world.within("default");
    let before = until(&accounts, "an account", |all| all.len() == 1).await;
    until(&maps, "a root certificate", |all| all.len() == 1).await;
    accounts
        .delete("default", &Default::default())
        .await
        .expect("it is deleted");
    until(&accounts, "another account", |all| {
        all.len() == 1 && all[0].uid() != before[0].uid()
    })
    .await;
    let wrong = json!({"data": {"ca.crt": "mine", "more": "x"}, "metadata": {"annotations": null, "labels": {"kept": "yes"}}});
    maps.patch(
        "kube-root-ca.crt",
        &PatchParams::default(),
        &Patch::Merge(&wrong),
    )
    .await
    .expect("it is changed");
    let repaired = until(&maps, "it is repaired", |all| {
        all[0]
            .data
            .as_ref()
            .is_some_and(|data| data["ca.crt"] == ROOT_CA)
    })
    .await;
    assert_eq!(repaired[0].data.as_ref().map(|data| data.len()), Some(1));
    assert_eq!(repaired[0].annotations().len(), 1);
    assert_eq!(repaired[0].labels()["kept"].as_str(), "yes");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_goes_with_everything_in_it() {
    let world = World::core().await;
    world.apply(namespace("team-a")).await;
    for (api_version, kind) in [
        ("v1", "ConfigMap"),
        ("v1", "Secret"),
        ("coordination.k8s.io/v1", "Lease"),
        ("v1", "ServiceAccount"),
    ] {
        for name in ["one", "two"] {
            world.apply(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "team-a"}})).await;
        }
    }
    world.delete(namespace("team-a")).await;
    until_gone(&world, "team-a").await;
    assert_eq!(
        world
            .within::<ConfigMap>("team-a")
            .list(&Default::default())
            .await
            .expect("a list")
            .items
            .len(),
        0
    );
    // It can be made again, and has everything again.
    world.apply(namespace("team-a")).await;
    until(
        &world.within::<ServiceAccount>("team-a"),
        "an account",
        |all| all.len() == 1,
    )
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stuck_namespace_says_what_holds_it() {
    let mut world = World::core().await;
    world.apply(namespace("team-a")).await;
    let metadata =
        json!({"name": "held", "namespace": "team-a", "finalizers": ["example.com/hold"]});
    world
        .apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
        .await;
    world.delete(namespace("team-a")).await;
    let stuck = |all: &[Namespace]| {
        let namespace = all
            .iter()
            .find(|namespace| namespace.name_any() == "team-a")
            .expect("it is held");
        said(namespace, "NamespaceFinalizersRemaining").0 == "True"
    };
    let all = until(&world.all::<Namespace>(), "it says that it is stuck", stuck).await;
    let namespace = all
        .iter()
        .find(|namespace| namespace.name_any() == "team-a")
        .expect("it is held");
    let message = "Some resources are remaining: configmaps. has 1 resource instances";
    assert_eq!(
        said(namespace, "NamespaceContentRemaining"),
        ("True".into(), "SomeResourcesRemain".into(), message.into())
    );
    let message = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert_eq!(
        said(namespace, "NamespaceFinalizersRemaining"),
        ("True".into(), "SomeFinalizersRemain".into(), message.into())
    );
    assert_eq!(
        said(namespace, "NamespaceDeletionContentFailure").1,
        "ContentDeleted"
    );
    world.pass(Duration::from_secs(600)).await;
    world.restart().await;
    let now = world
        .all::<Namespace>()
        .get("team-a")
        .await
        .expect("it is still held");
    assert_eq!(
        now.resource_version(),
        namespace.resource_version(),
        "nothing new is nothing written"
    );
    let maps = world.within::<ConfigMap>("team-a");
    let release = json!({"metadata": {"finalizers": []}});
    maps.patch("held", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("it is released");
    until_gone(&world, "team-a").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_go_before_what_they_need() {
    let world = World::core().await;
    world.apply(namespace("team-a")).await;
    until(
        &world.within::<ServiceAccount>("team-a"),
        "an account",
        |all| all.len() == 1,
    )
    .await;
    world.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "needed", "namespace": "team-a"}})).await;
    let metadata = json!({"name": "p", "namespace": "team-a", "finalizers": ["example.com/hold"]});
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    world
        .apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
        .await;
    world.delete(namespace("team-a")).await;
    world.pass(Duration::from_secs(300)).await;
    assert!(
        world
            .within::<ConfigMap>("team-a")
            .get_opt("needed")
            .await
            .expect("an answer")
            .is_some()
    );
    let release = json!({"metadata": {"finalizers": []}});
    world
        .within::<Pod>("team-a")
        .patch("p", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("it is released");
    until_gone(&world, "team-a").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_finalizers_of_a_namespace_keep_holding_it() {
    let world = World::core().await;
    let mut held = namespace("team-a");
    held["spec"] = json!({"finalizers": ["example.com/hold"]});
    world.apply(held).await;
    world.delete(namespace("team-a")).await;
    let released = |all: &[Namespace]| {
        let namespace = all
            .iter()
            .find(|namespace| namespace.name_any() == "team-a")
            .expect("it is held");
        namespace
            .spec
            .as_ref()
            .and_then(|spec| spec.finalizers.clone())
            == Some(vec!["example.com/hold".into()])
    };
    until(
        &world.all::<Namespace>(),
        "ours is off, the other is on",
        released,
    )
    .await;
    world.stop().await;
}
