//! The operator on an embedded API server: versions, permissions, backups, restores, real nodes.

use std::time::Duration;

use bellerophon_hero::{
    Backup, Bellerophon, OPERATOR, ScheduledBackup,
    crd::{BackupPhase, MemberPhase, Phase},
    names,
};
use bellerophon_testkit::{OperatorUnderTest, TestCluster, wait_until};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{
    BACKUP_REVISION, FIXTURE, check_model, cluster, cluster_on, hero, members, named, operator,
    wait_for, wait_until_running,
};

/// A Bellerophon with every field.
fn every_field() -> Value {
    json!({
        "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Bellerophon",
        "metadata": {"name": "icarus"},
        "weapons": {"is_atomatic_rifle": true, "image": "rifle.png", "explosive": "barrel"},
        "spec": {
            "winged_horse_name": "pegasus",
            "image": "store:1.0.0",
            "replicas": 5,
            "storage": {"size": "2Gi", "className": "fast", "claimPolicy": "Delete"},
            "backup": {
                "schedule": "0 3 * * *", "keep": 3, "size": "9Gi", "className": "slow",
                "timeoutSeconds": 60,
            },
            "autopilot": {
                "heal": false, "restartAfterSeconds": 31, "replaceAfterSeconds": 61,
                "lagEntriesMax": 7, "compactLogBytes": 8,
                "readers": {"min": 1, "max": 2, "readsPerSecond": 3, "cooldownSeconds": 11},
            },
            "bootstrap": {"restore": {
                "claim": "old-backup", "file": "daily.snapshot", "checksum": "a".repeat(64),
                "revision": 5,
            }},
        },
    })
}

fn in_version(cluster: &TestCluster, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("stable.bellerophon.io", version, "Bellerophon");
    let resource = ApiResource::from_gvk_with_plural(&kind, "heroes");
    Api::namespaced_with(cluster.client.clone(), "default", &resource)
}

