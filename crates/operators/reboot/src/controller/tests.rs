//! Table tests of the plan: nodes and a policy in, grants and reasons out.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use kube::api::ObjectMeta;

use super::{
    grant_phase::{GrantPhase, grant_phase},
    plan::{
        ActiveBlockers, NodeEvent, Nodes, ObservedState, Plan, ReadySince, completed_grants, plan,
    },
};
use crate::{
    annotations::{
        CORDONED, GrantId, IN_PROGRESS, LAST, LastReboot, NEEDED, NOW, PAUSED, RebootOrder,
        RebootProgress, RebootResult, Stage, WAITING, WaitReason, Waiting,
    },
    ledger::{Grant, LEDGER, RebootLedger, RebootLedgerSpec},
    parsed_policy::ParsedPolicy,
    policy::{self, ControlPlane, Drain, RebootPolicy, RebootPolicySpec},
    state::NodeState,
    window::Window,
};

/// A Monday, 12:00 UTC.
const NOON: i64 = 1_794_830_400;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOON + second).expect("a time")
}

fn id(number: u32) -> GrantId {
    GrantId::parse(&format!("ledger00-{number}")).expect("an id")
}

fn node(name: &str) -> NodeState {
    NodeState {
        name: name.to_owned(),
        uid: format!("u-{name}"),
        version: "1".into(),
        boot_id: Some(format!("b-{name}-0")),
        ready: true,
        ..NodeState::default()
    }
}

impl NodeState {
    fn requested(self) -> Self {
        self.with_annotation(NEEDED, "kernel")
    }

    fn waiting_since(self, second: i64) -> Self {
        self.requested().with_annotation(
            WAITING,
            Waiting {
                reason: WaitReason::NoSlot,
                since: at(second),
            },
        )
    }

    fn label(mut self, label: &str) -> Self {
        self.labels.insert(label.to_owned(), String::new());
        self
    }

    fn not_ready(self) -> Self {
        Self {
            ready: false,
            ..self
        }
    }

    fn cordoned(self) -> Self {
        Self {
            unschedulable: true,
            ..self
        }
    }

    fn rebooted(self) -> Self {
        Self {
            boot_id: Some(format!("b-{}-1", self.name)),
            ..self
        }
    }

    fn committed(self, number: u32) -> Self {
        Self {
            committed: Some(id(number)),
            ..self
        }
    }

    fn in_progress(self, number: u32, stage: Stage) -> Self {
        let progress = RebootProgress {
            id: id(number),
            boot: format!("b-{}-0", self.name),
            since: at(0),
            stage,
        };
        self.with_annotation(IN_PROGRESS, progress)
            .with_annotation(CORDONED, id(number))
            .cordoned()
    }

    fn announced(self, number: u32) -> Self {
        self.with_annotation(
            NOW,
            RebootOrder {
                id: id(number),
                expires: at(1200),
            },
        )
    }

    fn ended(self, number: u32, result: RebootResult, failures: u32) -> Self {
        self.with_annotation(
            LAST,
            LastReboot {
                id: id(number),
                result,
                at: at(0),
                failures,
            },
        )
    }
}

fn grant(number: u32, node: &str) -> Grant {
    Grant {
        id: id(number).to_string(),
        node: node.into(),
        node_uid: format!("u-{node}"),
        boot_id: format!("b-{node}-0"),
        policy: "p".into(),
        reason: "kernel".into(),
        granted_at: Time(at(0)),
        expires_at: Time(at(1200)),
        back_by: Time(at(2100)),
        drain: Drain::default(),
    }
}

fn ledger(grants: &[Grant]) -> RebootLedger {
    let metadata = ObjectMeta {
        name: Some(LEDGER.into()),
        uid: Some("ledger00-0000".into()),
        ..ObjectMeta::default()
    };
    let spec = RebootLedgerSpec {
        issued: i64::try_from(grants.len()).expect("a small number"),
        grants: grants.to_vec(),
        changes: vec![],
    };
    RebootLedger { metadata, spec }
}

fn max_unavailable(count: i32) -> RebootPolicySpec {
    RebootPolicySpec {
        max_unavailable: IntOrString::Int(count),
        ..RebootPolicySpec::default()
    }
}

