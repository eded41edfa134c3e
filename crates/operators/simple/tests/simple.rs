//! The BellerophonSimple operator on a whole cluster, with exactly its rights, in virtual time.

use std::time::Duration;

use bellerophon::{LeaderOptions, ManagerOptions, is_condition_true};
use bellerophon_operator::{RunOptions, lease_rights, rights_of, run_until};
use bellerophon_simple::{BellerophonSimple, OPERATOR};
use bellerophon_testkit::{
    Account, Run, Subject, World, hands_over, survives_any_crash, survives_any_fault, until,
};
use futures_util::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod, rbac::v1::PolicyRule};
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn run_with(
    client: Client,
    stop: CancellationToken,
    leader: Option<LeaderOptions>,
) -> BoxFuture<'static, Result<(), String>> {
    async move {
        let options = RunOptions {
            manager: ManagerOptions {
                leader,
                ..Default::default()
            },
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

fn rules() -> Vec<PolicyRule> {
    rights_of(&OPERATOR)
}

async fn stable() -> (World, Account) {
    stable_with(&rules()).await
}

async fn stable_with(rules: &[PolicyRule]) -> (World, Account) {
    let world = World::with_nodes(1).await;
    world.define((OPERATOR.definitions)()).await;
    let account = world.account("simple", rules).await;
    (world, account)
}

fn shero(horse: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "stable.simple-bellerophon.io/v444beta989", "kind": "BellerophonSimple", "metadata": {"name": "philonoe"},
        "spec": {"winged_horse_name": horse, "image": "horse:1", "replicas": replicas},
    })
}

async fn until_ready(world: &World, replicas: i32) {
    until(
        &world.within::<BellerophonSimple>("default"),
        "she rides",
        |all| {
            let Some(status) = all.first().and_then(|shero| shero.status.clone()) else {
                return false;
            };
            status.replicas == replicas
                && status.observed_generation == all[0].metadata.generation
                && is_condition_true(&status.conditions, "Ready")
                && !is_condition_true(&status.conditions, "Progressing")
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn horse_is_known_to_every_pod_and_scale_reaches_them() {
    let (world, account) = stable().await;
    let subject = Subject::start(run, &account);
    world.apply(shero("pegasus", 2)).await;
    until_ready(&world, 2).await;
    let scale = json!({"spec": {"replicas": 3}});
    let sheroes = world.within::<BellerophonSimple>("default");
    sheroes
        .patch_scale("philonoe", &PatchParams::default(), &Patch::Merge(&scale))
        .await
        .expect("it scales");
    until_ready(&world, 3).await;
    world.apply(shero("arion", 3)).await;
    until(
        &world.within::<Pod>("default"),
        "every pod knows the new horse",
        |pods| {
            pods.len() == 3
                && pods
                    .iter()
                    .all(|pod| json!(pod)["spec"]["containers"][0]["env"][0]["value"] == "arion")
        },
    )
    .await;
    until_ready(&world, 3).await;
    world.pass(Duration::from_secs(600)).await;
    assert_eq!(
        (account.record.forbidden(), account.record.unused(&rules())),
        (vec![], vec![])
    );
    world.delete(shero("arion", 3)).await;
    until(
        &world.within::<Deployment>("default"),
        "everything goes with her",
        |all| all.is_empty(),
    )
    .await;
    subject.stop().await;
    world.stop().await;
}

/// A fresh world with a hero to be made true.
async fn saddled() -> (World, Account) {
    let (world, account) = stable_with(&[rules(), lease_rights(&OPERATOR)].concat()).await;
    world.apply(shero("pegasus", 2)).await;
    (world, account)
}

/// What there is when all is made true.
async fn riding(world: &World) -> String {
    until_ready(world, 2).await;
    let pods = world
        .within::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("a list")
        .items;
    format!("{} pods", pods.len())
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_changes_nothing_in_the_end() {
    assert!(survives_any_crash(run, saddled, riding).await >= 2);
}

#[tokio::test(start_paused = true)]
async fn no_fault_on_the_way_to_the_server_changes_the_end() {
    survives_any_fault(run, saddled, riding).await;
}

#[tokio::test(start_paused = true)]
async fn second_copy_finishes_what_the_first_began() {
    let copies: [(&str, Run); 2] = [
        ("one", |client, stop| compete(client, stop, "one")),
        ("two", |client, stop| compete(client, stop, "two")),
    ];
    assert!(hands_over(copies, OPERATOR.name, saddled, riding).await >= 2);
}
