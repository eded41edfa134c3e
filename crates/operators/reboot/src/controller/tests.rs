//! Plans, as tables: nodes and a policy in, grants and reasons out.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use kube::api::ObjectMeta;

use super::{
    plan::{Back, Held, Nodes, Plan, View, free, plan},
    standing::{Standing, standing},
};
use crate::{
    ledger::{Grant, LEDGER, RebootLedger, RebootLedgerSpec},
    notes::{
        CORDONED, Ended, Fate, GrantId, IN_PROGRESS, LAST, NEEDED, NOW, Order, PAUSED, Progress,
        Reason, Stage, WAITING, Waiting,
    },
    policy::{self, ControlPlane, Drain, RebootPolicy, RebootPolicySpec},
    rules::Rules,
    state::NodeState,
    window::Window,
};

/// Monday noon.
const NOON: i64 = 1_794_830_400;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOON + second).expect("a time")
}

fn id(number: u32) -> GrantId {
    GrantId::read(&format!("ledger00-{number}")).expect("an id")
}

fn node(name: &str) -> NodeState {
    let (name, boot_id) = (name.to_owned(), Some(format!("b-{name}-0")));
    NodeState {
        uid: format!("u-{name}"),
        name,
        version: "1".into(),
        boot_id,
        ready: true,
        ..NodeState::default()
    }
}

impl NodeState {
    fn wants(self) -> Self {
        self.with_note(NEEDED, "kernel")
    }

