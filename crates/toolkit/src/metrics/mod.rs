//! Metrics: what a scrape tells, under the names client-go and controller-runtime gave it.
//!
//! In: counts and times from queues, controllers, leader election and the client. Out: one text page.
//! Holds: what can be asked is asked at scrape time, so a gauge is never stale; nothing grows with the number of objects.

mod client; // rest_client_*
mod controller; // controller_runtime_*
mod events; // bellerophon_events_*
mod informer; // bellerophon_informer_*
mod queue; // workqueue_*

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use prometheus_client::registry::Registry;

use crate::{EventRecorder, QueueObserver, SharedInformer, WorkQueue};
pub use client::CountRequests;
use controller::ControllerFamilies;
pub(crate) use controller::ControllerMetrics;
use events::WatchedRecorders;
use informer::WatchedInformers;
use kube::Resource;
use queue::QueueFamilies;

/// All metrics of one process. Clones are handles to the same metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    informers: WatchedInformers,
    recorders: WatchedRecorders,
    queues: QueueFamilies,
    controllers: ControllerFamilies,
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

/// The buckets of client-go for the latency of requests: 5 ms to 60 s.
fn latencies() -> Histogram {
    Histogram::new([
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ])
}

impl Metrics {
    /// Metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let informers = WatchedInformers::default();
        let recorders = WatchedRecorders::default();
        registry.register_collector(Box::new(informers.clone()));
        registry.register_collector(Box::new(recorders.clone()));
        let queues = QueueFamilies::register(&mut registry);
        let controllers = ControllerFamilies::register(&mut registry);
        let (leader, slowpath, requests) =
            (Family::default(), Family::default(), Family::default());
        registry.register(
            "leader_election_master_status",
            "Whether this process leads: 1 if it does",
            leader.clone(),
        );
        registry.register(
            "leader_election_slowpath",
            "Renewals that had to read the lease first",
            slowpath.clone(),
        );
        registry.register(
            "rest_client_requests",
            "Requests to the API server, by answer, method and host",
            requests.clone(),
        );
        let latencies = Family::new_with_constructor(latencies as fn() -> Histogram);
        registry.register(
            "rest_client_request_duration_seconds",
            "How long the API server took to answer, by method and host",
            latencies.clone(),
        );
        let registry = Mutex::new(registry);
        Self(Arc::new(Inner {
            registry,
            informers,
            recorders,
            queues,
            controllers,
            leader,
            slowpath,
            requests,
            latencies,
        }))
    }

    /// Reports size, lists, watches, undecodable objects and the backlog of handlers of an informer at each scrape, for as
    /// long as the informer lives.
    pub fn watch_informer<K: Resource + Send + Sync + 'static>(
        &self,
        informer: &SharedInformer<K>,
    ) {
        self.0.informers.watch(informer);
    }

    /// Measures the times of a queue of that name. Pass it in [`QueueOptions`](crate::QueueOptions).
    pub fn queue_observer(&self, name: &str) -> Arc<dyn QueueObserver> {
        self.0.queues.observer(name)
    }

    /// Reports depth, adds, retries and running work of a queue at each scrape, for as long as the queue lives.
    pub fn watch_queue<T: Clone + Eq + Hash + Send + 'static>(
        &self,
        name: &str,
        queue: &WorkQueue<T>,
    ) {
        self.0.queues.watch(name, queue);
    }

    /// Reports what became of a recorder's notes at each scrape, for as long as somebody can record.
    pub fn watch_recorder(&self, recorder: &EventRecorder) {
        self.0.recorders.watch(recorder);
    }

    /// Counts and times the requests of a client: give it to `kube::client::ClientBuilder::with_layer`.
    pub fn client_layer(&self) -> CountRequests<()> {
        CountRequests::new((), self.clone())
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

    /// More metrics of the process, in the same page. Called once per set, at start.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry());
    }

    /// The page a scrape gets, as OpenMetrics text.
    pub fn page(&self) -> String {
        let mut page = String::new();
        match encode(&mut page, &self.registry()) {
            Ok(()) => page,
            Err(fmt::Error) => unreachable!("writing to a string does not fail"),
        }
    }

    pub(crate) fn controller(&self, name: &str) -> ControllerMetrics {
        self.0.controllers.of(name)
    }

    pub(crate) fn set_leader(&self, lease: &str, leads: bool) {
        let label = NameLabel { name: lease.into() };
        self.0.leader.get_or_create(&label).set(i64::from(leads));
        // Both series of a lease exist from the first.
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
    use crate::{QueueOptions, RateLimit};

    #[tokio::test(start_paused = true)]
    async fn names_and_labels_are_those_of_client_go_and_controller_runtime() {
        let metrics = Metrics::new();
        let queue = WorkQueue::new(QueueOptions {
            observer: Some(metrics.queue_observer("hero")),
            rate_limit: RateLimit::default(),
            ..QueueOptions::default()
        });
        metrics.watch_queue("hero", &queue);
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
        let page = metrics.page();
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
                page.lines().any(|found| found == line),
                "no line {line} in\n{page}"
            );
        }
        drop(item);
        drop(queue);
        assert!(
            !metrics.page().contains("workqueue_depth{"),
            "a queue that is gone is not reported"
        );
    }

    /// Two lines with the same name and labels make a page unreadable for Prometheus.
    #[tokio::test(start_paused = true)]
    async fn no_line_comes_twice_when_names_are_shared() {
        let metrics = Metrics::new();
        let queues = [(); 2].map(|()| WorkQueue::<&str>::default());
        queues
            .iter()
            .for_each(|queue| metrics.watch_queue("hero", queue));
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
                crate::WallClock::system(),
                crate::Entropy::seeded(1),
            )
            .0
        });
        recorders
            .iter()
            .for_each(|recorder| metrics.watch_recorder(recorder));
        for recorder in &recorders {
            let note = crate::Note {
                type_: crate::EventType::Normal,
                reason: "R".into(),
                action: "A".into(),
                note: String::new(),
            };
            recorder.event_about(Default::default(), note);
        }
        let page = metrics.page();
        let mut names = std::collections::BTreeSet::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                names.insert(line.rsplit_once(' ').unwrap().0),
                "{line} comes twice in\n{page}"
            );
        }
        for line in [
            r#"workqueue_depth{name="hero",controller="hero",priority="0"} 3"#,
            r#"workqueue_adds_total{name="hero",controller="hero"} 3"#,
            r#"bellerophon_events_dropped_total{controller="hero",reason="full"} 2"#,
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "no line {line} in\n{page}"
            );
        }
    }
}
