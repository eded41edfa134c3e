//! Phase and conditions of the status.
//!
//! Guarantee: equal observations give an equal status, so nothing is written while nothing changes.

use bellerophon::conditions::{
    ConditionStatus::{self, False, True},
    ConditionUpdate, find_status_condition, set_status_condition,
};
use kube::ResourceExt as _;

use super::{Planner, view::quorum};
use crate::{
    crd::{BellerophonStatus, MemberPhase, MemberRole, Phase},
    names,
    observed::Observed,
    step::Step,
};

/// All desired voters are healthy and have the desired image.
pub(crate) const READY: &str = "Ready";
/// A leader has a quorum: the store can be written and read.
pub(crate) const AVAILABLE: &str = "Available";
/// A change is in progress; the message has the current step.
pub(crate) const PROGRESSING: &str = "Progressing";
/// Fewer voters than a quorum are left.
pub(crate) const QUORUM_LOST: &str = "QuorumLost";
/// The image of the spec is not rolled out.
pub(crate) const UPGRADE_REFUSED: &str = "UpgradeRefused";
/// Something is unusual; the message has the evidence.
pub(crate) const ANOMALY: &str = "Anomaly";

impl Planner<'_> {
    /// The status to write, given the step that follows it.
    pub(super) fn finish(mut self, step: &Step) -> BellerophonStatus {
        let hero = &self.observed.hero;
        self.status.phase = self.phase;
        self.status.observed_generation = hero.metadata.generation;
        self.status.selector = format!("{}={}", names::HERO_LABEL, hero.name_any());
        let voters = self.with_role(MemberRole::Voter, MemberPhase::Active);
        let healthy = voters
            .iter()
            .filter(|voter| voter.health.is_healthy())
            .count();
        self.status.replicas = i32::try_from(healthy).unwrap_or(i32::MAX);
        let is_ready = self.phase == Phase::Running && self.status.replicas == hero.spec.replicas;
        let reason = if is_ready {
            "AllMembersHealthy"
        } else {
            "NotReady"
        };
        self.set(READY, truth(is_ready), reason, "");
        let is_available = self.leader().is_some();
        let reason = if is_available {
            "LeaderElected"
        } else {
            "NoLeader"
        };
        self.set(AVAILABLE, truth(is_available), reason, "");
        self.set_progressing(step);
        self.set_quorum_lost();
        self.set_upgrade_refused();
        self.set_anomaly();
        self.status
    }

    fn set_progressing(&mut self, step: &Step) {
        let is_progressing = !matches!(
            self.phase,
            Phase::Running | Phase::QuorumLost | Phase::Blocked
        );
        let reason = format!("{:?}", self.phase);
        let message = match step {
            Step::Wait { reason, .. } => reason.clone(),
            _ => String::new(),
        };
        // While a step runs, the reason of the wait before it stays.
        if message.is_empty() && self.has_reason(PROGRESSING, &reason) {
            return;
        }
        self.set(PROGRESSING, truth(is_progressing), &reason, &message);
    }

    fn set_quorum_lost(&mut self) {
        match self.phase {
            Phase::QuorumLost => {
                let lost: Vec<String> = self
                    .members()
                    .into_iter()
                    .filter(|member| member.health.is_disk_lost())
                    .map(|member| member.entry.name)
                    .collect();
                let voters = self.status.voters.len().max(1);
                let message = format!(
                    "{} of {voters} voters are needed; the data of these members is lost: {}; \
                     nothing is changed any more: create a Bellerophon with \
                     spec.bootstrap.restore from a backup",
                    quorum(voters),
                    lost.join(", ")
                );
                self.set(QUORUM_LOST, True, "DataLost", &message);
            }
            Phase::Unavailable if self.is_unavailable_for_long() => {
                let message = "no leader has a quorum; Pods of members with good disks are recreated, \
                               and nothing else is changed";
                self.set(QUORUM_LOST, True, "VotersUnavailable", message);
            }
            // Not long enough yet to call it lost.
            Phase::Unavailable => {}
            _ => self.set(QUORUM_LOST, False, "Quorum", ""),
        }
    }

    fn set_upgrade_refused(&mut self) {
        match self.refusal.take() {
            Some(message) => self.set(UPGRADE_REFUSED, True, "UnsupportedVersion", &message),
            None => self.set(UPGRADE_REFUSED, False, "Supported", ""),
        }
    }

    fn set_anomaly(&mut self) {
        let evidence = self.anomalies();
        match evidence.first() {
            Some((reason, _)) => {
                let texts: Vec<&str> = evidence.iter().map(|(_, text)| text.as_str()).collect();
                self.set(ANOMALY, True, reason, &texts.join("; "));
            }
            None => self.set(ANOMALY, False, "NothingUnusual", ""),
        }
    }

    /// Whether there has been no leader for longer than an election takes.
    fn is_unavailable_for_long(&self) -> bool {
        let current = self.observed.hero.status.as_ref();
        let available =
            current.and_then(|status| find_status_condition(&status.conditions, AVAILABLE));
        available.is_some_and(|condition| {
            let since = condition.last_transition_time.0;
            condition.status == "False"
                && self.observed.now.duration_since(since) >= super::recover::UNAVAILABLE_TIME
        })
    }

    fn has_reason(&self, type_: &str, reason: &str) -> bool {
        find_status_condition(&self.status.conditions, type_)
            .is_some_and(|condition| condition.reason == reason)
    }

    fn set(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) {
        let Observed { hero, now, .. } = self.observed;
        let update = ConditionUpdate::new(type_, status, reason)
            .message(message)
            .observed(hero);
        set_status_condition(&mut self.status.conditions, update, *now);
    }
}

fn truth(value: bool) -> ConditionStatus {
    if value { True } else { False }
}
