//! Prometheus metrics, with the names and labels of client-go and controller-runtime.
//!
//! In: counts and durations from queues, controllers, informers, event recorders, leader election
//! and the client. Out: OpenMetrics text.
//! Guarantees: gauges are read at scrape time, so they are never stale; the number of series does
//! not depend on the number of objects.

pub(crate) mod client; // rest_client_*
mod controller; // controller_runtime_*
mod events; // bellerophon_events_*
mod informer; // bellerophon_informer_*
mod queue; // workqueue_*
#[cfg(feature = "webhooks")]
mod webhook; // controller_runtime_webhook_*

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use prometheus_client::registry::Registry;

use crate::events::EventRecorder;
use crate::informer_stats::InformerStats;
use crate::queue::{QueueObserver, WorkQueue};
use controller::ControllerFamilies;
pub(crate) use controller::ControllerMetrics;
use events::TrackedRecorders;
use informer::TrackedInformers;
use queue::QueueFamilies;
#[cfg(feature = "webhooks")]
use webhook::WebhookFamilies;
#[cfg(feature = "webhooks")]
pub(crate) use webhook::WebhookMetrics;

/// A registry of metrics. Clones share one registry.
///
/// A [`Manager`](crate::manager::Manager) registers the metrics of its informers, queues,
/// controllers, event recorders and client, and serves them on `/metrics`. Several Managers may
/// share one registry.
///
/// ```
/// use bellerophon::metrics::Metrics;
/// use prometheus_client::metrics::counter::Counter;
///
/// let metrics = Metrics::new();
/// let icecreams = Counter::<u64>::default();
/// metrics.register(|registry| {
///     registry.register("icecreams", "Icecreams sold", icecreams.clone());
/// });
/// icecreams.inc();
/// assert!(metrics.encode().contains("icecreams_total 1"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    informers: TrackedInformers,
    recorders: TrackedRecorders,
    queues: QueueFamilies,
    controllers: ControllerFamilies,
    #[cfg(feature = "webhooks")]
    webhooks: WebhookFamilies,
    leader: Family<NameLabel, Gauge>,
    slowpath: Family<NameLabel, Counter>,
    requests: Family<RequestLabels, Counter>,
    latencies: Family<LatencyLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabel {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    host: String,
    method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LatencyLabels {
    verb: String,
    host: String,
}

/// The buckets of client-go's request latency: 5 ms to 60 s.
fn latency_histogram() -> Histogram {
    Histogram::new([
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ])
}

impl Metrics {
    /// A registry with all metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let informers = TrackedInformers::default();
        let recorders = TrackedRecorders::default();
        registry.register_collector(Box::new(informers.clone()));
        registry.register_collector(Box::new(recorders.clone()));
        let queues = QueueFamilies::register(&mut registry);
        let controllers = ControllerFamilies::register(&mut registry);
        #[cfg(feature = "webhooks")]
        let webhooks = WebhookFamilies::register(&mut registry);
        let leader = Family::default();
        let slowpath = Family::default();
        let requests = Family::default();
        registry.register(
            "leader_election_master_status",
            "1 if this process holds the lease, else 0",
            leader.clone(),
        );
        registry.register(
            "leader_election_slowpath",
            "Renewals that read the lease first",
            slowpath.clone(),
        );
        registry.register(
            "rest_client_requests",
            "Requests to the API server by status code, method and host",
            requests.clone(),
        );
        let latencies = Family::new_with_constructor(latency_histogram as fn() -> Histogram);
        registry.register(
            "rest_client_request_duration_seconds",
            "Latency of requests to the API server by method and host",
            latencies.clone(),
        );
        let registry = Mutex::new(registry);
        Self(Arc::new(Inner {
            registry,
            informers,
            recorders,
            queues,
            controllers,
            #[cfg(feature = "webhooks")]
            webhooks,
            leader,
            slowpath,
            requests,
            latencies,
        }))
    }

    /// Reports the stats of an informer at each scrape until there are none.
    pub(crate) fn track_informer(
        &self,
        name: &str,
        stats: impl Fn() -> Option<InformerStats> + Send + 'static,
    ) {
        self.0.informers.track(name, Box::new(stats));
    }

    /// The observer of queues of that name, for [`QueueOptions`](crate::queue::QueueOptions).
    pub(crate) fn queue_observer(&self, name: &str) -> Arc<dyn QueueObserver> {
        self.0.queues.observer(name)
    }

    /// Reports the stats of a queue at each scrape until it is dropped.
    pub(crate) fn track_queue<T: Clone + Eq + Hash + Send + 'static>(
        &self,
        name: &str,
        queue: &WorkQueue<T>,
    ) {
        self.0.queues.track(name, queue);
    }

    /// Reports the counts of a recorder at each scrape until it and its clones are dropped.
    pub(crate) fn track_recorder(&self, recorder: &EventRecorder) {
        self.0.recorders.track(recorder);
    }

    pub(crate) fn count_request(&self, code: &str, method: &str, host: &str, took: Duration) {
        let labels = RequestLabels {
            code: code.into(),
            host: host.into(),
            method: method.into(),
        };
        self.0.requests.get_or_create(&labels).inc();
        let labels = LatencyLabels {
            verb: method.into(),
            host: host.into(),
        };
        self.0
            .latencies
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Registers further metrics. Registering a name twice exposes it twice, so call this once for
    /// each metric.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry());
    }

    /// The current values as OpenMetrics text, which Prometheus scrapes.
    pub fn encode(&self) -> String {
        let mut encoded = String::new();
        match text::encode(&mut encoded, &self.registry()) {
            Ok(()) => encoded,
            Err(fmt::Error) => unreachable!("writing to a string does not fail"),
        }
    }

    pub(crate) fn controller(&self, name: &str) -> ControllerMetrics {
        self.0.controllers.controller(name)
    }

    #[cfg(feature = "webhooks")]
    pub(crate) fn webhook(&self, path: &str) -> WebhookMetrics {
        self.0.webhooks.webhook(path)
    }

    pub(crate) fn set_leader(&self, lease: &str, is_leader: bool) {
        let label = NameLabel { name: lease.into() };
        self.0
            .leader
            .get_or_create(&label)
            .set(i64::from(is_leader));
        // Creates the series, so that both exist from the start.
        drop(self.0.slowpath.get_or_create(&label));
    }

    pub(crate) fn count_slowpath(&self, lease: &str) {
        self.0
            .slowpath
            .get_or_create(&NameLabel { name: lease.into() })
            .inc();
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Rng};
    use crate::events::Event;
    use crate::queue::{QueueOptions, RateLimit};

    #[tokio::test(start_paused = true)]
    async fn names_and_labels_are_those_of_client_go_and_controller_runtime() {
        let metrics = Metrics::new();
        let queue = WorkQueue::new(QueueOptions {
            observer: Some(metrics.queue_observer("hero")),
            rate_limit: RateLimit::default(),
            ..QueueOptions::default()
        });
        metrics.track_queue("hero", &queue);
        queue.add("a");
        queue.add("b");
        queue.add_after("c", Duration::from_secs(9));
        let item = queue.try_get();
        tokio::time::advance(Duration::from_secs(3)).await;
        let controller = metrics.controller("hero");
        controller.max_concurrent_reconciles.set(4);
        controller.panics.inc();
        controller.time.observe(0.2);
        controller.result("success").inc();
        metrics.set_leader("lock", true);
        metrics.count_request("200", "GET", "localhost", Duration::from_millis(20));
        let text = metrics.encode();
        for line in [
            r#"workqueue_depth{name="hero",controller="hero",priority="0"} 1"#,
            r#"workqueue_adds_total{name="hero",controller="hero"} 2"#,
            r#"workqueue_retries_total{name="hero",controller="hero"} 1"#,
            r#"workqueue_unfinished_work_seconds{name="hero",controller="hero"} 3.0"#,
            r#"workqueue_longest_running_processor_seconds{name="hero",controller="hero"} 3.0"#,
            r#"workqueue_queue_duration_seconds_count{name="hero",controller="hero"} 1"#,
            r#"controller_runtime_reconcile_total{controller="hero",result="success"} 1"#,
            r#"controller_runtime_reconcile_panics_total{controller="hero"} 1"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="hero"} 1"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="hero"} 4"#,
            r#"leader_election_master_status{name="lock"} 1"#,
            r#"rest_client_requests_total{code="200",host="localhost",method="GET"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{le="0.025",verb="GET",host="localhost"} 1"#,
            r#"controller_runtime_reconcile_total{controller="hero",result="error"} 0"#,
            r#"controller_runtime_reconcile_total{controller="hero",result="requeue_after"} 0"#,
            r#"controller_runtime_reconcile_errors_total{controller="hero"} 0"#,
            r#"controller_runtime_terminal_reconcile_errors_total{controller="hero"} 0"#,
            r#"controller_runtime_reconcile_timeouts_total{controller="hero"} 0"#,
            r#"controller_runtime_active_workers{controller="hero"} 0"#,
            r#"workqueue_depth{name="hero",controller="hero",priority="-100"} 0"#,
            r#"workqueue_work_duration_seconds_count{name="hero",controller="hero"} 0"#,
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no line {line} in\n{text}"
            );
        }
        drop(item);
        drop(queue);
        assert!(
            !metrics.encode().contains("workqueue_depth{"),
            "a dropped queue is not reported"
        );
    }

    /// Prometheus rejects a scrape that has a series twice.
    #[tokio::test(start_paused = true)]
    async fn no_series_is_exposed_twice_when_names_are_shared() {
        let metrics = Metrics::new();
        let queues = [(); 2].map(|()| WorkQueue::<&str>::default());
        queues
            .iter()
            .for_each(|queue| metrics.track_queue("hero", queue));
        queues[0].add("a");
        queues[1].add("b");
        queues[1].add("c");
        let client = kube::Client::new(
            tower::service_fn(async |_| {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            }),
            "default",
        );
        let recorders = [(); 2].map(|()| {
            EventRecorder::new(
                client.clone(),
                "hero",
                "pod-1",
                Clock::system(),
                Rng::seeded(1),
            )
            .0
        });
        recorders
            .iter()
            .for_each(|recorder| metrics.track_recorder(recorder));
        for recorder in &recorders {
            let reference = k8s_openapi::api::core::v1::ObjectReference::default();
            recorder.event(reference, Event::normal("R", "A", ""));
        }
        let text = metrics.encode();
        let mut names = std::collections::BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                names.insert(line.rsplit_once(' ').unwrap().0),
                "{line} is twice in\n{text}"
            );
        }
        for line in [
            r#"workqueue_depth{name="hero",controller="hero",priority="0"} 3"#,
            r#"workqueue_adds_total{name="hero",controller="hero"} 3"#,
            r#"bellerophon_events_dropped_total{controller="hero",reason="full"} 2"#,
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no line {line} in\n{text}"
            );
        }
    }
}
