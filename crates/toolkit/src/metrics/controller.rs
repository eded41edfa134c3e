//! `controller_runtime_*`: the metrics of controllers.
//!
//! In: the result and duration of each reconcile. Out: eight metrics for each controller.
//! Guarantees: the metrics of a controller are looked up once, so counting is an atomic add.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabel {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: String,
    result: &'static str,
}

/// The buckets of controller-runtime's ReconcileTime: 5 ms to 60 s.
const RECONCILE_TIME_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0,
];

/// The results that controller-runtime counts.
const RESULTS: [&str; 4] = ["success", "requeue_after", "requeue", "error"];

fn reconcile_time() -> Histogram {
    Histogram::new(RECONCILE_TIME_BUCKETS)
}

pub(super) struct ControllerFamilies {
    results: Family<ResultLabels, Counter>,
    errors: Family<ControllerLabel, Counter>,
    terminal_errors: Family<ControllerLabel, Counter>,
    panics: Family<ControllerLabel, Counter>,
    timeouts: Family<ControllerLabel, Counter>,
    time: Family<ControllerLabel, Histogram, fn() -> Histogram>,
    max_concurrent_reconciles: Family<ControllerLabel, Gauge>,
    active_workers: Family<ControllerLabel, Gauge>,
}

impl ControllerFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            results: Family::default(),
            errors: Family::default(),
            terminal_errors: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            time: Family::new_with_constructor(reconcile_time),
            max_concurrent_reconciles: Family::default(),
            active_workers: Family::default(),
        };
        // Names as in controller-runtime, so that existing dashboards and alerts work. The encoder
        // adds `_total` to counters.
        let registry = registry.sub_registry_with_prefix("controller_runtime");
        registry.register(
            "reconcile",
            "Reconciles by controller and result",
            families.results.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Reconciles that failed",
            families.errors.clone(),
        );
        registry.register(
            "terminal_reconcile_errors",
            "Reconciles that failed and are not retried",
            families.terminal_errors.clone(),
        );
        registry.register(
            "reconcile_panics",
            "Reconciles that panicked",
            families.panics.clone(),
        );
        registry.register(
            "reconcile_timeouts",
            "Reconciles that exceeded their timeout",
            families.timeouts.clone(),
        );
        registry.register(
            "reconcile_time_seconds",
            "Duration of reconciles",
            families.time.clone(),
        );
        registry.register(
            "max_concurrent_reconciles",
            "Maximum number of concurrent reconciles",
            families.max_concurrent_reconciles.clone(),
        );
        registry.register(
            "active_workers",
            "Number of reconciles running",
            families.active_workers.clone(),
        );
        families
    }

    /// The metrics of one controller. All its series exist from now on, at zero, so that the first
    /// increment shows in a rate.
    pub(super) fn controller(&self, controller: &str) -> ControllerMetrics {
        for result in RESULTS {
            self.results.get_or_create_owned(&ResultLabels {
                controller: controller.into(),
                result,
            });
        }
        let label = ControllerLabel {
            controller: controller.into(),
        };
        ControllerMetrics {
            controller: controller.into(),
            results: self.results.clone(),
            errors: self.errors.get_or_create_owned(&label),
            terminal_errors: self.terminal_errors.get_or_create_owned(&label),
            panics: self.panics.get_or_create_owned(&label),
            timeouts: self.timeouts.get_or_create_owned(&label),
            time: self.time.get_or_create_owned(&label),
            max_concurrent_reconciles: self.max_concurrent_reconciles.get_or_create_owned(&label),
            active_workers: self.active_workers.get_or_create_owned(&label),
        }
    }
}

/// The metrics of one controller.
pub(crate) struct ControllerMetrics {
    controller: String,
    results: Family<ResultLabels, Counter>,
    pub(crate) errors: Counter,
    pub(crate) terminal_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) time: Histogram,
    pub(crate) max_concurrent_reconciles: Gauge,
    pub(crate) active_workers: Gauge,
}

impl ControllerMetrics {
    /// The counter of one result: `success`, `requeue_after`, `requeue` or `error`.
    pub(crate) fn result(&self, result: &'static str) -> Counter {
        self.results.get_or_create_owned(&ResultLabels {
            controller: self.controller.clone(),
            result,
        })
    }
}
