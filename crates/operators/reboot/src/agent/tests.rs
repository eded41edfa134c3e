//! Table tests of the next step: annotations, boot ID and ledger in, a step out.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{AgentStep, DrainDecision, after_drain, next_step};
use crate::{
    annotations::{
        CORDONED, GrantId, IN_PROGRESS, LAST, LastReboot, NOW, RebootOrder, RebootProgress,
        RebootResult, Stage,
    },
    ledger::{Grant, RebootLedger, RebootLedgerSpec},
    policy::{Drain, DrainMode, OnTimeout},
    state::NodeState,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn id() -> GrantId {
    GrantId::parse("g-1").expect("an id")
}

fn grant() -> Grant {
    Grant {
        id: "g-1".into(),
        node: "a".into(),
        node_uid: "u".into(),
        boot_id: "b-0".into(),
        policy: String::new(),
        reason: "kernel".into(),
        granted_at: Time(at(0)),
        expires_at: Time(at(100)),
        back_by: Time(at(200)),
        drain: Drain::default(),
    }
}

fn progress(stage: Stage) -> RebootProgress {
    RebootProgress {
        id: id(),
        boot: "b-0".into(),
        since: at(0),
        stage,
    }
}

/// The node `a` with these annotations, whose kubelet reports this boot ID.
fn node(boot_id: &str, annotations: &[(&'static str, String)]) -> NodeState {
    let node = NodeState {
        name: "a".into(),
        uid: "u".into(),
        boot_id: Some(boot_id.into()),
        ready: true,
        ..NodeState::default()
    };
    annotations.iter().fold(node, |node, (annotation, value)| {
        node.with_annotation(annotation, value)
    })
}

fn ended(result: RebootResult) -> AgentStep {
    let request = if result == RebootResult::Revoked {
        String::new()
    } else {
        "kernel".into()
    };
    AgentStep::End {
        id: id(),
        result,
        request,
    }
}

fn step_at(node: &NodeState, boot: &str, grants: &[Grant], second: i64) -> AgentStep {
    let ledger = RebootLedger::new(
        "cluster",
        RebootLedgerSpec {
            grants: grants.to_vec(),
            ..RebootLedgerSpec::default()
        },
    );
    next_step(node, boot, Some(&ledger), at(second))
}

#[test]
fn order_is_claimed_once_by_the_node_of_its_grant() {
    let order = |id: &str| (NOW, format!("id={id} expires=1970-01-01T00:01:40Z"));
    let ordered = node("b-0", &[order("g-1")]);
    let ended_before = (
        LAST,
        LastReboot {
            id: id(),
            result: RebootResult::DrainTimedOut,
            at: at(0),
            failures: 1,
        }
        .to_string(),
    );
    let without_expiry = (
        NOW,
        RebootOrder {
            id: id(),
            expires: Timestamp::MAX,
        }
        .to_string(),
    );
    let grants = [grant()];
    for (what, node, boot, grants, second, expected) in [
        (
            "no order",
            node("b-0", &[]),
            "b-0",
            &grants[..],
            0,
            AgentStep::Idle,
        ),
        (
            "an order",
            ordered.clone(),
            "b-0",
            &grants,
            0,
            AgentStep::Claim(id()),
        ),
        (
            "expired",
            ordered.clone(),
            "b-0",
            &grants,
            100,
            ended(RebootResult::Expired),
        ),
        (
            "expired in the ledger, with a forged annotation",
            node("b-0", &[without_expiry]),
            "b-0",
            &grants,
            100,
            ended(RebootResult::Expired),
        ),
        (
            "not in the ledger",
            ordered.clone(),
            "b-0",
            &[],
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "another ID",
            node("b-0", &[order("g-2")]),
            "b-0",
            &grants,
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "the grant of another node",
            ordered.clone(),
            "b-0",
            &[Grant {
                node: "b".into(),
                ..grant()
            }],
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "the grant of a former node of this name",
            ordered.clone(),
            "b-0",
            &[Grant {
                node_uid: "old".into(),
                ..grant()
            }],
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "repeated after its end",
            node("b-0", &[order("g-1"), ended_before]),
            "b-0",
            &grants,
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "an invalid value",
            node("b-0", &[(NOW, "yes".into())]),
            "b-0",
            &grants,
            0,
            AgentStep::RemoveOrder,
        ),
        (
            "rebooted meanwhile",
            node("b-1", &[order("g-1")]),
            "b-1",
            &grants,
            0,
            ended(RebootResult::Done),
        ),
        (
            "rebooted, not yet reported by the kubelet",
            ordered.clone(),
            "b-1",
            &grants,
            0,
            AgentStep::AwaitKubelet,
        ),
        (
            "terminating",
            NodeState {
                is_terminating: true,
                ..ordered
            },
            "b-0",
            &grants,
            0,
            AgentStep::Idle,
        ),
    ] {
        assert_eq!(step_at(&node, boot, grants, second), expected, "{what}");
    }
}

#[test]
fn step_after_a_crash_follows_from_the_annotations() {
    let in_progress = |stage| {
        node(
            "b-0",
            &[
                (IN_PROGRESS, progress(stage).to_string()),
                (CORDONED, "g-1".into()),
            ],
        )
    };
    let committed = NodeState {
        committed: Some(id()),
        ..in_progress(Stage::Rebooting)
    };
    let rebooted = NodeState {
        boot_id: Some("b-1".into()),
        ..committed.clone()
    };
    let drain = |stage| AgentStep::Drain {
        progress: progress(stage),
        grant: Box::new(grant()),
    };
    let grants = [grant()];
    for (what, node, boot, grants, second, expected) in [
        (
            "draining",
            in_progress(Stage::Draining),
            "b-0",
            &grants[..],
            0,
            drain(Stage::Draining),
        ),
        (
            "a restart of the agent is not a reboot",
            committed.clone(),
            "b-0",
            &grants,
            0,
            AgentStep::Reboot(id()),
        ),
        (
            "expired after the commit",
            committed.clone(),
            "b-0",
            &grants,
            999,
            AgentStep::Reboot(id()),
        ),
        (
            "a forged stage does not skip the drain",
            in_progress(Stage::Rebooting),
            "b-0",
            &grants,
            0,
            drain(Stage::Rebooting),
        ),
        (
            "a forged stage does not extend the grant",
            in_progress(Stage::Rebooting),
            "b-0",
            &grants,
            100,
            ended(RebootResult::Expired),
        ),
        (
            "the commit of another grant",
            NodeState {
                committed: GrantId::parse("g-0"),
                ..in_progress(Stage::Rebooting)
            },
            "b-0",
            &grants,
            0,
            drain(Stage::Rebooting),
        ),
        (
            "annotations removed after the commit",
            NodeState {
                committed: Some(id()),
                ..node("b-0", &[])
            },
            "b-0",
            &grants,
            0,
            AgentStep::Reboot(id()),
        ),
        (
            "released by an administrator after the commit",
            committed.clone(),
            "b-0",
            &[],
            0,
            ended(RebootResult::Revoked),
        ),
        (
            "expired in the drain",
            in_progress(Stage::Draining),
            "b-0",
            &grants,
            100,
            ended(RebootResult::Expired),
        ),
        (
            "rebooted",
            rebooted.clone(),
            "b-1",
            &grants,
            0,
            ended(RebootResult::Done),
        ),
        (
            "rebooted after the expiry",
            rebooted,
            "b-1",
            &grants,
            999,
            ended(RebootResult::Done),
        ),
        (
            "rebooted, not yet reported by the kubelet",
            committed,
            "b-1",
            &grants,
            0,
            AgentStep::AwaitKubelet,
        ),
        (
            "power failure in the drain",
            NodeState {
                boot_id: Some("b-1".into()),
                ..in_progress(Stage::Draining)
            },
            "b-1",
            &grants,
            0,
            ended(RebootResult::Done),
        ),
        (
            "released by an administrator",
            in_progress(Stage::Draining),
            "b-0",
            &[],
            0,
            ended(RebootResult::Revoked),
        ),
        (
            "forged progress",
            in_progress(Stage::Rebooting),
            "b-0",
            &[],
            0,
            ended(RebootResult::Revoked),
        ),
        (
            "an invalid value",
            node("b-0", &[(IN_PROGRESS, "yes".into())]),
            "b-0",
            &grants,
            0,
            AgentStep::CleanUp,
        ),
        (
            "only the cordon annotation is left",
            node("b-0", &[(CORDONED, "g-1".into())]),
            "b-0",
            &grants,
            0,
            AgentStep::CleanUp,
        ),
    ] {
        assert_eq!(step_at(&node, boot, grants, second), expected, "{what}");
    }
}

#[test]
fn forged_boot_id_does_not_end_a_grant() {
    let forged = RebootProgress {
        boot: "b-9".into(),
        ..progress(Stage::Draining)
    };
    let node = node("b-0", &[(IN_PROGRESS, forged.to_string())]);
    assert!(matches!(
        step_at(&node, "b-0", &[grant()], 0),
        AgentStep::Drain { .. }
    ));
}

#[test]
fn order_is_removed_without_a_ledger() {
    let ordered = node(
        "b-0",
        &[(
            NOW,
            RebootOrder {
                id: id(),
                expires: at(100),
            }
            .to_string(),
        )],
    );
    assert_eq!(
        next_step(&ordered, "b-0", None, at(0)),
        AgentStep::RemoveOrder
    );
}

#[test]
fn drain_commits_retries_or_gives_up() {
    let timeout = Drain::default().timeout_seconds;
    for (remaining, second, mode, on_timeout, expected) in [
        (
            0,
            0,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            DrainDecision::Commit,
        ),
        (
            3,
            timeout - 1,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            DrainDecision::Retry,
        ),
        (
            3,
            timeout,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            DrainDecision::GiveUp,
        ),
        (
            3,
            timeout - 1,
            DrainMode::Evict,
            OnTimeout::Reboot,
            DrainDecision::Retry,
        ),
        (
            3,
            timeout,
            DrainMode::Evict,
            OnTimeout::Reboot,
            DrainDecision::Commit,
        ),
        (
            3,
            0,
            DrainMode::None,
            OnTimeout::GiveUp,
            DrainDecision::Commit,
        ),
    ] {
        let grant = Grant {
            drain: Drain {
                mode,
                on_timeout,
                ..Drain::default()
            },
            ..grant()
        };
        assert_eq!(
            after_drain(&progress(Stage::Draining), &grant, remaining, at(second)),
            expected,
            "{remaining} pods after {second} s: {mode:?}, {on_timeout:?}"
        );
    }
}

#[test]
fn forged_start_does_not_end_the_drain_early() {
    let forged = RebootProgress {
        since: Timestamp::MIN,
        ..progress(Stage::Draining)
    };
    let timeout = Drain::default().timeout_seconds;
    for (granted_at, expected) in [(0, DrainDecision::Commit), (1, DrainDecision::Retry)] {
        let grant = Grant {
            granted_at: Time(at(granted_at)),
            drain: Drain {
                on_timeout: OnTimeout::Reboot,
                ..Drain::default()
            },
            ..grant()
        };
        assert_eq!(
            after_drain(&forged, &grant, 3, at(timeout)),
            expected,
            "granted at {granted_at}"
        );
    }
}
