//! The view of a planning pass: the health of members, the leader, and what a quorum is.
//!
//! Guarantee: a leader is trusted only if a quorum acknowledged it lately, and it has the highest
//! term of all reports.

use std::{collections::BTreeSet, fmt};

use bellerophon_store_client::api::{MemberState, Membership, Role, Status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Planner;
use crate::{
    crd::{BellerophonStatus, MemberPhase, MemberRole, MemberStatus},
    observed::{ClaimState, Observed, PodState},
};

/// How long ago a quorum may have acknowledged a leader: several election timeouts.
const QUORUM_CONTACT_MS_MAX: u64 = 10_000;

/// The number of voters that is a majority.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// The report of the leader, if a quorum acknowledged it lately: that of the highest term.
pub(super) fn leader<'a>(observed: &'a Observed, status: &BellerophonStatus) -> Option<&'a Status> {
    let own = status.members.iter().filter_map(|entry| {
        let report = observed.reports.get(&entry.name)?.as_ref().ok()?;
        is_identity(status, entry, report).then_some(&**report)
    });
    let newest = own
        .filter(|report| report.role == Some(Role::Leader))
        .max_by_key(|report| report.term)?;
    // The only voter is a quorum by itself, without acknowledgements.
    let is_alone = !newest.membership.is_joint
        && newest.membership.voters.len() == 1
        && newest.membership.voters.first() == newest.member_id.as_ref();
    let contact = newest.last_quorum_contact_ms;
    let is_acknowledged = contact.is_some_and(|contact| contact <= QUORUM_CONTACT_MS_MAX);
    (is_alone || is_acknowledged).then_some(newest)
}

fn is_identity(status: &BellerophonStatus, entry: &MemberStatus, report: &Status) -> bool {
    let cluster = report.cluster_id.as_ref().map(|id| id.as_str());
    cluster == status.cluster_id.as_deref() && report.member_id == Some(entry.id)
}

/// A member with everything that is known about it.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    pub(super) entry: MemberStatus,
    pub(super) pod: Option<&'a PodState>,
    pub(super) report: Option<&'a Status>,
    pub(super) health: Health,
}

/// The health of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Healthy,
    /// It replicates, but is too far behind.
    Lagging,
    /// It does not take part in replication; its disk may be good.
    Down(String),
    /// It replicates, but its claim is being deleted and goes with its Pod.
    Doomed,
    /// Its data is lost.
    DiskLost(&'static str),
}

impl Health {
    pub(super) fn is_healthy(&self) -> bool {
        *self == Self::Healthy
    }

    fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }

    /// Whether its data is lost.
    pub(super) fn is_disk_lost(&self) -> bool {
        matches!(self, Self::DiskLost(_))
    }

    /// Whether its data is lost, or about to be.
    pub(super) fn needs_replacement(&self) -> bool {
        matches!(self, Self::DiskLost(_) | Self::Doomed)
    }

    /// Whether it acknowledges entries.
    pub(super) fn is_replicating(&self) -> bool {
        matches!(self, Self::Healthy | Self::Doomed)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("is healthy"),
            Self::Lagging => f.write_str("is too far behind the leader"),
            Self::Down(reason) => write!(f, "is down: {reason}"),
            Self::Doomed => f.write_str("is about to lose its data: its claim is being deleted"),
            Self::DiskLost(reason) => write!(f, "has lost its data: {reason}"),
        }
    }
}

