//! The SecSynch operator with exactly its rights, in virtual time.

use std::{collections::BTreeSet, time::Duration};

use bellerophon::{LeaderOptions, ManagerOptions};
use bellerophon_operator::{RunOptions, lease_rights, rights_of, run_until};
use bellerophon_secsynch::{ALLOW_TO, OPERATOR, OWNER_UID, SecSynch, SecSynchStatus};
use bellerophon_testkit::{
    Account, Run, Subject, World, hands_over, survives_any_crash, survives_any_fault, until,
};
use futures_util::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn run_with(
    client: Client,
    stop: CancellationToken,
    options: RunOptions,
) -> BoxFuture<'static, Result<(), String>> {
    async move {
        run_until(stop, client, &[OPERATOR], options)
            .await
            .map_err(|error| error.to_string())
    }
    .boxed()
}

fn run(client: Client, stop: CancellationToken) -> BoxFuture<'static, Result<(), String>> {
    run_with(client, stop, RunOptions::default())
}

/// With the tutorial's behaviour.
fn trust(client: Client, stop: CancellationToken) -> BoxFuture<'static, Result<(), String>> {
    run_with(
        client,
        stop,
        RunOptions {
            switches: BTreeSet::from(["secsynch-without-consent".to_owned()]),
            ..RunOptions::default()
        },
    )
}

/// One of several copies.
fn compete(
    client: Client,
    stop: CancellationToken,
    identity: &str,
) -> BoxFuture<'static, Result<(), String>> {
    let leader = Some(LeaderOptions::new("default", OPERATOR.name, identity));
    run_with(
        client,
        stop,
        RunOptions {
            manager: ManagerOptions {
                leader,
                ..Default::default()
            },
            ..RunOptions::default()
        },
    )
}

fn rules() -> Vec<PolicyRule> {
    rights_of(&OPERATOR)
}

/// A cluster with namespaces `src`, `a`, `b` and `team-c`, and the operator's account.
async fn office() -> (World, Account) {
    let world = World::core().await;
    world.define((OPERATOR.definitions)()).await;
    for name in ["src", "a", "b", "team-c"] {
        namespace(&world, name, json!({})).await;
    }
    let account = world
        .account("secsynch", &[rules(), lease_rights(&OPERATOR)].concat())
        .await;
    (world, account)
}

async fn namespace(world: &World, name: &str, labels: Value) {
    world.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})).await;
}

async fn secret(world: &World, value: &str) {
    let data = json!({"password": value});
    world.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "src"}, "type": "example.dev/key", "stringData": data})).await;
}

fn synch(namespace: &str, spec: Value) -> Value {
    let mut spec = spec;
    (spec["secretName"], spec["sourceNamespace"]) = (json!("s"), json!("src"));
    json!({"apiVersion": "tutorial.study.dev/v1alpha1", "kind": "SecSynch", "metadata": {"name": "one", "namespace": namespace}, "spec": spec})
}

fn password(secret: &Secret) -> String {
    let data = secret.data.as_ref().and_then(|data| data.get("password"));
    data.map(|value| String::from_utf8_lossy(&value.0).into_owned())
        .unwrap_or_default()
}

/// `namespace=value` of every copy.
fn copies(secrets: &[Secret]) -> BTreeSet<String> {
    let ours = secrets
        .iter()
        .filter(|secret| secret.labels().contains_key(OWNER_UID));
    ours.map(|secret| {
        format!(
            "{}={}",
            secret.namespace().unwrap_or_default(),
            password(secret)
        )
    })
    .collect()
}

async fn until_copies(world: &World, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|copy| (*copy).to_owned()).collect();
    until(
        &world.all::<Secret>(),
        &format!("copies are {wanted:?}"),
        |secrets| copies(secrets) == wanted,
    )
    .await;
}

async fn until_status(
    world: &World,
    what: &str,
    so: impl Fn(&SecSynchStatus) -> bool,
) -> SecSynchStatus {
    let all = until(&world.all::<SecSynch>(), what, |all| {
        all.len() == 1 && all[0].status.as_ref().is_some_and(&so)
    })
    .await;
    all[0].status.clone().expect("a status")
}

