//! `bellerophon_informer_*`: the metrics of informers.
//!
//! In: the stats of informers at scrape time. Out: seven metrics for each informer name.
//! Guarantees: a dropped informer is no longer reported; informers of one name are reported as one,
//! so that no series is exposed twice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::{counter::ConstCounter, gauge::ConstGauge};

use crate::informer_stats::InformerStats;

/// Reads the stats of an informer; `None` once it is dropped.
type ReadStats = Box<dyn Fn() -> Option<InformerStats> + Send>;

/// All informers by name, read at each scrape.
#[derive(Clone, Default)]
pub(super) struct TrackedInformers(Arc<Mutex<Vec<(String, ReadStats)>>>);

impl TrackedInformers {
    pub(super) fn track(&self, name: &str, stats: ReadStats) {
        self.lock().push((name.to_owned(), stats));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, ReadStats)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stats by name. Dropped informers are removed.
    fn read(&self) -> BTreeMap<String, InformerStats> {
        let mut by_name = BTreeMap::new();
        self.lock().retain(|(name, read_stats)| {
            read_stats()
                .inspect(|stats| add(by_name.entry(name.clone()).or_default(), stats))
                .is_some()
        });
        by_name
    }
}

fn add(sum: &mut InformerStats, stats: &InformerStats) {
    let InformerStats {
        relists,
        watches,
        undecodable,
        objects,
        backlog,
        lag,
        silence,
    } = sum;
    *relists += stats.relists;
    *watches += stats.watches;
    *undecodable += stats.undecodable;
    *objects += stats.objects;
    *backlog += stats.backlog;
    // Ages do not add up: the oldest one is what an alert compares.
    *lag = stats.lag.max(*lag);
    *silence = stats.silence.max(*silence);
}

impl fmt::Debug for TrackedInformers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrackedInformers")
    }
}

/// A metric: name, help and value.
type MetricOf<T> = (&'static str, &'static str, fn(&InformerStats) -> T);

const TOTALS: [MetricOf<u64>; 3] = [
    (
        "bellerophon_informer_relists",
        "Lists, including the initial one",
        |stats| stats.relists,
    ),
    ("bellerophon_informer_watches", "Watch requests", |stats| {
        stats.watches
    }),
    (
        "bellerophon_informer_undecodable",
        "Objects that could not be decoded and were skipped",
        |stats| stats.undecodable,
    ),
];

const GAUGES: [MetricOf<usize>; 2] = [
    ("bellerophon_informer_objects", "Cached objects", |stats| {
        stats.objects
    }),
    (
        "bellerophon_informer_handler_backlog",
        "Changes not yet delivered, one for each object and handler",
        |stats| stats.backlog,
    ),
];

const SECONDS: [MetricOf<Duration>; 2] = [
    (
        "bellerophon_informer_lag_seconds",
        "Age of the oldest change not yet delivered to a handler",
        |stats| stats.lag,
    ),
    (
        "bellerophon_informer_silence_seconds",
        "Longest time since the last event or bookmark of a watch",
        |stats| stats.silence,
    ),
];

impl Collector for TrackedInformers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let informers = self.read();
        for (name, help, value) in TOTALS {
            let mut family = encoder.encode_descriptor(
                name,
                help,
                None,
                ConstCounter::new(0u64).metric_type(),
            )?;
            for (informer, stats) in &informers {
                ConstCounter::new(value(stats))
                    .encode(family.encode_family(&[("name", informer.as_str())])?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut family =
                encoder.encode_descriptor(name, help, None, ConstGauge::new(0i64).metric_type())?;
            for (informer, stats) in &informers {
                let value = i64::try_from(value(stats)).unwrap_or(i64::MAX);
                ConstGauge::new(value)
                    .encode(family.encode_family(&[("name", informer.as_str())])?)?;
            }
        }
        for (name, help, value) in SECONDS {
            let mut family =
                encoder.encode_descriptor(name, help, None, ConstGauge::new(0f64).metric_type())?;
            for (informer, stats) in &informers {
                let seconds = value(stats).as_secs_f64();
                ConstGauge::new(seconds)
                    .encode(family.encode_family(&[("name", informer.as_str())])?)?;
            }
        }
        Ok(())
    }
}
