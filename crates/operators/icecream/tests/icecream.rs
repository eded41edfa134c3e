//! The Icecream operator on a whole cluster, with exactly its rights, in virtual time.

use std::{collections::BTreeSet, time::Duration};

use bellerophon::{Entropy, LeaderOptions, ManagerOptions, is_condition_true};
use bellerophon_icecream::{Icecream, OPERATOR};
use bellerophon_operator::{RunOptions, lease_rights, rights_of, run_until};
use bellerophon_testkit::{
    Account, Run, Subject, World, hands_over, survives_any_crash, survives_any_fault, until,
};
use futures_util::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::{
    apps::v1::Deployment, core::v1::Pod, events::v1::Event, rbac::v1::PolicyRule,
};
use kube::{
    Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn run_with(
    client: Client,
    stop: CancellationToken,
    leader: Option<LeaderOptions>,
) -> BoxFuture<'static, Result<(), String>> {
    async move {
        let manager_options = ManagerOptions {
            entropy: Entropy::seeded(3),
            leader,
            ..Default::default()
        };
        let options = RunOptions {
            manager: manager_options,
            ..Default::default()
        };
        run_until(stop, client, &[OPERATOR], options)
            .await
            .map_err(|error| error.to_string())
    }
    .boxed()
}

fn run(client: Client, stop: CancellationToken) -> BoxFuture<'static, Result<(), String>> {
    run_with(client, stop, None)
}

/// One of several copies.
fn compete(
    client: Client,
    stop: CancellationToken,
    identity: &str,
) -> BoxFuture<'static, Result<(), String>> {
    run_with(
        client,
        stop,
        Some(LeaderOptions::new("default", OPERATOR.name, identity)),
    )
}

/// What its account may do.
fn rules() -> Vec<PolicyRule> {
    rights_of(&OPERATOR)
}

/// A cluster that knows ice cream, and the operator's account.
async fn shop() -> (World, Account) {
    shop_with(3, &rules()).await
}

async fn shop_with(nodes: usize, rules: &[PolicyRule]) -> (World, Account) {
    let world = World::with_nodes(nodes).await;
    world.define((OPERATOR.definitions)()).await;
    let account = world.account("icecream", rules).await;
    (world, account)
}

fn icecream(name: &str, deployment: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": name},
        "spec": {"deploymentName": deployment, "replicas": replicas},
    })
}

fn is_ready(icecream: &Icecream) -> bool {
    let status = icecream.status.clone().unwrap_or_default();
    status.observed_generation == icecream.metadata.generation
        && is_condition_true(&status.conditions, "Ready")
        && !is_condition_true(&status.conditions, "Progressing")
}

async fn until_ready(world: &World, replicas: i32) -> Icecream {
    let all = until(
        &world.within::<Icecream>("default"),
        "the icecream is ready",
        |all| {
            all.len() == 1
                && is_ready(&all[0])
                && all[0]
                    .status
                    .as_ref()
                    .is_some_and(|status| status.available_replicas == replicas)
        },
    )
    .await;
    all[0].clone()
}