#[tokio::test(start_paused = true)]
async fn round_trip_through_either_version_loses_nothing() {
    for (written, through) in [("v1beta7", "v1alpha0"), ("v1alpha0", "v1beta7")] {
        let cluster = TestCluster::api_server_only().await;
        cluster.install_crds([Bellerophon::crd()]).await;
        let mut object = every_field();
        object["apiVersion"] = json!(format!("stable.bellerophon.io/{written}"));
        cluster.apply(object.clone()).await;
        let other = in_version(&cluster, through);
        let status = json!({"status": {"phase": "Running", "clusterId": "c-1", "members": [
            {"name": "icarus-a", "id": 1, "claimUid": "u", "phase": "Active", "role": "Voter"},
        ]}});
        other
            .patch_status("icarus", &PatchParams::default(), &Patch::Merge(&status))
            .await
            .expect("the status is accepted");
        let mut read = other.get("icarus").await.expect("it is served");
        // A client of the other version writes back what it read, with one change.
        read.labels_mut().insert("touched".into(), "true".into());
        other
            .replace("icarus", &PostParams::default(), &read)
            .await
            .expect("it is accepted");
        let back = in_version(&cluster, written)
            .get("icarus")
            .await
            .expect("it is served");
        for field in ["spec", "weapons"] {
            assert_eq!(back.data[field], object[field], "{field} through {through}");
        }
        let member = &back.data["status"]["members"][0];
        assert_eq!(member["claimUid"], "u", "through {through}");
        assert_eq!(back.data["status"]["clusterId"], "c-1", "through {through}");
        cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_specs_are_refused() {
    let cluster = TestCluster::api_server_only().await;
    cluster.install_crds([Bellerophon::crd()]).await;
    let heroes = in_version(&cluster, "v1alpha0");
    for (change, reason) in [
        (json!({"replicas": 0}), "spec.replicas"),
        (json!({"replicas": 10}), "spec.replicas"),
        (json!({"image": ""}), "spec.image"),
        (json!({"storage": {"size": "many"}}), "spec.storage.size"),
        (
            json!({"bootstrap": {"restore": {"backup": "a", "claim": "b", "file": "c",
            "checksum": "a".repeat(64)}}}),
            "name either a Backup",
        ),
        (
            json!({"bootstrap": {"restore": {"claim": "b"}}}),
            "name either a Backup",
        ),
    ] {
        let mut object = hero(json!({}));
        object["apiVersion"] = json!("stable.bellerophon.io/v1alpha0");
        for (field, value) in change.as_object().expect("fields") {
            object["spec"][field] = value.clone();
        }
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let error = heroes
            .create(&PostParams::default(), &object)
            .await
            .expect_err(reason);
        assert!(error.to_string().contains(reason), "{change}: {error}");
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operator_uses_exactly_its_permissions() {
    let (cluster, account) = cluster().await;
    let schedule = match cluster.has_virtual_time() {
        true => "@hourly",
        false => "* * * * *",
    };
    cluster
        .apply(hero(
            json!({"replicas": 2, "backup": {"schedule": schedule, "keep": 1}}),
        ))
        .await;
    let operator = OperatorUnderTest::start(operator, &account);
    wait_until_running(&cluster.client, 2).await;
    // Two backups, of which one expires, and its file is deleted.
    let backups = cluster.namespaced::<Backup>("default");
    match cluster.has_virtual_time() {
        true => cluster.advance(Duration::from_secs(2 * 3600 + 600)).await,
        false => wait_until_first_expires(&backups, 1).await,
    }
    wait_until(&backups, "one backup is kept", |backups| backups.len() == 1).await;
    // The schedule is changed, then deleted.
    patch(&cluster, json!({"backup": {"keep": 2}})).await;
    let schedules = cluster.namespaced::<ScheduledBackup>("default");
    wait_until(&schedules, "the schedule is changed", |schedules| {
        schedules.iter().any(|schedule| schedule.spec.keep == 2)
    })
    .await;
    wait_until_running(&cluster.client, 2).await;
    patch(
        &cluster,
        json!({"backup": {"schedule": null}, "replicas": 1}),
    )
    .await;
    wait_until_running(&cluster.client, 1).await;
    patch(
        &cluster,
        json!({"replicas": 2, "storage": {"claimPolicy": "Delete"}}),
    )
    .await;
    wait_until_running(&cluster.client, 2).await;
    patch(&cluster, json!({"replicas": 1})).await;
    wait_until_running(&cluster.client, 1).await;
    let services = cluster.namespaced::<Service>("default");
    let selector = Patch::Merge(json!({"spec": {"selector": {"app": "other"}}}));
    services
        .patch("icarus", &PatchParams::default(), &selector)
        .await
        .expect("it is accepted");
    let secrets = cluster.namespaced::<Secret>("default");
    let token = Patch::Merge(json!({"data": {"token": null}}));
    secrets
        .patch("icarus-admin", &PatchParams::default(), &token)
        .await
        .expect("it is accepted");
    wait_until(&services, "the selector is restored", |services| {
        let mut services = services.iter();
        services.any(|service| service.name_any() == "icarus" && !selects_other(service))
    })
    .await;
    wait_until(&secrets, "the token is restored", |secrets| {
        let mut secrets = secrets.iter();
        secrets.any(|secret| secret.name_any() == "icarus-admin" && has_token(secret))
    })
    .await;
    cluster.advance(Duration::from_secs(60)).await;
    wait_until_running(&cluster.client, 1).await;
    cluster.delete(hero(json!({}))).await;
    let heroes = cluster.namespaced::<Bellerophon>("default");
    wait_until(&heroes, "the object is gone", |heroes| heroes.is_empty()).await;
    check_model();
    assert_eq!(account.requests.forbidden(), []);
    let mut unused = account.requests.unused_permissions(&FIXTURE.permissions());
    // The model of the store has no Pods to forward to, and no Event occurs twice.
    let is_expected = |permission: &String| {
        permission.contains("portforward") || permission == "patch events.k8s.io/events"
    };
    unused.retain(|permission| !is_expected(permission));
    assert_eq!(unused, [""; 0]);
    operator.stop().await;
    cluster.stop().await;
}

/// Waits until the first backup was deleted, and this many later ones are complete. A schedule of
/// minutes takes minutes in real time.
async fn wait_until_first_expires(backups: &Api<Backup>, kept: usize) {
    let is_complete = |backup: &Backup| {
        let status = backup.status.as_ref();
        status.is_some_and(|status| status.phase == BackupPhase::Completed)
    };
    let first = wait_until(backups, "a backup is complete", |all| {
        all.iter().any(is_complete)
    })
    .await;
    let first = first[0].name_any();
    wait_until(backups, "it has expired", |all| {
        let mut later = all.iter();
        all.len() == kept && later.all(|it| is_complete(it) && it.name_any() != first)
    })
    .await;
}

fn selects_other(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|it| it.selector.as_ref());
    selector.is_some_and(|labels| labels.get("app").is_some_and(|app| app == "other"))
}

fn has_token(secret: &Secret) -> bool {
    let data = secret.data.as_ref();
    data.is_some_and(|data| data.contains_key("token"))
}

async fn patch(cluster: &TestCluster, spec: Value) {
    let heroes = cluster.namespaced::<Bellerophon>("default");
    let patch = Patch::Merge(json!({"spec": spec}));
    heroes
        .patch("icarus", &PatchParams::default(), &patch)
        .await
        .expect("it is accepted");
}

#[tokio::test(start_paused = true)]
async fn store_is_restored_from_a_backup_as_a_new_cluster() {
    let (cluster, account) = cluster().await;
    cluster.apply(hero(json!({"replicas": 1}))).await;
    let operator = OperatorUnderTest::start(operator, &account);
    let old = wait_until_running(&cluster.client, 1).await;
    // The new store may exist before the backup is complete.
    let restore = json!({"replicas": 3, "bootstrap": {"restore": {"backup": "before"}}});
    cluster.apply(named("daedalus", restore)).await;
    cluster.advance(Duration::from_secs(60)).await;
    let backup = json!({
        "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Backup",
        "metadata": {"name": "before"}, "spec": {"hero": "icarus"},
    });
    cluster.apply(backup).await;
    let heroes = cluster.namespaced::<Bellerophon>("default");
    let found = wait_until(&heroes, "the new store runs", |heroes| {
        heroes.iter().any(|hero| {
            let status = hero.status.clone().unwrap_or_default();
            hero.name_any() == "daedalus"
                && status.phase == Phase::Running
                && status.voters.len() == 3
        })
    })
    .await;
    let new = found
        .iter()
        .find(|hero| hero.name_any() == "daedalus")
        .expect("it exists");
    let status = new.status.clone().expect("a status");
    assert_ne!(status.cluster_id, old.cluster_id);
    let restore = status.restore.expect("a restore");
    assert_eq!(restore.min_revision, BACKUP_REVISION + 1_000_000_000);
    assert!(restore.file.starts_with("before-"), "{}", restore.file);
    // The Pod of the restore is gone, since it would hold the claim.
    let pods = cluster.namespaced::<Pod>("default");
    let pods = pods.list(&Default::default()).await.expect("Pods");
    assert!(
        pods.items
            .iter()
            .all(|pod| !pod.name_any().ends_with("-restore"))
    );
    check_model();
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn backup_of_a_deleted_pod_fails_and_the_next_one_works() {
    let (cluster, account) = cluster().await;
    // The timeout is ten minutes by default.
    let (spec, limit) = match cluster.has_virtual_time() {
        true => (json!({"replicas": 1}), 620),
        false => (json!({"replicas": 1, "backup": {"timeoutSeconds": 60}}), 80),
    };
    cluster.apply(hero(spec)).await;
    let operator = OperatorUnderTest::start(operator, &account);
    wait_until_running(&cluster.client, 1).await;
    members().hold_tasks();
    let backup = |name: &str| {
        json!({
            "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Backup",
            "metadata": {"name": name}, "spec": {"hero": "icarus"},
        })
    };
    let backups = cluster.namespaced::<Backup>("default");
    let phase = |backups: &[Backup], name: &str| {
        let backup = backups.iter().find(|backup| backup.name_any() == name);
        backup
            .and_then(|backup| backup.status.as_ref())
            .map(|status| status.phase)
    };
    cluster.apply(backup("killed")).await;
    cluster.apply(backup("late")).await;
    wait_until(&backups, "both run", |all| {
        let has_pod = |name: &str| {
            let backup = all.iter().find(|backup| backup.name_any() == name);
            backup
                .and_then(|backup| backup.status.as_ref()?.pod_uid.as_ref())
                .is_some()
        };
        has_pod("killed") && has_pod("late")
    })
    .await;
    let metadata = json!({"name": "killed-backup"});
    cluster
        .delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
        .await;
    let began = Instant::now();
    wait_until(&backups, "both fail", |all| {
        phase(all, "killed") == Some(BackupPhase::Failed)
            && phase(all, "late") == Some(BackupPhase::Failed)
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(limit),
        "{:?}",
        began.elapsed()
    );
    members().release_tasks();
    cluster.apply(backup("next")).await;
    wait_until(&backups, "the next one completes", |all| {
        phase(all, "next") == Some(BackupPhase::Completed)
    })
    .await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scheduled_backups_are_created_and_expire() {
    let (cluster, account) = cluster().await;
    cluster.apply(hero(json!({"replicas": 1}))).await;
    let times = match cluster.has_virtual_time() {
        true => "*/10 * * * *",
        false => "* * * * *",
    };
    let schedule = json!({
        "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "ScheduledBackup",
        "metadata": {"name": "often"},
        "spec": {"hero": "icarus", "schedule": times, "keep": 2},
    });
    let operator = OperatorUnderTest::start(operator, &account);
    wait_until_running(&cluster.client, 1).await;
    cluster.apply(schedule).await;
    let backups = cluster.namespaced::<Backup>("default");
    match cluster.has_virtual_time() {
        true => cluster.advance(Duration::from_secs(45 * 60)).await,
        false => wait_until_first_expires(&backups, 2).await,
    }
    let kept = backups
        .list(&Default::default())
        .await
        .expect("backups")
        .items;
    assert_eq!(kept.len(), 2);
    for backup in &kept {
        assert_eq!(
            backup.status.as_ref().map(|status| status.phase),
            Some(BackupPhase::Completed)
        );
    }
    let schedules = cluster.namespaced::<ScheduledBackup>("default");
    let status = schedules
        .get("often")
        .await
        .expect("it exists")
        .status
        .expect("a status");
    assert!(status.last_completed_at.is_some());
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn steps_are_recorded_as_events() {
    let (cluster, account) = cluster().await;
    cluster.apply(hero(json!({"replicas": 3}))).await;
    let operator = OperatorUnderTest::start(operator, &account);
    wait_until_running(&cluster.client, 3).await;
    patch(&cluster, json!({"image": "store:1.1.0"})).await;
    wait_for(&cluster.client, "all members are upgraded", |status| {
        status.phase == Phase::Running && status.format_level == Some(2)
    })
    .await;
    patch(&cluster, json!({"replicas": 1})).await;
    wait_until_running(&cluster.client, 1).await;
    patch(&cluster, json!({"image": "store:1.0.0"})).await;
    cluster.advance(Duration::from_secs(60)).await;
    let events = cluster
        .namespaced::<Event>("default")
        .list(&Default::default())
        .await
        .expect("events");
    let reasons: std::collections::BTreeSet<String> = events
        .items
        .iter()
        .filter_map(|event| event.reason.clone())
        .collect();
    for reason in [
        "Bootstrapped",
        "ScaledUp",
        "UpgradeStep",
        "HandedOver",
        "Upgraded",
        "FormatLevelRaised",
        "ScaledDown",
        "ClaimRetired",
        "UpgradeRefused",
    ] {
        assert!(reasons.contains(reason), "no {reason} in {reasons:?}");
    }
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn store_runs_on_simulated_nodes() {
    let (cluster, account) = cluster_on(TestCluster::with_nodes(3).await).await;
    cluster.apply(hero(json!({"replicas": 3}))).await;
    let operator = OperatorUnderTest::start(operator, &account);
    let status = wait_until_running(&cluster.client, 3).await;
    assert!(
        status
            .members
            .iter()
            .all(|member| member.phase == MemberPhase::Active)
    );
    let pods = cluster.namespaced::<Pod>("default");
    let pods = pods.list(&Default::default()).await.expect("Pods").items;
    let nodes: std::collections::BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    assert_eq!(nodes.len(), 3, "members are spread");
    let claims = cluster.namespaced::<PersistentVolumeClaim>("default");
    for claim in claims
        .list(&Default::default())
        .await
        .expect("claims")
        .items
    {
        assert_eq!(
            claim.owner_references(),
            [],
            "no garbage collection deletes data"
        );
        assert!(claim.labels().contains_key(names::MEMBER_LABEL));
        let phase = claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        assert_eq!(phase, Some("Bound"));
    }
    let budgets = cluster.namespaced::<PodDisruptionBudget>("default");
    let budgets = wait_until(&budgets, "one member may be evicted", |budgets| {
        budgets.iter().any(|budget| {
            budget
                .status
                .as_ref()
                .is_some_and(|status| status.disruptions_allowed == Some(1))
        })
    })
    .await;
    assert_eq!(json!(budgets[0])["spec"]["minAvailable"], 2);
    check_model();
    assert_eq!(account.requests.forbidden(), []);
    assert_eq!(OPERATOR.name, "hero");
    operator.stop().await;
    cluster.stop().await;
}
