//! Every scenario with crashes of the operator after each write, and under every fault.
//!
//! `cargo test -p bellerophon-hero --test hero convergence -- --ignored` crashes the operator after
//! every write of every scenario; the default does so for the installation, and runs the other
//! scenarios under faults.

use std::time::Duration;

use bellerophon_hero::{
    Backup, Bellerophon, OPERATOR,
    crd::{BackupPhase, Phase},
};
use bellerophon_testkit::{
    Account, TestCluster, converges_after_any_crash, converges_after_failover,
    converges_under_any_fault, wait_until,
};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::fixture::{check_model, cluster, hero, operator, wait_for, wait_until_running};

async fn with_hero(spec: Value) -> (TestCluster, Account) {
    let (cluster, account) = cluster().await;
    cluster.apply(hero(spec)).await;
    (cluster, account)
}

async fn three() -> (TestCluster, Account) {
    with_hero(json!({"replicas": 3})).await
}

async fn one() -> (TestCluster, Account) {
    with_hero(json!({"replicas": 1})).await
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
        text += &format!("; {:?} {members:?} {:?}", status.phase, status.image);
    }
    text
}

async fn patch(cluster: &TestCluster, spec: Value) {
    let heroes = cluster.namespaced::<Bellerophon>("default");
    let patch = Patch::Merge(json!({"spec": spec}));
    heroes
        .patch("icarus", &PatchParams::default(), &patch)
        .await
        .expect("it is accepted");
}

async fn installed(cluster: &TestCluster) -> String {
    wait_until_running(cluster, 3).await;
    describe(cluster).await
}

async fn scaled(cluster: &TestCluster) -> String {
    wait_until_running(cluster, 1).await;
    for replicas in [3, 5, 3, 1] {
        patch(cluster, json!({"replicas": replicas})).await;
        wait_until_running(cluster, replicas).await;
    }
    describe(cluster).await
}

async fn upgraded(cluster: &TestCluster) -> String {
    wait_until_running(cluster, 3).await;
    patch(cluster, json!({"image": "store:1.1.0"})).await;
    wait_for(cluster, "all members are upgraded", |status| {
        status.phase == Phase::Running
            && status.version.as_deref() == Some("1.1.0")
            && status.format_level == Some(2)
    })
    .await;
    describe(cluster).await
}

async fn lost_disk(cluster: &TestCluster) -> String {
    let status = wait_until_running(cluster, 3).await;
    let lost = status.members[1].clone();
    let metadata = json!({"name": lost.name});
    cluster
        .delete(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}))
        .await;
    cluster
        .delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
        .await;
    wait_for(cluster, "the member is replaced", |status| {
        status.phase == Phase::Running
            && status.voters.len() == 3
            && status.members.len() == 3
            && status.member(&lost.name).is_none()
    })
    .await;
    describe(cluster).await
}

async fn succeeded_pod(cluster: &TestCluster) -> String {
    let status = wait_until_running(cluster, 3).await;
    let pods = cluster.namespaced::<Pod>("default");
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
    wait_until_running(cluster, 3).await;
    describe(cluster).await
}

async fn quorum_lost(cluster: &TestCluster) -> String {
    let status = wait_until_running(cluster, 3).await;
    for member in &status.members[..2] {
        let metadata = json!({"name": member.name});
        cluster
            .delete(
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}),
            )
            .await;
    }
    // Both Pods go in the same moment, before any reaction.
    for member in &status.members[..2] {
        let metadata = json!({"name": member.name});
        cluster
            .delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
            .await;
    }
    wait_for(cluster, "the loss is reported", |status| {
        status.phase == Phase::QuorumLost
            && status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "QuorumLost" && condition.reason == "DataLost")
    })
    .await;
    cluster.advance(Duration::from_secs(600)).await;
    let status = wait_for(cluster, "it stays", |status| {
        status.phase == Phase::QuorumLost
    })
    .await;
    format!(
        "{} members, {} voters",
        status.members.len(),
        status.voters.len()
    )
}

async fn backed_up(cluster: &TestCluster) -> String {
    wait_until_running(cluster, 1).await;
    cluster.apply(backup("before")).await;
    let backups = cluster.namespaced::<Backup>("default");
    wait_until(&backups, "the backup is completed", |backups| {
        let phase = |backup: &Backup| backup.status.as_ref().map(|status| status.phase);
        backups
            .iter()
            .any(|backup| phase(backup) == Some(BackupPhase::Completed))
    })
    .await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "its Pod is deleted", |pods| pods.len() == 1).await;
    describe(cluster).await
}

fn backup(name: &str) -> Value {
    json!({
        "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Backup",
        "metadata": {"name": name},
        "spec": {"hero": "icarus"},
    })
}

async fn deleted(cluster: &TestCluster) -> String {
    wait_until_running(cluster, 3).await;
    cluster.delete(hero(json!({}))).await;
    let heroes = cluster.namespaced::<Bellerophon>("default");
    wait_until(&heroes, "the object is gone", |heroes| heroes.is_empty()).await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "the Pods are gone", |pods| pods.is_empty()).await;
    let secrets = cluster.namespaced::<Secret>("default");
    wait_until(&secrets, "the Secrets are gone", |secrets| {
        secrets.is_empty()
    })
    .await;
    describe(cluster).await
}

#[tokio::test(start_paused = true)]
async fn installation_converges_after_a_crash_at_any_write() {
    let crashes = converges_after_any_crash(operator, three, installed).await;
    assert!(crashes >= 40, "{crashes} crashes");
}

#[tokio::test(start_paused = true)]
async fn standby_replica_completes_an_installation() {
    let failovers = converges_after_failover(operator, OPERATOR.name, one, async |cluster| {
        wait_until_running(cluster, 1).await;
        describe(cluster).await
    })
    .await;
    assert!(failovers >= 10, "{failovers} failovers");
}

/// Defines the tests of one scenario.
macro_rules! scenario {
    ($under_faults:ident, $after_crashes:ident, $setup:expr, $settled:expr) => {
        #[tokio::test(start_paused = true)]
        async fn $under_faults() {
            converges_under_any_fault(operator, $setup, $settled).await;
        }

        #[tokio::test(start_paused = true)]
        #[ignore = "takes minutes; run it with --ignored"]
        async fn $after_crashes() {
            converges_after_any_crash(operator, $setup, $settled).await;
        }
    };
}

scenario!(
    install_converges_under_every_fault,
    install_converges_after_crashes,
    three,
    installed
);
scenario!(
    scale_converges_under_every_fault,
    scale_converges_after_crashes,
    one,
    scaled
);
scenario!(
    upgrade_converges_under_every_fault,
    upgrade_converges_after_crashes,
    three,
    upgraded
);
scenario!(
    lost_disk_converges_under_every_fault,
    lost_disk_converges_after_crashes,
    three,
    lost_disk
);
scenario!(
    ended_pod_converges_under_every_fault,
    ended_pod_converges_after_crashes,
    three,
    succeeded_pod
);
scenario!(
    quorum_loss_converges_under_every_fault,
    quorum_loss_converges_after_crashes,
    three,
    quorum_lost
);
scenario!(
    backup_converges_under_every_fault,
    backup_converges_after_crashes,
    one,
    backed_up
);
scenario!(
    deletion_converges_under_every_fault,
    deletion_converges_after_crashes,
    three,
    deleted
);