fn plan_with(
    nodes: &[NodeState],
    ledger: &RebootLedger,
    spec: &RebootPolicySpec,
    blockers: &ActiveBlockers,
    second: i64,
) -> Plan {
    let nodes: Nodes = nodes
        .iter()
        .map(|node| (node.name.clone(), Arc::new(node.clone())))
        .collect();
    let policies = ParsedPolicy::parse_all([&RebootPolicy::new("p", spec.clone())]);
    plan(&ObservedState {
        now: at(second),
        nodes: &nodes,
        ledger,
        policies: &policies,
        own_node: Some("own"),
        blockers,
        ready_since: &ReadySince::new(),
    })
}

fn plan_for(nodes: &[NodeState], grants: &[Grant], spec: &RebootPolicySpec, second: i64) -> Plan {
    plan_with(
        nodes,
        &ledger(grants),
        spec,
        &ActiveBlockers::default(),
        second,
    )
}

/// The nodes that get a grant, and the reasons of those that wait.
fn summary(plan: &Plan) -> String {
    let granted: Vec<&str> = plan
        .announcements
        .iter()
        .map(|update| update.node.as_str())
        .collect();
    let mut parts = vec![format!("grants {}", granted.join(","))];
    for update in &plan.updates {
        if let Some(NodeEvent::Waiting { reason }) = update.event {
            parts.push(format!("{} {}", update.node, reason.as_str()));
        }
    }
    parts.join("; ")
}

fn check(
    what: &str,
    nodes: &[NodeState],
    grants: &[Grant],
    spec: &RebootPolicySpec,
    expected: &str,
) {
    let plan = plan_for(nodes, grants, spec, 10);
    assert_eq!(summary(&plan), expected, "{what}");
}

fn nodes_of(grants: &[Grant]) -> Vec<&str> {
    grants.iter().map(|grant| grant.node.as_str()).collect()
}

#[test]
fn grants_are_issued_up_to_the_limit() {
    let three = [
        node("a").requested(),
        node("b").requested(),
        node("c").requested(),
    ];
    check(
        "one slot",
        &three,
        &[],
        &max_unavailable(1),
        "grants a; b NoSlot; c NoSlot",
    );
    check(
        "all slots are taken by one plan",
        &three,
        &[],
        &max_unavailable(2),
        "grants a,b; c NoSlot",
    );
    check(
        "more slots than nodes",
        &three,
        &[],
        &max_unavailable(9),
        "grants a,b,c",
    );
    check(
        "no slots",
        &three,
        &[],
        &max_unavailable(0),
        "grants ; a NoSlot; b NoSlot; c NoSlot",
    );
    let with_grant = [
        node("a").in_progress(1, Stage::Draining),
        node("b").requested(),
        node("c").requested(),
    ];
    check(
        "one slot is taken",
        &with_grant,
        &[grant(1, "a")],
        &max_unavailable(2),
        "grants b; c NoSlot",
    );
    let min_available = RebootPolicySpec {
        min_available: Some(IntOrString::String("60%".into())),
        ..max_unavailable(9)
    };
    check(
        "minAvailable",
        &three,
        &[],
        &min_available,
        "grants a; b NoSlot; c NoSlot",
    );
    check(
        "a single node",
        &three[..1],
        &[],
        &max_unavailable(1),
        "grants a",
    );
}

#[test]
fn unavailable_nodes_take_slots() {
    let b = node("b").requested();
    check(
        "not ready, or unknown",
        &[node("a").not_ready(), b.clone()],
        &[],
        &max_unavailable(1),
        "grants ; b NoSlot",
    );
    check(
        "cordoned by others",
        &[node("a").cordoned(), b.clone()],
        &[],
        &max_unavailable(1),
        "grants ; b NoSlot",
    );
    let not_counted = RebootPolicySpec {
        count_cordoned: false,
        ..max_unavailable(1)
    };
    check(
        "cordoned by others, not counted",
        &[node("a").cordoned(), b.clone()],
        &[],
        &not_counted,
        "grants b",
    );
    check(
        "in progress without a grant",
        &[node("a").in_progress(7, Stage::Rebooting), b.clone()],
        &[],
        &max_unavailable(1),
        "grants ; b NoSlot",
    );
    check(
        "an order without a grant",
        &[node("a").announced(7), b.clone()],
        &[],
        &max_unavailable(1),
        "grants ; b NoSlot",
    );
    check(
        "a grant of a node that does not exist",
        std::slice::from_ref(&b),
        &[grant(1, "b2")],
        &max_unavailable(1),
        "grants b",
    );
    check(
        "a grant and not ready counts once",
        &[node("a").in_progress(1, Stage::Draining).not_ready(), b],
        &[grant(1, "a")],
        &max_unavailable(2),
        "grants b",
    );
    let cordoned = node("a").requested().cordoned();
    check(
        "a cordoned node takes no further slot",
        &[cordoned, node("b")],
        &[],
        &max_unavailable(1),
        "grants a",
    );
}