fn reasons(status: &SecSynchStatus) -> Vec<(String, String)> {
    status
        .failures
        .iter()
        .map(|failure| (failure.namespace.clone(), failure.reason.clone()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn source_reaches_every_copy_and_takes_them_along() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    world
        .apply(synch(
            "src",
            json!({"destinationNamespaces": ["a", "team-*"]}),
        ))
        .await;
    until_status(&world, "there is no source yet", |status| {
        status.conditions[0].reason == "SourceMissing"
    })
    .await;
    secret(&world, "one").await;
    until_copies(&world, &["a=one", "team-c=one"]).await;
    let copy = world.within::<Secret>("a").get("s").await.expect("a copy");
    assert_eq!(
        copy.type_.as_deref(),
        Some("example.dev/key"),
        "the type is kept"
    );
    secret(&world, "two").await;
    until_copies(&world, &["a=two", "team-c=two"]).await;
    let status = until_status(&world, "all is told", |status| status.synced == 2).await;
    assert_eq!(
        (status.total, status.failed, status.last_sync_time.is_some()),
        (2, 0, true)
    );
    world
        .within::<Secret>("src")
        .delete("s", &DeleteParams::default())
        .await
        .expect("it is deleted");
    until_copies(&world, &[]).await;
    secret(&world, "three").await;
    until_copies(&world, &["a=three", "team-c=three"]).await;
    world.delete(synch("src", json!({}))).await;
    until(&world.all::<SecSynch>(), "it is gone", |all| all.is_empty()).await;
    until_copies(&world, &[]).await;
    assert_eq!(
        password(
            &world
                .within::<Secret>("src")
                .get("s")
                .await
                .expect("the source stays")
        ),
        "three"
    );
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(
        (account.record.forbidden(), account.record.unused(&rules())),
        (vec![], vec![])
    );
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_and_silence_follows() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    secret(&world, "one").await;
    world
        .apply(synch("src", json!({"destinationNamespaces": ["a", "b"]})))
        .await;
    until_copies(&world, &["a=one", "b=one"]).await;
    let secrets = world.within::<Secret>("a");
    for drift in [
        json!({"stringData": {"password": "wrong"}}),
        json!({"stringData": {"added": "x"}}),
        json!({"data": null}),
    ] {
        secrets
            .patch("s", &PatchParams::default(), &Patch::Merge(&drift))
            .await
            .expect("it drifts");
        until(&secrets, "it is as before", |all| {
            all.iter().any(|secret| {
                secret.name_any() == "s"
                    && password(secret) == "one"
                    && secret.data.as_ref().map_or(0, |data| data.len()) == 1
            })
        })
        .await;
    }
    secrets
        .delete("s", &DeleteParams::default())
        .await
        .expect("it is deleted");
    until_copies(&world, &["a=one", "b=one"]).await;
    world.pass(Duration::from_secs(60)).await;
    let (writes, told) = (
        account.record.writes().len(),
        until_status(&world, "it is told", |_| true).await,
    );
    let others = json!({"metadata": {"labels": {"team": "x"}}});
    secrets
        .patch("s", &PatchParams::default(), &Patch::Merge(&others))
        .await
        .expect("somebody labels a copy");
    namespace(&world, "unrelated", json!({})).await;
    world.pass(Duration::from_secs(1800)).await;
    assert_eq!(
        account.record.writes().len(),
        writes,
        "{:?}",
        &account.record.writes()[writes..]
    );
    assert_eq!(until_status(&world, "it is told", |_| true).await, told);
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn type_and_immutability_are_followed() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    secret(&world, "one").await;
    world
        .apply(synch("src", json!({"destinationNamespaces": ["a"]})))
        .await;
    until_copies(&world, &["a=one"]).await;
    let (source, copies) = (world.within::<Secret>("src"), world.within::<Secret>("a"));
    let immutable = json!({"immutable": true});
    source
        .patch("s", &PatchParams::default(), &Patch::Merge(&immutable))
        .await
        .expect("it is sealed");
    until(&copies, "the copy is sealed", |all| {
        all.iter().any(|secret| secret.immutable == Some(true))
    })
    .await;
    source
        .delete("s", &DeleteParams::default())
        .await
        .expect("it is deleted");
    let other: Secret = serde_json::from_value(
        json!({"metadata": {"name": "s"}, "type": "Opaque", "stringData": {"password": "two"}}),
    )
    .expect("a secret");
    source
        .create(&PostParams::default(), &other)
        .await
        .expect("it is made anew");
    until(&copies, "the copy is made anew", |all| {
        all.iter().any(|secret| {
            secret.type_.as_deref() == Some("Opaque")
                && password(secret) == "two"
                && secret.immutable.is_none()
        })
    })
    .await;
    assert_eq!(account.record.forbidden(), []);
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn secrets_of_others_stay_unless_adopted() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    let foreign = |namespace: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace, "labels": {"mine": "yes"}}, "type": "Opaque", "stringData": {"password": "mine"}});
    secret(&world, "one").await;
    world.apply(foreign("a")).await;
    world
        .apply(synch("src", json!({"destinationNamespaces": ["a", "b"]})))
        .await;
    let status = until_status(&world, "the conflict is told", |status| status.failed == 1).await;
    assert_eq!(
        (reasons(&status), status.synced),
        (vec![("a".into(), "Exists".into())], 1)
    );
    assert_eq!(
        password(
            &world
                .within::<Secret>("a")
                .get("s")
                .await
                .expect("it is there")
        ),
        "mine"
    );
    world
        .apply(synch(
            "src",
            json!({"destinationNamespaces": ["a", "b"], "conflictPolicy": "Skip"}),
        ))
        .await;
    let status = until_status(&world, "it is passed over", |status| status.failed == 0).await;
    assert_eq!((status.synced, status.total), (1, 1));
    world
        .apply(synch(
            "src",
            json!({"destinationNamespaces": ["a", "b"], "conflictPolicy": "Adopt"}),
        ))
        .await;
    until_copies(&world, &["a=one", "b=one"]).await;
    let adopted = world
        .within::<Secret>("a")
        .get("s")
        .await
        .expect("it is there");
    assert_eq!(
        (
            adopted.labels().get("mine").map(String::as_str),
            adopted.type_.as_deref()
        ),
        (None, Some("example.dev/key")),
        "another type: made anew"
    );
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn source_must_allow_copies_that_others_ask_for() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    secret(&world, "one").await;
    world
        .apply(synch("b", json!({"destinationNamespaces": ["a", "b"]})))
        .await;
    let status = until_status(&world, "it is refused", |status| status.failed == 2).await;
    assert_eq!(
        reasons(&status),
        [
            ("a".into(), "NotAllowed".into()),
            ("b".into(), "NotAllowed".into())
        ]
    );
    let allow = |to: Option<&str>| json!({"metadata": {"annotations": {(ALLOW_TO): to}}});
    let source = world.within::<Secret>("src");
    source
        .patch(
            "s",
            &PatchParams::default(),
            &Patch::Merge(&allow(Some("a,team-*"))),
        )
        .await
        .expect("it is allowed");
    until_copies(&world, &["a=one"]).await;
    source
        .patch("s", &PatchParams::default(), &Patch::Merge(&allow(None)))
        .await
        .expect("it is no longer allowed");
    until_copies(&world, &[]).await;
    subject.stop().await;
    let trusting = Subject::start(trust, &account);
    until_copies(&world, &["a=one", "b=one"]).await;
    trusting.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_come_and_go() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    secret(&world, "one").await;
    let selector = json!({"matchLabels": {"tier": "app"}});
    world.apply(synch("src", json!({"destinationNamespaces": ["late", "kube-system"], "destinationSelector": selector}))).await;
    let status = until_status(&world, "what is missing is named", |status| {
        status.failed == 2
    })
    .await;
    assert_eq!(
        reasons(&status),
        [
            ("kube-system".into(), "Protected".into()),
            ("late".into(), "NamespaceMissing".into())
        ]
    );
    namespace(&world, "late", json!({})).await;
    until_copies(&world, &["late=one"]).await;
    namespace(&world, "a", json!({"tier": "app"})).await;
    until_copies(&world, &["a=one", "late=one"]).await;
    world
        .all::<Namespace>()
        .delete("late", &DeleteParams::default())
        .await
        .expect("it is deleted");
    until(&world.all::<Namespace>(), "it is gone", |all| {
        all.iter().all(|namespace| namespace.name_any() != "late")
    })
    .await;
    until_copies(&world, &["a=one"]).await;
    let plain = json!({"metadata": {"labels": {"tier": null}}});
    world
        .all::<Namespace>()
        .patch("a", &PatchParams::default(), &Patch::Merge(&plain))
        .await
        .expect("it loses its label");
    until_copies(&world, &[]).await;
    subject.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn credentials_of_the_cluster_are_never_copied() {
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    world.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "src"}, "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "abcdef"}})).await;
    world
        .apply(synch("src", json!({"destinationNamespaces": ["*"]})))
        .await;
    until_status(&world, "it is refused", |status| {
        status.conditions[0].reason == "NeverCopied"
    })
    .await;
    until_copies(&world, &[]).await;
    subject.stop().await;
    world.stop().await;
}

