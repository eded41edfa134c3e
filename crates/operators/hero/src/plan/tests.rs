//! Tables of the plan: one observed state, the next mutation.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_store_client::api::{
    FormatLevels, MemberState, Membership, MembershipMember, Replication, RequestCounts, Role,
    Status,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::plan;
use crate::{
    crd::{Bellerophon, BellerophonStatus, MemberPhase, MemberRole, MemberStatus},
    names, objects,
    observed::{ClaimState, Observed, PodPhase, PodState, SharedObject},
    step::Step,
};

const CLUSTER: &str = "c-1";

fn name(id: u64) -> String {
    format!("icarus-{id}")
}

/// A store with three healthy voters, of which member 1 leads.
fn healthy() -> Observed {
    let spec = json!({"winged_horse_name": "pegasus", "image": "store:1.0.0", "replicas": 3});
    let mut hero = Bellerophon::new("icarus", serde_json::from_value(spec).expect("a spec"));
    hero.metadata.namespace = Some("default".into());
    hero.metadata.uid = Some("u".into());
    hero.metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    hero.status = Some(BellerophonStatus {
        cluster_id: Some(CLUSTER.into()),
        bootstrapped: true,
        image: Some("store:1.0.0".into()),
        version: Some("1.0.0".into()),
        voters: vec![1, 2, 3],
        ..BellerophonStatus::default()
    });
    let mut observed = Observed {
        hero,
        now: Timestamp::from_second(1_000_000).expect("a time"),
        fresh_name: "icarus-new".into(),
        fresh_cluster_id: "c-2".into(),
        shared: SharedObject::ALL.into(),
        budget: Some(2),
        certificates: BTreeMap::new(),
        pods: BTreeMap::new(),
        claims: BTreeMap::new(),
        reports: BTreeMap::new(),
        backup: None,
        reads_per_second: None,
        recent_elections: 0,
    };
    for id in 1..=3 {
        add_member(&mut observed, id, MemberPhase::Active);
    }
    observed
}

fn add_member(observed: &mut Observed, id: u64, phase: MemberPhase) {
    let status = observed.hero.status.as_mut().expect("a status");
    status.members.push(MemberStatus {
        name: name(id),
        id,
        phase,
        claim_uid: Some(format!("claim-{id}")),
        ..MemberStatus::default()
    });
    let revision = objects::revision(
        &observed.hero,
        observed.hero.status.as_ref().expect("a status"),
    );
    let pod = PodState {
        uid: format!("pod-{id}"),
        phase: PodPhase::Running,
        is_terminating: false,
        created: Timestamp::UNIX_EPOCH,
        revision,
        role: Some(if phase == MemberPhase::Active {
            MemberRole::Voter
        } else {
            MemberRole::Reader
        }),
        restarts: 0,
    };
    let claim = ClaimState {
        uid: format!("claim-{id}"),
        member_id: Some(id),
        is_own: true,
        is_terminating: false,
        is_retired: false,
    };
    let end = observed.now + SignedDuration::from_hours(80 * 24);
    observed.pods.insert(name(id), pod);
    observed.claims.insert(name(id), claim);
    observed.certificates.insert(name(id), end);
    observed.reports.insert(name(id), Ok(Box::new(report(id))));
}

fn report(id: u64) -> Status {
    let member = |id: u64| (id, MembershipMember { address: name(id) });
    let replication = Replication {
        matched_index: 100,
        lag: 0,
        last_contact_ms: Some(1),
    };
    let is_leader = id == 1;
    Status {
        version: "1.0.0".into(),
        supported_format_levels: FormatLevels { min: 1, max: 1 },
        format_level: 1,
        state: MemberState::Running,
        cluster_id: CLUSTER.parse().ok(),
        member_id: Some(id),
        role: Some(if is_leader {
            Role::Leader
        } else {
            Role::Follower
        }),
        term: 1,
        leader: Some(1),
        last_log_index: 100,
        committed_index: 100,
        applied_index: 100,
        revision: 50,
        compacted_revision: 0,
        data_bytes: 0,
        log_bytes: 0,
        membership: Membership {
            index: 9,
            voters: BTreeSet::from([1, 2, 3]),
            learners: BTreeSet::new(),
            members: [1, 2, 3].map(member).into(),
            is_joint: false,
        },
        replication: [2, 3, 4].map(|id| (id, replication)).into(),
        requests: RequestCounts::default(),
        last_quorum_contact_ms: is_leader.then_some(1),
        snapshot: None,
        message: String::new(),
    }
}

