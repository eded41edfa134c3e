//! The plan for one Deployment: its sets as wanted, those to be forgotten, its status.
//!
//! In: the Deployment, its sets, whether pods of a set still run, the time. Out: a plan.
//! Holds: one pass makes one step of a rollout and tells it; the next step waits for what this one brings about.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet};
use kube::ResourceExt;

use super::family::{Family, Member, REVISION, Size, is_recreate};
use super::scale::{empty_old, grow_new, resize, room_for_new, shrink_old, was_resized};
use super::status::{counted, is_complete, judge_progress, next_look, note_new_set, note_pause};

/// What is to become of a Deployment and its sets.
#[derive(Debug)]
pub(super) struct Plan {
    /// The sets as they are wanted.
    pub(super) family: Family,
    /// Old sets beyond the history that is kept.
    pub(super) forgotten: Vec<Arc<ReplicaSet>>,
    pub(super) status: DeploymentStatus,
    /// When to look again even if nothing changes.
    pub(super) next_look: Option<Duration>,
}

impl Plan {
    /// The revision of the new set, if the Deployment does not show it yet.
    pub(super) fn new_revision(&self, deployment: &Deployment) -> Option<String> {
        let revision = self
            .family
            .new
            .as_ref()?
            .wanted
            .annotations()
            .get(REVISION)?;
        (deployment.annotations().get(REVISION) != Some(revision)).then(|| revision.clone())
    }
}

/// Makes the plan. `has_pods` tells whether pods of a set have not ended yet, whatever its status says.
pub(super) fn plan(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    has_pods: impl Fn(&ReplicaSet) -> bool,
    now: Timestamp,
) -> Plan {
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut draft = Draft {
        deployment,
        size: Size::of(&spec),
        family: Family::of(deployment, sets),
        forgotten: Vec::new(),
        before: deployment.status.clone().unwrap_or_default(),
        now,
    };
    let going = deployment.metadata.deletion_timestamp.is_some();
    if !going {
        note_pause(&mut draft.before, deployment, now);
    }
    let rolls_out = !going && draft.advance(&spec, has_pods);
    draft.finish(rolls_out)
}

struct Draft<'a> {
    deployment: &'a Deployment,
    size: Size,
    family: Family,
    forgotten: Vec<Arc<ReplicaSet>>,
    /// The status so far, with what pausing adds to it.
    before: DeploymentStatus,
    now: Timestamp,
}

impl Draft<'_> {
    /// Makes one step. Says whether that is part of a rollout, of which progress can be judged.
    fn advance(&mut self, spec: &DeploymentSpec, has_pods: impl Fn(&ReplicaSet) -> bool) -> bool {
        let paused = spec.paused == Some(true);
        if paused || was_resized(&self.family, self.size) {
            resize(&mut self.family, self.size, !is_recreate(spec));
            if paused {
                self.forget(spec);
            }
            return false;
        }
        let settled = if is_recreate(spec) {
            self.recreate(has_pods)
        } else {
            self.roll()
        };
        if settled && is_complete(self.deployment, &self.before) {
            self.forget(spec);
        }
        true
    }

    /// Says whether nothing had to move.
    fn roll(&mut self) -> bool {
        let size = self.size;
        self.family
            .make_new(self.deployment, size, |family| room_for_new(family, size));
        !grow_new(&mut self.family, size) && !shrink_old(&mut self.family, size)
    }

    /// All old pods go before the first new one comes.
    fn recreate(&mut self, has_pods: impl Fn(&ReplicaSet) -> bool) -> bool {
        let runs = |member: &Member| member.actual() > 0 || has_pods(&member.wanted);
        if empty_old(&mut self.family, self.size) || self.family.old.iter().any(runs) {
            return false;
        }
        let size = self.size;
        let new = self
            .family
            .make_new(self.deployment, size, |_| size.desired);
        new.replicas() == size.desired || !new.scale(size.desired, size)
    }

    /// Marks old sets without pods beyond the history limit, the earliest revisions first.
    fn forget(&mut self, spec: &DeploymentSpec) {
        let Some(limit) = spec
            .revision_history_limit
            .filter(|limit| *limit != i32::MAX)
        else {
            return;
        };
        let mut kept: Vec<&Member> = self
            .family
            .old
            .iter()
            .filter(|old| old.wanted.metadata.deletion_timestamp.is_none())
            .collect();
        kept.sort_by_key(|old| (old.revision(), old.age()));
        let surplus = kept
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        let is_idle = |old: &&&Member| {
            let observed = old
                .wanted
                .status
                .as_ref()
                .and_then(|status| status.observed_generation)
                .unwrap_or(0);
            old.actual() == 0
                && old.replicas() == 0
                && old.wanted.metadata.generation.unwrap_or(0) <= observed
        };
        self.forgotten = kept
            .iter()
            .take(surplus)
            .filter(is_idle)
            .filter_map(|old| old.read.clone())
            .collect();
    }

    fn finish(self, rolls_out: bool) -> Plan {
        let Self {
            deployment,
            size,
            family,
            forgotten,
            mut before,
            now,
        } = self;
        if let Some(new) = &family.new {
            note_new_set(&mut before, deployment, new, now);
        }
        let mut status = counted(&before, deployment, &family, size, now);
        if rolls_out {
            judge_progress(&mut status, &before, deployment, &family, now);
        }
        let next_look = if rolls_out {
            next_look(deployment, &status, now)
        } else {
            None
        };
        Plan {
            family,
            forgotten,
            status,
            next_look,
        }
    }
}

#[cfg(test)]
mod tests;
