//! Shared objects, certificates, Pods and their labels.

use jiff::SignedDuration;

use super::{
    PROGRESS_INTERVAL, Planner,
    view::{Member, quorum},
};
use crate::{
    crd::{MemberPhase, MemberRole, Phase},
    observed::SharedObject,
    step::Step,
};

/// How long before its end a certificate is renewed: a third of its life.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

impl Planner<'_> {
    /// Creates or repairs Services, Secrets and the PodDisruptionBudget.
    pub(super) fn shared_objects(&mut self) -> Option<Step> {
        let missing = SharedObject::ALL
            .into_iter()
            .find(|object| !self.observed.shared.contains(object));
        if let Some(object) = missing {
            return Some(Step::ApplyShared(object));
        }
        let min_available = self.min_available();
        if self.observed.budget != Some(min_available) {
            return Some(Step::ApplyBudget { min_available });
        }
        None
    }

    /// A quorum of the present or the desired voters, whichever is larger.
    fn min_available(&self) -> i32 {
        let desired = usize::try_from(self.observed.hero.spec.replicas).unwrap_or(1);
        let voters = self.status.voters.len().max(desired);
        i32::try_from(quorum(voters)).unwrap_or(i32::MAX)
    }

    /// Issues certificates that are missing or about to expire.
    pub(super) fn certificates(&mut self) -> Option<Step> {
        let is_due = |name: &String| {
            let not_after = self.observed.certificates.get(name);
            not_after.is_none_or(|end| end.duration_since(self.observed.now) < RENEW_BEFORE)
        };
        self.status
            .members
            .iter()
            .filter(|entry| {
                matches!(
                    entry.phase,
                    MemberPhase::Active | MemberPhase::Joining | MemberPhase::Promoting
                )
            })
            .map(|entry| entry.name.clone())
            .find(is_due)
            .map(|member| Step::IssueCertificate { member })
    }

    /// Recreates missing and ended Pods of members with good disks, and sets their labels.
    pub(super) fn pods(&mut self) -> Option<Step> {
        if let Some(step) = self.recreate_pods() {
            if self.phase == Phase::Running {
                self.phase = Phase::Healing;
            }
            return Some(step);
        }
        let (member, role) = self.members().into_iter().find_map(|member| {
            let pod = member.pod.filter(|pod| !pod.is_terminating)?;
            let role = pod_role(&member);
            (pod.role != Some(role)).then_some((member.entry.name, role))
        })?;
        self.phase = Phase::Scaling;
        Some(Step::LabelPod { member, role })
    }

    /// Creates the Pod of a member, or deletes it if it has ended. `None` if there is a live one.
    pub(super) fn pod_of(&self, member: &Member<'_>) -> Option<Step> {
        let name = member.entry.name.clone();
        match member.pod {
            None => Some(Step::CreatePod { member: name }),
            Some(pod) if pod.is_terminating => {
                // The phases of joining members have nothing else to wait for.
                (member.entry.phase < MemberPhase::Active).then(|| {
                    Step::wait(
                        format!("the Pod of member {name} is terminating"),
                        PROGRESS_INTERVAL,
                    )
                })
            }
            Some(pod) if pod.phase.is_terminal() => Some(Step::DeletePod {
                pod: name,
                reason: "it has ended; the member is restarted on its claim".to_owned(),
            }),
            Some(_) => None,
        }
    }
}

/// The role in the label of a member's Pod: only voters of the membership count for the
/// PodDisruptionBudget.
pub(crate) fn pod_role(member: &Member<'_>) -> MemberRole {
    let is_voter =
        member.entry.role == MemberRole::Voter && member.entry.phase >= MemberPhase::Active;
    if is_voter {
        MemberRole::Voter
    } else {
        MemberRole::Reader
    }
}
