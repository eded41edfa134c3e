//! Scenarios of the plan in memory: each name is a promise, most of them a defect of other
//! operators.

use std::time::Duration;

use bellerophon_hero::{
    PodPhase, Step,
    crd::{Bootstrap, ClaimPolicy, MemberPhase, MemberRole, Phase, RestorePhase, RestoreSource},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::simulation::{Simulation, hero};

/// A running store.
fn running(replicas: i32) -> Simulation {
    let mut simulation = Simulation::new(hero(replicas), 1);
    let status = simulation.settle();
    assert_eq!(status.phase, Phase::Running, "{status:#?}");
    simulation
}

fn condition<'a>(conditions: &'a [Condition], type_: &str) -> &'a Condition {
    let found = conditions.iter().find(|condition| condition.type_ == type_);
    found.unwrap_or_else(|| panic!("no condition {type_}"))
}

fn assert_voters(simulation: &Simulation, count: usize) {
    let status = simulation.status();
    assert_eq!(status.phase, Phase::Running, "{status:#?}");
    assert_eq!(status.members.len(), count, "{status:#?}");
    assert_eq!(status.voters.len(), count, "{status:#?}");
    assert!(
        status.members.iter().all(|member| member.healthy),
        "{status:#?}"
    );
    assert_eq!(simulation.pods.len(), count);
    assert_eq!(condition(&status.conditions, "Ready").status, "True");
}

#[test]
fn store_is_installed_one_member_at_a_time() {
    let simulation = running(3);
    assert_voters(&simulation, 3);
    let count = |name: &str| {
        simulation
            .mutations
            .iter()
            .filter(|step| **step == name)
            .count()
    };
    assert_eq!(count("Initialize"), 1);
    assert_eq!(count("Format"), 2);
    assert_eq!(count("Allocate"), 2);
    assert_eq!(count("CreatePod"), 3);
}

#[test]
fn store_is_scaled_up_and_down() {
    let mut simulation = running(1);
    for replicas in [3, 5, 3, 1] {
        simulation.edit(|spec| spec.replicas = replicas);
        simulation.settle();
        assert_voters(&simulation, usize::try_from(replicas).unwrap());
    }
    let retired = simulation
        .claims
        .values()
        .filter(|claim| claim.is_retired)
        .count();
    assert_eq!(retired, 4);
}

#[test]
fn claims_of_removed_members_are_deleted_by_policy() {
    let mut hero = hero(3);
    hero.spec.storage.claim_policy = ClaimPolicy::Delete;
    let mut simulation = Simulation::new(hero, 1);
    simulation.settle();
    simulation.edit(|spec| spec.replicas = 1);
    simulation.settle();
    assert_eq!(simulation.claims.len(), 1);
}

#[test]
fn scale_down_keeps_the_leader_until_last() {
    let mut simulation = running(5);
    let leader = simulation.status().leader;
    simulation.edit(|spec| spec.replicas = 3);
    simulation.settle();
    assert_eq!(simulation.status().leader, leader);
}

#[test]
fn scale_down_removes_unhealthy_members_first() {
    let mut simulation = running(5);
    let status = simulation.status();
    let sick = status.members[1].name.clone();
    let claim = simulation.claim_uid(&sick);
    simulation.store.unreachable.insert(claim);
    simulation.edit(|spec| spec.replicas = 4);
    simulation.settle();
    assert_voters(&simulation, 4);
    assert!(simulation.status().member(&sick).is_none());
}

#[test]
fn scale_down_waits_without_a_quorum() {
    let mut simulation = running(3);
    let names = simulation.members_in(MemberPhase::Active);
    for name in &names[..2] {
        let claim = simulation.claim_uid(name);
        simulation.store.unreachable.insert(claim);
    }
    simulation.edit(|spec| spec.replicas = 1);
    let before = simulation.mutations.len();
    let status = simulation.settle();
    assert_eq!(status.phase, Phase::Unavailable);
    assert_eq!(
        condition(&status.conditions, "QuorumLost").reason,
        "VotersUnavailable"
    );
    assert_eq!(simulation.mutations.len(), before);
    simulation.store.unreachable.clear();
    simulation.settle();
    assert_voters(&simulation, 1);
}