/// What people were told, each once.
async fn told(world: &World) -> BTreeSet<String> {
    let events = world
        .within::<Event>("default")
        .list(&Default::default())
        .await
        .expect("events")
        .items;
    let ours = events
        .iter()
        .filter(|event| event.reporting_controller.as_deref() == Some("icecream"));
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    ours.map(|event| {
        format!(
            "{} {} {}",
            text(&event.type_),
            text(&event.reason),
            text(&event.note)
        )
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn icecream_becomes_pods_and_names_their_nodes() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "shop", 3)).await;
    let ready = until_ready(&world, 3).await;
    let pods = world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("pods")
        .items;
    let nodes: BTreeSet<String> = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    assert_eq!(
        ready.status.expect("a status").nodes,
        nodes.into_iter().collect::<Vec<_>>()
    );
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        told(&world).await,
        BTreeSet::from(["Normal Synced Icecream synced successfully".to_owned()])
    );
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_whoever_made_it() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "shop", 2)).await;
    until_ready(&world, 2).await;
    let deployments = world.within::<Deployment>("default");
    for drift in [
        json!({"spec": {"replicas": 5}}),
        json!({"spec": {"template": {"spec": {"containers": [{"name": "nginx", "image": "nginx:stale"}]}}}}),
        json!({"metadata": {"labels": {"app": "other"}}}),
    ] {
        deployments
            .patch("shop", &PatchParams::default(), &Patch::Strategic(&drift))
            .await
            .expect("it drifts");
        until(&deployments, "the drift is repaired", |all| {
            let value = json!(all[0]);
            value["spec"]["replicas"] == 2
                && value["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:latest"
                && value["metadata"]["labels"]["app"] == "nginx"
        })
        .await;
    }
    until_ready(&world, 2).await;
    deployments
        .delete("shop", &DeleteParams::default())
        .await
        .expect("it is deleted");
    until(&deployments, "it is made again", |all| {
        all.len() == 1 && all[0].metadata.deletion_timestamp.is_none()
    })
    .await;
    until_ready(&world, 2).await;
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deployment_of_others_is_never_touched() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    let labels = json!({"a": "b"});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    world.apply(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"}, "spec": spec})).await;
    world.apply(icecream("example", "shop", 3)).await;
    until(
        &world.within::<Icecream>("default"),
        "people are told",
        |all| {
            let status = all[0].status.clone().unwrap_or_default();
            status
                .conditions
                .iter()
                .any(|condition| condition.reason == "ErrResourceExists")
        },
    )
    .await;
    world.pass(Duration::from_secs(600)).await;
    let found = world
        .within::<Deployment>("default")
        .get("shop")
        .await
        .expect("it is there");
    assert_eq!(
        (
            found.owner_references().len(),
            found.spec.and_then(|spec| spec.replicas)
        ),
        (0, Some(1))
    );
    let text = r#"Warning ErrResourceExists Resource "shop" already exists and is not managed by Icecream"#;
    assert!(
        told(&world).await.contains(text),
        "{:?}",
        told(&world).await
    );
    world
        .within::<Deployment>("default")
        .delete("shop", &DeleteParams::default())
        .await
        .expect("it is deleted");
    until_ready(&world, 3).await;
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_name_removes_the_old_deployment() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "old", 2)).await;
    until_ready(&world, 2).await;
    world.apply(icecream("example", "new", 1)).await;
    until(
        &world.within::<Deployment>("default"),
        "only the new one is left",
        |all| all.len() == 1 && all[0].name_any() == "new",
    )
    .await;
    until_ready(&world, 1).await;
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn everything_goes_with_the_icecream() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "shop", 2)).await;
    until_ready(&world, 2).await;
    world.delete(icecream("example", "shop", 2)).await;
    until(
        &world.within::<Deployment>("default"),
        "the Deployment goes",
        |all| all.is_empty(),
    )
    .await;
    until(&world.within::<Pod>("default"), "the pods go", |all| {
        all.is_empty()
    })
    .await;
    assert_eq!(account.record.forbidden(), []);
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scale_reaches_the_pods() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "shop", 1)).await;
    until_ready(&world, 1).await;
    let icecreams = world.within::<Icecream>("default");
    let scale = json!({"spec": {"replicas": 4}});
    icecreams
        .patch_scale("example", &PatchParams::default(), &Patch::Merge(&scale))
        .await
        .expect("it scales");
    until_ready(&world, 4).await;
    let scale = icecreams.get_scale("example").await.expect("a scale");
    assert_eq!(
        scale
            .status
            .map(|status| (status.replicas, status.selector)),
        Some((4, Some("app=nginx,controller=example".into())))
    );
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_right_is_used_and_none_is_missing() {
    let (world, account) = shop().await;
    let subject = Subject::start(run, &account);
    world.apply(icecream("example", "shop", 1)).await;
    until_ready(&world, 1).await;
    world.apply(icecream("example", "other", 1)).await;
    until(
        &world.within::<Deployment>("default"),
        "the old one goes",
        |all| all.len() == 1 && all[0].name_any() == "other",
    )
    .await;
    world.pass(Duration::from_secs(600)).await;
    assert_eq!(account.record.forbidden(), []);
    let unused = account.record.unused(&rules());
    assert!(unused.is_empty(), "{unused:?}");
    subject.stop().await;
    world.stop().await;
}

/// A fresh world with an Icecream to be made true.
async fn ordered() -> (World, Account) {
    let (world, account) = shop_with(1, &[rules(), lease_rights(&OPERATOR)].concat()).await;
    world.apply(icecream("example", "shop", 2)).await;
    (world, account)
}

/// What there is when all is made true.
async fn served(world: &World) -> String {
    let ready = until_ready(world, 2).await;
    let deployments = world
        .within::<Deployment>("default")
        .list(&Default::default())
        .await
        .expect("a list")
        .items;
    let pods = world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("a list")
        .items;
    let status = ready.status.expect("a status");
    format!(
        "{} deployments, {} pods, {} available",
        deployments.len(),
        pods.len(),
        status.available_replicas
    )
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_changes_nothing_in_the_end() {
    let crashes = survives_any_crash(run, ordered, served).await;
    assert!(
        crashes >= 2,
        "it writes at least a Deployment and a status, not {crashes}"
    );
}

#[tokio::test(start_paused = true)]
async fn no_fault_on_the_way_to_the_server_changes_the_end() {
    survives_any_fault(run, ordered, served).await;
}

#[tokio::test(start_paused = true)]
async fn second_copy_finishes_what_the_first_began() {
    let copies: [(&str, Run); 2] = [
        ("one", |client, stop| compete(client, stop, "one")),
        ("two", |client, stop| compete(client, stop, "two")),
    ];
    assert!(hands_over(copies, OPERATOR.name, ordered, served).await >= 2);
}