#[test]
fn nothing_is_granted_above_the_limit() {
    let nodes = [
        node("a").not_ready(),
        node("b").not_ready(),
        node("c").not_ready(),
        node("d").requested(),
    ];
    check(
        "exceeded by others",
        &nodes,
        &[],
        &max_unavailable(2),
        "grants ; d NoSlot",
    );
    let in_progress: Vec<NodeState> = ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(name, number)| node(name).in_progress(number, Stage::Draining))
        .collect();
    let nodes = [in_progress, vec![node("d").requested()]].concat();
    let grants = [grant(1, "a"), grant(2, "b"), grant(3, "c")];
    check(
        "lowered",
        &nodes,
        &grants,
        &max_unavailable(1),
        "grants ; d NoSlot",
    );
}

#[test]
fn changed_limit_keeps_existing_grants() {
    let nodes = [
        node("a").in_progress(1, Stage::Draining),
        node("b").requested(),
    ];
    for limit in [0, 1] {
        let plan = plan_for(&nodes, &[grant(1, "a")], &max_unavailable(limit), 10);
        assert_eq!(summary(&plan), "grants ; b NoSlot");
        assert_eq!(plan.ledger, None);
    }
    let plan = plan_for(&nodes, &[grant(1, "a")], &max_unavailable(2), 10);
    let ledger = plan.ledger.expect("a new ledger");
    assert_eq!(nodes_of(&ledger.spec.grants), ["a", "b"]);
}

#[test]
fn every_waiting_node_has_one_reason() {
    let closed = Window {
        days: vec![],
        start: "22:00".into(),
        end: "04:00".into(),
        time_zone: "UTC".into(),
    };
    let invalid = Window {
        time_zone: "Nowhere".into(),
        ..closed.clone()
    };
    let a = node("a").requested();
    for (what, node, spec, expected) in [
        (
            "closed window",
            a.clone(),
            RebootPolicySpec {
                windows: vec![closed],
                ..max_unavailable(1)
            },
            "grants ; a OutsideWindow",
        ),
        (
            "invalid window",
            a.clone(),
            RebootPolicySpec {
                windows: vec![invalid],
                ..max_unavailable(1)
            },
            "grants ; a PolicyInvalid",
        ),
        (
            "paused pool",
            a.clone(),
            RebootPolicySpec {
                paused: true,
                ..max_unavailable(1)
            },
            "grants ; a Paused",
        ),
        (
            "paused node",
            a.clone().with_annotation(PAUSED, ""),
            max_unavailable(1),
            "grants ; a Paused",
        ),
        (
            "dry run",
            a.clone(),
            RebootPolicySpec {
                dry_run: true,
                ..max_unavailable(1)
            },
            "grants ; a DryRun",
        ),
        (
            "not ready",
            a.clone().not_ready(),
            max_unavailable(1),
            "grants ; a NodeNotReady",
        ),
        (
            "no boot ID",
            NodeState {
                boot_id: None,
                ..a.clone()
            },
            max_unavailable(1),
            "grants ; a NoBootId",
        ),
        (
            "recent failure",
            a.clone().ended(1, RebootResult::DrainTimedOut, 1),
            max_unavailable(1),
            "grants ; a BackingOff",
        ),
        (
            "the reason is already written",
            a.clone().with_annotation(
                WAITING,
                Waiting {
                    reason: WaitReason::NoSlot,
                    since: at(0),
                },
            ),
            max_unavailable(0),
            "grants ",
        ),
        (
            "terminating",
            NodeState {
                is_terminating: true,
                ..a.clone()
            },
            max_unavailable(1),
            "grants ",
        ),
        (
            "in progress without a grant",
            a.in_progress(9, Stage::Draining),
            max_unavailable(5),
            "grants ; a InProgress",
        ),
    ] {
        check(what, &[node], &[], &spec, expected);
    }
}

