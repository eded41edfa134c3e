//! Members as short forms, plans as lists of steps.

use serde_json::{Value, json};

use super::*;
use crate::workloads::samples::pod;

fn revision(name: &str) -> Revision {
    let template = json!({ "metadata": { "labels": { "app": "db" } }, "spec": { "containers": [{ "name": "x", "image": name }] } });
    Revision {
        name: name.into(),
        template: serde_json::from_value(template).unwrap(),
    }
}

fn set(replicas: i32, more: Value) -> StatefulSet {
    let mut set = json!({
        "metadata": { "name": "db", "namespace": "default", "uid": "set", "generation": 2 },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "db" } }, "template": {}, "serviceName": "db",
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
        },
    });
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

/// `ordinal:revision:state` for each pod, states being ready, up, pending, failed, going.
fn pods(set: &StatefulSet, forms: &str) -> Vec<Arc<Pod>> {
    let one = |form: &str| {
        let parts: Vec<_> = form.split(':').collect();
        let mut pod = member(
            set,
            &revision(parts[1]).template,
            parts[1],
            parts[0].parse().unwrap(),
        );
        pod.metadata.uid = pod.metadata.name.clone();
        let sample = match parts[2] {
            "ready" => crate::workloads::samples::pod("x").running().ready(),
            "up" => crate::workloads::samples::pod("x").running(),
            "pending" => crate::workloads::samples::pod("x").phase("Pending"),
            "failed" => crate::workloads::samples::pod("x").phase("Failed"),
            _ => crate::workloads::samples::pod("x")
                .running()
                .ready()
                .deleting(),
        }
        .build();
        pod.status = sample.status;
        pod.metadata.deletion_timestamp = sample.metadata.deletion_timestamp;
        Arc::new(pod)
    };
    forms.split_whitespace().map(one).collect()
}

fn made(set: &StatefulSet, there: &str) -> Plan {
    let pods = pods(set, there);
    let current = revision("old");
    let update = revision("new");
    let facts = Facts {
        set,
        current: &current,
        update: &update,
        pods: &pods,
        claim: &|_| None,
        now: Timestamp::from_second(100).unwrap(),
    };
    plan(&facts)
}

fn told(plan: &Plan) -> String {
    let step = |step: &Step| match step {
        Step::CreateClaim { claim, .. } => format!("+{}", claim.name_any()),
        Step::CreatePod(pod) => format!("+{}:{}", pod.name_any(), super::revision(pod)),
        Step::DeletePod(pod) => format!("-{}", pod.name_any()),
        Step::MendPod { to, .. } => format!("~{}", to.name_any()),
        Step::ChangeClaim { to, .. } => format!("~{}", to.name_any()),
        Step::TellContested(claim) => format!("!{claim}"),
        Step::Refuse { pod, .. } => format!("!{pod}"),
    };
    plan.steps.iter().map(step).collect::<Vec<_>>().join(" ")
}

#[test]
fn members_come_and_go_in_order() {
    for (what, replicas, there, expected) in [
        ("the first", 3, "", "+db-0:new"),
        ("the second waits", 3, "0:new:up", ""),
        ("the second", 3, "0:new:ready", "+db-1:new"),
        (
            "a gap is filled before anything else",
            3,
            "0:new:ready 2:new:ready",
            "+db-1:new",
        ),
        ("one is going", 3, "0:new:going 1:new:ready", ""),
        ("one ended", 2, "0:new:failed 1:new:ready", "-db-0"),
        ("all there", 2, "0:new:ready 1:new:ready", ""),
        (
            "the last one goes first",
            1,
            "0:new:ready 1:new:ready 2:new:ready",
            "-db-2",
        ),
        (
            "and is waited for",
            1,
            "0:new:ready 1:new:ready 2:new:going",
            "",
        ),
        (
            "the first unhealthy one may go",
            1,
            "0:new:ready 1:new:ready 2:new:up",
            "-db-2",
        ),
        (
            "but not while another is unhealthy",
            1,
            "0:new:ready 1:new:up 2:new:up",
            "",
        ),
        ("nor while one that stays is", 1, "0:new:up 1:new:ready", ""),
    ] {
        assert_eq!(
            told(&made(&set(replicas, json!({})), there)),
            expected,
            "{what}: {replicas} of {there}"
        );
    }
}

#[test]
fn members_come_and_go_at_once() {
    let parallel = json!({ "podManagementPolicy": "Parallel" });
    for (what, replicas, there, expected) in [
        ("all", 3, "", "+db-0:new +db-1:new +db-2:new"),
        ("the missing ones", 3, "1:new:up", "+db-0:new +db-2:new"),
        (
            "those beyond",
            1,
            "0:new:up 1:new:ready 2:new:up",
            "-db-2 -db-1",
        ),
        (
            "one goes already",
            1,
            "0:new:ready 1:new:ready 2:new:going",
            "-db-1",
        ),
    ] {
        assert_eq!(
            told(&made(&set(replicas, parallel.clone()), there)),
            expected,
            "{what}: {replicas} of {there}"
        );
    }
}

