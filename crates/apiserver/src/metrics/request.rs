//! Requests to resources, counted and timed.
//! In: the start of a request, and its answer. Out: counters and histograms.
//! Guarantees: recording allocates nothing for a series that exists; a watch counts as under way
//! until its body is dropped.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
};

use bellerophon_apimachinery::error::ApiError;
use bytes::Bytes;
use http::Response;
use http_body::Body as _;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::Registry,
};
use tokio::time::Instant;

use super::labels::{Labels, MeasuredRequest, OfResource};
use crate::http::body::Body;

/// How many series of requests are kept. Requests that would need more are not counted; a cluster
/// with a thousand custom resources stays below it.
const SERIES_MAX: usize = 50_000;

/// The bounds of durations, in seconds.
const DURATION_SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// The bounds of the sizes of answers, in bytes.
const SIZE_BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Metrics of requests.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(super) registry: Registry,
    total: Family<Labels, Counter>,
    duration: Histograms,
    sizes: Histograms,
    long_running: Family<Labels, Gauge>,
    watch_events: Family<OfResource, Counter>,
    /// How many series there are in all of these; at most [`SERIES_MAX`], a few more when many are
    /// created concurrently.
    series: AtomicUsize,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations: fn() -> Histogram = || Histogram::new(DURATION_SECONDS);
        let sizes: fn() -> Histogram = || Histogram::new(SIZE_BYTES);
        let mut metrics = Self {
            registry: Registry::with_prefix("apiserver"),
            total: Family::default(),
            duration: Family::new_with_constructor(durations),
            sizes: Family::new_with_constructor(sizes),
            long_running: Family::default(),
            watch_events: Family::default(),
            series: AtomicUsize::new(0),
        };
        let Self {
            registry,
            total,
            duration,
            sizes,
            long_running,
            watch_events,
            ..
        } = &mut metrics;
        registry.register(
            "request",
            "Requests by verb, resource and code",
            total.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "How long requests took, in seconds",
            duration.clone(),
        );
        registry.register(
            "response_sizes",
            "How large answers to reads were, in bytes",
            sizes.clone(),
        );
        registry.register(
            "longrunning_requests",
            "Watches and other long requests under way",
            long_running.clone(),
        );
        registry.register(
            "watch_events",
            "Events sent to watchers",
            watch_events.clone(),
        );
        metrics
    }
}

impl Metrics {
    /// A request begins.
    pub(crate) fn begin(self: &Arc<Self>, request: &MeasuredRequest<'_>) -> Running {
        Running {
            metrics: self.clone(),
            labels: request.labels(),
            started: Instant::now(),
        }
    }

    /// The series of these labels; `None` when it is new and there are too many already.
    fn series<S, M, C>(&self, family: &Family<S, M, C>, labels: &S) -> Option<M>
    where
        S: Clone + Hash + Eq,
        M: Clone,
        C: MetricConstructor<M>,
    {
        if let Some(known) = family.get(labels) {
            return Some(known.clone());
        }
        let full = self.series.load(Ordering::Relaxed) >= SERIES_MAX
            || self.series.fetch_add(1, Ordering::Relaxed) >= SERIES_MAX;
        (!full).then(|| family.get_or_create_owned(labels))
    }

