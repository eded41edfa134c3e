//! Plans for pods given as text.

use serde_json::{Value, json};

use super::*;
use crate::workloads::test_objects::{at, pod as pod_builder};

fn revision(name: &str) -> Revision {
    let template = json!({
        "metadata": { "labels": { "app": "db" } },
        "spec": { "containers": [{ "name": "x", "image": name }] },
    });
    Revision {
        name: name.into(),
        template: serde_json::from_value(template).unwrap(),
    }
}

fn set(replicas: i32, more: Value) -> StatefulSet {
    let mut set = json!({
        "metadata": { "name": "db", "namespace": "default", "uid": "set", "generation": 2 },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "db" } },
            "template": {},
            "serviceName": "db",
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
        },
    });
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

/// `ordinal:revision:state` per pod. States: `ready`, `unready`, `pending`, `failed`,
/// `terminating`.
fn pods(set: &StatefulSet, text: &str) -> Vec<Arc<Pod>> {
    let parse = |pod_text: &str| {
        let parts: Vec<_> = pod_text.split(':').collect();
        let mut pod = new_pod(
            set,
            &revision(parts[1]).template,
            parts[1],
            parts[0].parse().unwrap(),
        );
        pod.metadata.uid = pod.metadata.name.clone();
        let template = match parts[2] {
            "ready" => pod_builder("x").running().ready(),
            "unready" => pod_builder("x").running(),
            "pending" => pod_builder("x").phase("Pending"),
            "failed" => pod_builder("x").phase("Failed"),
            _ => pod_builder("x").running().ready().deleting(),
        }
        .build();
        pod.status = template.status;
        pod.metadata.deletion_timestamp = template.metadata.deletion_timestamp;
        Arc::new(pod)
    };
    text.split_whitespace().map(parse).collect()
}

fn plan_for(set: &StatefulSet, pod_text: &str) -> Plan {
    let pods = pods(set, pod_text);
    let current = revision("old");
    let update = revision("new");
    let state = StatefulSetState {
        set,
        current: &current,
        update: &update,
        pods: &pods,
        claim: &|_| None,
        now: Timestamp::from_second(100).unwrap(),
    };
    plan(&state)
}

fn summary(plan: &Plan) -> String {
    let text = |action: &StatefulSetAction| match action {
        StatefulSetAction::CreateClaim { claim, .. } => format!("+{}", claim.name_any()),
        StatefulSetAction::CreatePod(pod) => format!("+{}:{}", pod.name_any(), pod_revision(pod)),
        StatefulSetAction::DeletePod(pod) => format!("-{}", pod.name_any()),
        StatefulSetAction::UpdatePod { to, .. } => format!("~{}", to.name_any()),
        StatefulSetAction::UpdateClaim { to, .. } => format!("~{}", to.name_any()),
        StatefulSetAction::RecordConflictingController(claim) => format!("!{claim}"),
        StatefulSetAction::RecordCreateFailure { pod, .. } => format!("!{pod}"),
    };
    plan.actions.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn ordered_ready_creates_and_deletes_in_order() {
    for (case, replicas, pods, expected) in [
        ("first replica", 3, "", "+db-0:new"),
        ("second replica waits", 3, "0:new:unready", ""),
        ("second replica", 3, "0:new:ready", "+db-1:new"),
        (
            "missing ordinal first",
            3,
            "0:new:ready 2:new:ready",
            "+db-1:new",
        ),
        ("one is terminating", 3, "0:new:terminating 1:new:ready", ""),
        ("one failed", 2, "0:new:failed 1:new:ready", "-db-0"),
        ("complete", 2, "0:new:ready 1:new:ready", ""),
        (
            "highest ordinal is deleted first",
            1,
            "0:new:ready 1:new:ready 2:new:ready",
            "-db-2",
        ),
        (
            "terminating pod blocks the next",
            1,
            "0:new:ready 1:new:ready 2:new:terminating",
            "",
        ),
        (
            "first unavailable pod is deleted",
            1,
            "0:new:ready 1:new:ready 2:new:unready",
            "-db-2",
        ),
        (
            "blocked by another unavailable condemned pod",
            1,
            "0:new:ready 1:new:unready 2:new:unready",
            "",
        ),
        (
            "blocked by an unavailable replica",
            1,
            "0:new:unready 1:new:ready",
            "",
        ),
    ] {
        assert_eq!(
            summary(&plan_for(&set(replicas, json!({})), pods)),
            expected,
            "{case}: {replicas} of {pods}"
        );
    }
}

#[test]
fn parallel_creates_and_deletes_together() {
    let parallel = json!({ "podManagementPolicy": "Parallel" });
    for (case, replicas, pods, expected) in [
        ("all replicas", 3, "", "+db-0:new +db-1:new +db-2:new"),
        (
            "missing replicas",
            3,
            "1:new:unready",
            "+db-0:new +db-2:new",
        ),
        (
            "condemned pods",
            1,
            "0:new:unready 1:new:ready 2:new:unready",
            "-db-2 -db-1",
        ),
        (
            "one is terminating",
            1,
            "0:new:ready 1:new:ready 2:new:terminating",
            "-db-1",
        ),
    ] {
        assert_eq!(
            summary(&plan_for(&set(replicas, parallel.clone()), pods)),
            expected,
            "{case}: {replicas} of {pods}"
        );
    }
}

#[test]
fn rolling_update_starts_at_the_highest_ordinal() {
    let partition = |partition: i32| {
        json!({
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "partition": partition },
            },
        })
    };
    let max = |max: Value| {
        json!({
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "partition": 0, "maxUnavailable": max },
            },
        })
    };
    let parallel = json!({ "podManagementPolicy": "Parallel" });
    for (case, more, pods, expected) in [
        (
            "highest ordinal",
            json!({}),
            "0:old:ready 1:old:ready 2:old:ready",
            "-db-2",
        ),
        (
            "unavailable pod blocks",
            json!({}),
            "0:old:ready 1:old:ready 2:new:unready",
            "",
        ),
        (
            "next ordinal",
            json!({}),
            "0:old:ready 1:old:ready 2:new:ready",
            "-db-1",
        ),
        (
            "stops at the partition",
            partition(2),
            "0:old:ready 1:old:ready 2:new:ready",
            "",
        ),
        (
            "current revision below the partition",
            partition(2),
            "0:old:ready 2:new:ready",
            "+db-1:old",
        ),
        (
            "update revision above the partition",
            partition(2),
            "0:old:ready 1:old:ready",
            "+db-2:new",
        ),
        (
            "maxUnavailable 2",
            max(json!(2)),
            "0:old:ready 1:old:ready 2:old:ready",
            "-db-2 -db-1",
        ),
        (
            "maxUnavailable 30%, at least 1",
            max(json!("30%")),
            "0:old:ready 1:old:ready 2:old:ready",
            "-db-2",
        ),
        (
            "on delete",
            json!({ "updateStrategy": { "type": "OnDelete" } }),
            "0:old:ready 1:old:ready 2:old:ready",
            "",
        ),
        (
            "parallel: lower unavailable ordinal does not block",
            parallel.clone(),
            "0:old:unready 1:old:ready 2:new:ready",
            "-db-1",
        ),
        (
            "parallel: higher unavailable ordinal blocks",
            parallel,
            "0:old:ready 1:old:ready 2:new:unready",
            "",
        ),
    ] {
        assert_eq!(
            summary(&plan_for(&set(3, more), pods)),
            expected,
            "{case}: {pods}"
        );
    }
}

