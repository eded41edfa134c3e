//! `workqueue_*`: the metrics of work queues, those of client-go's workqueue metrics provider.
//!
//! In: the durations that a queue observes, and its stats at scrape time. Out: seven metrics for
//! each queue name.
//! Guarantees: depth, processed keys and totals are read at scrape time; a dropped queue is no
//! longer reported; queues of one name are reported as one, so that no series is exposed twice.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::queue::{QueueObserver, QueueStats, WorkQueue};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: String,
    controller: String,
}

impl QueueLabels {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            // controller-runtime has both labels with the same value; dashboards use either.
            controller: name.into(),
        }
    }
}

type Durations = Family<QueueLabels, Histogram, fn() -> Histogram>;

/// The metrics of all queues.
pub(super) struct QueueFamilies {
    queue_durations: Durations,
    work_durations: Durations,
    tracked: TrackedQueues,
}

/// Twelve buckets from 10 ns, each ten times the previous one, as in controller-runtime.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(10e-9, 10.0, 12))
}

impl QueueFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let queue_durations = Durations::new_with_constructor(durations);
        let work_durations = Durations::new_with_constructor(durations);
        let tracked = TrackedQueues::default();
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long a key is ready before it is handed out",
            queue_durations.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long a key is processed",
            work_durations.clone(),
        );
        registry.register_collector(Box::new(tracked.clone()));
        Self {
            queue_durations,
            work_durations,
            tracked,
        }
    }

    pub(super) fn observer(&self, name: &str) -> Arc<dyn QueueObserver> {
        let labels = QueueLabels::new(name);
        Arc::new(QueueHistograms {
            queue_duration: self.queue_durations.get_or_create_owned(&labels),
            work_duration: self.work_durations.get_or_create_owned(&labels),
        })
    }

    pub(super) fn track<T: Clone + Eq + Hash + Send + 'static>(
        &self,
        name: &str,
        queue: &WorkQueue<T>,
    ) {
        self.tracked
            .lock()
            .push((QueueLabels::new(name), Box::new(queue.stats_while_alive())));
    }
}

#[derive(Debug)]
struct QueueHistograms {
    queue_duration: Histogram,
    work_duration: Histogram,
}

impl QueueObserver for QueueHistograms {
    fn observe_queue_duration(&self, duration: Duration) {
        self.queue_duration.observe(duration.as_secs_f64());
    }

    fn observe_work_duration(&self, duration: Duration) {
        self.work_duration.observe(duration.as_secs_f64());
    }
}

/// Reads the stats of a queue; `None` once it is dropped.
type ReadStats = Box<dyn Fn() -> Option<QueueStats> + Send>;

/// All queues, read at each scrape.
#[derive(Clone, Default)]
struct TrackedQueues(Arc<Mutex<Vec<(QueueLabels, ReadStats)>>>);

impl TrackedQueues {
    fn lock(&self) -> MutexGuard<'_, Vec<(QueueLabels, ReadStats)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stats by name. Dropped queues are removed.
    fn read(&self) -> BTreeMap<QueueLabels, QueueStats> {
        let mut by_name = BTreeMap::new();
        self.lock().retain(|(labels, read_stats)| {
            read_stats()
                .inspect(|stats| add(&mut by_name, labels, stats))
                .is_some()
        });
        by_name
    }
}

fn add(by_name: &mut BTreeMap<QueueLabels, QueueStats>, labels: &QueueLabels, stats: &QueueStats) {
    // Two queues of one name would expose each series twice, which Prometheus rejects as a whole.
    let Some(sum) = by_name.get_mut(labels) else {
        by_name.insert(labels.clone(), stats.clone());
        return;
    };
    let QueueStats {
        depth,
        delayed,
        processing,
        adds_total,
        retries_total,
        unfinished,
        longest_running,
    } = sum;
    depth
        .iter_mut()
        .zip(stats.depth)
        .for_each(|((_, sum), (_, more))| *sum += more);
    *delayed += stats.delayed;
    *processing += stats.processing;
    *adds_total += stats.adds_total;
    *retries_total += stats.retries_total;
    *unfinished += stats.unfinished;
    *longest_running = stats.longest_running.max(*longest_running);
}

impl fmt::Debug for TrackedQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrackedQueues")
    }
}

/// A counter: name, help and value.
type Total = (&'static str, &'static str, fn(&QueueStats) -> u64);

/// A gauge in seconds: name, help and value.
type Seconds = (&'static str, &'static str, fn(&QueueStats) -> Duration);

const TOTALS: [Total; 2] = [
    (
        "workqueue_adds",
        "Adds of keys that were not dirty",
        |stats| stats.adds_total,
    ),
    ("workqueue_retries", "Delayed adds", |stats| {
        stats.retries_total
    }),
];

const SECONDS: [Seconds; 2] = [
    (
        "workqueue_unfinished_work_seconds",
        "Sum of the times since each processed key was handed out",
        |stats| stats.unfinished,
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Longest time since a processed key was handed out",
        |stats| stats.longest_running,
    ),
];

impl Collector for TrackedQueues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues = self.read();
        let kind = ConstGauge::new(0i64).metric_type();
        let mut family =
            encoder.encode_descriptor("workqueue_depth", "Ready keys by priority", None, kind)?;
        for (labels, stats) in &queues {
            for (priority, depth) in stats.depth {
                let number = priority.as_number().to_string();
                let labels = [
                    ("name", labels.name.as_str()),
                    ("controller", &labels.controller),
                    ("priority", &number),
                ];
                ConstGauge::new(i64::try_from(depth).unwrap_or(i64::MAX))
                    .encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, value) in TOTALS {
            let mut family = encoder.encode_descriptor(
                name,
                help,
                None,
                ConstCounter::new(0u64).metric_type(),
            )?;
            for (labels, stats) in &queues {
                ConstCounter::new(value(stats)).encode(family.encode_family(labels)?)?;
            }
        }
        for (name, help, value) in SECONDS {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, stats) in &queues {
                ConstGauge::new(value(stats).as_secs_f64())
                    .encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}