/// Changes what a member reports.
fn change(observed: &mut Observed, id: u64, change: impl FnOnce(&mut Status)) {
    let report = observed.reports.get_mut(&name(id)).expect("a report");
    change(report.as_mut().expect("a status"));
}

/// The first step that is not a write of the status.
fn next(mut observed: Observed) -> Step {
    for _ in 0..5 {
        match plan(&observed) {
            Step::WriteStatus(status) => observed.hero.status = Some(*status),
            step => return step,
        }
    }
    panic!("the status changes with every pass")
}

/// The next mutation in a few words.
fn describe(step: &Step) -> String {
    match step {
        Step::Wait { .. } => "wait".into(),
        Step::DeletePod { pod, .. } => format!("delete {pod}"),
        Step::CreatePod { member } => format!("create {member}"),
        Step::TransferLeader { to, .. } => format!("lead {to}"),
        Step::ChangeMembership { voters, .. } => format!("voters {voters:?}"),
        step => step.name().into(),
    }
}

/// One row: what is changed, the change, the next mutation.
type Case = (&'static str, fn(&mut Observed), &'static str);

fn check(cases: &[Case]) {
    for (what, prepare, expected) in cases {
        let mut observed = healthy();
        prepare(&mut observed);
        assert_eq!(describe(&next(observed)), *expected, "{what}");
    }
}

#[test]
fn pods_and_disks_decide_on_repairs() {
    check(&[
        ("all healthy", |_| {}, "wait"),
        (
            "Pod ended",
            |o| o.pods.get_mut("icarus-2").unwrap().phase = PodPhase::Succeeded,
            "delete icarus-2",
        ),
        (
            "Pod missing",
            |o| drop(o.pods.remove("icarus-2")),
            "create icarus-2",
        ),
        (
            "Pod terminating",
            |o| o.pods.get_mut("icarus-2").unwrap().is_terminating = true,
            "wait",
        ),
        (
            "claim gone",
            |o| drop(o.claims.remove("icarus-2")),
            "voters {1, 3}",
        ),
        (
            "claim of the leader gone",
            |o| drop(o.claims.remove("icarus-1")),
            "lead icarus-2",
        ),
        (
            "claim replaced",
            |o| o.claims.get_mut("icarus-2").unwrap().uid = "other".into(),
            "voters {1, 3}",
        ),
        (
            "claim terminating",
            |o| o.claims.get_mut("icarus-2").unwrap().is_terminating = true,
            "voters {1, 3}",
        ),
        (
            "two claims gone",
            |o| o.claims.retain(|name, _| name == "icarus-1"),
            "wait",
        ),
        (
            "two claims gone, Pods too",
            |o| {
                o.claims.retain(|name, _| name == "icarus-1");
                o.pods.retain(|name, _| name == "icarus-1");
                o.reports.retain(|name, _| name == "icarus-1");
            },
            "wait",
        ),
        (
            "data directory empty",
            |o| change(o, 3, |s| s.state = MemberState::Unformatted),
            "voters {1, 2}",
        ),
        (
            "data of another member",
            |o| change(o, 3, |s| s.member_id = Some(9)),
            "voters {1, 2}",
        ),
        (
            "data of another cluster",
            |o| change(o, 3, |s| s.cluster_id = "c-9".parse().ok()),
            "voters {1, 2}",
        ),
        (
            "two disks lost, the leader reports",
            |o| {
                change(o, 2, |s| s.state = MemberState::Unformatted);
                change(o, 3, |s| s.state = MemberState::Unformatted);
            },
            "wait",
        ),
        (
            "no leader, Pod missing",
            |o| {
                change(o, 1, |s| s.last_quorum_contact_ms = Some(60_000));
                o.pods.remove("icarus-2");
            },
            "create icarus-2",
        ),
        (
            "no leader, claim gone",
            |o| {
                change(o, 1, |s| s.last_quorum_contact_ms = Some(60_000));
                o.claims.remove("icarus-2");
            },
            "wait",
        ),
        (
            "Service missing",
            |o| _ = o.shared.remove(&SharedObject::PeerService),
            "ApplyShared",
        ),
        ("budget too low", |o| o.budget = Some(1), "ApplyBudget"),
        (
            "certificate near its end",
            |o| {
                let soon = o.now + SignedDuration::from_hours(24);
                o.certificates.insert("icarus-3".into(), soon);
            },
            "IssueCertificate",
        ),
        (
            "wrong label",
            |o| o.pods.get_mut("icarus-2").unwrap().role = None,
            "LabelPod",
        ),
    ]);
}