    fn since(self, second: i64) -> Self {
        self.wants().with_note(
            WAITING,
            Waiting {
                reason: Reason::NoSlot,
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

    fn booted(self) -> Self {
        Self {
            boot_id: Some(format!("b-{}-1", self.name)),
            ..self
        }
    }

    fn busy(self, number: u32, stage: Stage) -> Self {
        let progress = Progress {
            id: id(number),
            boot: format!("b-{}-0", self.name),
            since: at(0),
            stage,
        };
        self.with_note(IN_PROGRESS, progress)
            .with_note(CORDONED, id(number))
            .cordoned()
    }

    fn told(self, number: u32) -> Self {
        self.with_note(
            NOW,
            Order {
                id: id(number),
                expires: at(1200),
            },
        )
    }

    fn ended(self, number: u32, result: Fate, failures: u32) -> Self {
        self.with_note(
            LAST,
            Ended {
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
        issued: i64::try_from(grants.len()).expect("few"),
        grants: grants.to_vec(),
        changes: vec![],
    };
    RebootLedger { metadata, spec }
}

fn at_most(count: i32) -> RebootPolicySpec {
    RebootPolicySpec {
        max_unavailable: IntOrString::Int(count),
        ..RebootPolicySpec::default()
    }
}

fn decide_with(
    nodes: &[NodeState],
    ledger: &RebootLedger,
    spec: &RebootPolicySpec,
    held: &Held,
    second: i64,
) -> Plan {
    let nodes: Nodes = nodes
        .iter()
        .map(|node| (node.name.clone(), Arc::new(node.clone())))
        .collect();
    let rules = Rules::of_all([&RebootPolicy::new("p", spec.clone())]);
    plan(&View {
        now: at(second),
        nodes: &nodes,
        ledger,
        rules: &rules,
        own_node: Some("own"),
        held,
        back: &Back::new(),
    })
}

fn decide(nodes: &[NodeState], grants: &[Grant], spec: &RebootPolicySpec, second: i64) -> Plan {
    decide_with(nodes, &ledger(grants), spec, &Held::default(), second)
}

/// Who is granted, and who waits for what.
fn outcome(plan: &Plan) -> String {
    let granted: Vec<&str> = plan
        .announcements
        .iter()
        .map(|deed| deed.node.as_str())
        .collect();
    let waits = plan.deeds.iter().filter_map(|deed| match &deed.told {
        Some(super::plan::Told::Waits { reason }) => {
            Some(format!("{} {}", deed.node, reason.as_str()))
        }
        _ => None,
    });
    [
        vec![format!("grants {}", granted.join(","))],
        waits.collect(),
    ]
    .concat()
    .join("; ")
}

fn check(what: &str, nodes: &[NodeState], grants: &[Grant], spec: &RebootPolicySpec, wanted: &str) {
    assert_eq!(outcome(&decide(nodes, grants, spec, 10)), wanted, "{what}");
}

#[test]
fn slots_are_spent_up_to_the_limit_and_no_further() {
    let three = [node("a").wants(), node("b").wants(), node("c").wants()];
    check(
        "one slot",
        &three,
        &[],
        &at_most(1),
        "grants a; b NoSlot; c NoSlot",
    );
    check(
        "all free slots are used at once",
        &three,
        &[],
        &at_most(2),
        "grants a,b; c NoSlot",
    );
    check(
        "more slots than nodes",
        &three,
        &[],
        &at_most(9),
        "grants a,b,c",
    );
    check(
        "none",
        &three,
        &[],
        &at_most(0),
        "grants ; a NoSlot; b NoSlot; c NoSlot",
    );
    let spent = [
        node("a").busy(1, Stage::Draining),
        node("b").wants(),
        node("c").wants(),
    ];
    check(
        "one is spent",
        &spent,
        &[grant(1, "a")],
        &at_most(2),
        "grants b; c NoSlot",
    );
    let least = RebootPolicySpec {
        min_available: Some(IntOrString::String("60%".into())),
        ..at_most(9)
    };
    check(
        "enough must stay",
        &three,
        &[],
        &least,
        "grants a; b NoSlot; c NoSlot",
    );
    check(
        "single node reboots",
        &three[..1],
        &[],
        &at_most(1),
        "grants a",
    );
}

#[test]
fn nodes_that_are_away_for_any_reason_count() {
    let b = node("b").wants();
    check(
        "not ready, or unknown",
        &[node("a").not_ready(), b.clone()],
        &[],
        &at_most(1),
        "grants ; b NoSlot",
    );
    check(
        "cordoned by others",
        &[node("a").cordoned(), b.clone()],
        &[],
        &at_most(1),
        "grants ; b NoSlot",
    );
    let lenient = RebootPolicySpec {
        count_cordoned: false,
        ..at_most(1)
    };
    check(
        "cordoned by others, and that is fine",
        &[node("a").cordoned(), b.clone()],
        &[],
        &lenient,
        "grants b",
    );
    check(
        "at a reboot that no ledger knows of",
        &[node("a").busy(7, Stage::Rebooting), b.clone()],
        &[],
        &at_most(1),
        "grants ; b NoSlot",
    );
    check(
        "told by a ledger that is lost",
        &[node("a").told(7), b.clone()],
        &[],
        &at_most(1),
        "grants ; b NoSlot",
    );
    check(
        "granted and not in any cache",
        std::slice::from_ref(&b),
        &[grant(1, "b2")],
        &at_most(1),
        "grants b",
    );
    check(
        "away twice counts once",
        &[node("a").busy(1, Stage::Draining).not_ready(), b],
        &[grant(1, "a")],
        &at_most(2),
        "grants b",
    );
    let cordoned = node("a").wants().cordoned();
    check(
        "a cordoned node costs nothing more",
        &[cordoned, node("b")],
        &[],
        &at_most(1),
        "grants a",
    );
}

#[test]
fn more_unavailable_than_allowed_grants_nothing() {
    let nodes = [
        node("a").not_ready(),
        node("b").not_ready(),
        node("c").not_ready(),
        node("d").wants(),
    ];
    check(
        "a limit that was exceeded by others",
        &nodes,
        &[],
        &at_most(2),
        "grants ; d NoSlot",
    );
    let held: Vec<NodeState> = ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(name, number)| node(name).busy(number, Stage::Draining))
        .collect();
    let nodes = [held, vec![node("d").wants()]].concat();
    let grants = [grant(1, "a"), grant(2, "b"), grant(3, "c")];
    check(
        "a limit that was lowered",
        &nodes,
        &grants,
        &at_most(1),
        "grants ; d NoSlot",
    );
}

#[test]
fn limit_changed_while_slots_are_held_loses_none() {
    let nodes = [node("a").busy(1, Stage::Draining), node("b").wants()];
    for limit in [0, 1] {
        let plan = decide(&nodes, &[grant(1, "a")], &at_most(limit), 10);
        assert_eq!(
            (outcome(&plan).as_str(), plan.ledger),
            ("grants ; b NoSlot", None)
        );
    }
    let plan = decide(&nodes, &[grant(1, "a")], &at_most(2), 10)
        .ledger
        .expect("a grant");
    assert_eq!(
        plan.spec
            .grants
            .iter()
            .map(|grant| grant.node.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[test]
fn every_waiting_node_has_its_reason() {
    let closed = Window {
        days: vec![],
        start: "22:00".into(),
        end: "04:00".into(),
        time_zone: "UTC".into(),
    };
    let unreadable = Window {
        time_zone: "Nowhere".into(),
        ..closed.clone()
    };
    let a = node("a").wants();
    for (what, node, spec, wanted) in [
        (
            "window",
            a.clone(),
            RebootPolicySpec {
                windows: vec![closed],
                ..at_most(1)
            },
            "grants ; a OutsideWindow",
        ),
        (
            "unreadable",
            a.clone(),
            RebootPolicySpec {
                windows: vec![unreadable],
                ..at_most(1)
            },
            "grants ; a PolicyInvalid",
        ),
        (
            "paused pool",
            a.clone(),
            RebootPolicySpec {
                paused: true,
                ..at_most(1)
            },
            "grants ; a Paused",
        ),
        (
            "paused node",
            a.clone().with_note(PAUSED, ""),
            at_most(1),
            "grants ; a Paused",
        ),
        (
            "dry run",
            a.clone(),
            RebootPolicySpec {
                dry_run: true,
                ..at_most(1)
            },
            "grants ; a DryRun",
        ),
        (
            "not ready",
            a.clone().not_ready(),
            at_most(1),
            "grants ; a NodeNotReady",
        ),
        (
            "no boot id",
            NodeState {
                boot_id: None,
                ..a.clone()
            },
            at_most(1),
            "grants ; a NoBootId",
        ),
        (
            "failed lately",
            a.clone().ended(1, Fate::DrainTimedOut, 1),
            at_most(1),
            "grants ; a BackingOff",
        ),
        (
            "already said",
            a.clone().with_note(
                WAITING,
                Waiting {
                    reason: Reason::NoSlot,
                    since: at(0),
                },
            ),
            at_most(0),
            "grants ",
        ),
        (
            "being deleted",
            NodeState {
                going: true,
                ..a.clone()
            },
            at_most(1),
            "grants ",
        ),
        (
            "busy with what nobody knows",
            a.busy(9, Stage::Draining),
            at_most(5),
            "grants ; a InProgress",
        ),
    ] {
        check(what, &[node], &[], &spec, wanted);
    }
}

#[test]
fn blocked_node_does_not_keep_others_waiting() {
    let nodes = [node("a").since(-100), node("b").wants()];
    let held = Held {
        by_pods: [("p".into(), BTreeSet::from(["a".to_owned()]))].into(),
        ..Held::default()
    };
    let plan = decide_with(&nodes, &ledger(&[]), &at_most(1), &held, 10);
    assert_eq!(outcome(&plan), "grants b; a BlockedByPods");
    let held = Held {
        by_alerts: ["p".to_owned()].into(),
        ..Held::default()
    };
    assert_eq!(
        outcome(&decide_with(&nodes, &ledger(&[]), &at_most(1), &held, 10)),
        "grants ; a BlockedByAlerts; b BlockedByAlerts"
    );
}

#[test]
fn who_waits_longest_comes_first_and_the_controllers_own_node_last() {
    let plane = "node-role.kubernetes.io/control-plane";
    let nodes = [
        node("a").since(5),
        node("b").since(3),
        node("c").since(1).label(plane),
        node("own").since(0),
    ];
    let order = |spec: RebootPolicySpec| {
        outcome(&decide(&nodes, &[], &spec, 10))
            .split(';')
            .next()
            .map(str::to_owned)
    };
    assert_eq!(order(at_most(4)), Some("grants b,a,c,own".into()));
    assert_eq!(
        order(RebootPolicySpec {
            control_plane: ControlPlane::First,
            ..at_most(4)
        }),
        Some("grants c,b,a,own".into())
    );
    assert_eq!(
        order(RebootPolicySpec {
            control_plane: ControlPlane::Any,
            ..at_most(4)
        }),
        Some("grants c,b,a,own".into())
    );
    assert_eq!(
        order(RebootPolicySpec {
            order: policy::Order::Name,
            ..at_most(4)
        }),
        Some("grants a,b,c,own".into())
    );
}

#[test]
fn control_plane_never_loses_two_nodes() {
    let plane = |name: &str| node(name).label("node-role.kubernetes.io/control-plane");
    check(
        "one at a time",
        &[plane("a").wants(), plane("b").wants()],
        &[],
        &at_most(5),
        "grants a; b ControlPlaneBusy",
    );
    check(
        "one is away",
        &[plane("a").not_ready(), plane("b").wants()],
        &[],
        &at_most(5),
        "grants ; b ControlPlaneBusy",
    );
    check(
        "others do not mind",
        &[plane("a").not_ready(), node("b").wants()],
        &[],
        &at_most(5),
        "grants b",
    );
}

#[test]
fn gap_counts_from_the_last_grant_or_end() {
    let nodes = [node("a").wants(), node("b").wants()];
    let spec = RebootPolicySpec {
        minimum_gap_seconds: 60,
        ..at_most(5)
    };
    let first = decide(&nodes, &[], &spec, 0);
    assert_eq!(outcome(&first), "grants a; b MinimumGap");
    let ledger = first.ledger.expect("a grant");
    let nodes = [node("a").told(1), node("b").wants()];
    assert_eq!(
        outcome(&decide_with(&nodes, &ledger, &spec, &Held::default(), 59)),
        "grants ; b MinimumGap"
    );
    assert_eq!(
        outcome(&decide_with(&nodes, &ledger, &spec, &Held::default(), 60)),
        "grants b"
    );
}

#[test]
fn breaker_opens_when_nodes_do_not_come_back() {
    let spec = RebootPolicySpec {
        failure_threshold: 2,
        ..at_most(9)
    };
    let lost = [
        node("a").busy(1, Stage::Rebooting).not_ready(),
        node("b").busy(2, Stage::Rebooting).not_ready(),
        node("c").wants(),
    ];
    let grants = [grant(1, "a"), grant(2, "b")];
    assert_eq!(outcome(&decide(&lost, &grants, &spec, 2099)), "grants c");
    let plan = decide(&lost, &grants, &spec, 2100);
    assert_eq!(
        (outcome(&plan).as_str(), plan.reports[0].breaker_open),
        ("grants ; c BreakerOpen", true)
    );
    assert_eq!(plan.ledger, None, "slots of lost nodes stay spent");
    let one_back = [
        lost[0].clone(),
        node("b").booted().busy(2, Stage::Rebooting),
        node("c").wants(),
    ];
    assert_eq!(
        outcome(&decide(&one_back, &[grants[0].clone()], &spec, 2100)),
        "grants c"
    );
}

#[test]
fn failures_back_off_and_doubling_ends() {
    for (failures, second, waits) in [
        (1, 299, true),
        (1, 300, false),
        (2, 599, true),
        (2, 600, false),
        (99, 21_599, true),
        (99, 21_600, false),
    ] {
        let plan = decide(
            &[node("a").wants().ended(1, Fate::DrainTimedOut, failures)],
            &[],
            &at_most(1),
            second,
        );
        assert_eq!(
            outcome(&plan).contains("BackingOff"),
            waits,
            "{failures} failures, {second} seconds"
        );
    }
}

#[test]
fn policies_have_their_own_nodes_and_slots() {
    let pool = |name: &str, label: &str, priority: i32| {
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
        node("a").label("x").wants(),
        node("b").label("x").wants(),
        node("c").label("y").label("x").wants(),
        node("d").wants(),
    ];
    let nodes: Nodes = nodes
        .into_iter()
        .map(|node| (node.name.clone(), Arc::new(node)))
        .collect();
    let rules = Rules::of_all(&[pool("by-x", "x", 0), pool("by-y", "y", 5)]);
    let (ledger, held, back) = (ledger(&[]), Held::default(), Back::new());
    let view = View {
        now: at(0),
        nodes: &nodes,
        ledger: &ledger,
        rules: &rules,
        own_node: None,
        held: &held,
        back: &back,
    };
    let plan = plan(&view);
    assert_eq!(outcome(&plan), "grants c,a,d; b NoSlot");
    let policies: Vec<&str> = plan
        .reports
        .iter()
        .map(|report| report.policy.as_str())
        .collect();
    assert_eq!(policies, ["by-y", "by-x", ""]);
}

#[test]
fn no_order_is_planned_without_its_grant() {
    let plan = decide(&[node("a").wants()], &[], &at_most(1), 10);
    let grants = plan.ledger.expect("a ledger").spec.grants;
    assert_eq!(
        (
            grants[0].node.as_str(),
            grants[0].boot_id.as_str(),
            grants[0].id.as_str()
        ),
        ("a", "b-a-0", "ledger00-1")
    );
    assert_eq!(
        plan.announcements.len(),
        1,
        "announced only after the ledger is written"
    );
    assert!(plan.deeds.is_empty());
    let nameless = RebootLedger {
        metadata: ObjectMeta::default(),
        ..ledger(&[])
    };
    assert_eq!(
        outcome(&decide_with(
            &[node("a").wants()],
            &nameless,
            &at_most(1),
            &Held::default(),
            0
        )),
        "grants ; a NoSlot"
    );
}

#[test]
fn order_never_outlives_its_window() {
    let window = Window {
        days: vec![],
        start: "11:00".into(),
        end: "12:05".into(),
        time_zone: "UTC".into(),
    };
    let spec = RebootPolicySpec {
        windows: vec![window],
        ..at_most(1)
    };
    let grants = decide(&[node("a").wants()], &[], &spec, 0)
        .ledger
        .expect("a grant")
        .spec
        .grants;
    assert_eq!(grants[0].expires_at.0, at(300));
    let grants = decide(&[node("a").wants()], &[], &at_most(1), 0)
        .ledger
        .expect("a grant")
        .spec
        .grants;
    assert_eq!(grants[0].expires_at.0, at(1200));
}

#[test]
fn slot_is_free_only_when_its_node_is_back_as_it_was() {
    let stands = |node: Option<&NodeState>, second: i64| {
        standing(
            &grant(1, "a"),
            node,
            Some(at(0)),
            SignedDuration::from_secs(30),
            at(second),
        )
    };
    let back = node("a").booted().ended(1, Fate::Done, 0);
    for (what, node, second, wanted) in [
        (
            "crashed before it was told",
            node("a").wants(),
            0,
            Standing::Announce,
        ),
        ("told", node("a").told(1), 299, Standing::Told),
        (
            "told, and nobody listens",
            node("a").told(1),
            300,
            Standing::End(Fate::NotClaimed),
        ),
        (
            "at it",
            node("a").busy(1, Stage::Draining),
            9999,
            Standing::Busy,
        ),
        (
            "back, not yet reported",
            node("a").booted().busy(1, Stage::Rebooting),
            9999,
            Standing::Busy,
        ),
        ("back for a while", back.clone(), 30, Standing::Free),
        (
            "back just now",
            back.clone(),
            29,
            Standing::Settling { since: at(0) },
        ),
        (
            "back and not ready",
            back.clone().not_ready(),
            30,
            Standing::Unwell,
        ),
        (
            "says so, and has the same boot",
            node("a").ended(1, Fate::Done, 0),
            30,
            Standing::Unwell,
        ),
        (
            "back and cordoned by us",
            back.clone().with_note(CORDONED, "x"),
            30,
            Standing::Unwell,
        ),
        (
            "back and cordoned by others",
            back.cordoned(),
            30,
            Standing::Free,
        ),
        (
            "gave up",
            node("a").ended(1, Fate::DrainTimedOut, 1).wants(),
            0,
            Standing::Free,
        ),
        (
            "an older grant ended",
            node("a").ended(7, Fate::Done, 0).wants(),
            0,
            Standing::Announce,
        ),
        (
            "request taken back",
            node("a"),
            0,
            Standing::End(Fate::Withdrawn),
        ),
        (
            "booted by itself before it was told",
            node("a").booted().wants(),
            0,
            Standing::End(Fate::Withdrawn),
        ),
        (
            "another node of its name",
            NodeState {
                uid: "other".into(),
                ..node("a")
            },
            0,
            Standing::Free,
        ),
    ] {
        assert_eq!(stands(Some(&node), second), wanted, "{what}");
    }
    assert_eq!(
        stands(None, 0),
        Standing::Free,
        "slot of a deleted node is free"
    );
}

#[test]
fn slot_that_looks_free_is_read_again_first() {
    let nodes: Nodes = [(
        "a".to_owned(),
        Arc::new(node("a").booted().ended(1, Fate::Refused, 1)),
    )]
    .into();
    let (ledger, held, back) = (
        ledger(&[grant(1, "a"), grant(2, "gone")]),
        Held::default(),
        Back::new(),
    );
    let rules = Rules::of_all(&[RebootPolicy::new("p", at_most(1))]);
    let view = View {
        now: at(0),
        nodes: &nodes,
        ledger: &ledger,
        rules: &rules,
        own_node: None,
        held: &held,
        back: &back,
    };
    assert_eq!(
        free(&view)
            .iter()
            .map(|grant| grant.node.as_str())
            .collect::<Vec<_>>(),
        ["a", "gone"]
    );
    let fresh: Nodes = [("a".to_owned(), Arc::new(node("a").busy(1, Stage::Draining)))].into();
    let plan = plan(&View {
        nodes: &fresh,
        ..view
    });
    let left = plan.ledger.expect("one is free").spec.grants;
    assert_eq!(
        left.iter()
            .map(|grant| grant.node.as_str())
            .collect::<Vec<_>>(),
        ["a"]
    );
}

#[test]
fn node_that_wants_nothing_any_more_stops_waiting() {
    let idle = node("a").with_note(
        WAITING,
        Waiting {
            reason: Reason::NoSlot,
            since: at(0),
        },
    );
    let plan = decide(&[idle], &[], &at_most(1), 10);
    assert_eq!((plan.deeds.len(), plan.is_pending()), (1, false));
}
