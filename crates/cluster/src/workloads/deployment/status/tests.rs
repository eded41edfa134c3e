//! Conditions, one by one.

use serde_json::json;

use super::*;

fn moment(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn condition_keeps_its_transition_while_its_status_stays() {
    let mut status = DeploymentStatus::default();
    set(
        &mut status,
        condition(
            PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            "one".into(),
            moment(1),
        ),
    );
    set(
        &mut status,
        condition(
            PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            "two".into(),
            moment(2),
        ),
    );
    assert_eq!(
        find(&status, PROGRESSING).unwrap().message.as_deref(),
        Some("one"),
        "same status and reason: nothing new"
    );
    set(
        &mut status,
        condition(
            PROGRESSING,
            "True",
            "ReplicaSetUpdated",
            "three".into(),
            moment(3),
        ),
    );
    let known = find(&status, PROGRESSING).unwrap();
    assert_eq!(known.last_transition_time.clone(), Some(Time(moment(1))));
    assert_eq!(known.last_update_time.clone(), Some(Time(moment(3))));
    set(
        &mut status,
        condition(PROGRESSING, "False", TIMED_OUT, "four".into(), moment(4)),
    );
    assert_eq!(
        find(&status, PROGRESSING).unwrap().last_transition_time,
        Some(Time(moment(4)))
    );
    assert_eq!(status.conditions.unwrap().len(), 1);
}

#[test]
fn failure_of_a_set_is_the_deployments() {
    let template =
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } });
    let deployment: Deployment =
        serde_json::from_value(json!({ "spec": { "selector": {}, "template": template } }))
            .unwrap();
    let failing = json!({ "replicas": 0, "conditions": [{ "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota" }] });
    let set = serde_json::from_value(
        json!({ "metadata": { "name": "web-1" }, "spec": { "selector": {}, "template": template }, "status": failing }),
    )
    .unwrap();
    let family = Family::of(&deployment, &[std::sync::Arc::new(set)]);
    let mut status = DeploymentStatus::default();
    judge_progress(
        &mut status,
        &DeploymentStatus::default(),
        &deployment,
        &family,
        moment(0),
    );
    assert_eq!(
        find(&status, REPLICA_FAILURE).unwrap().message.as_deref(),
        Some("quota")
    );
    judge_progress(
        &mut status,
        &DeploymentStatus::default(),
        &deployment,
        &Family {
            new: None,
            old: Vec::new(),
        },
        moment(0),
    );
    assert!(find(&status, REPLICA_FAILURE).is_none());
}