#[test]
fn membership_changes_precede_pods() {
    check(&[
        ("one less", |o| o.hero.spec.replicas = 2, "voters {1, 2}"),
        (
            "one less, another one sick",
            |o| {
                o.hero.spec.replicas = 2;
                change(o, 2, |s| s.applied_index = 0);
                o.hero.spec.autopilot.lag_entries_max = 10;
            },
            "voters {1, 3}",
        ),
        (
            "one more",
            |o| {
                o.hero.spec.replicas = 4;
                o.budget = Some(3);
            },
            "Allocate",
        ),
        (
            "one more, one sick",
            |o| {
                o.hero.spec.replicas = 4;
                o.budget = Some(3);
                o.reports.insert("icarus-3".into(), Err("refused".into()));
            },
            "wait",
        ),
        (
            "joint membership",
            |o| {
                for id in 1..=3 {
                    change(o, id, |s| s.membership.is_joint = true);
                }
            },
            "voters {1, 2, 3}",
        ),
        (
            "uncommitted membership",
            |o| {
                o.hero.spec.replicas = 2;
                change(o, 1, |s| s.membership.index = 101);
            },
            "wait",
        ),
        (
            "learner behind",
            |o| {
                joining(o, MemberPhase::Joining);
                change(o, 4, |s| s.applied_index = 0);
                o.hero.spec.autopilot.lag_entries_max = 10;
            },
            "wait",
        ),
        (
            "learner caught up",
            |o| joining(o, MemberPhase::Joining),
            "voters {1, 2, 3, 4}",
        ),
        (
            "learner fell behind again",
            |o| {
                joining(o, MemberPhase::Promoting);
                change(o, 1, |s| {
                    s.replication.get_mut(&4).unwrap().matched_index = 0
                });
                o.hero.spec.autopilot.lag_entries_max = 10;
            },
            "wait",
        ),
        (
            "member formatted, not added",
            |o| {
                joining(o, MemberPhase::Joining);
                for id in 1..=4 {
                    change(o, id, |s| drop(s.membership.members.remove(&4)));
                }
            },
            "AddLearner",
        ),
        (
            "member not formatted",
            |o| {
                joining(o, MemberPhase::Pending);
                change(o, 4, |s| {
                    s.state = MemberState::Unformatted;
                    s.cluster_id = None;
                    s.member_id = None;
                });
            },
            "Format",
        ),
    ]);
}

/// A fourth member that joins.
fn joining(observed: &mut Observed, phase: MemberPhase) {
    observed.hero.spec.replicas = 4;
    observed.budget = Some(3);
    add_member(observed, 4, phase);
    change(observed, 4, |status| status.role = Some(Role::Learner));
    for id in 1..=4 {
        change(observed, id, |status| {
            status.membership.learners.insert(4);
            let member = MembershipMember { address: name(4) };
            status.membership.members.insert(4, member);
        });
    }
}