#[test]
fn lost_disk_is_replaced_by_a_new_member() {
    for how in ["claim deleted", "data directory emptied"] {
        let mut simulation = running(3);
        let old = simulation.status().members[2].clone();
        match how {
            "claim deleted" => {
                simulation.delete_claim(&old.name);
                simulation.delete_pod(&old.name);
            }
            _ => {
                let claim = simulation.claim_uid(&old.name);
                simulation.store.wipe(&claim);
            }
        }
        simulation.settle();
        assert_voters(&simulation, 3);
        let ids: Vec<u64> = simulation
            .status()
            .members
            .iter()
            .map(|member| member.id)
            .collect();
        assert!(!ids.contains(&old.id), "{how}: {ids:?}");
    }
}

#[test]
fn terminating_claim_does_not_block_the_member() {
    let mut simulation = running(3);
    let old = simulation.status().members[1].clone();
    // The Pod still runs, so the claim stays until the member is replaced.
    simulation.delete_claim(&old.name);
    simulation.settle();
    assert_voters(&simulation, 3);
    assert!(simulation.status().member(&old.name).is_none());
}

#[test]
fn succeeded_pod_is_recreated_on_its_claim() {
    for phase in [PodPhase::Succeeded, PodPhase::Failed] {
        let mut simulation = running(3);
        let before = simulation.status();
        simulation.end_pod(&before.members[0].name, phase);
        simulation.settle();
        assert_voters(&simulation, 3);
        let ids = |status: &bellerophon_hero::crd::BellerophonStatus| -> Vec<u64> {
            status.members.iter().map(|member| member.id).collect()
        };
        assert_eq!(ids(&simulation.status()), ids(&before), "{phase:?}");
        assert_eq!(simulation.claims.len(), 3, "{phase:?}");
    }
}

#[test]
fn store_restarts_after_all_pods_have_ended() {
    let mut simulation = running(3);
    for name in simulation.members_in(MemberPhase::Active) {
        simulation.end_pod(&name, PodPhase::Succeeded);
    }
    simulation.settle();
    assert_voters(&simulation, 3);
    assert_eq!(simulation.claims.len(), 3);
}

#[test]
fn nothing_is_changed_after_the_data_of_a_majority_is_lost() {
    let mut simulation = running(3);
    let status = simulation.status();
    for member in &status.members[..2] {
        simulation.delete_claim(&member.name);
        simulation.end_pod(&member.name, PodPhase::Failed);
        simulation.pods.remove(&member.name);
    }
    simulation.advance(Duration::from_secs(1));
    let lost_at = simulation.now;
    while simulation.status().phase != Phase::QuorumLost {
        simulation.reconcile();
    }
    assert!(simulation.now.duration_since(lost_at).as_secs() < 30);
    let before = simulation.mutations.len();
    let status = simulation.settle();
    assert_eq!(
        condition(&status.conditions, "QuorumLost").reason,
        "DataLost"
    );
    simulation.edit(|spec| spec.replicas = 5);
    simulation.settle();
    assert_eq!(simulation.mutations.len(), before);
}

#[test]
fn store_without_pods_and_claims_is_not_bootstrapped_again() {
    let mut simulation = running(3);
    simulation.pods.clear();
    simulation.claims.clear();
    let before = simulation.mutations.len();
    let status = simulation.settle();
    assert_eq!(status.phase, Phase::QuorumLost);
    assert_eq!(simulation.mutations.len(), before);
}

#[test]
fn lost_status_is_not_bootstrapped_again() {
    let mut simulation = running(3);
    simulation.hero.status = None;
    let before = simulation.mutations.len();
    let status = simulation.settle();
    assert_eq!(status.phase, Phase::Blocked);
    assert_eq!(simulation.mutations.len(), before);
}

