//! Figures: what a scrape tells of the reboots that agents do.

use bellerophon::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

use crate::notes::Fate;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: String,
}

/// Reboots of the nodes whose agents run here, in numbers: on a real machine, of that one.
#[derive(Clone)]
pub(crate) struct Figures {
    evictions: Family<ResultLabel, Counter>,
    ended: Family<ResultLabel, Counter>,
    drained: Histogram,
    rebooted: Histogram,
}

/// Seconds: from a node without pods to an hour.
const SECONDS: [f64; 9] = [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

impl Figures {
    pub(crate) fn new() -> Self {
        Self {
            evictions: Family::default(),
            ended: Family::default(),
            drained: Histogram::new(SECONDS),
            rebooted: Histogram::new(SECONDS),
        }
    }

    /// Shows them in a page.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "reboot_evictions",
                "Evictions asked for, by result",
                self.evictions.clone(),
            );
            registry.register(
                "reboot_ended",
                "Grants that ended on this node, by result",
                self.ended.clone(),
            );
            registry.register(
                "reboot_drain_seconds",
                "From taking an order to telling the machine",
                self.drained.clone(),
            );
            registry.register(
                "reboot_seconds",
                "From taking an order to being back",
                self.rebooted.clone(),
            );
        });
    }

    pub(crate) fn evicted(&self, result: &str) {
        self.evictions
            .get_or_create(&ResultLabel {
                result: result.into(),
            })
            .inc();
    }

    pub(crate) fn ended(&self, fate: Fate, seconds: Option<f64>) {
        self.ended
            .get_or_create(&ResultLabel {
                result: fate.as_str().into(),
            })
            .inc();
        if let Some(seconds) = seconds.filter(|_| fate == Fate::Done) {
            self.rebooted.observe(seconds);
        }
    }

    pub(crate) fn drained(&self, seconds: f64) {
        self.drained.observe(seconds);
    }
}