#[test]
fn upgrades_roll_the_leader_last() {
    check(&[
        (
            "newer image",
            |o| o.hero.spec.image = "store:1.1.0".into(),
            "delete icarus-2",
        ),
        (
            "older image",
            |o| o.hero.spec.image = "store:0.9.0".into(),
            "wait",
        ),
        (
            "skipped version",
            |o| o.hero.spec.image = "store:1.2.0".into(),
            "wait",
        ),
        (
            "another horse",
            |o| o.hero.spec.winged_horse_name = "arion".into(),
            "delete icarus-2",
        ),
        (
            "sick member first",
            |o| {
                o.hero.spec.image = "store:1.1.0".into();
                o.reports.insert("icarus-3".into(), Err("refused".into()));
            },
            "delete icarus-3",
        ),
        (
            "two sick members",
            |o| {
                o.hero.spec.image = "store:1.1.0".into();
                o.reports.insert("icarus-3".into(), Err("refused".into()));
                change(o, 2, |s| s.leader = None);
            },
            "wait",
        ),
        (
            "only the leader is left",
            |o| {
                o.hero.spec.image = "store:1.1.0".into();
                for name in ["icarus-2", "icarus-3"] {
                    o.pods.get_mut(name).unwrap().revision = "store:1.1.0 pegasus".into();
                }
            },
            "lead icarus-2",
        ),
        (
            "new level",
            |o| {
                for id in 1..=3 {
                    change(o, id, |s| s.supported_format_levels.max = 2);
                }
            },
            "RaiseFormatLevel",
        ),
        (
            "new level, one member without it",
            |o| {
                for id in 1..=2 {
                    change(o, id, |s| s.supported_format_levels.max = 2);
                }
            },
            "wait",
        ),
    ]);
}

#[test]
fn autopilot_waits_for_its_times() {
    check(&[
        ("unhealthy for less than T", |o| stuck(o, 299), "wait"),
        ("unhealthy for T", |o| stuck(o, 300), "delete icarus-3"),
        ("unhealthy for long", |o| stuck(o, 1800), "voters {1, 2}"),
        (
            "healing is off",
            |o| {
                stuck(o, 1800);
                o.hero.spec.autopilot.heal = false;
            },
            "wait",
        ),
        (
            "two unhealthy members",
            |o| {
                stuck(o, 1800);
                change(o, 2, |s| s.leader = None);
            },
            "wait",
        ),
        (
            "large log",
            |o| change(o, 2, |s| s.log_bytes = 1 << 30),
            "Compact",
        ),
        (
            "large log, compacted lately",
            |o| {
                change(o, 2, |s| s.log_bytes = 1 << 30);
                let lately = Time(o.now - SignedDuration::from_mins(9));
                o.hero.status.as_mut().unwrap().autopilot.compacted_at = Some(lately);
            },
            "wait",
        ),
        (
            "minimum of readers",
            |o| o.hero.spec.autopilot.readers.min = 1,
            "Allocate",
        ),
    ]);
}

fn stuck(observed: &mut Observed, seconds: i64) {
    observed
        .reports
        .insert("icarus-3".into(), Err("refused".into()));
    let since = observed.now - SignedDuration::from_secs(seconds);
    let status = observed.hero.status.as_mut().expect("a status");
    status.members[2].unhealthy_since = Some(Time(since));
}

#[test]
fn anomalies_are_reported_with_evidence() {
    for (what, prepare, reason) in [
        ("nothing", (|_| {}) as fn(&mut Observed), "NothingUnusual"),
        (
            "another revision",
            |o| change(o, 2, |s| s.revision = 51),
            "Divergence",
        ),
        (
            "unknown member",
            |o| {
                change(o, 1, |s| {
                    s.membership
                        .members
                        .insert(7, MembershipMember { address: name(7) });
                })
            },
            "UnknownMember",
        ),
        ("elections", |o| o.recent_elections = 5, "FrequentElections"),
        (
            "restarts",
            |o| o.pods.get_mut("icarus-2").unwrap().restarts = 5,
            "FrequentRestarts",
        ),
        (
            "disk",
            |o| change(o, 2, |s| s.data_bytes = 1 << 30),
            "DiskNearlyFull",
        ),
    ] {
        let mut observed = healthy();
        prepare(&mut observed);
        let Step::WriteStatus(status) = plan(&observed) else {
            panic!("{what}: no status")
        };
        let anomaly = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Anomaly");
        assert_eq!(
            anomaly.map(|condition| condition.reason.as_str()),
            Some(reason),
            "{what}"
        );
    }
}
