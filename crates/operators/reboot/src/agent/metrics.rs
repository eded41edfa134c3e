//! Prometheus metrics of agents.

use bellerophon::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

use crate::annotations::RebootResult;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: String,
}

/// The metrics of the agents in this process: on a real machine, of one.
#[derive(Clone)]
pub(crate) struct AgentMetrics {
    evictions: Family<ResultLabel, Counter>,
    ended: Family<ResultLabel, Counter>,
    drained: Histogram,
    rebooted: Histogram,
}

/// Histogram buckets in seconds: from a node without pods to an hour.
const BUCKETS: [f64; 9] = [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

impl AgentMetrics {
    pub(crate) fn new() -> Self {
        Self {
            evictions: Family::default(),
            ended: Family::default(),
            drained: Histogram::new(BUCKETS),
            rebooted: Histogram::new(BUCKETS),
        }
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "reboot_evictions",
                "Eviction requests, by result",
                self.evictions.clone(),
            );
            registry.register(
                "reboot_ended",
                "Grants that ended on this node, by result",
                self.ended.clone(),
            );
            registry.register(
                "reboot_drain_seconds",
                "From claiming an order to rebooting the machine",
                self.drained.clone(),
            );
            registry.register(
                "reboot_seconds",
                "From claiming an order to the end of the reboot",
                self.rebooted.clone(),
            );
        });
    }

    /// Counts an eviction request.
    pub(crate) fn count_eviction(&self, result: &str) {
        let label = ResultLabel {
            result: result.into(),
        };
        self.evictions.get_or_create(&label).inc();
    }

    /// Counts the end of a grant, and observes the duration of a reboot.
    pub(crate) fn observe_end(&self, result: RebootResult, seconds: Option<f64>) {
        let label = ResultLabel {
            result: result.as_str().into(),
        };
        self.ended.get_or_create(&label).inc();
        if let Some(seconds) = seconds.filter(|_| result == RebootResult::Done) {
            self.rebooted.observe(seconds);
        }
    }

    /// Observes the duration of a drain.
    pub(crate) fn observe_drain(&self, seconds: f64) {
        self.drained.observe(seconds);
    }
}