#[test]
fn update_goes_from_the_last_member_down() {
    let partition = |partition: i32| json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": partition } } });
    let max = |max: Value| json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0, "maxUnavailable": max } } });
    let parallel = json!({ "podManagementPolicy": "Parallel" });
    for (what, more, there, expected) in [
        (
            "the last",
            json!({}),
            "0:old:ready 1:old:ready 2:old:ready",
            "-db-2",
        ),
        (
            "it is waited for",
            json!({}),
            "0:old:ready 1:old:ready 2:new:up",
            "",
        ),
        (
            "the next",
            json!({}),
            "0:old:ready 1:old:ready 2:new:ready",
            "-db-1",
        ),
        (
            "down to the partition",
            partition(2),
            "0:old:ready 1:old:ready 2:new:ready",
            "",
        ),
        (
            "below it members come back as they were",
            partition(2),
            "0:old:ready 2:new:ready",
            "+db-1:old",
        ),
        (
            "above it they come new",
            partition(2),
            "0:old:ready 1:old:ready",
            "+db-2:new",
        ),
        (
            "two at a time",
            max(json!(2)),
            "0:old:ready 1:old:ready 2:old:ready",
            "-db-2 -db-1",
        ),
        (
            "a third, but at least one",
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
            "in parallel a lower one in trouble does not block",
            parallel.clone(),
            "0:old:up 1:old:ready 2:new:ready",
            "-db-1",
        ),
        (
            "but a higher one does",
            parallel,
            "0:old:ready 1:old:ready 2:new:up",
            "",
        ),
    ] {
        assert_eq!(
            told(&made(&set(3, more), there)),
            expected,
            "{what}: {there}"
        );
    }
}

#[test]
fn claims_come_before_their_pod() {
    let templates = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }, { "metadata": { "name": "log" } }] });
    assert_eq!(
        told(&made(&set(1, templates.clone()), "")),
        "+data-db-0 +log-db-0 +db-0:new"
    );
    assert_eq!(
        told(&made(&set(1, templates), "0:new:pending")),
        "+data-db-0 +log-db-0",
        "a pod that waits for lost claims gets them"
    );
}

#[test]
fn pod_waits_for_a_claim_that_is_going() {
    let mut set = set(
        1,
        json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] }),
    );
    let mut claim = claims::wanted(&set, 0).remove(0);
    claim.metadata.deletion_timestamp = Some(crate::workloads::samples::at(1));
    let claim = Arc::new(claim);
    let current = revision("old");
    let update = revision("new");
    let with = |set: &StatefulSet, claim: Arc<PersistentVolumeClaim>| {
        let lookup = move |_: &str| Some(claim.clone());
        told(&plan(&Facts {
            set,
            current: &current,
            update: &update,
            pods: &[],
            claim: &lookup,
            now: Timestamp::from_second(100).unwrap(),
        }))
    };
    assert_eq!(with(&set, claim.clone()), "!db-0");
    set.spec
        .as_mut()
        .unwrap()
        .persistent_volume_claim_retention_policy =
        serde_json::from_value(json!({ "whenDeleted": "Retain", "whenScaled": "Delete" })).unwrap();
    let mut stale = PersistentVolumeClaim::clone(&claim);
    stale.metadata.owner_references = Some(vec![crate::workloads::claim::controller_reference(
        &pod("db-0").build(),
    )]);
    assert_eq!(
        with(&set, Arc::new(stale)),
        "",
        "it goes with the pod before; nothing to complain about"
    );
}

#[test]
fn status_counts_members_and_revisions() {
    let status = made(&set(3, json!({})), "0:old:ready 1:old:up 2:new:ready").status;
    assert_eq!(status.replicas, 3);
    assert_eq!(status.ready_replicas, Some(2));
    assert_eq!(status.available_replicas, Some(2));
    assert_eq!(status.current_replicas, Some(2));
    assert_eq!(status.updated_replicas, Some(1));
    assert_eq!(status.current_revision.as_deref(), Some("old"));
    assert_eq!(status.update_revision.as_deref(), Some("new"));
    let done = made(&set(2, json!({})), "0:new:ready 1:new:ready").status;
    assert_eq!(
        done.current_revision.as_deref(),
        Some("new"),
        "the update is complete"
    );
    assert_eq!(done.current_replicas, Some(2), "the update is complete");
}

#[test]
fn set_on_its_way_out_only_counts() {
    let mut set = set(3, json!({}));
    set.metadata.deletion_timestamp = Some(crate::workloads::samples::at(1));
    assert_eq!(told(&made(&set, "0:old:failed")), "");
}