#[test]
fn upgrade_rolls_the_leader_last_after_a_hand_over() {
    let mut simulation = running(3);
    let leader = simulation.status().leader.expect("a leader");
    let before = simulation.mutations.len();
    simulation.edit(|spec| spec.image = "store:1.1.0".into());
    let mut rolled = Vec::new();
    while simulation.status().version.as_deref() != Some("1.1.0") {
        if let Step::DeletePod { pod, .. } = simulation.reconcile() {
            rolled.push(pod);
        }
    }
    simulation.settle();
    assert_voters(&simulation, 3);
    assert_eq!(rolled.len(), 3);
    assert_eq!(rolled[2], leader);
    let transfers = simulation.mutations[before..]
        .iter()
        .filter(|step| **step == "TransferLeader");
    assert_eq!(transfers.count(), 1);
    assert_eq!(simulation.status().format_level, Some(2));
}

#[test]
fn downgrade_and_skipped_version_are_refused() {
    let mut simulation = Simulation::new(hero(3), 1);
    simulation.hero.spec.image = "store:1.1.0".into();
    simulation.settle();
    for image in ["store:1.0.0", "store:1.3.0"] {
        simulation.edit(|spec| spec.image = image.into());
        let before = simulation.mutations.len();
        let status = simulation.settle();
        assert_eq!(
            condition(&status.conditions, "UpgradeRefused").status,
            "True",
            "{image}"
        );
        assert_eq!(simulation.mutations.len(), before, "{image}");
        assert_eq!(status.image.as_deref(), Some("store:1.1.0"));
    }
    simulation.edit(|spec| spec.image = "store:1.2.0".into());
    let status = simulation.settle();
    assert_eq!(
        condition(&status.conditions, "UpgradeRefused").status,
        "False"
    );
    assert_eq!(status.version.as_deref(), Some("1.2.0"));
}

#[test]
fn upgrade_rolls_unhealthy_members_first() {
    let mut simulation = running(3);
    let sick = simulation.status().members[2].name.clone();
    let claim = simulation.claim_uid(&sick);
    simulation.store.unreachable.insert(claim.clone());
    simulation.edit(|spec| spec.image = "store:1.1.0".into());
    let first = loop {
        if let Step::DeletePod { pod, .. } = simulation.reconcile() {
            break pod;
        }
    };
    assert_eq!(first, sick);
    for _ in 0..50 {
        let step = simulation.reconcile();
        assert!(!matches!(step, Step::DeletePod { .. }), "{step:?}");
    }
    simulation.store.unreachable.clear();
    simulation.settle();
    assert_voters(&simulation, 3);
}

#[test]
fn broken_image_stops_after_one_member() {
    let mut simulation = running(3);
    simulation.edit(|spec| {
        spec.image = "store:1.1.0".into();
        spec.autopilot.heal = false;
    });
    let pod = loop {
        if let Step::DeletePod { pod, .. } = simulation.reconcile() {
            break pod;
        }
    };
    let claim = simulation.claim_uid(&pod);
    simulation.store.unreachable.insert(claim);
    let deleted = |simulation: &Simulation| {
        simulation
            .mutations
            .iter()
            .filter(|step| **step == "DeletePod")
            .count()
    };
    let before = deleted(&simulation);
    for _ in 0..500 {
        simulation.reconcile();
    }
    assert_eq!(deleted(&simulation), before);
    // The version of all members is still the old one, so the image may be changed back.
    simulation.edit(|spec| spec.image = "store:1.0.0".into());
    let again = loop {
        if let Step::DeletePod { pod, .. } = simulation.reconcile() {
            break pod;
        }
    };
    assert_eq!(again, pod);
    simulation.store.unreachable.clear();
    simulation.settle();
    assert_voters(&simulation, 3);
    assert_eq!(simulation.status().version.as_deref(), Some("1.0.0"));
}