#[test]
fn blocked_node_does_not_block_others() {
    let nodes = [node("a").waiting_since(-100), node("b").requested()];
    let by_pods = ActiveBlockers {
        by_pods: [("p".into(), BTreeSet::from(["a".to_owned()]))].into(),
        ..ActiveBlockers::default()
    };
    let plan = plan_with(&nodes, &ledger(&[]), &max_unavailable(1), &by_pods, 10);
    assert_eq!(summary(&plan), "grants b; a BlockedByPods");
    let by_alerts = ActiveBlockers {
        by_alerts: ["p".to_owned()].into(),
        ..ActiveBlockers::default()
    };
    let plan = plan_with(&nodes, &ledger(&[]), &max_unavailable(1), &by_alerts, 10);
    assert_eq!(
        summary(&plan),
        "grants ; a BlockedByAlerts; b BlockedByAlerts"
    );
}

#[test]
fn longest_waiting_node_is_first_and_the_controllers_own_node_last() {
    let control_plane = "node-role.kubernetes.io/control-plane";
    let nodes = [
        node("a").waiting_since(5),
        node("b").waiting_since(3),
        node("c").waiting_since(1).label(control_plane),
        node("own").waiting_since(0),
    ];
    let granted = |spec: RebootPolicySpec| {
        summary(&plan_for(&nodes, &[], &spec, 10))
            .split(';')
            .next()
            .map(str::to_owned)
    };
    assert_eq!(granted(max_unavailable(4)), Some("grants b,a,c,own".into()));
    assert_eq!(
        granted(RebootPolicySpec {
            control_plane: ControlPlane::First,
            ..max_unavailable(4)
        }),
        Some("grants c,b,a,own".into())
    );
    assert_eq!(
        granted(RebootPolicySpec {
            control_plane: ControlPlane::Any,
            ..max_unavailable(4)
        }),
        Some("grants c,b,a,own".into())
    );
    assert_eq!(
        granted(RebootPolicySpec {
            order: policy::Order::Name,
            ..max_unavailable(4)
        }),
        Some("grants a,b,c,own".into())
    );
}

#[test]
fn at_most_one_control_plane_node_is_unavailable() {
    let control_plane = |name: &str| node(name).label("node-role.kubernetes.io/control-plane");
    check(
        "one at a time",
        &[
            control_plane("a").requested(),
            control_plane("b").requested(),
        ],
        &[],
        &max_unavailable(5),
        "grants a; b ControlPlaneBusy",
    );
    check(
        "another one is not ready",
        &[
            control_plane("a").not_ready(),
            control_plane("b").requested(),
        ],
        &[],
        &max_unavailable(5),
        "grants ; b ControlPlaneBusy",
    );
    check(
        "workers are not affected",
        &[control_plane("a").not_ready(), node("b").requested()],
        &[],
        &max_unavailable(5),
        "grants b",
    );
}

#[test]
fn minimum_gap_starts_at_the_last_grant() {
    let nodes = [node("a").requested(), node("b").requested()];
    let spec = RebootPolicySpec {
        minimum_gap_seconds: 60,
        ..max_unavailable(5)
    };
    let first = plan_for(&nodes, &[], &spec, 0);
    assert_eq!(summary(&first), "grants a; b MinimumGap");
    let ledger = first.ledger.expect("a new ledger");
    let nodes = [node("a").announced(1), node("b").requested()];
    let none = ActiveBlockers::default();
    let before = plan_with(&nodes, &ledger, &spec, &none, 59);
    assert_eq!(summary(&before), "grants ; b MinimumGap");
    let after = plan_with(&nodes, &ledger, &spec, &none, 60);
    assert_eq!(summary(&after), "grants b");
}

#[test]
fn breaker_opens_at_the_failure_threshold() {
    let spec = RebootPolicySpec {
        failure_threshold: 2,
        ..max_unavailable(9)
    };
    let lost = [
        node("a").in_progress(1, Stage::Rebooting).not_ready(),
        node("b").in_progress(2, Stage::Rebooting).not_ready(),
        node("c").requested(),
    ];
    let grants = [grant(1, "a"), grant(2, "b")];
    assert_eq!(summary(&plan_for(&lost, &grants, &spec, 2099)), "grants c");
    let plan = plan_for(&lost, &grants, &spec, 2100);
    assert_eq!(summary(&plan), "grants ; c BreakerOpen");
    assert!(plan.reports[0].breaker_open);
    assert_eq!(plan.ledger, None, "lost nodes keep their slots");
    let one_recovered = [
        lost[0].clone(),
        node("b").rebooted().in_progress(2, Stage::Rebooting),
        node("c").requested(),
    ];
    let plan = plan_for(&one_recovered, &[grants[0].clone()], &spec, 2100);
    assert_eq!(summary(&plan), "grants c");
}

