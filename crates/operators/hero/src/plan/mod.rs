//! The plan: the next step of a store, as a pure function of the observed state.
//!
//! In: [`Observed`]. Out: one [`Step`].
//! Guarantees: the status is written before the mutation that it announces; no member leaves or is
//! stopped while another voter is unhealthy, unless it is the unhealthy one itself; membership
//! changes precede the deletion of a Pod; nothing is mutated once a majority of the voters has lost
//! its data.
//!
//! ```text
//! teardown | bootstrap (restore) | no quorum: Pods of good disks only
//!    └ with a leader: joint membership → Pods → shared objects → removals → lost disks
//!      → stuck members → scale down → all healthy? → joining member → upgrade → scale up
//!      → format level → compaction
//! ```

mod autopilot; // stuck members, readers, compaction, anomalies
mod bootstrap; // the first member, empty or restored
pub(crate) mod conditions; // phase and conditions of the status
mod join; // from an allocated id to a voter or reader
mod recover; // no leader: what may be done without a quorum
mod removal; // from the membership to the claim
mod scale; // the number of voters
mod shared; // Services, Secrets, certificates, the PodDisruptionBudget
mod teardown; // deletion of the object
#[cfg(test)]
mod tests; // tables
mod upgrade; // images, versions, format levels
mod view; // health of members, leader, quorum

use std::time::Duration;

use bellerophon_store_client::api::Status;
use kube::ResourceExt as _;

use crate::{
    crd::{BellerophonStatus, MemberPhase, Phase},
    names,
    observed::Observed,
    step::Step,
};

pub(crate) use scale::SCALE_DOWN_REASON;
pub use view::quorum;

/// The interval of observations while a step is in progress.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The interval of observations while nothing is to be done: a lost quorum is reported within three
/// of them.
pub const STEADY_INTERVAL: Duration = Duration::from_secs(10);

/// The next step of a store.
pub fn plan(observed: &Observed) -> Step {
    let current = observed.hero.status.clone().unwrap_or_default();
    let mut planner = Planner::new(observed, current.clone());
    let step = planner.next();
    let status = planner.finish(&step);
    // Facts and intents are on record before anything is changed because of them.
    if !status.is_same(&current) {
        return Step::WriteStatus(Box::new(status));
    }
    step
}

/// The state of one planning pass.
struct Planner<'a> {
    observed: &'a Observed,
    /// The status as it will be written.
    status: BellerophonStatus,
    /// What is reported as the phase.
    phase: Phase,
    /// Why no upgrade is possible, if one is requested.
    refusal: Option<String>,
    /// The leader that a quorum acknowledged lately.
    leader: Option<&'a Status>,
}

impl<'a> Planner<'a> {
    fn new(observed: &'a Observed, status: BellerophonStatus) -> Self {
        let mut planner = Self {
            leader: view::leader(observed, &status),
            observed,
            status,
            phase: Phase::Running,
            refusal: None,
        };
        planner.record_reports();
        planner
    }

    fn next(&mut self) -> Step {
        let hero = &self.observed.hero;
        if hero.metadata.deletion_timestamp.is_some() {
            return self.teardown();
        }
        if !hero
            .finalizers()
            .iter()
            .any(|name| name == names::FINALIZER)
        {
            self.phase = Phase::Pending;
            return Step::AddFinalizer;
        }
        if self.status.cluster_id.is_none() {
            return self.begin();
        }
        if !self.status.bootstrapped {
            return self.bootstrap();
        }
        self.operate()
    }

    /// Steps of a store that was bootstrapped.
    fn operate(&mut self) -> Step {
        if let Some(step) = self.without_quorum() {
            return step;
        }
        self.accept_image();
        self.latch_version();
        self.choose_readers();
        let steps: [fn(&mut Self) -> Option<Step>; 15] = [
            Self::finish_joint,
            Self::pods,
            Self::shared_objects,
            Self::certificates,
            Self::removals,
            Self::lost_disks,
            Self::stuck_members,
            Self::scale_down,
            Self::upgrade_unhealthy,
            Self::await_health,
            Self::join,
            Self::upgrade,
            Self::scale_up,
            Self::format_level,
            Self::compaction,
        ];
        for step in steps {
            if let Some(step) = step(self) {
                return step;
            }
        }
        let is_leaving = |member: &crate::crd::MemberStatus| member.phase == MemberPhase::Removing;
        if self.status.members.iter().any(is_leaving) {
            self.phase = Phase::Scaling;
            return Step::wait(
                "the Pod of a removed member is terminating",
                STEADY_INTERVAL,
            );
        }
        Step::wait("all members are as desired", STEADY_INTERVAL)
    }

    /// Waits until all members are healthy: nothing else is changed before.
    fn await_health(&mut self) -> Option<Step> {
        let members = self.members();
        let is_leaving = |id: u64| self.is_in_membership(id);
        let pending = members.iter().find_map(|member| match member.entry.phase {
            MemberPhase::Active if !member.health.is_replicating() => {
                Some(format!("member {} {}", member.entry.name, member.health))
            }
            MemberPhase::Removing if is_leaving(member.entry.id) => Some(format!(
                "member {} is not removed: the others would not be a quorum",
                member.entry.name
            )),
            _ => None,
        });
        let reason = pending?;
        if self.phase == Phase::Running {
            self.phase = Phase::Healing;
        }
        Some(Step::wait(reason, PROGRESS_INTERVAL))
    }
}
