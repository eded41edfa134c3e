//! Upgrades: images, versions and the format level.
//!
//! Guarantees: an image whose tag is a lower version, or skips one, is not rolled out; unhealthy
//! members are rolled first, then readers and followers, the leader last after a hand-over; each
//! waits for the one before; the format level is raised only when all members support it.

use super::{PROGRESS_INTERVAL, Planner, view::Member};
use crate::{
    crd::{MemberPhase, MemberRole, Phase},
    objects,
    step::Step,
    version::Version,
};

impl Planner<'_> {
    /// Takes the image of the spec over, unless its version is refused.
    pub(super) fn accept_image(&mut self) {
        let image = &self.observed.hero.spec.image;
        let current = self.status.version.as_deref().and_then(Version::parse);
        let refusal = match (current, Version::of_image(image)) {
            (Some(current), Some(target)) => current.check_upgrade(target).err(),
            // Without a version in the tag, the members' own reports decide.
            _ => self.lower_version(),
        };
        match refusal {
            Some(message) => self.refusal = Some(message),
            None => self.status.image = Some(image.clone()),
        }
    }

    /// A member with the new image that reports a version which is not an upgrade.
    fn lower_version(&self) -> Option<String> {
        let current = self.status.version.as_deref().and_then(Version::parse)?;
        self.members().into_iter().find_map(|member| {
            let reported = Version::parse(&member.report?.version)?;
            let message = current.check_upgrade(reported).err()?;
            Some(format!("member {}: {message}", member.entry.name))
        })
    }

    /// Records the version once all members have it.
    pub(super) fn latch_version(&mut self) {
        let members = self.members();
        let active: Vec<&Member<'_>> = members
            .iter()
            .filter(|member| member.entry.phase == MemberPhase::Active)
            .collect();
        let Some(version) = active
            .first()
            .and_then(|member| member.entry.version.clone())
        else {
            return;
        };
        let is_complete = active.iter().all(|member| {
            member.health.is_healthy()
                && !self.is_outdated(member)
                && member.entry.version.as_ref() == Some(&version)
        });
        if is_complete && self.refusal.is_none() {
            self.status.version = Some(version);
        }
    }

    /// Whether the Pod of a member was created from other inputs than the current ones.
    pub(super) fn is_outdated(&self, member: &Member<'_>) -> bool {
        let desired = objects::revision(&self.observed.hero, &self.status);
        member
            .pod
            .is_some_and(|pod| !pod.is_terminating && pod.revision != desired)
    }

    /// Rolls an unhealthy member, if it is outdated and the only unhealthy one.
    pub(super) fn upgrade_unhealthy(&mut self) -> Option<Step> {
        let unhealthy = self.members().into_iter().find(|member| {
            member.entry.phase == MemberPhase::Active
                && !member.health.is_healthy()
                && self.is_outdated(member)
                && self.can_stop(member.entry.id)
        })?;
        self.phase = Phase::Upgrading;
        Some(roll(&unhealthy))
    }

    /// Rolls the next outdated member.
    pub(super) fn upgrade(&mut self) -> Option<Step> {
        let leader = self.status.leader.clone();
        let is_leader = |member: &Member<'_>| leader.as_ref() == Some(&member.entry.name);
        let mut outdated = self.members();
        outdated
            .retain(|member| member.entry.phase == MemberPhase::Active && self.is_outdated(member));
        let next = outdated.into_iter().min_by_key(|member| {
            (
                is_leader(member),
                member.entry.role == MemberRole::Voter,
                member.entry.id,
            )
        })?;
        self.phase = Phase::Upgrading;
        if let Some(message) = self.lower_version() {
            let reason = format!("the upgrade does not continue: {message}");
            self.refusal = Some(message);
            return Some(Step::wait(reason, PROGRESS_INTERVAL));
        }
        if is_leader(&next) && self.status.voters.len() > 1 {
            return Some(self.hand_over(&next.entry.name, "its image is outdated"));
        }
        if !self.can_stop(next.entry.id) {
            return Some(Step::wait(
                "another voter is not healthy",
                PROGRESS_INTERVAL,
            ));
        }
        Some(roll(&next))
    }

    /// Raises the format level to the highest one that all members support.
    pub(super) fn format_level(&mut self) -> Option<Step> {
        let members = self.members();
        let levels: Option<Vec<u32>> = members
            .iter()
            .filter(|member| member.entry.phase != MemberPhase::Removing)
            .map(|member| Some(member.report?.supported_format_levels.max))
            .collect();
        let level = levels?.into_iter().min()?;
        let current = self.leader()?.format_level;
        (level > current).then_some(Step::RaiseFormatLevel { level })
    }
}

/// Deletes the Pod of a member; it is recreated with the current image.
fn roll(member: &Member<'_>) -> Step {
    Step::DeletePod {
        pod: member.entry.name.clone(),
        reason: "the image has changed".to_owned(),
    }
}