#[test]
fn back_off_doubles_up_to_its_maximum() {
    for (failures, second, is_waiting) in [
        (1, 299, true),
        (1, 300, false),
        (2, 599, true),
        (2, 600, false),
        (99, 21_599, true),
        (99, 21_600, false),
    ] {
        let node = node("a")
            .requested()
            .ended(1, RebootResult::DrainTimedOut, failures);
        let plan = plan_for(&[node], &[], &max_unavailable(1), second);
        assert_eq!(
            summary(&plan).contains("BackingOff"),
            is_waiting,
            "{failures} failures, {second} seconds"
        );
    }
}

#[test]
fn each_policy_has_its_own_pool_and_limit() {
    let policy = |name: &str, label: &str, priority: i32| {
        let node_selector = serde_json::from_value(serde_json::json!({"matchLabels": {label: ""}}))
            .expect("a selector");
        RebootPolicy::new(
            name,
            RebootPolicySpec {
                node_selector,
                priority,
                ..RebootPolicySpec::default()
            },
        )
    };
    let nodes = [
        node("a").label("x").requested(),
        node("b").label("x").requested(),
        node("c").label("y").label("x").requested(),
        node("d").requested(),
    ];
    let nodes: Nodes = nodes
        .into_iter()
        .map(|node| (node.name.clone(), Arc::new(node)))
        .collect();
    let policies = ParsedPolicy::parse_all(&[policy("by-x", "x", 0), policy("by-y", "y", 5)]);
    let plan = plan(&ObservedState {
        now: at(0),
        nodes: &nodes,
        ledger: &ledger(&[]),
        policies: &policies,
        own_node: None,
        blockers: &ActiveBlockers::default(),
        ready_since: &ReadySince::new(),
    });
    assert_eq!(summary(&plan), "grants c,a,d; b NoSlot");
    let names: Vec<&str> = plan
        .reports
        .iter()
        .map(|report| report.policy.as_str())
        .collect();
    assert_eq!(names, ["by-y", "by-x", ""]);
}

#[test]
fn order_is_announced_only_with_its_grant() {
    let plan = plan_for(&[node("a").requested()], &[], &max_unavailable(1), 10);
    let grants = plan.ledger.expect("a ledger").spec.grants;
    assert_eq!(grants[0].node, "a");
    assert_eq!(grants[0].boot_id, "b-a-0");
    assert_eq!(grants[0].id, "ledger00-1");
    assert_eq!(plan.announcements.len(), 1);
    assert_eq!(plan.updates, []);
    let without_uid = RebootLedger {
        metadata: ObjectMeta::default(),
        ..ledger(&[])
    };
    let plan = plan_with(
        &[node("a").requested()],
        &without_uid,
        &max_unavailable(1),
        &ActiveBlockers::default(),
        0,
    );
    assert_eq!(summary(&plan), "grants ; a NoSlot");
}

#[test]
fn order_expires_when_its_window_closes() {
    let window = Window {
        days: vec![],
        start: "11:00".into(),
        end: "12:05".into(),
        time_zone: "UTC".into(),
    };
    let spec = RebootPolicySpec {
        windows: vec![window],
        ..max_unavailable(1)
    };
    let expires_at = |spec: &RebootPolicySpec| {
        let plan = plan_for(&[node("a").requested()], &[], spec, 0);
        plan.ledger.expect("a new ledger").spec.grants[0]
            .expires_at
            .0
    };
    assert_eq!(expires_at(&spec), at(300));
    assert_eq!(expires_at(&max_unavailable(1)), at(1200));
}

