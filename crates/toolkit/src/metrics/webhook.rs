//! `controller_runtime_webhook_*`: the metrics of webhooks.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabel {
    /// The path of the webhook.
    webhook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    webhook: String,
    code: String,
}

/// The default buckets of Prometheus, which controller-runtime uses: 5 ms to 10 s.
fn latency() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ])
}

pub(super) struct WebhookFamilies {
    requests: Family<RequestLabels, Counter>,
    latencies: Family<WebhookLabel, Histogram, fn() -> Histogram>,
    in_flight: Family<WebhookLabel, Gauge>,
    panics: Counter,
}

impl WebhookFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            requests: Family::default(),
            latencies: Family::new_with_constructor(latency),
            in_flight: Family::default(),
            panics: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("controller_runtime_webhook");
        registry.register(
            "requests",
            "Admission and conversion requests by webhook and HTTP status code",
            families.requests.clone(),
        );
        registry.register(
            "latency_seconds",
            "Latency of admission and conversion requests by webhook",
            families.latencies.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Admission and conversion requests that are being served",
            families.in_flight.clone(),
        );
        registry.register(
            "panics",
            "Webhook handlers that panicked",
            families.panics.clone(),
        );
        families
    }

    /// The metrics of one webhook. Its series exist from now on, at zero.
    pub(super) fn webhook(&self, path: &str) -> WebhookMetrics {
        let label = WebhookLabel {
            webhook: path.to_owned(),
        };
        let metrics = WebhookMetrics {
            path: path.to_owned(),
            requests: self.requests.clone(),
            latency: self.latencies.get_or_create_owned(&label),
            in_flight: self.in_flight.get_or_create_owned(&label),
            panics: self.panics.clone(),
        };
        for code in ["200", "500"] {
            drop(metrics.requests.get_or_create(&metrics.labels(code)));
        }
        metrics
    }
}

/// The metrics of one webhook.
pub(crate) struct WebhookMetrics {
    path: String,
    requests: Family<RequestLabels, Counter>,
    latency: Histogram,
    in_flight: Gauge,
    pub(crate) panics: Counter,
}

impl WebhookMetrics {
    /// Counts a request as being served until the guard is dropped.
    pub(crate) fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Counts a request that was answered.
    pub(crate) fn answered(&self, code: u16, took: Duration) {
        let labels = self.labels(&code.to_string());
        self.requests.get_or_create(&labels).inc();
        self.latency.observe(took.as_secs_f64());
    }

    fn labels(&self, code: &str) -> RequestLabels {
        RequestLabels {
            webhook: self.path.clone(),
            code: code.to_owned(),
        }
    }
}

/// A request that is being served.
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
