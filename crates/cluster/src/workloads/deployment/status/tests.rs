//! Conditions of a Deployment.

use serde_json::json;

use super::*;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn transition_time_changes_only_with_the_status() {
    let mut status = DeploymentStatus::default();
    set_progressing(
        &mut status,
        "True",
        "NewReplicaSetCreated",
        "one".into(),
        time(1),
    );
    set_progressing(
        &mut status,
        "True",
        "NewReplicaSetCreated",
        "two".into(),
        time(2),
    );
    assert_eq!(
        get_condition(&status, PROGRESSING)
            .unwrap()
            .message
            .as_deref(),
        Some("one"),
        "same status and reason: unchanged"
    );
    set_progressing(
        &mut status,
        "True",
        "ReplicaSetUpdated",
        "three".into(),
        time(3),
    );
    let condition = get_condition(&status, PROGRESSING).unwrap();
    assert_eq!(condition.last_transition_time.clone(), Some(Time(time(1))));
    assert_eq!(condition.last_update_time.clone(), Some(Time(time(3))));
    set_progressing(&mut status, "False", TIMED_OUT, "four".into(), time(4));
    assert_eq!(
        get_condition(&status, PROGRESSING)
            .unwrap()
            .last_transition_time,
        Some(Time(time(4)))
    );
    assert_eq!(status.conditions.unwrap().len(), 1);
}

#[test]
fn replica_failure_is_copied_from_the_replica_set() {
    let template =
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } });
    let deployment: Deployment =
        serde_json::from_value(json!({ "spec": { "selector": {}, "template": template } }))
            .unwrap();
    let failing = json!({
        "replicas": 0,
        "conditions": [
            {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": "quota",
            },
        ],
    });
    let set = serde_json::from_value(json!({
        "metadata": { "name": "web-1" },
        "spec": { "selector": {}, "template": template },
        "status": failing,
    }))
    .unwrap();
    let replica_sets = ReplicaSets::of(&deployment, &[std::sync::Arc::new(set)]);
    let mut status = DeploymentStatus::default();
    sync_rollout_status(
        &mut status,
        &DeploymentStatus::default(),
        &deployment,
        &replica_sets,
        time(0),
    );
    assert_eq!(
        get_condition(&status, REPLICA_FAILURE)
            .unwrap()
            .message
            .as_deref(),
        Some("quota")
    );
    sync_rollout_status(
        &mut status,
        &DeploymentStatus::default(),
        &deployment,
        &ReplicaSets {
            new: None,
            old: Vec::new(),
        },
        time(0),
    );
    assert!(get_condition(&status, REPLICA_FAILURE).is_none());
}
