//! Figures: what a scrape tells of reboots.
//! Holds: gauges show the last pass; a series of a policy or node that is no more is gone with the next.

use bellerophon::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use super::plan::Report;
use crate::notes::Fate;

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

/// Reboots, in numbers.
#[derive(Clone, Default)]
pub(crate) struct Figures {
    needed: Family<PolicyLabel, Gauge>,
    used: Family<PolicyLabel, Gauge>,
    limit: Family<PolicyLabel, Gauge>,
    unavailable: Family<PolicyLabel, Gauge>,
    lost: Family<PolicyLabel, Gauge>,
    holders: Family<HolderLabels, Gauge>,
    waiting: Family<ReasonLabels, Gauge>,
    ended: Family<ResultLabel, Counter>,
}

impl Figures {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let figures = Self::default();
        metrics.register(|registry| {
            registry.register(
                "reboot_nodes_needed",
                "Nodes that wait for a reboot",
                figures.needed.clone(),
            );
            registry.register(
                "reboot_slots_used",
                "Nodes that may reboot now",
                figures.used.clone(),
            );
            registry.register(
                "reboot_slots_limit",
                "Nodes that may be unavailable at once",
                figures.limit.clone(),
            );
            registry.register(
                "reboot_nodes_unavailable",
                "Nodes that are unavailable, for whatever reason",
                figures.unavailable.clone(),
            );
            registry.register(
                "reboot_nodes_lost",
                "Nodes that did not come back in time",
                figures.lost.clone(),
            );
            registry.register(
                "reboot_slot_holder",
                "Nodes that may reboot now, by name",
                figures.holders.clone(),
            );
            registry.register(
                "reboot_nodes_waiting",
                "Nodes that wait, by reason",
                figures.waiting.clone(),
            );
            registry.register(
                "reboot_taken_back",
                "Grants that the controller took back, by result",
                figures.ended.clone(),
            );
        });
        figures
    }

    pub(crate) fn ended(&self, fate: Fate) {
        self.ended
            .get_or_create(&ResultLabel {
                result: fate.as_str().into(),
            })
            .inc();
    }

    pub(crate) fn show(&self, reports: &[Report]) {
        for family in [
            &self.needed,
            &self.used,
            &self.limit,
            &self.unavailable,
            &self.lost,
        ] {
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
                family
                    .get_or_create(&PolicyLabel {
                        policy: policy.clone(),
                    })
                    .set(gauge(count));
            };
            set(&self.needed, report.waiting.values().sum());
            set(&self.used, report.holders.len());
            set(&self.limit, report.limit);
            set(&self.unavailable, report.unavailable);
            set(&self.lost, report.lost);
            for node in &report.holders {
                self.holders
                    .get_or_create(&HolderLabels {
                        policy: policy.clone(),
                        node: node.clone(),
                    })
                    .set(1);
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