#[test]
fn stuck_member_is_restarted_then_replaced() {
    let mut simulation = running(3);
    let leader = simulation.status().leader;
    let members = simulation.status().members;
    let stuck = members
        .iter()
        .find(|member| Some(&member.name) != leader.as_ref())
        .expect("a follower")
        .clone();
    simulation
        .store
        .stalled
        .insert(simulation.claim_uid(&stuck.name));
    simulation.store.write(10_000);
    let began = simulation.now;
    let restart = loop {
        if let Step::DeletePod { pod, .. } = simulation.reconcile() {
            break pod;
        }
    };
    assert_eq!(restart, stuck.name);
    let seconds = simulation.now.duration_since(began).as_secs();
    assert!((300..400).contains(&seconds), "{seconds}");
    while simulation.status().member(&stuck.name).is_some() {
        simulation.reconcile();
    }
    let seconds = simulation.now.duration_since(began).as_secs();
    assert!((1800..1900).contains(&seconds), "{seconds}");
    simulation.settle();
    assert_voters(&simulation, 3);
    let restarts = simulation
        .mutations
        .iter()
        .filter(|step| **step == "DeletePod")
        .count();
    // Once to restart, once after it has left the membership.
    assert_eq!(restarts, 2);
}

#[test]
fn member_on_a_lost_node_is_replaced() {
    let mut simulation = running(3);
    let lost = simulation.status().members[2].clone();
    simulation.delete_pod(&lost.name);
    simulation
        .pods
        .get_mut(&lost.name)
        .expect("its Pod")
        .is_stranded = true;
    let voters = |simulation: &Simulation| simulation.status().voters;
    while voters(&simulation).contains(&lost.id) || voters(&simulation).len() < 3 {
        simulation.reconcile();
    }
    assert!(
        simulation.pods.contains_key(&lost.name),
        "the Pod is never forced away"
    );
    simulation.pods.remove(&lost.name);
    simulation.settle();
    assert_voters(&simulation, 3);
}

#[test]
fn learner_is_promoted_only_after_it_has_caught_up() {
    let mut simulation = running(1);
    simulation.store.write(50_000);
    simulation.edit(|spec| spec.replicas = 3);
    // The model records a violation if a member is promoted too early.
    for _ in 0..200 {
        simulation.store.write(1_500);
        simulation.reconcile();
    }
    simulation.settle();
    assert_voters(&simulation, 3);
}

#[test]
fn interrupted_membership_change_is_finished() {
    let mut simulation = running(3);
    simulation.store.interrupts_change = true;
    simulation.edit(|spec| spec.replicas = 4);
    simulation.settle();
    assert_voters(&simulation, 4);
    simulation.store.interrupts_change = true;
    simulation.edit(|spec| spec.replicas = 3);
    simulation.settle();
    assert_voters(&simulation, 3);
}

#[test]
fn readers_follow_the_rate_of_reads_with_a_cool_down() {
    let mut simulation = running(3);
    simulation.edit(|spec| {
        spec.autopilot.readers.max = 4;
        spec.autopilot.readers.reads_per_second = 100;
    });
    let readers = |simulation: &Simulation| {
        let status = simulation.status();
        let readers = status
            .members
            .iter()
            .filter(|member| member.role == MemberRole::Reader);
        readers
            .filter(|member| member.phase == MemberPhase::Active)
            .count()
    };
    for (rate, expected) in [
        (100.0, 0),
        (450.0, 2),
        (5000.0, 4),
        (450.0, 3),
        (450.0, 3),
        (0.0, 2),
        (0.0, 1),
        (0.0, 0),
    ] {
        simulation.reads_per_second = Some(rate);
        simulation.advance(Duration::from_secs(300));
        let changed = simulation.now;
        simulation.settle();
        assert_eq!(readers(&simulation), expected, "{rate}");
        let changed_at = simulation.status().autopilot.readers_changed_at;
        assert!(changed_at.is_none_or(|at| at.0 <= changed + jiff::SignedDuration::from_secs(60)));
    }
    assert_eq!(simulation.status().voters.len(), 3);
}

