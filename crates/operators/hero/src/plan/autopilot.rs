//! Autopilot: stuck members, the number of readers, compaction, anomalies.
//!
//! Guarantees: a member is restarted once before it is replaced, and only while all other voters
//! are healthy; the number of readers changes at most once per cool-down.

use std::collections::BTreeMap;

use bellerophon_apimachinery::quantity::Quantity;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{PROGRESS_INTERVAL, Planner, view::Member};
use crate::{
    crd::{MemberPhase, Phase},
    step::Step,
};

/// The minimum time between two compactions: longer than one takes.
const COMPACTION_COOLDOWN: SignedDuration = SignedDuration::from_mins(10);

/// One reader is removed only if the others would serve this part of what they are expected to.
const SCALE_DOWN_UTILIZATION: f64 = 0.8;

/// The number of container restarts that is unusual.
const RESTARTS_UNUSUAL: i32 = 5;

/// The number of elections in the sampling window that is unusual.
const ELECTIONS_UNUSUAL: u64 = 5;

/// The part of a volume that may be used.
const DISK_USAGE_MAX: f64 = 0.8;

impl Planner<'_> {
    /// Restarts a member that is unhealthy for long, then replaces it.
    pub(super) fn stuck_members(&mut self) -> Option<Step> {
        if !self.observed.hero.spec.autopilot.heal {
            return None;
        }
        let stuck = |member: &Member<'_>| {
            member.entry.phase >= MemberPhase::Joining
                && member.entry.phase != MemberPhase::Removing
                && self.can_stop(member.entry.id)
        };
        let members: Vec<Member<'_>> = self.members().into_iter().filter(stuck).collect();
        members.into_iter().find_map(|member| self.heal(&member))
    }

    fn heal(&mut self, member: &Member<'_>) -> Option<Step> {
        let autopilot = &self.observed.hero.spec.autopilot;
        let since = member.entry.unhealthy_since.as_ref()?.0;
        let age = self.observed.now.duration_since(since);
        let name = member.entry.name.clone();
        if age >= SignedDuration::from_secs(autopilot.replace_after_seconds)
            && self.can_lose(member.entry.id)
        {
            self.phase = Phase::Healing;
            return Some(self.remove(&member.entry, &format!("it {}", member.health)));
        }
        let pod = member.pod.filter(|pod| !pod.is_terminating)?;
        match &member.entry.restarted_at {
            Some(restarted) if pod.created < restarted.0 => {
                self.phase = Phase::Healing;
                Some(Step::DeletePod {
                    pod: name,
                    reason: format!("the member {}; it is restarted", member.health),
                })
            }
            None if age >= SignedDuration::from_secs(autopilot.restart_after_seconds) => {
                self.phase = Phase::Healing;
                let now = self.observed.now;
                if let Some(entry) = self.status.member_mut(&name) {
                    entry.restarted_at = Some(Time(now));
                }
                Some(Step::wait(
                    format!("member {name} is restarted"),
                    PROGRESS_INTERVAL,
                ))
            }
            _ => None,
        }
    }

    /// The number of readers that was chosen last.
    pub(super) fn desired_readers(&self) -> i32 {
        self.status.autopilot.readers
    }

    /// Chooses the number of readers by the rate of reads.
    pub(super) fn choose_readers(&mut self) {
        let readers = &self.observed.hero.spec.autopilot.readers;
        let max = readers.max.max(readers.min);
        let current = self.status.autopilot.readers.clamp(readers.min, max);
        let cooldown = SignedDuration::from_secs(readers.cooldown_seconds);
        let is_cool = self
            .status
            .autopilot
            .readers_changed_at
            .as_ref()
            .is_none_or(|changed| self.observed.now.duration_since(changed.0) >= cooldown);
        let desired = match self.observed.reads_per_second {
            Some(rate) if is_cool => self.readers_for(rate, current).clamp(readers.min, max),
            _ => current,
        };
        if desired != self.status.autopilot.readers {
            self.status.autopilot.readers = desired;
            self.status.autopilot.readers_changed_at = Some(Time(self.observed.now));
        }
    }

    /// The number of readers for a rate: as many more as are needed, or one less if the others
    /// would still be below their expected load.
    fn readers_for(&self, rate: f64, current: i32) -> i32 {
        let spec = &self.observed.hero.spec;
        let per_member = spec.autopilot.readers.reads_per_second as f64;
        let needed = (rate / per_member).ceil() as i32 - spec.replicas;
        let capacity_with_one_less = per_member * f64::from(spec.replicas + current - 1);
        if needed > current {
            needed
        } else if rate < capacity_with_one_less * SCALE_DOWN_UTILIZATION {
            current - 1
        } else {
            current
        }
    }

    /// Compacts the log of a member that is too large.
    pub(super) fn compaction(&mut self) -> Option<Step> {
        let max = u64::try_from(self.observed.hero.spec.autopilot.compact_log_bytes).ok()?;
        let compacted = self.status.autopilot.compacted_at.as_ref();
        let is_cool = compacted
            .is_none_or(|last| self.observed.now.duration_since(last.0) >= COMPACTION_COOLDOWN);
        if max == 0 || !is_cool {
            return None;
        }
        let large = self.members().into_iter().find(|member| {
            member.health.is_healthy() && member.report.is_some_and(|status| status.log_bytes > max)
        })?;
        Some(Step::Compact {
            member: large.entry.name,
        })
    }

    /// What is unusual: a reason and its evidence, without numbers that change all the time.
    pub(super) fn anomalies(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Some(text) = self.divergence() {
            found.push(("Divergence", text));
        }
        let members = self.members();
        if let Some(membership) = self.membership() {
            let is_known = |id: &u64| members.iter().any(|member| member.entry.id == *id);
            for id in membership.members.keys().filter(|id| !is_known(id)) {
                found.push(("UnknownMember", format!("member {id} is not in the status")));
            }
        }
        if self.observed.recent_elections >= ELECTIONS_UNUSUAL {
            let text = format!("at least {ELECTIONS_UNUSUAL} elections in 10 minutes");
            found.push(("FrequentElections", text));
        }
        for member in &members {
            let name = &member.entry.name;
            if member
                .pod
                .is_some_and(|pod| pod.restarts >= RESTARTS_UNUSUAL)
            {
                let text = format!("{name} was restarted at least {RESTARTS_UNUSUAL} times");
                found.push(("FrequentRestarts", text));
            }
            if self.is_disk_nearly_full(member) {
                let text = format!("{name} uses more than 80 % of its volume");
                found.push(("DiskNearlyFull", text));
            }
        }
        found
    }

    /// Two members that applied the same entries must have the same revision.
    fn divergence(&self) -> Option<String> {
        let mut revisions: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for member in self.members() {
            let Some(status) = member
                .report
                .filter(|status| self.is_identity(&member.entry, status))
            else {
                continue;
            };
            let name = member.entry.name;
            match revisions.get(&status.applied_index) {
                Some((revision, other)) if *revision != status.revision => {
                    return Some(format!(
                        "{name} and {other} applied the same entries differently"
                    ));
                }
                _ => revisions.insert(status.applied_index, (status.revision, name)),
            };
        }
        None
    }

    fn is_disk_nearly_full(&self, member: &Member<'_>) -> bool {
        let Ok(size) = Quantity::parse(&self.observed.hero.spec.storage.size) else {
            return false;
        };
        member.report.is_some_and(|status| {
            let used = status.data_bytes.saturating_add(status.log_bytes);
            used as f64 > size.approximate_value() * DISK_USAGE_MAX
        })
    }
}