    fn observe(&self, family: &Histograms, labels: &Labels, value: f64) {
        if let Some(histogram) = self.series(family, labels) {
            histogram.observe(value);
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Running {
    metrics: Arc<Metrics>,
    labels: Labels,
    started: Instant,
}

impl Running {
    /// Records the outcome of a request and returns it. A stream is in flight until it ends.
    ///
    /// # Errors
    /// The error of the outcome.
    pub(crate) fn answered(
        self,
        outcome: Result<Response<Body>, ApiError>,
    ) -> Result<Response<Body>, ApiError> {
        match outcome {
            Ok(response) if response.body().is_stream() => Ok(self.streams(response)),
            Ok(response) => Ok(self.has_size(response)),
            Err(error) => {
                self.ended(error.code(), None);
                Err(error)
            }
        }
    }

    /// The request is passed on: it is in flight for as long as it is connected.
    pub(crate) fn connect(self) -> Connected {
        let labels = Labels {
            dry_run: None,
            ..self.labels.clone()
        };
        let open = self.metrics.series(&self.metrics.long_running, &labels);
        open.as_ref().map(Gauge::inc);
        Connected {
            running: self,
            open,
            code: AtomicU16::new(CLIENT_CLOSED_REQUEST),
        }
    }

    /// Records the size of a response, now or when it is sent.
    fn has_size(self, response: Response<Body>) -> Response<Body> {
        let size = response.body().size_hint().exact();
        self.ended(response.status().as_u16(), size);
        if size.is_some() {
            return response;
        }
        let mut observer = SizeObserver {
            running: self,
            bytes: 0,
        };
        response.map(|body| body.inspect(move |piece| observer.add(piece)))
    }

    fn ended(&self, code: u16, size: Option<u64>) {
        let metrics = &self.metrics;
        if let Some(counter) = metrics.series(
            &metrics.total,
            &Labels {
                code: Some(code),
                ..self.labels.clone()
            },
        ) {
            counter.inc();
        }
        metrics.observe(
            &metrics.duration,
            &self.labels,
            self.started.elapsed().as_secs_f64(),
        );
        if let Some(size) = size {
            self.observe_size(size);
        }
    }

    fn observe_size(&self, bytes: u64) {
        if !matches!(self.labels.verb, "GET" | "LIST") {
            return;
        }
        let labels = Labels {
            dry_run: None,
            ..self.labels.clone()
        };
        let metrics = &self.metrics;
        metrics.observe(&metrics.sizes, &labels, bytes as f64);
    }

    fn streams(self, response: Response<Body>) -> Response<Body> {
        let labels = Labels {
            dry_run: None,
            ..self.labels.clone()
        };
        let resource = OfResource::new(&self.labels.resource);
        let events = self.metrics.series(&self.metrics.watch_events, &resource);
        let open = self.metrics.series(&self.metrics.long_running, &labels);
        open.as_ref().map(Gauge::inc);
        let stream = Streaming {
            code: response.status().as_u16(),
            running: self,
            open,
            events,
        };
        response.map(|body| body.inspect(move |piece| stream.sent(piece)))
    }
}

/// The code of a request whose client was gone before it was answered.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// A request that is passed on, from its begin until its connection is closed.
#[derive(Debug)]
pub(crate) struct Connected {
    running: Running,
    open: Option<Gauge>,
    code: AtomicU16,
}

impl Connected {
    /// The request was answered with this code.
    pub(crate) fn answered(&self, code: u16) {
        self.code.store(code, Ordering::Relaxed);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.open.as_ref().map(Gauge::dec);
        let code = self.code.load(Ordering::Relaxed);
        self.running.ended(code, None);
    }
}

/// A response whose size is known once it is sent.
struct SizeObserver {
    running: Running,
    bytes: u64,
}

impl SizeObserver {
    fn add(&mut self, piece: &Bytes) {
        self.bytes += piece.len() as u64;
    }
}

impl Drop for SizeObserver {
    fn drop(&mut self) {
        self.running.observe_size(self.bytes);
    }
}

/// A watch whose body is sent.
struct Streaming {
    running: Running,
    code: u16,
    open: Option<Gauge>,
    events: Option<Counter>,
}

impl Streaming {
    /// Events are lines.
    fn sent(&self, piece: &Bytes) {
        if let Some(events) = &self.events {
            events.inc_by(count_lines(piece));
        }
    }
}

/// Counts the ends of lines. Sums of single bytes are vectorized; 255 of them cannot overflow.
fn count_lines(bytes: &[u8]) -> u64 {
    let count = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| u8::from(*byte == b'\n'))
            .sum::<u8>()
    };
    bytes.chunks(255).map(|chunk| u64::from(count(chunk))).sum()
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.open.as_ref().map(Gauge::dec);
        self.running.ended(self.code, None);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use http::{Request, StatusCode};
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{
        http::{query::Query, route::Route},
        registry::Catalog,
    };

    #[test]
    fn all_lines_are_counted() {
        assert_eq!(count_lines(b""), 0);
        assert_eq!(count_lines(b"a\nb\n"), 2);
        assert_eq!(count_lines(&[b'\n'; 100_000]), 100_000);
    }

    fn text(metrics: &Metrics) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &metrics.registry)
            .expect("writing to memory does not fail");
        text
    }

    fn begin(metrics: &Arc<Metrics>, method: &str, target: &str) -> Running {
        let (head, ()) = Request::builder()
            .method(method)
            .uri(target)
            .body(())
            .expect("a request")
            .into_parts();
        let Route::Resource(path) = Route::parse(head.uri.path()) else {
            panic!("{target} is no resource")
        };
        let resource = Catalog::default()
            .find(&path.group, &path.version, &path.resource)
            .expect("it is served");
        let subresource = resource
            .subresource(&path.subresource)
            .map_or("", |p| p.name);
        let query = Query::parse(head.uri.query().unwrap_or_default()).expect("a good query");
        metrics.begin(&MeasuredRequest {
            resource: &resource,
            subresource,
            path: &path,
            head: &head,
            query: &query,
        })
    }

    #[test]
    fn requests_are_counted_under_the_labels_of_kubernetes() {
        let metrics = Arc::new(Metrics::default());
        for (method, target, labels) in [
            (
                "GET",
                "/api/v1/namespaces/a/pods/b",
                r#"code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1""#,
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods",
                r#"resource="pods",scope="namespace",subresource="",verb="LIST""#,
            ),
            (
                "GET",
                "/apis/apps/v1/deployments",
                r#"group="apps",resource="deployments",scope="cluster",subresource="",verb="LIST""#,
            ),
            (
                "GET",
                "/apis/apps/v1/deployments?watch=1",
                r#"resource="deployments",scope="cluster",subresource="",verb="WATCH""#,
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods?dryRun=All",
                r#"dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST""#,
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/pods/b/status",
                r#"resource="pods",scope="resource",subresource="status",verb="PUT""#,
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b/log",
                r#"subresource="log",verb="CONNECT""#,
            ),
            ("BREW", "/api/v1/namespaces/a/pods/b", r#"verb="other""#),
        ] {
            let error = begin(&metrics, method, target).answered(Err(ApiError::NoSuchResource));
            assert_eq!(error.err(), Some(ApiError::NoSuchResource));
            let text = text(&metrics);
            assert!(
                text.contains(labels),
                "{method} {target}: {labels} not in\n{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_is_under_way_until_its_body_is_gone() {
        let metrics = Arc::new(Metrics::default());
        let running = begin(&metrics, "GET", "/api/v1/pods?watch=true");
        let pieces = futures_util::stream::iter(["{}\n{}\n", "{}\n"]).map(Bytes::from);
        let response = running
            .answered(Ok(Response::new(Body::stream(pieces))))
            .expect("it is handed on");
        let open = |n| {
            format!(
                r#"apiserver_longrunning_requests{{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"}} {n}"#
            )
        };
        assert!(text(&metrics).contains(&open(1)));
        assert!(!text(&metrics).contains("apiserver_request_total{"));
        tokio::time::advance(std::time::Duration::from_secs(7)).await;
        assert_eq!(response.status(), StatusCode::OK);
        response
            .into_body()
            .collect()
            .await
            .expect("bodies do not fail");
        let text = text(&metrics);
        assert!(
            text.contains(&open(0))
                && text.contains(
                    r#"apiserver_watch_events_total{group="",resource="pods",version="v1"} 3"#
                ),
            "{text}"
        );
        assert!(
            text.contains("apiserver_request_total{code=\"200\"")
                && text.contains(r#"verb="WATCH",version="v1"} 7.0"#),
            "{text}"
        );
    }
}
