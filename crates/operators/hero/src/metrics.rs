//! Prometheus metrics of the operator.
//!
//! Guarantee: gauges have the values of the last observation; series of deleted stores are removed.

use bellerophon::{ObjectKey, metrics::Metrics};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::{
    crd::{MemberPhase, MemberRole, Phase},
    observed::Observed,
    plan::conditions::{ANOMALY, AVAILABLE, QUORUM_LOST},
    step::Step,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeroLabels {
    namespace: String,
    hero: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    namespace: String,
    hero: String,
    step: String,
}

/// The metrics of all stores.
#[derive(Clone, Default)]
pub(crate) struct HeroMetrics {
    desired_voters: Family<HeroLabels, Gauge>,
    healthy_voters: Family<HeroLabels, Gauge>,
    readers: Family<HeroLabels, Gauge>,
    unhealthy_members: Family<HeroLabels, Gauge>,
    lag_entries: Family<HeroLabels, Gauge>,
    quorum_lost: Family<HeroLabels, Gauge>,
    has_leader: Family<HeroLabels, Gauge>,
    anomalies: Family<HeroLabels, Gauge>,
    steps: Family<StepLabels, Counter>,
    backup_completed: Family<HeroLabels, Gauge>,
    backups_failed: Family<HeroLabels, Counter>,
}

impl HeroMetrics {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let families = Self::default();
        metrics.register(|registry| {
            let gauges = [
                (
                    "hero_voters_desired",
                    "Desired number of voters",
                    &families.desired_voters,
                ),
                (
                    "hero_voters_healthy",
                    "Number of healthy voters",
                    &families.healthy_voters,
                ),
                (
                    "hero_readers",
                    "Number of active readers",
                    &families.readers,
                ),
                (
                    "hero_members_unhealthy",
                    "Number of unhealthy members",
                    &families.unhealthy_members,
                ),
                (
                    "hero_member_lag_entries",
                    "Lag of the slowest member",
                    &families.lag_entries,
                ),
                (
                    "hero_quorum_lost",
                    "1 if the quorum is lost",
                    &families.quorum_lost,
                ),
                (
                    "hero_leader",
                    "1 if a leader has a quorum",
                    &families.has_leader,
                ),
                (
                    "hero_anomaly",
                    "1 if something is unusual",
                    &families.anomalies,
                ),
                (
                    "hero_backup_completed_timestamp_seconds",
                    "When the last completed backup ended",
                    &families.backup_completed,
                ),
            ];
            for (name, help, family) in gauges {
                registry.register(name, help, family.clone());
            }
            registry.register(
                "hero_steps",
                "Steps that were applied",
                families.steps.clone(),
            );
            registry.register(
                "hero_backups_failed",
                "Backups that failed",
                families.backups_failed.clone(),
            );
        });
        families
    }

    /// Records an observation and its step.
    pub(crate) fn record(&self, key: &ObjectKey, observed: &Observed, step: &Step) {
        let labels = labels(key);
        let status = observed.hero.status.clone().unwrap_or_default();
        let active = |role: MemberRole| {
            let members = status.members.iter();
            let count =
                members.filter(|member| member.role == role && member.phase == MemberPhase::Active);
            i64::try_from(count.count()).unwrap_or(i64::MAX)
        };
        let unhealthy = status
            .members
            .iter()
            .filter(|member| member.phase == MemberPhase::Active && !member.healthy);
        let lag = status.members.iter().filter_map(|member| member.lag).max();
        let is_true = |type_: &str| {
            i64::from(bellerophon::conditions::is_status_condition_true(
                &status.conditions,
                type_,
            ))
        };
        let desired = i64::from(observed.hero.spec.replicas);
        self.desired_voters.get_or_create(&labels).set(desired);
        self.healthy_voters
            .get_or_create(&labels)
            .set(i64::from(status.replicas));
        self.readers
            .get_or_create(&labels)
            .set(active(MemberRole::Reader));
        let unhealthy = i64::try_from(unhealthy.count()).unwrap_or(i64::MAX);
        self.unhealthy_members.get_or_create(&labels).set(unhealthy);
        let lag = i64::try_from(lag.unwrap_or_default()).unwrap_or(i64::MAX);
        self.lag_entries.get_or_create(&labels).set(lag);
        let is_lost = i64::from(status.phase == Phase::QuorumLost).max(is_true(QUORUM_LOST));
        self.quorum_lost.get_or_create(&labels).set(is_lost);
        self.has_leader
            .get_or_create(&labels)
            .set(is_true(AVAILABLE));
        self.anomalies.get_or_create(&labels).set(is_true(ANOMALY));
        if step.is_mutation() {
            let step_labels = StepLabels {
                namespace: labels.namespace.clone(),
                hero: labels.hero.clone(),
                step: step.name().to_owned(),
            };
            self.steps.get_or_create(&step_labels).inc();
        }
    }

    /// Records a backup that ended well.
    pub(crate) fn backup_completed(&self, hero: &ObjectKey, at: Timestamp) {
        self.backup_completed
            .get_or_create(&labels(hero))
            .set(at.as_second());
    }

    /// Records a backup that failed.
    pub(crate) fn backup_failed(&self, hero: &ObjectKey) {
        self.backups_failed.get_or_create(&labels(hero)).inc();
    }

    /// Removes the series of a deleted store.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        let labels = labels(key);
        let gauges = [
            &self.desired_voters,
            &self.healthy_voters,
            &self.readers,
            &self.unhealthy_members,
            &self.lag_entries,
            &self.quorum_lost,
            &self.has_leader,
            &self.anomalies,
            &self.backup_completed,
        ];
        for family in gauges {
            family.remove(&labels);
        }
        self.backups_failed.remove(&labels);
    }
}

fn labels(key: &ObjectKey) -> HeroLabels {
    HeroLabels {
        namespace: key.namespace().unwrap_or_default().to_owned(),
        hero: key.name().to_owned(),
    }
}