impl<'a> Planner<'a> {
    /// All members of the status.
    pub(super) fn members(&self) -> Vec<Member<'a>> {
        let members = self.status.members.iter();
        members.map(|entry| self.view_of(entry)).collect()
    }

    pub(super) fn view_of(&self, entry: &MemberStatus) -> Member<'a> {
        Member {
            entry: entry.clone(),
            pod: self.observed.pods.get(&entry.name),
            report: self.report(&entry.name),
            health: self.health(entry),
        }
    }

    pub(super) fn report(&self, name: &str) -> Option<&'a Status> {
        let report = self.observed.reports.get(name)?;
        report.as_ref().ok().map(|status| &**status)
    }

    /// The claim of a member, if it is the one that the member was created with.
    pub(super) fn claim_of(&self, entry: &MemberStatus) -> Option<&'a ClaimState> {
        let claim = self.observed.claims.get(&entry.name)?;
        let is_same = entry.claim_uid.as_ref().is_none_or(|uid| *uid == claim.uid);
        let is_own = claim.is_own && claim.member_id == Some(entry.id) && !claim.is_retired;
        (is_same && is_own).then_some(claim)
    }

    /// Whether a report is of this very member.
    pub(super) fn is_identity(&self, entry: &MemberStatus, status: &Status) -> bool {
        is_identity(&self.status, entry, status)
    }

    fn health(&self, entry: &MemberStatus) -> Health {
        if let Some(reason) = self.lost_disk(entry) {
            return Health::DiskLost(reason);
        }
        let is_doomed = self
            .claim_of(entry)
            .is_some_and(|claim| claim.is_terminating);
        match self.replication_health(entry) {
            Health::Healthy if is_doomed => Health::Doomed,
            // The claim goes as soon as no Pod uses it, and a new claim of its name would be empty.
            _ if is_doomed => Health::DiskLost("its claim is being deleted"),
            health => health,
        }
    }

    /// The health of a member whose disk is good.
    fn replication_health(&self, entry: &MemberStatus) -> Health {
        let down = |reason: &str| Health::Down(reason.to_owned());
        let Some(pod) = self.observed.pods.get(&entry.name) else {
            return down("it has no Pod");
        };
        if pod.is_terminating {
            return down("its Pod is terminating");
        }
        if pod.phase.is_terminal() {
            return down("its Pod has ended");
        }
        let status = match self.observed.reports.get(&entry.name) {
            None => return down("its Pod is not running"),
            Some(Err(error)) => return Health::Down(error.clone()),
            Some(Ok(status)) => status,
        };
        match status.state {
            MemberState::Running | MemberState::Joining => {}
            MemberState::Unformatted => return down("its data directory is not formatted"),
            MemberState::Failed => return down("its storage failed"),
        }
        let Some(leader) = self.leader() else {
            return down("there is no leader");
        };
        if status.leader != leader.member_id {
            return down("it does not follow the leader");
        }
        match self.lag(entry) {
            Some(lag) if lag <= self.lag_max() => Health::Healthy,
            _ => Health::Lagging,
        }
    }

    /// Why the data of a member is lost.
    fn lost_disk(&self, entry: &MemberStatus) -> Option<&'static str> {
        if entry.claim_uid.is_some() && self.claim_of(entry).is_none() {
            return Some("its claim is gone");
        }
        // Before, an empty data directory is as expected.
        if entry.phase <= MemberPhase::Formatting {
            return None;
        }
        let status = self.report(&entry.name)?;
        if status.state == MemberState::Unformatted {
            return Some("its data directory is empty");
        }
        (!self.is_identity(entry, status)).then_some("its data directory is of another member")
    }

    /// How many committed entries a member lacks, by what the leader and the member itself know.
    pub(super) fn lag(&self, entry: &MemberStatus) -> Option<u64> {
        let leader = self.leader()?;
        let status = self.report(&entry.name)?;
        let mut index = status.applied_index;
        if leader.member_id != Some(entry.id) {
            index = index.min(leader.replication.get(&entry.id)?.matched_index);
        }
        Some(leader.committed_index.saturating_sub(index))
    }

    pub(super) fn lag_max(&self) -> u64 {
        let max = self.observed.hero.spec.autopilot.lag_entries_max;
        u64::try_from(max).unwrap_or_default()
    }

    /// The report of the leader, if a quorum acknowledged it lately.
    pub(super) fn leader(&self) -> Option<&'a Status> {
        self.leader
    }

    pub(super) fn leader_name(&self) -> Option<String> {
        let id = self.leader()?.member_id?;
        let leader = self.status.members.iter().find(|entry| entry.id == id)?;
        Some(leader.name.clone())
    }

    /// The membership at the leader, if it is committed.
    pub(super) fn membership(&self) -> Option<&'a Membership> {
        let leader = self.leader()?;
        (leader.membership.index <= leader.committed_index).then_some(&leader.membership)
    }

    /// The uniform membership with the highest index that any member reports. Without a leader it
    /// may not be committed; more voters are then assumed rather than fewer.
    fn newest_membership(&self) -> Option<&'a Membership> {
        if self.leader.is_some() {
            return self.membership().filter(|membership| !membership.is_joint);
        }
        let reports = self.status.members.iter().filter_map(|entry| {
            let report = self.report(&entry.name)?;
            self.is_identity(entry, report)
                .then_some(&report.membership)
        });
        let newest = reports.max_by_key(|membership| membership.index)?;
        let is_larger = newest.voters.len() >= self.status.voters.len();
        (!newest.is_joint && is_larger).then_some(newest)
    }

    /// The members of a role and phase.
    pub(super) fn with_role(&self, role: MemberRole, phase: MemberPhase) -> Vec<Member<'a>> {
        let mut members = self.members();
        members.retain(|member| member.entry.role == role && member.entry.phase == phase);
        members
    }

    /// The ids of healthy voters of the membership.
    pub(super) fn healthy_voters(&self) -> BTreeSet<u64> {
        self.voters_with(Health::is_healthy)
    }

    /// The ids of voters that acknowledge entries: what a change of the membership needs.
    pub(super) fn replicating_voters(&self) -> BTreeSet<u64> {
        self.voters_with(Health::is_replicating)
    }

    fn voters_with(&self, condition: fn(&Health) -> bool) -> BTreeSet<u64> {
        let Some(membership) = self.membership() else {
            return BTreeSet::new();
        };
        self.members()
            .into_iter()
            .filter(|member| condition(&member.health))
            .map(|member| member.entry.id)
            .filter(|id| membership.voters.contains(id))
            .collect()
    }

    /// Whether the other voters are a healthy quorum, before and after the removal of a member.
    pub(super) fn can_lose(&self, id: u64) -> bool {
        let Some(membership) = self.membership().filter(|membership| !membership.is_joint) else {
            return false;
        };
        if !membership.voters.contains(&id) {
            return true;
        }
        let mut replicating = self.replicating_voters();
        // The change itself needs a majority of the voters before and of those after it.
        let can_commit = replicating.len() >= quorum(membership.voters.len());
        replicating.remove(&id);
        let rest = membership.voters.len() - 1;
        can_commit && rest > 0 && replicating.len() >= quorum(rest)
    }

    /// Whether all voters but one are healthy, so that this one may be stopped.
    pub(super) fn can_stop(&self, id: u64) -> bool {
        let Some(membership) = self.membership().filter(|membership| !membership.is_joint) else {
            return false;
        };
        let healthy = self.healthy_voters();
        membership
            .voters
            .iter()
            .all(|voter| *voter == id || healthy.contains(voter))
    }

    /// Copies what members reported into the status.
    pub(super) fn record_reports(&mut self) {
        let now = self.observed.now;
        let has_leader = self.leader().is_some();
        for member in self.members() {
            let lag = self.lag(&member.entry);
            let Some(entry) = self.status.member_mut(&member.entry.name) else {
                continue;
            };
            entry.healthy = member.health.is_healthy();
            entry.state = member
                .report
                .and_then(|status| status.role)
                .map(|role| format!("{role:?}"));
            entry.lag = lag;
            if let Some(status) = member.report {
                entry.version = Some(status.version.clone());
            }
            let is_failing = match entry.phase {
                MemberPhase::Pending | MemberPhase::Formatting => false,
                // A snapshot may take any time.
                MemberPhase::Joining | MemberPhase::Promoting => member.health.is_down(),
                MemberPhase::Active | MemberPhase::Removing => !member.health.is_healthy(),
            };
            if !is_failing {
                entry.unhealthy_since = None;
                entry.restarted_at = None;
            } else if has_leader && entry.unhealthy_since.is_none() {
                // Without a leader no member is healthy, and none of them is the cause.
                entry.unhealthy_since = Some(Time(now));
            }
        }
        self.status.leader = self.leader_name();
        if let Some(membership) = self.newest_membership() {
            self.status.voters = membership.voters.iter().copied().collect();
        }
        if let Some(leader) = self.leader() {
            self.status.format_level = Some(leader.format_level);
        }
    }
}
