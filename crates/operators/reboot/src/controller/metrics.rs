//! Prometheus metrics of the controller.
//!
//! Guarantee: gauges have the values of the last reconcile; series of deleted policies and nodes
//! are removed by the next one.

use bellerophon::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use super::plan::PoolReport;
use crate::annotations::RebootResult;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabel {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HolderLabels {
    policy: String,
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    policy: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: String,
}

/// The metrics of the controller.
#[derive(Clone, Default)]
pub(crate) struct RebootMetrics {
    needed: Family<PolicyLabel, Gauge>,
    used: Family<PolicyLabel, Gauge>,
    limit: Family<PolicyLabel, Gauge>,
    unavailable: Family<PolicyLabel, Gauge>,
    lost: Family<PolicyLabel, Gauge>,
    holders: Family<HolderLabels, Gauge>,
    waiting: Family<ReasonLabels, Gauge>,
    ended: Family<ResultLabel, Counter>,
}

impl RebootMetrics {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let families = Self::default();
        metrics.register(|registry| {
            registry.register(
                "reboot_nodes_needed",
                "Nodes that wait for a reboot",
                families.needed.clone(),
            );
            registry.register(
                "reboot_slots_used",
                "Nodes with a grant",
                families.used.clone(),
            );
            registry.register(
                "reboot_slots_limit",
                "Maximum number of unavailable nodes",
                families.limit.clone(),
            );
            registry.register(
                "reboot_nodes_unavailable",
                "Unavailable nodes",
                families.unavailable.clone(),
            );
            registry.register(
                "reboot_nodes_lost",
                "Nodes that did not come back in time",
                families.lost.clone(),
            );
            registry.register(
                "reboot_slot_holder",
                "Nodes with a grant, by name",
                families.holders.clone(),
            );
            registry.register(
                "reboot_nodes_waiting",
                "Nodes that wait, by reason",
                families.waiting.clone(),
            );
            registry.register(
                "reboot_taken_back",
                "Grants that the controller ended, by result",
                families.ended.clone(),
            );
        });
        families
    }

    /// Counts a grant that the controller ended.
    pub(crate) fn count_ended(&self, result: RebootResult) {
        let label = ResultLabel {
            result: result.as_str().into(),
        };
        self.ended.get_or_create(&label).inc();
    }

    /// Replaces the gauges of all pools. The default pool is left out while it has no nodes.
    pub(crate) fn set_reports(&self, reports: &[PoolReport]) {
        for family in [
            &self.needed,
            &self.used,
            &self.limit,
            &self.unavailable,
            &self.lost,
        ] {
            // Cleared first, since series of deleted policies would keep their last value.
            family.clear();
        }
        self.holders.clear();
        self.waiting.clear();
        for report in reports
            .iter()
            .filter(|report| report.nodes > 0 || !report.policy.is_empty())
        {
            let policy = if report.policy.is_empty() {
                "(default)".to_owned()
            } else {
                report.policy.clone()
            };
            let set = |family: &Family<PolicyLabel, Gauge>, count: usize| {
                let label = PolicyLabel {
                    policy: policy.clone(),
                };
                family.get_or_create(&label).set(gauge(count));
            };
            set(&self.needed, report.waiting.values().sum());
            set(&self.used, report.holders.len());
            set(&self.limit, report.limit);
            set(&self.unavailable, report.unavailable);
            set(&self.lost, report.lost);
            for node in &report.holders {
                let labels = HolderLabels {
                    policy: policy.clone(),
                    node: node.clone(),
                };
                self.holders.get_or_create(&labels).set(1);
            }
            for (reason, count) in &report.waiting {
                let labels = ReasonLabels {
                    policy: policy.clone(),
                    reason: reason.as_str().into(),
                };
                self.waiting.get_or_create(&labels).set(gauge(*count));
            }
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
