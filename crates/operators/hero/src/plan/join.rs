//! Joining members: from an allocated id to a voter or reader.
//!
//! id → certificate → claim → its UID on record → Pod → format → learner → caught up in two reads →
//! voter → label. One member at a time.
//!
//! Guarantees: a data directory is formatted only after the UID of its claim is on record; no
//! learner is promoted above the lag bound.

use bellerophon_store_client::api::MemberState;

use super::{PROGRESS_INTERVAL, Planner, view::Member};
use crate::{
    crd::{MemberPhase, MemberRole, MemberStatus, Phase},
    step::Step,
};

impl Planner<'_> {
    /// The next step of the oldest member that is not active yet.
    pub(super) fn join(&mut self) -> Option<Step> {
        let joining = |member: &Member<'_>| member.entry.phase < MemberPhase::Active;
        let member = self.members().into_iter().find(joining)?;
        self.phase = Phase::Scaling;
        Some(self.join_member(&member))
    }

    fn join_member(&mut self, member: &Member<'_>) -> Step {
        if member.health.needs_replacement() {
            return self.remove(&member.entry, "its data was lost before it joined");
        }
        if let Some(step) = self.provision(&member.entry) {
            return step;
        }
        if let Some(step) = self.pod_of(member) {
            return step;
        }
        let name = member.entry.name.clone();
        if self.is_outdated(member) {
            // It is no voter yet, so it need not wait for its turn.
            let reason = "the image has changed".to_owned();
            return Step::DeletePod { pod: name, reason };
        }
        let Some(status) = member.report else {
            return Step::wait(format!("member {name} is starting"), PROGRESS_INTERVAL);
        };
        match member.entry.phase {
            MemberPhase::Pending => self.set_phase(&member.entry, MemberPhase::Formatting),
            MemberPhase::Formatting if status.state == MemberState::Unformatted => {
                Step::Format { member: name }
            }
            MemberPhase::Formatting if self.is_identity(&member.entry, status) => {
                self.set_phase(&member.entry, MemberPhase::Joining)
            }
            MemberPhase::Formatting => {
                self.remove(&member.entry, "its data directory is of another member")
            }
            _ => self.catch_up(member),
        }
    }

    /// Adds a member as learner, and promotes it once it has caught up.
    fn catch_up(&mut self, member: &Member<'_>) -> Step {
        let name = member.entry.name.clone();
        let id = member.entry.id;
        let wait = |text: &str| Step::wait(format!("member {name} {text}"), PROGRESS_INTERVAL);
        let Some(membership) = self.membership() else {
            return wait("waits for a committed membership");
        };
        if membership.voters.contains(&id) && !membership.is_joint {
            return self.set_phase(&member.entry, MemberPhase::Active);
        }
        if !membership.members.contains_key(&id) {
            return Step::AddLearner { member: name };
        }
        if !member.health.is_healthy() {
            // The second read must be as good as the first one.
            if member.entry.phase == MemberPhase::Promoting {
                return self.set_phase(&member.entry, MemberPhase::Joining);
            }
            return wait("is catching up");
        }
        match (member.entry.role, member.entry.phase) {
            (MemberRole::Reader, _) => self.set_phase(&member.entry, MemberPhase::Active),
            (MemberRole::Voter, MemberPhase::Joining) => {
                self.set_phase(&member.entry, MemberPhase::Promoting)
            }
            (MemberRole::Voter, _) => self.change_membership(|voters| {
                voters.insert(id);
            }),
        }
    }

    /// Creates certificate and claim of a member, and records the UID of the claim.
    pub(super) fn provision(&mut self, entry: &MemberStatus) -> Option<Step> {
        let member = entry.name.clone();
        if !self.observed.certificates.contains_key(&member) {
            return Some(Step::IssueCertificate { member });
        }
        if entry.claim_uid.is_some() {
            return None;
        }
        match self.claim_of(entry) {
            None if self.observed.claims.contains_key(&member) => {
                Some(self.remove(entry, "a claim of its name belongs to another member"))
            }
            None => Some(Step::CreateClaim { member }),
            Some(claim) if claim.is_terminating => {
                Some(self.remove(entry, "its claim is being deleted"))
            }
            Some(claim) => {
                let uid = claim.uid.clone();
                if let Some(entry) = self.status.member_mut(&member) {
                    entry.claim_uid = Some(uid);
                }
                Some(Step::wait(
                    format!("member {member} has a claim"),
                    PROGRESS_INTERVAL,
                ))
            }
        }
    }

    /// Writes the phase of a member; the mutation follows in the next pass.
    pub(super) fn set_phase(&mut self, entry: &MemberStatus, phase: MemberPhase) -> Step {
        if let Some(entry) = self.status.member_mut(&entry.name) {
            entry.phase = phase;
        }
        Step::wait(
            format!("member {} is {phase:?}", entry.name),
            PROGRESS_INTERVAL,
        )
    }

    /// Changes the set of voters; learners that are not voters stay.
    pub(super) fn change_membership(
        &self,
        change: impl FnOnce(&mut std::collections::BTreeSet<u64>),
    ) -> Step {
        let Some(membership) = self.membership() else {
            return Step::wait("the membership is not committed yet", PROGRESS_INTERVAL);
        };
        let mut voters = membership.voters.clone();
        change(&mut voters);
        let learners = membership.learners.difference(&voters).copied().collect();
        Step::ChangeMembership {
            voters,
            learners,
            expected_index: membership.index,
        }
    }
}