#[test]
fn large_log_is_compacted_once() {
    let mut simulation = running(3);
    simulation.edit(|spec| spec.autopilot.compact_log_bytes = 1 << 20);
    simulation.store.write(1_000);
    simulation.settle();
    let count = |simulation: &Simulation| {
        simulation
            .mutations
            .iter()
            .filter(|step| **step == "Compact")
            .count()
    };
    assert_eq!(count(&simulation), 0);
    simulation.store.write(5_000);
    simulation.settle();
    assert_eq!(count(&simulation), 1);
    // The other two follow after the cool-down.
    simulation.advance(Duration::from_secs(601));
    simulation.settle();
    assert_eq!(count(&simulation), 2);
}

#[test]
fn restored_store_begins_beyond_the_old_revision() {
    let mut hero = hero(3);
    hero.spec.bootstrap = Some(Bootstrap {
        restore: Some(RestoreSource {
            claim: Some("old-backup".into()),
            file: Some("daily.snapshot".into()),
            checksum: Some("a".repeat(64)),
            revision: Some(500),
            ..RestoreSource::default()
        }),
    });
    let mut simulation = Simulation::new(hero, 1);
    simulation.settle();
    assert_voters(&simulation, 3);
    let restore = simulation.status().restore.expect("a restore");
    assert_eq!(restore.phase, RestorePhase::Completed);
    assert_eq!(restore.min_revision, 1_000_000_500);
    assert_eq!(
        simulation
            .mutations
            .iter()
            .filter(|step| **step == "Initialize")
            .count(),
        0
    );
}

#[test]
fn failed_restore_is_tried_again_on_a_new_claim() {
    let mut hero = hero(1);
    hero.spec.bootstrap = Some(Bootstrap {
        restore: Some(RestoreSource {
            claim: Some("old-backup".into()),
            file: Some("daily.snapshot".into()),
            checksum: Some("a".repeat(64)),
            ..RestoreSource::default()
        }),
    });
    let mut simulation = Simulation::new(hero, 1);
    let mut failures = 0;
    while simulation.status().phase != Phase::Blocked && failures < 10 {
        simulation.reconcile();
        let pod = simulation
            .pods
            .keys()
            .find(|name| name.ends_with("-restore"))
            .cloned();
        if let Some(pod) = pod
            && simulation.pods[&pod].state.phase == PodPhase::Pending
        {
            simulation.end_pod(&pod, PodPhase::Failed);
            failures += 1;
        }
    }
    assert_eq!(failures, 3);
    let before = simulation.mutations.len();
    simulation.settle();
    assert_eq!(simulation.mutations.len(), before);
}

#[test]
fn deletion_retires_or_deletes_all_claims() {
    for (policy, left) in [(ClaimPolicy::Retain, 3), (ClaimPolicy::Delete, 0)] {
        let mut hero = hero(3);
        hero.spec.storage.claim_policy = policy;
        let mut simulation = Simulation::new(hero, 1);
        simulation.settle();
        simulation.delete();
        simulation.settle();
        assert!(simulation.is_deleted);
        simulation.advance(Duration::from_secs(60));
        assert!(simulation.pods.is_empty());
        let retired = simulation
            .claims
            .values()
            .filter(|claim| claim.is_retired)
            .count();
        assert_eq!(retired, left, "{policy:?}");
        assert_eq!(simulation.claims.len(), left, "{policy:?}");
    }
}

#[test]
fn certificates_are_renewed_before_they_expire() {
    let mut simulation = running(1);
    let issued = |simulation: &Simulation| {
        simulation
            .mutations
            .iter()
            .filter(|step| **step == "IssueCertificate")
            .count()
    };
    assert_eq!(issued(&simulation), 1);
    simulation.advance(Duration::from_secs(59 * 24 * 3600));
    simulation.settle();
    assert_eq!(issued(&simulation), 1);
    simulation.advance(Duration::from_secs(2 * 24 * 3600));
    simulation.settle();
    assert_eq!(issued(&simulation), 2);
}
