//! Every scenario with crashes of the operator after each write, and under every fault.
//!
//! A write is one to the API server, or a request that changes the store. By default, every
//! scenario runs under faults, and once with a crash after one or two writes.
//! `cargo test -p bellerophon-hero --test hero convergence -- --ignored` runs it once for each
//! write, with one crash after it.

use std::{cell::RefCell, fmt::Debug};

use bellerophon_hero::{
    Backup, Bellerophon, OPERATOR,
    crd::{BackupPhase, BackupSpec, Phase},
};
use bellerophon_testkit::{
    Account, TestCluster, converges_after_any_crash, converges_after_failover,
    converges_under_any_fault, converges_while_crashing, wait_until,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::fixture::{
    check_model, cluster, hero, is_running, named, operator, wait_for, wait_for_named,
    wait_until_running,
};

thread_local! {
    /// What the user of the current cluster does. A test has one thread.
    static USER: RefCell<Option<AbortOnDropHandle<()>>> = const { RefCell::new(None) };
}

/// A cluster with a store, and a user who changes it while the operator runs, is killed and started
/// again.
async fn with_user<F>(replicas: i32, user: impl FnOnce(Client) -> F) -> (TestCluster, Account)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (cluster, account) = cluster().await;
    cluster.apply(hero(json!({"replicas": replicas}))).await;
    let user = tokio::spawn(user(cluster.client.clone()));
    USER.set(Some(AbortOnDropHandle::new(user)));
    (cluster, account)
}

/// Waits until the user has done and seen everything.
async fn settled(cluster: &TestCluster) -> String {
    let user = USER.take().expect("there is a user");
    user.await.expect("the user sees what was expected");
    describe(cluster).await
}

/// Describes what exists, without random names.
async fn describe(cluster: &TestCluster) -> String {
    check_model();
    let heroes = cluster.namespaced::<Bellerophon>("default");
    let pods = cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("Pods");
    let claims = cluster.namespaced::<PersistentVolumeClaim>("default");
    let claims = claims.list(&Default::default()).await.expect("claims");
    let secrets = cluster
        .namespaced::<Secret>("default")
        .list(&Default::default())
        .await
        .expect("Secrets");
    let services = cluster
        .namespaced::<Service>("default")
        .list(&Default::default())
        .await
        .expect("Services");
    let budgets = cluster.namespaced::<PodDisruptionBudget>("default");
    let budgets = budgets.list(&Default::default()).await.expect("budgets");
    let retired = claims
        .items
        .iter()
        .filter(|claim| {
            claim
                .labels()
                .contains_key(bellerophon_hero::names::RETIRED_LABEL)
        })
        .count();
    let roles = pods.items.iter().map(|pod| {
        let role = pod.labels().get(bellerophon_hero::names::ROLE_LABEL);
        role.cloned().unwrap_or_default()
    });
    let mut roles: Vec<String> = roles.collect();
    roles.sort();
    let mut text = format!(
        "{roles:?}, {} claims, {retired} retired, {} Secrets, {} Services, {:?}",
        claims.items.len(),
        secrets.items.len(),
        services.items.len(),
        budgets
            .items
            .iter()
            .map(|budget| json!(budget)["spec"]["minAvailable"].clone())
            .collect::<Vec<_>>(),
    );
    for hero in heroes
        .list(&Default::default())
        .await
        .expect("heroes")
        .items
    {
        let status = hero.status.unwrap_or_default();
        let members: Vec<_> = status
            .members
            .iter()
            .map(|member| (member.role, member.phase, member.version.clone()))
            .collect();
        let restore = status
            .restore
            .map(|restore| (restore.phase, restore.failures));
        text += &format!("; {:?} {members:?} {:?}", status.phase, status.image);
        text += &format!(" {restore:?}");
    }
    text
}

async fn patch(client: &Client, spec: Value) {
    let heroes = Api::<Bellerophon>::namespaced(client.clone(), "default");
    let patch = Patch::Merge(json!({"spec": spec}));
    heroes
        .patch("icarus", &PatchParams::default(), &patch)
        .await
        .expect("it is accepted");
}

async fn delete<K>(client: &Client, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api = Api::<K>::namespaced(client.clone(), "default");
    api.delete(name, &DeleteParams::default())
        .await
        .expect("it exists");
}

async fn installed(client: Client) {
    wait_until_running(&client, 3).await;
}

async fn scaled(client: Client) {
    wait_until_running(&client, 1).await;
    for replicas in [3, 5, 3, 1] {
        patch(&client, json!({"replicas": replicas})).await;
        wait_until_running(&client, replicas).await;
    }
}

async fn upgraded(client: Client) {
    wait_until_running(&client, 3).await;
    patch(&client, json!({"image": "store:1.1.0"})).await;
    wait_for(&client, "all members are upgraded", |status| {
        status.phase == Phase::Running
            && status.version.as_deref() == Some("1.1.0")
            && status.format_level == Some(2)
    })
    .await;
}

