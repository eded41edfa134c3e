//! The number of voters: one member at a time, membership before Pods.

use std::cmp::Reverse;

use super::{
    PROGRESS_INTERVAL, Planner,
    view::{Member, quorum},
};
use crate::{
    crd::{MemberPhase, MemberRole, Phase},
    step::Step,
};

/// Why a member is removed that nothing is wrong with.
pub(crate) const SCALE_DOWN_REASON: &str = "fewer members are desired";

impl Planner<'_> {
    /// Finishes a membership change that was interrupted: a joint membership is changed to the
    /// voters that the status announces.
    pub(super) fn finish_joint(&mut self) -> Option<Step> {
        let membership = self.membership()?;
        if !membership.is_joint {
            return None;
        }
        self.phase = Phase::Scaling;
        let leaving: Vec<u64> = self
            .members()
            .into_iter()
            .filter(|member| member.entry.phase == MemberPhase::Removing)
            .map(|member| member.entry.id)
            .collect();
        let mut intended = membership.voters.clone();
        intended.retain(|id| !leaving.contains(id));
        let replicating = self.replicating_voters();
        // A removal whose remaining voters have failed since is taken back: the voters of both sets
        // are those before it. If neither can be committed, the voters are repaired first.
        let voters = [intended, membership.voters.clone()]
            .into_iter()
            .find(|voters| replicating.intersection(voters).count() >= quorum(voters.len()))?;
        Some(self.change_membership(|current| *current = voters))
    }

    /// Removes a member if there are more than desired: a joining one first, then unhealthy ones,
    /// then followers, the leader last.
    pub(super) fn scale_down(&mut self) -> Option<Step> {
        for role in [MemberRole::Voter, MemberRole::Reader] {
            if let Some(step) = self.scale_down_role(role) {
                return Some(step);
            }
        }
        None
    }

    fn scale_down_role(&mut self, role: MemberRole) -> Option<Step> {
        if self.count(role) <= self.desired(role) {
            return None;
        }
        let mut members = self.members();
        members.retain(|member| {
            member.entry.role == role && member.entry.phase != MemberPhase::Removing
        });
        self.phase = Phase::Scaling;
        let leader = self.status.leader.clone();
        let victim = members.into_iter().min_by_key(|member| {
            (
                member.entry.phase == MemberPhase::Active,
                member.health.is_healthy(),
                leader.as_ref() == Some(&member.entry.name),
                // The youngest member has served least.
                Reverse(member.entry.id),
            )
        })?;
        if !self.can_lose(victim.entry.id) {
            let reason = "a member is to be removed, but the others would not be a quorum";
            return Some(Step::wait(reason, PROGRESS_INTERVAL));
        }
        Some(self.remove(&victim.entry, SCALE_DOWN_REASON))
    }

    /// Allocates a member if there are fewer than desired and none is joining.
    pub(super) fn scale_up(&mut self) -> Option<Step> {
        for role in [MemberRole::Voter, MemberRole::Reader] {
            if self.count(role) < self.desired(role) {
                self.phase = Phase::Scaling;
                return Some(Step::Allocate {
                    name: self.observed.fresh_name.clone(),
                    role,
                });
            }
        }
        None
    }

    /// The number of members of a role that stay. One that is about to lose its data does not: its
    /// replacement joins before it leaves, if the others are not a quorum.
    fn count(&self, role: MemberRole) -> usize {
        let stays = |member: &Member<'_>| {
            member.entry.role == role
                && member.entry.phase != MemberPhase::Removing
                && !member.health.needs_replacement()
        };
        self.members().iter().filter(|member| stays(member)).count()
    }

    /// The desired number of members of a role.
    pub(super) fn desired(&mut self, role: MemberRole) -> usize {
        let count = match role {
            MemberRole::Voter => self.observed.hero.spec.replicas.max(1),
            MemberRole::Reader => self.desired_readers(),
        };
        usize::try_from(count).unwrap_or_default()
    }
}