#[test]
fn claims_are_created_before_their_pod() {
    let templates = json!({
        "volumeClaimTemplates": [
            { "metadata": { "name": "data" } },
            { "metadata": { "name": "log" } },
        ],
    });
    assert_eq!(
        summary(&plan_for(&set(1, templates.clone()), "")),
        "+data-db-0 +log-db-0 +db-0:new"
    );
    assert_eq!(
        summary(&plan_for(&set(1, templates), "0:new:pending")),
        "+data-db-0 +log-db-0",
        "missing claims of a pending pod are created"
    );
}

#[test]
fn pod_waits_for_a_terminating_claim() {
    let mut set = set(
        1,
        json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] }),
    );
    let mut claim = volume_claims::desired_claims(&set, 0).remove(0);
    claim.metadata.deletion_timestamp = Some(at(1));
    let claim = Arc::new(claim);
    let current = revision("old");
    let update = revision("new");
    let plan_with = |set: &StatefulSet, claim: Arc<PersistentVolumeClaim>| {
        let lookup = move |_: &str| Some(claim.clone());
        summary(&plan(&StatefulSetState {
            set,
            current: &current,
            update: &update,
            pods: &[],
            claim: &lookup,
            now: Timestamp::from_second(100).unwrap(),
        }))
    };
    assert_eq!(plan_with(&set, claim.clone()), "!db-0");
    set.spec
        .as_mut()
        .unwrap()
        .persistent_volume_claim_retention_policy =
        serde_json::from_value(json!({ "whenDeleted": "Retain", "whenScaled": "Delete" })).unwrap();
    let mut stale = PersistentVolumeClaim::clone(&claim);
    stale.metadata.owner_references = Some(vec![crate::workloads::claim::controller_reference(
        &pod_builder("db-0").build(),
    )]);
    assert_eq!(
        plan_with(&set, Arc::new(stale)),
        "",
        "a stale claim is deleted with the former pod; no event"
    );
}

#[test]
fn status_counts_replicas_and_revisions() {
    let status = plan_for(&set(3, json!({})), "0:old:ready 1:old:unready 2:new:ready").status;
    assert_eq!(status.replicas, 3);
    assert_eq!(status.ready_replicas, Some(2));
    assert_eq!(status.available_replicas, Some(2));
    assert_eq!(status.current_replicas, Some(2));
    assert_eq!(status.updated_replicas, Some(1));
    assert_eq!(status.current_revision.as_deref(), Some("old"));
    assert_eq!(status.update_revision.as_deref(), Some("new"));
    let complete = plan_for(&set(2, json!({})), "0:new:ready 1:new:ready").status;
    assert_eq!(
        complete.current_revision.as_deref(),
        Some("new"),
        "update is complete"
    );
    assert_eq!(complete.current_replicas, Some(2), "update is complete");
}

#[test]
fn terminating_set_has_no_actions() {
    let mut set = set(3, json!({}));
    set.metadata.deletion_timestamp = Some(at(1));
    assert_eq!(summary(&plan_for(&set, "0:old:failed")), "");
}
