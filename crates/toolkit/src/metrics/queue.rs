//! `workqueue_*`: what client-go tells of a queue.
//!
//! In: the times a queue reports, and its state at scrape time. Out: seven metrics a queue.
//! Holds: depth, running work and totals are read when asked; a queue that is gone is no longer reported; several of one
//! name are reported as one, so that no line comes twice.

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

use crate::{QueueObserver, QueueStats, WorkQueue};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: String,
    controller: String,
}

impl QueueLabels {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            controller: name.into(),
        }
    }
}

type Times = Family<QueueLabels, Histogram, fn() -> Histogram>;

/// The metrics of all queues.
pub(super) struct QueueFamilies {
    waited: Times,
    worked: Times,
    watched: Watched,
}

/// Twelve buckets from 10 ns, each ten times the one before, as client-go has them.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(10e-9, 10.0, 12))
}

impl QueueFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let (waited, worked) = (
            Times::new_with_constructor(durations),
            Times::new_with_constructor(durations),
        );
        let watched = Watched::default();
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long a key waits in the queue before it is handed out",
            waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long a key is with a worker",
            worked.clone(),
        );
        registry.register_collector(Box::new(watched.clone()));
        Self {
            waited,
            worked,
            watched,
        }
    }

    pub(super) fn observer(&self, name: &str) -> Arc<dyn QueueObserver> {
        let labels = QueueLabels::new(name);
        Arc::new(QueueTimes {
            waited: self.waited.get_or_create_owned(&labels),
            worked: self.worked.get_or_create_owned(&labels),
        })
    }

    pub(super) fn watch<T: Clone + Eq + Hash + Send + 'static>(
        &self,
        name: &str,
        queue: &WorkQueue<T>,
    ) {
        self.watched
            .lock()
            .push((QueueLabels::new(name), Box::new(queue.stats_while_alive())));
    }
}

#[derive(Debug)]
struct QueueTimes {
    waited: Histogram,
    worked: Histogram,
}

impl QueueObserver for QueueTimes {
    fn waited(&self, how_long: Duration) {
        self.waited.observe(how_long.as_secs_f64());
    }

    fn worked(&self, how_long: Duration) {
        self.worked.observe(how_long.as_secs_f64());
    }
}

type Ask = Box<dyn Fn() -> Option<QueueStats> + Send>;

/// The queues that are asked at each scrape, as long as they live.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Vec<(QueueLabels, Ask)>>>);

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Vec<(QueueLabels, Ask)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> BTreeMap<QueueLabels, QueueStats> {
        let mut alive = BTreeMap::new();
        self.lock().retain(|(labels, ask)| {
            ask()
                .inspect(|stats| add(&mut alive, labels, stats))
                .is_some()
        });
        alive
    }
}

fn add(alive: &mut BTreeMap<QueueLabels, QueueStats>, labels: &QueueLabels, stats: &QueueStats) {
    let Some(sum) = alive.get_mut(labels) else {
        alive.insert(labels.clone(), stats.clone());
        return;
    };
    let QueueStats {
        depth,
        delayed,
        running,
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
    *running += stats.running;
    *adds_total += stats.adds_total;
    *retries_total += stats.retries_total;
    *unfinished += stats.unfinished;
    *longest_running = stats.longest_running.max(*longest_running);
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// A total of a queue: its name, its help, and where it is found.
type Total = (&'static str, &'static str, fn(&QueueStats) -> u64);

/// A value in seconds of a queue, likewise.
type Seconds = (&'static str, &'static str, fn(&QueueStats) -> Duration);

const TOTALS: [Total; 2] = [
    ("workqueue_adds", "How often a key became ready", |stats| {
        stats.adds_total
    }),
    ("workqueue_retries", "Adds with a delay", |stats| {
        stats.retries_total
    }),
];

const SECONDS: [Seconds; 2] = [
    (
        "workqueue_unfinished_work_seconds",
        "The ages of all running keys, summed",
        |stats| stats.unfinished,
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "The age of the oldest running key",
        |stats| stats.longest_running,
    ),
];

impl Collector for Watched {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues = self.ask();
        let kind = ConstGauge::new(0i64).metric_type();
        let mut family = encoder.encode_descriptor(
            "workqueue_depth",
            "Keys ready to be handed out",
            None,
            kind,
        )?;
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