/// A fresh world with a secret to be copied.
async fn asked() -> (World, Account) {
    let (world, account) = office().await;
    secret(&world, "one").await;
    world
        .apply(synch(
            "src",
            json!({"destinationNamespaces": ["a", "b", "team-*"]}),
        ))
        .await;
    (world, account)
}

/// What there is when all is in step.
async fn in_step(world: &World) -> String {
    until_copies(world, &["a=one", "b=one", "team-c=one"]).await;
    let status = until_status(world, "all is told", |status| status.synced == 3).await;
    format!("{} of {}", status.synced, status.total)
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_changes_nothing_in_the_end() {
    assert_eq!(
        survives_any_crash(run, asked, in_step).await,
        5,
        "a finalizer, three copies, a status"
    );
}

#[tokio::test(start_paused = true)]
async fn no_fault_on_the_way_to_the_server_changes_the_end() {
    survives_any_fault(run, asked, in_step).await;
}

#[tokio::test(start_paused = true)]
async fn second_copy_finishes_what_the_first_began() {
    let copies: [(&str, Run); 2] = [
        ("one", |client, stop| compete(client, stop, "one")),
        ("two", |client, stop| compete(client, stop, "two")),
    ];
    assert_eq!(hands_over(copies, OPERATOR.name, asked, in_step).await, 5);
}

#[tokio::test(start_paused = true)]
async fn one_change_is_one_write_for_each_copy() {
    const NAMESPACES: usize = 200;
    let (world, account) = office().await;
    let subject = Subject::start(run, &account);
    secret(&world, "one").await;
    for i in 0..NAMESPACES {
        namespace(&world, &format!("many-{i:03}"), json!({})).await;
    }
    world
        .apply(synch("src", json!({"destinationNamespaces": ["many-*"]})))
        .await;
    until_status(&world, "all are there", |status| {
        status.synced == NAMESPACES as i64
    })
    .await;
    world.pass(Duration::from_secs(60)).await;
    let writes = |account: &Account| {
        account
            .record
            .writes()
            .into_iter()
            .filter(|seen| seen.resource == "secrets")
            .count()
    };
    assert_eq!(writes(&account), NAMESPACES);
    secret(&world, "two").await;
    let all: Api<Secret> = world.all();
    until(&all, "all are in step", |secrets| {
        copies(secrets)
            .iter()
            .filter(|copy| copy.ends_with("=two"))
            .count()
            == NAMESPACES
    })
    .await;
    world.pass(Duration::from_secs(600)).await;
    assert_eq!(writes(&account), 2 * NAMESPACES);
    assert_eq!(
        all.list(&ListParams::default())
            .await
            .expect("a list")
            .items
            .len(),
        NAMESPACES + 1
    );
    subject.stop().await;
    world.stop().await;
}