async fn lost_disk(client: Client) {
    let status = wait_until_running(&client, 3).await;
    let lost = status.members[1].clone();
    delete::<PersistentVolumeClaim>(&client, &lost.name).await;
    delete::<Pod>(&client, &lost.name).await;
    wait_for(&client, "the member is replaced", |status| {
        status.phase == Phase::Running
            && status.voters.len() == 3
            && status.members.len() == 3
            && status.members.iter().all(|member| member.id != lost.id)
    })
    .await;
}

async fn succeeded_pod(client: Client) {
    let status = wait_until_running(&client, 3).await;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let name = &status.members[0].name;
    let before = pods.get(name).await.expect("a Pod").uid();
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status(name, &PatchParams::default(), &ended)
        .await
        .expect("it is accepted");
    wait_until(&pods, "the Pod is recreated", |pods| {
        pods.iter().any(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            pod.name_any() == *name && pod.uid() != before && phase == Some("Running")
        })
    })
    .await;
    wait_until_running(&client, 3).await;
}

async fn quorum_lost(client: Client) {
    let status = wait_until_running(&client, 3).await;
    for member in &status.members[..2] {
        delete::<PersistentVolumeClaim>(&client, &member.name).await;
    }
    for member in &status.members[..2] {
        delete::<Pod>(&client, &member.name).await;
    }
    wait_for(&client, "the loss is reported", |status| {
        status.phase == Phase::QuorumLost
            && status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "QuorumLost" && condition.reason == "DataLost")
    })
    .await;
}

async fn backed_up(client: Client) {
    wait_until_running(&client, 1).await;
    let backups = Api::<Backup>::namespaced(client.clone(), "default");
    let spec = BackupSpec {
        hero: "icarus".into(),
    };
    let backup = Backup::new("before", spec);
    backups
        .create(&PostParams::default(), &backup)
        .await
        .expect("it is accepted");
    wait_until(&backups, "the backup is completed", |backups| {
        let phase = |backup: &Backup| backup.status.as_ref().map(|status| status.phase);
        backups
            .iter()
            .any(|backup| phase(backup) == Some(BackupPhase::Completed))
    })
    .await;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    wait_until(&pods, "its Pod is deleted", |pods| pods.len() == 1).await;
}

async fn restored(client: Client) {
    backed_up(client.clone()).await;
    let spec = json!({"replicas": 3, "bootstrap": {"restore": {"backup": "before"}}});
    let hero = serde_json::from_value(named("daedalus", spec)).expect("a Bellerophon");
    let heroes = Api::<Bellerophon>::namespaced(client.clone(), "default");
    heroes
        .create(&PostParams::default(), &hero)
        .await
        .expect("it is accepted");
    wait_for_named(&client, "daedalus", "the store is restored", |status| {
        is_running(status, 3)
    })
    .await;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    wait_until(&pods, "only members have Pods", |pods| pods.len() == 4).await;
}

async fn deleted(client: Client) {
    wait_until_running(&client, 3).await;
    delete::<Bellerophon>(&client, "icarus").await;
    let heroes = Api::<Bellerophon>::namespaced(client.clone(), "default");
    wait_until(&heroes, "the object is gone", |heroes| heroes.is_empty()).await;
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    wait_until(&pods, "the Pods are gone", |pods| pods.is_empty()).await;
    let secrets = Api::<Secret>::namespaced(client.clone(), "default");
    wait_until(&secrets, "the Secrets are gone", |secrets| {
        secrets.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn standby_replica_completes_an_installation() {
    let setup =
        async || with_user(1, async |client| drop(wait_until_running(&client, 1).await)).await;
    let failovers = converges_after_failover(operator, OPERATOR.name, setup, settled).await;
    assert!(failovers >= 10, "{failovers} failovers");
}

/// The tests of one scenario: the voters it begins with, and what its user does.
macro_rules! scenario {
    ($name:ident, $replicas:expr, $user:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(start_paused = true)]
            async fn converges_under_every_fault() {
                let setup = async || with_user($replicas, $user).await;
                converges_under_any_fault(operator, setup, settled).await;
            }

            #[tokio::test(start_paused = true)]
            async fn converges_while_the_operator_crashes() {
                let setup = async || with_user($replicas, $user).await;
                let crashes = converges_while_crashing(operator, setup, settled).await;
                assert!(crashes >= 10, "{crashes} crashes");
            }

            #[tokio::test(start_paused = true)]
            #[ignore = "takes minutes; run it with --ignored"]
            async fn converges_after_a_crash_at_any_write() {
                let setup = async || with_user($replicas, $user).await;
                let crashes = converges_after_any_crash(operator, setup, settled).await;
                assert!(crashes >= 20, "{crashes} crashes");
            }
        }
    };
}

scenario!(install, 3, installed);
scenario!(scale, 1, scaled);
scenario!(upgrade, 3, upgraded);
scenario!(disk_lost, 3, lost_disk);
scenario!(pod_ended, 3, succeeded_pod);
scenario!(quorum_loss, 3, quorum_lost);
scenario!(backup, 1, backed_up);
scenario!(restore, 1, restored);
scenario!(deletion, 3, deleted);
