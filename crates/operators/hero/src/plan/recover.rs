//! What may be done without a leader: shared objects are repaired, and Pods of members with good
//! disks are recreated.
//!
//! Guarantee: without a quorum of good disks nothing is changed at all, and without a leader neither
//! the membership nor a running Pod nor a claim.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{PROGRESS_INTERVAL, Planner, STEADY_INTERVAL, view::quorum};
use crate::{
    crd::{MemberPhase, Phase},
    step::Step,
};

/// How long there is no leader before the quorum is reported as lost: longer than elections and
/// hand-overs take.
pub(super) const UNAVAILABLE_TIME: SignedDuration = SignedDuration::from_secs(10);

impl Planner<'_> {
    /// The step of a store without a quorum; `None` if a leader has one.
    pub(super) fn without_quorum(&mut self) -> Option<Step> {
        if self.is_data_lost() {
            self.phase = Phase::QuorumLost;
            return Some(Step::wait(
                "a majority of the voters has lost its data",
                STEADY_INTERVAL,
            ));
        }
        if self.leader().is_some() {
            return None;
        }
        self.phase = Phase::Unavailable;
        // Without Services members do not find each other, and without Secrets the operator does
        // not reach them.
        let step = self.shared_objects().or_else(|| self.recreate_pods());
        Some(step.unwrap_or_else(|| Step::wait("no leader has a quorum", PROGRESS_INTERVAL)))
    }

    /// Whether fewer voters than a quorum still have their data, whichever membership is in effect:
    /// a change that was begun may or may not have been committed.
    fn is_data_lost(&self) -> bool {
        let members = self.members();
        let in_phase = |phase: MemberPhase| -> BTreeSet<u64> {
            let members = members.iter().filter(|member| member.entry.phase == phase);
            members.map(|member| member.entry.id).collect()
        };
        let good: BTreeSet<u64> = members
            .iter()
            .filter(|member| !member.health.is_disk_lost())
            .map(|member| member.entry.id)
            .collect();
        let known: BTreeSet<u64> = self.status.voters.iter().copied().collect();
        let without_leaving = &known - &in_phase(MemberPhase::Removing);
        let with_promoted = &known | &in_phase(MemberPhase::Promoting);
        [known, without_leaving, with_promoted]
            .iter()
            .all(|voters| voters.intersection(&good).count() < quorum(voters.len()))
    }

    /// Recreates the Pod of a member whose disk is good.
    pub(super) fn recreate_pods(&mut self) -> Option<Step> {
        let formatted = self
            .members()
            .into_iter()
            .filter(|member| member.entry.phase >= MemberPhase::Formatting);
        for member in formatted {
            // A removed member needs its Pod only until it has left the membership.
            let is_leaving = member.entry.phase == MemberPhase::Removing
                && !self.is_in_membership(member.entry.id);
            if is_leaving || member.health.is_disk_lost() || self.claim_of(&member.entry).is_none()
            {
                continue;
            }
            if let Some(step) = self.pod_of(&member) {
                return Some(step);
            }
        }
        None
    }

    /// Whether a member is in the last known membership.
    pub(super) fn is_in_membership(&self, id: u64) -> bool {
        match self.leader() {
            Some(leader) => leader.membership.members.contains_key(&id),
            None => self.status.voters.contains(&id),
        }
    }
}
