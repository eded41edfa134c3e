//! Removal of a member: hand-over → membership → Pod → claim → record.
//!
//! Guarantees: at most one member is being removed from the membership; its Pod is deleted only
//! after a uniform membership without it is committed; a removal never gives up the quorum.

use super::{
    PROGRESS_INTERVAL, Planner,
    view::{Health, Member},
};
use crate::{
    crd::{ClaimPolicy, MemberPhase, MemberStatus, Phase},
    observed::PodState,
    step::Step,
};

impl Planner<'_> {
    /// Records that a member is to be removed.
    pub(super) fn remove(&mut self, entry: &MemberStatus, reason: &str) -> Step {
        if let Some(entry) = self.status.member_mut(&entry.name) {
            entry.phase = MemberPhase::Removing;
            entry.removal_reason = Some(reason.to_owned());
        }
        Step::wait(
            format!("member {} is removed: {reason}", entry.name),
            PROGRESS_INTERVAL,
        )
    }

    /// The next step of a removal; `None` if nothing but terminating Pods is left, or if the others
    /// are not a quorum yet.
    pub(super) fn removals(&mut self) -> Option<Step> {
        let leaving = |member: &Member<'_>| member.entry.phase == MemberPhase::Removing;
        for member in self.members().into_iter().filter(leaving) {
            if let Some(step) = self.removal(&member) {
                self.phase = Phase::Scaling;
                return Some(step);
            }
        }
        None
    }

    fn removal(&mut self, member: &Member<'_>) -> Option<Step> {
        // An uncommitted membership may still become one with the member in it.
        if self
            .membership()
            .is_none_or(|membership| membership.is_joint)
        {
            return Some(Step::wait(
                "the membership is not committed yet",
                PROGRESS_INTERVAL,
            ));
        }
        if self.is_in_membership(member.entry.id) {
            return self.leave_membership(member);
        }
        self.clean_up(&member.entry, member.pod)
    }

    fn leave_membership(&mut self, member: &Member<'_>) -> Option<Step> {
        let name = &member.entry.name;
        let id = member.entry.id;
        // The others may have to be repaired first.
        if !self.can_lose(id) {
            return None;
        }
        if self.status.leader.as_ref() == Some(name) {
            return Some(self.hand_over(name, "it is removed"));
        }
        let membership = self.membership()?;
        let mut voters = membership.voters.clone();
        let mut learners = membership.learners.clone();
        voters.remove(&id);
        learners.remove(&id);
        Some(Step::ChangeMembership {
            voters,
            learners,
            expected_index: membership.index,
        })
    }

    /// Hands leadership over to the healthy voter that is least behind, up-to-date Pods first.
    pub(super) fn hand_over(&self, from: &str, reason: &str) -> Step {
        let healthy = self.healthy_voters();
        let mut candidates: Vec<Member<'_>> = self.members();
        candidates.retain(|member| {
            member.entry.name != from
                && member.entry.phase != MemberPhase::Removing
                && healthy.contains(&member.entry.id)
        });
        let next = candidates.into_iter().min_by_key(|member| {
            (
                self.is_outdated(member),
                self.lag(&member.entry),
                member.entry.id,
            )
        });
        match next {
            Some(next) => Step::TransferLeader {
                to: next.entry.name,
                reason: format!("{from} hands over: {reason}"),
            },
            None => Step::wait(
                format!("no healthy voter can take over from {from}"),
                PROGRESS_INTERVAL,
            ),
        }
    }

    /// Deletes what is left of a member that is in no membership. `None` while its Pod terminates.
    pub(super) fn clean_up(
        &mut self,
        entry: &MemberStatus,
        pod: Option<&PodState>,
    ) -> Option<Step> {
        let member = entry.name.clone();
        match pod {
            Some(pod) if pod.is_terminating => return None,
            Some(_) => {
                let reason = "the member has left the membership".to_owned();
                return Some(Step::DeletePod {
                    pod: member,
                    reason,
                });
            }
            None => {}
        }
        // A claim that is not the member's own, or already terminating, is not deleted.
        if let Some(claim) = self.claim_of(entry).filter(|claim| !claim.is_terminating) {
            let is_retained = self.observed.hero.spec.storage.claim_policy == ClaimPolicy::Retain;
            debug_assert!(
                !claim.is_retired,
                "a retired claim is not the claim of a member"
            );
            // A claim without data is not kept.
            return Some(if is_retained && entry.claim_uid.is_some() {
                Step::RetireClaim { member }
            } else {
                Step::DeleteClaim { member }
            });
        }
        if self.observed.certificates.contains_key(&member) {
            return Some(Step::DeleteCertificate { member });
        }
        self.status.members.retain(|known| known.name != member);
        Some(Step::wait(
            format!("member {member} is removed"),
            PROGRESS_INTERVAL,
        ))
    }

    /// Removes a member whose disk is lost, or about to be, if the others are a quorum.
    pub(super) fn lost_disks(&mut self) -> Option<Step> {
        let mut lost = self.members();
        lost.retain(|member| {
            member.entry.phase == MemberPhase::Active && member.health.needs_replacement()
        });
        // One that still replicates may be needed to remove one that does not.
        lost.sort_by_key(|member| member.health.is_replicating());
        let first = lost.first()?;
        self.phase = Phase::Healing;
        if let Some(member) = lost.iter().find(|member| self.can_lose(member.entry.id)) {
            let reason = member.health.to_string();
            return Some(self.remove(&member.entry, &reason));
        }
        // A replacement can join first.
        if first.health == Health::Doomed {
            return None;
        }
        let reason = format!(
            "member {} {}; the others are not a healthy quorum",
            first.entry.name, first.health
        );
        Some(Step::wait(reason, PROGRESS_INTERVAL))
    }
}
