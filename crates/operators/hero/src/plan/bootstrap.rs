//! Bootstrap: the cluster id, and the first member, empty or restored from a backup.
//!
//! Guarantees: the cluster id is on record before anything exists; the store is initialized at most
//! once, and an empty disk after that is never initialized again; each attempt of a restore has its
//! own claim.

use bellerophon_store_client::api::MemberState;
use kube::ResourceExt as _;

use super::{PROGRESS_INTERVAL, Planner, STEADY_INTERVAL, view::Member};
use crate::{
    crd::{
        BackupPhase, MemberPhase, MemberRole, MemberStatus, Phase, RestorePhase, RestoreSource,
        RestoreStatus,
    },
    names,
    observed::PodPhase,
    step::Step,
};

/// The id of the first member.
const SEED_ID: u64 = 1;

/// The number of attempts of a restore: a Pod may be evicted twice.
const RESTORE_ATTEMPTS_MAX: u32 = 3;

/// How far the revision of a restored store is beyond that of the backup: more writes than the old
/// store can have acknowledged since, as in etcd's documentation of `--bump-revision`.
const REVISION_GAP: u64 = 1_000_000_000;

impl Planner<'_> {
    /// Chooses the cluster id.
    pub(super) fn begin(&mut self) -> Step {
        self.phase = Phase::Bootstrapping;
        let hero = &self.observed.hero;
        if hero.name_any().len() > names::NAME_LENGTH_MAX {
            return self.blocked(format!(
                "the name has more than {} characters, so that Pods would have no host names",
                names::NAME_LENGTH_MAX
            ));
        }
        // The claims of this very object show that it had a status.
        if self.observed.claims.values().any(|claim| claim.is_own) {
            return self
                .blocked("the status was lost, and there are claims of this object".to_owned());
        }
        if let Some(source) = restore_source(self) {
            match self.resolve(&source) {
                Ok(restore) => self.status.restore = Some(restore),
                Err(reason) => return Step::wait(reason, STEADY_INTERVAL),
            }
        }
        self.status.cluster_id = Some(self.observed.fresh_cluster_id.clone());
        self.status.image = Some(hero.spec.image.clone());
        Step::wait("the cluster has an id", PROGRESS_INTERVAL)
    }

    /// The file, checksum and revision of a backup.
    fn resolve(&self, source: &RestoreSource) -> Result<RestoreStatus, String> {
        let mut restore = RestoreStatus::default();
        if let Some(name) = &source.backup {
            let backup = self.observed.backup.as_ref();
            let backup = backup
                .filter(|backup| backup.phase == BackupPhase::Completed)
                .ok_or_else(|| format!("the Backup {name} does not exist or is not Completed"))?;
            restore.claim = backup.claim.clone();
            restore.file = backup.file.clone();
            restore.checksum = backup.checksum.clone();
            restore.min_revision = backup.revision;
        } else {
            restore.claim = source.claim.clone().unwrap_or_default();
            restore.file = source.file.clone().unwrap_or_default();
            restore.checksum = source.checksum.clone().unwrap_or_default();
        }
        let seen = source
            .revision
            .and_then(|revision| u64::try_from(revision).ok());
        let revision = restore.min_revision.max(seen.unwrap_or_default());
        restore.min_revision = revision.saturating_add(REVISION_GAP);
        Ok(restore)
    }

    /// The next step of the first member.
    pub(super) fn bootstrap(&mut self) -> Step {
        self.phase = match &self.status.restore {
            Some(restore) if restore.phase != RestorePhase::Completed => Phase::Restoring,
            _ => Phase::Bootstrapping,
        };
        if self.is_seed_lost() {
            // It may have been initialized and written.
            self.phase = Phase::QuorumLost;
            return Step::wait("the first member has lost its data", STEADY_INTERVAL);
        }
        if let Some(step) = self.shared_objects() {
            return step;
        }
        let leaving = |member: &Member<'_>| member.entry.phase == MemberPhase::Removing;
        if let Some(member) = self.members().into_iter().find(leaving) {
            // It was never initialized, so no membership has it.
            let wait = Step::wait(
                "the Pod of a failed attempt is terminating",
                PROGRESS_INTERVAL,
            );
            return self.clean_up_seed(&member).unwrap_or(wait);
        }
        match self.members().into_iter().next() {
            Some(seed) => self.seed(&seed),
            None => self.new_seed(),
        }
    }

    /// Whether the first member lost its data after it may have been initialized.
    fn is_seed_lost(&self) -> bool {
        let is_restored = self.status.restore.is_some();
        self.members().into_iter().any(|seed| {
            let is_empty = seed
                .report
                .is_some_and(|status| status.state == MemberState::Unformatted);
            seed.entry.phase == MemberPhase::Formatting
                && (seed.health.is_disk_lost() || (is_restored && is_empty))
        })
    }

    fn new_seed(&mut self) -> Step {
        let name = self.observed.fresh_name.clone();
        self.status.members.push(MemberStatus {
            name: name.clone(),
            id: SEED_ID,
            role: MemberRole::Voter,
            ..MemberStatus::default()
        });
        Step::wait(format!("{name} is the first member"), PROGRESS_INTERVAL)
    }

    fn seed(&mut self, seed: &Member<'_>) -> Step {
        let entry = &seed.entry;
        if seed.health.needs_replacement() && entry.phase == MemberPhase::Pending {
            return self.remove(entry, "its claim was lost before it was formatted");
        }
        if let Some(step) = self.provision(entry) {
            return step;
        }
        if let Some(step) = self.restore(seed) {
            return step;
        }
        if let Some(step) = self.pod_of(seed) {
            return step;
        }
        let name = entry.name.clone();
        let Some(status) = seed.report else {
            return Step::wait(format!("member {name} is starting"), PROGRESS_INTERVAL);
        };
        match (status.state, entry.phase) {
            (MemberState::Unformatted, MemberPhase::Pending) => {
                self.set_phase(entry, MemberPhase::Formatting)
            }
            (MemberState::Unformatted, _) => Step::Initialize { member: name },
            _ if !self.is_identity(entry, status) => {
                self.blocked(format!("the data directory of {name} is of another member"))
            }
            _ if self.membership().is_none() => {
                Step::wait(format!("member {name} is initialized"), PROGRESS_INTERVAL)
            }
            _ => {
                self.status.bootstrapped = true;
                self.set_phase(entry, MemberPhase::Active)
            }
        }
    }

    /// The next step of the restore of the first member; `None` if there is none left.
    fn restore(&mut self, seed: &Member<'_>) -> Option<Step> {
        let restore = self.status.restore.clone()?;
        let member = seed.entry.name.clone();
        let pod_name = names::restore_pod(&member);
        let pod = self.observed.pods.get(&pod_name);
        match (restore.phase, pod) {
            (RestorePhase::Completed, Some(pod)) if pod.is_terminating => Some(Step::wait(
                "the Pod of the restore is terminating",
                PROGRESS_INTERVAL,
            )),
            (RestorePhase::Completed, Some(_)) => Some(Step::DeletePod {
                pod: pod_name,
                reason: "the restore is complete".to_owned(),
            }),
            (RestorePhase::Completed, None) => None,
            (RestorePhase::Failed, _) => {
                Some(self.blocked("every attempt to restore the backup failed".to_owned()))
            }
            (RestorePhase::Running, None) if restore.pod_uid.is_some() => {
                Some(self.restore_failed(&seed.entry))
            }
            (RestorePhase::Running, None) => Some(Step::CreateRestorePod { member }),
            (RestorePhase::Running, Some(pod)) => {
                let is_recorded = restore.pod_uid.as_ref() == Some(&pod.uid);
                let status = self.status.restore.as_mut()?;
                match pod.phase {
                    _ if !is_recorded => status.pod_uid = Some(pod.uid.clone()),
                    PodPhase::Succeeded => {
                        status.phase = RestorePhase::Completed;
                        return Some(self.set_phase(&seed.entry, MemberPhase::Formatting));
                    }
                    PodPhase::Failed => return Some(self.restore_failed(&seed.entry)),
                    _ => {}
                }
                Some(Step::wait(
                    "the backup is being restored",
                    PROGRESS_INTERVAL,
                ))
            }
        }
    }

    /// Counts a failed attempt. The next one has a new claim, since this one may be half written.
    fn restore_failed(&mut self, entry: &MemberStatus) -> Step {
        let Some(restore) = &mut self.status.restore else {
            return Step::wait("there is no restore", STEADY_INTERVAL);
        };
        restore.failures += 1;
        restore.pod_uid = None;
        if restore.failures >= RESTORE_ATTEMPTS_MAX {
            restore.phase = RestorePhase::Failed;
            return self.blocked("every attempt to restore the backup failed".to_owned());
        }
        self.remove(entry, "the restore failed")
    }

    /// Deletes Pods, claim and certificate of a first member that was never initialized.
    fn clean_up_seed(&mut self, seed: &Member<'_>) -> Option<Step> {
        let pod_name = names::restore_pod(&seed.entry.name);
        match self.observed.pods.get(&pod_name) {
            Some(pod) if pod.is_terminating => return None,
            Some(_) => {
                let reason = "the attempt failed".to_owned();
                return Some(Step::DeletePod {
                    pod: pod_name,
                    reason,
                });
            }
            None => {}
        }
        self.clean_up(&seed.entry, seed.pod)
    }

    /// Nothing can be done without a user.
    pub(super) fn blocked(&mut self, reason: String) -> Step {
        self.phase = Phase::Blocked;
        Step::wait(reason, STEADY_INTERVAL)
    }
}

fn restore_source(planner: &Planner<'_>) -> Option<RestoreSource> {
    planner
        .observed
        .hero
        .spec
        .bootstrap
        .as_ref()?
        .restore
        .clone()
}