#[test]
fn grant_is_complete_only_when_its_node_has_recovered() {
    let phase = |node: Option<&NodeState>, second: i64| {
        grant_phase(
            &grant(1, "a"),
            node,
            Some(at(0)),
            SignedDuration::from_secs(30),
            at(second),
        )
    };
    let rebooted = node("a").rebooted().ended(1, RebootResult::Done, 0);
    for (what, node, second, expected) in [
        (
            "crashed before the announcement",
            node("a").requested(),
            0,
            GrantPhase::Announce,
        ),
        (
            "announced",
            node("a").announced(1),
            299,
            GrantPhase::Announced,
        ),
        (
            "announced, and no agent claims it",
            node("a").announced(1),
            300,
            GrantPhase::End(RebootResult::NotClaimed),
        ),
        (
            "draining",
            node("a").in_progress(1, Stage::Draining),
            9999,
            GrantPhase::InProgress,
        ),
        (
            "rebooted, not yet reported by the agent",
            node("a").rebooted().in_progress(1, Stage::Rebooting),
            9999,
            GrantPhase::InProgress,
        ),
        ("settled", rebooted.clone(), 30, GrantPhase::Complete),
        (
            "settling",
            rebooted.clone(),
            29,
            GrantPhase::Settling { since: at(0) },
        ),
        (
            "not ready after the reboot",
            rebooted.clone().not_ready(),
            30,
            GrantPhase::Recovering,
        ),
        (
            "reported, with the former boot ID",
            node("a").ended(1, RebootResult::Done, 0),
            30,
            GrantPhase::Recovering,
        ),
        (
            "end forged after the commit, while the machine goes down",
            node("a").committed(1).ended(1, RebootResult::Refused, 1),
            9999,
            GrantPhase::Recovering,
        ),
        (
            "end forged after the commit, and rebooted",
            node("a")
                .rebooted()
                .committed(1)
                .ended(1, RebootResult::Withdrawn, 0),
            30,
            GrantPhase::Complete,
        ),
        (
            "annotations removed after the commit",
            node("a").committed(1),
            9999,
            GrantPhase::InProgress,
        ),
        (
            "ended before the commit",
            node("a")
                .committed(7)
                .ended(1, RebootResult::DrainTimedOut, 1),
            0,
            GrantPhase::Complete,
        ),
        (
            "still cordoned by the agent",
            rebooted.clone().with_annotation(CORDONED, "x"),
            30,
            GrantPhase::Recovering,
        ),
        (
            "cordoned by others",
            rebooted.cordoned(),
            30,
            GrantPhase::Complete,
        ),
        (
            "the agent gave up",
            node("a")
                .ended(1, RebootResult::DrainTimedOut, 1)
                .requested(),
            0,
            GrantPhase::Complete,
        ),
        (
            "an older grant ended",
            node("a").ended(7, RebootResult::Done, 0).requested(),
            0,
            GrantPhase::Announce,
        ),
        (
            "the request was withdrawn",
            node("a"),
            0,
            GrantPhase::End(RebootResult::Withdrawn),
        ),
        (
            "rebooted before the announcement",
            node("a").rebooted().requested(),
            0,
            GrantPhase::End(RebootResult::Withdrawn),
        ),
        (
            "a recreated node of the same name",
            NodeState {
                uid: "other".into(),
                ..node("a")
            },
            0,
            GrantPhase::Complete,
        ),
    ] {
        assert_eq!(phase(Some(&node), second), expected, "{what}");
    }
    assert_eq!(phase(None, 0), GrantPhase::Complete, "a deleted node");
}

#[test]
fn node_of_a_completed_grant_is_read_again() {
    let nodes: Nodes = [(
        "a".to_owned(),
        Arc::new(node("a").rebooted().ended(1, RebootResult::Refused, 1)),
    )]
    .into();
    let ledger = ledger(&[grant(1, "a"), grant(2, "deleted")]);
    let blockers = ActiveBlockers::default();
    let ready_since = ReadySince::new();
    let policies = ParsedPolicy::parse_all(&[RebootPolicy::new("p", max_unavailable(1))]);
    let observed = ObservedState {
        now: at(0),
        nodes: &nodes,
        ledger: &ledger,
        policies: &policies,
        own_node: None,
        blockers: &blockers,
        ready_since: &ready_since,
    };
    let completed = completed_grants(&observed);
    assert_eq!(nodes_of(&completed), ["a", "deleted"]);
    let current: Nodes = [(
        "a".to_owned(),
        Arc::new(node("a").in_progress(1, Stage::Draining)),
    )]
    .into();
    let plan = plan(&ObservedState {
        nodes: &current,
        ..observed
    });
    let ledger = plan.ledger.expect("a new ledger");
    assert_eq!(nodes_of(&ledger.spec.grants), ["a"]);
}

#[test]
fn waiting_annotation_is_removed_without_a_request() {
    let idle = node("a").with_annotation(
        WAITING,
        Waiting {
            reason: WaitReason::NoSlot,
            since: at(0),
        },
    );
    let plan = plan_for(&[idle], &[], &max_unavailable(1), 10);
    assert_eq!(plan.updates.len(), 1);
    assert!(!plan.is_pending());
}
