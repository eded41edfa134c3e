//! Steps, as tables: what is on the Node, which boot this is, what the ledger has.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{AfterDrain, Step, after_drain, step};
use crate::{
    ledger::{Grant, RebootLedger, RebootLedgerSpec},
    notes::{CORDONED, Ended, Fate, GrantId, IN_PROGRESS, LAST, NOW, Order, Progress, Stage},
    policy::{Drain, DrainMode, OnTimeout},
    state::NodeState,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn id() -> GrantId {
    GrantId::read("g-1").expect("an id")
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

fn progress(stage: Stage) -> Progress {
    Progress {
        id: id(),
        boot: "b-0".into(),
        since: at(0),
        stage,
    }
}

/// The node `a` with these notes, whose kubelet tells the boot `told`.
fn node(told: &str, notes: &[(&'static str, String)]) -> NodeState {
    let bare = NodeState {
        name: "a".into(),
        uid: "u".into(),
        boot_id: Some(told.into()),
        ready: true,
        ..NodeState::default()
    };
    notes
        .iter()
        .fold(bare, |node, (note, text)| node.with_note(note, text))
}

fn ended(fate: Fate) -> Step {
    let request = if fate == Fate::Revoked {
        String::new()
    } else {
        "kernel".into()
    };
    Step::End {
        id: id(),
        fate,
        request,
    }
}

fn next(node: &NodeState, boot: &str, grants: &[Grant], second: i64) -> Step {
    let ledger = RebootLedger::new(
        "cluster",
        RebootLedgerSpec {
            grants: grants.to_vec(),
            ..RebootLedgerSpec::default()
        },
    );
    step(node, boot, Some(&ledger), at(second))
}

#[test]
fn order_is_obeyed_once_by_the_node_it_was_given_to() {
    let order = |id: &str| (NOW, format!("id={id} expires=1970-01-01T00:01:40Z"));
    let told = node("b-0", &[order("g-1")]);
    let over = (
        LAST,
        Ended {
            id: id(),
            result: Fate::DrainTimedOut,
            at: at(0),
            failures: 1,
        }
        .to_string(),
    );
    let forever = (
        NOW,
        Order {
            id: id(),
            expires: Timestamp::MAX,
        }
        .to_string(),
    );
    let ours = [grant()];
    for (what, node, boot, grants, second, wanted) in [
        (
            "no order",
            node("b-0", &[]),
            "b-0",
            &ours[..],
            0,
            Step::Rest,
        ),
        ("an order", told.clone(), "b-0", &ours, 0, Step::Claim(id())),
        (
            "expired",
            told.clone(),
            "b-0",
            &ours,
            100,
            ended(Fate::Expired),
        ),
        (
            "expired in the ledger, forged on the node",
            node("b-0", &[forever]),
            "b-0",
            &ours,
            100,
            ended(Fate::Expired),
        ),
        ("forged", told.clone(), "b-0", &[], 0, Step::Discard),
        (
            "another grant",
            node("b-0", &[order("g-2")]),
            "b-0",
            &ours,
            0,
            Step::Discard,
        ),
        (
            "of another node",
            told.clone(),
            "b-0",
            &[Grant {
                node: "b".into(),
                ..grant()
            }],
            0,
            Step::Discard,
        ),
        (
            "of a former node of this name",
            told.clone(),
            "b-0",
            &[Grant {
                node_uid: "old".into(),
                ..grant()
            }],
            0,
            Step::Discard,
        ),
        (
            "repeated after it ended",
            node("b-0", &[order("g-1"), over]),
            "b-0",
            &ours,
            0,
            Step::Discard,
        ),
        (
            "not an order",
            node("b-0", &[(NOW, "yes".into())]),
            "b-0",
            &ours,
            0,
            Step::Discard,
        ),
        (
            "booted meanwhile",
            node("b-1", &[order("g-1")]),
            "b-1",
            &ours,
            0,
            ended(Fate::Done),
        ),
        (
            "booted, and the kubelet has not told",
            told.clone(),
            "b-1",
            &ours,
            0,
            Step::AwaitKubelet,
        ),
        (
            "being deleted",
            NodeState {
                going: true,
                ..told
            },
            "b-0",
            &ours,
            0,
            Step::Rest,
        ),
    ] {
        assert_eq!(next(&node, boot, grants, second), wanted, "{what}");
    }
}

#[test]
fn agent_goes_on_where_it_was_after_a_crash() {
    let at_it = |stage| {
        node(
            "b-0",
            &[
                (IN_PROGRESS, progress(stage).to_string()),
                (CORDONED, "g-1".into()),
            ],
        )
    };
    let told_late = NodeState {
        boot_id: Some("b-1".into()),
        ..at_it(Stage::Rebooting)
    };
    let drain = Step::Drain {
        progress: progress(Stage::Draining),
        grant: Box::new(grant()),
    };
    let ours = [grant()];
    for (what, node, boot, grants, second, wanted) in [
        (
            "draining",
            at_it(Stage::Draining),
            "b-0",
            &ours[..],
            0,
            drain,
        ),
        (
            "an agent's restart is no reboot",
            at_it(Stage::Rebooting),
            "b-0",
            &ours,
            0,
            Step::Reboot(progress(Stage::Rebooting)),
        ),
        (
            "told the machine, and time ran out",
            at_it(Stage::Rebooting),
            "b-0",
            &ours,
            999,
            Step::Reboot(progress(Stage::Rebooting)),
        ),
        (
            "drained too long",
            at_it(Stage::Draining),
            "b-0",
            &ours,
            100,
            ended(Fate::Expired),
        ),
        (
            "back",
            told_late.clone(),
            "b-1",
            &ours,
            0,
            ended(Fate::Done),
        ),
        (
            "back after all expired",
            told_late,
            "b-1",
            &ours,
            999,
            ended(Fate::Done),
        ),
        (
            "back, and the kubelet has not told",
            at_it(Stage::Rebooting),
            "b-1",
            &ours,
            0,
            Step::AwaitKubelet,
        ),
        (
            "power was lost in the drain",
            NodeState {
                boot_id: Some("b-1".into()),
                ..at_it(Stage::Draining)
            },
            "b-1",
            &ours,
            0,
            ended(Fate::Done),
        ),
        (
            "a person released it",
            at_it(Stage::Draining),
            "b-0",
            &[],
            0,
            ended(Fate::Revoked),
        ),
        (
            "forged",
            at_it(Stage::Rebooting),
            "b-0",
            &[],
            0,
            ended(Fate::Revoked),
        ),
        (
            "spoiled",
            node("b-0", &[(IN_PROGRESS, "yes".into())]),
            "b-0",
            &ours,
            0,
            Step::Tidy,
        ),
        (
            "only the cordon is left",
            node("b-0", &[(CORDONED, "g-1".into())]),
            "b-0",
            &ours,
            0,
            Step::Tidy,
        ),
    ] {
        assert_eq!(next(&node, boot, grants, second), wanted, "{what}");
    }
}

#[test]
fn forged_boot_does_not_end_a_grant() {
    let forged = Progress {
        boot: "b-9".into(),
        ..progress(Stage::Draining)
    };
    let node = node("b-0", &[(IN_PROGRESS, forged.to_string())]);
    assert!(matches!(
        next(&node, "b-0", &[grant()], 0),
        Step::Drain { .. }
    ));
}

#[test]
fn nothing_is_done_without_a_ledger() {
    let told = node(
        "b-0",
        &[(
            NOW,
            Order {
                id: id(),
                expires: at(100),
            }
            .to_string(),
        )],
    );
    assert_eq!(step(&told, "b-0", None, at(0)), Step::Discard);
}

#[test]
fn drain_ends_empty_late_or_by_force() {
    let late = Drain::default().timeout_seconds;
    for (left, second, mode, on_timeout, wanted) in [
        (
            0,
            0,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            AfterDrain::Commit,
        ),
        (
            3,
            late - 1,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            AfterDrain::Again,
        ),
        (
            3,
            late,
            DrainMode::Evict,
            OnTimeout::GiveUp,
            AfterDrain::GiveUp,
        ),
        (
            3,
            late - 1,
            DrainMode::Evict,
            OnTimeout::Reboot,
            AfterDrain::Again,
        ),
        (
            3,
            late,
            DrainMode::Evict,
            OnTimeout::Reboot,
            AfterDrain::Commit,
        ),
        (3, 0, DrainMode::None, OnTimeout::GiveUp, AfterDrain::Commit),
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
            after_drain(&progress(Stage::Draining), &grant, left, at(second)),
            wanted,
            "{left} left after {second}: {mode:?}, {on_timeout:?}"
        );
    }
}
