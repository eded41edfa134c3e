//! `bellerophon_informer_*`: how well caches follow the server, and their handlers the caches.
//!
//! In: the state of informers at scrape time. Out: seven metrics a kind.
//! Holds: an informer that is gone is no longer reported; several of one kind are reported as one, so that no line comes
//! twice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::{counter::ConstCounter, gauge::ConstGauge};

use crate::{InformerStats, SharedInformer};

type Ask = Box<dyn Fn() -> Option<InformerStats> + Send>;

/// The informers that are asked at each scrape, as long as they live.
#[derive(Clone, Default)]
pub(super) struct WatchedInformers(Arc<Mutex<Vec<(String, Ask)>>>);

impl WatchedInformers {
    pub(super) fn watch<K: Resource + Send + Sync + 'static>(&self, informer: &SharedInformer<K>) {
        self.lock().push((
            informer.what().to_owned(),
            Box::new(informer.stats_while_alive()),
        ));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Ask)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> BTreeMap<String, InformerStats> {
        let mut alive = BTreeMap::new();
        self.lock().retain(|(name, ask)| {
            ask()
                .inspect(|stats| add(alive.entry(name.clone()).or_default(), stats))
                .is_some()
        });
        alive
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
    *lag = stats.lag.max(*lag);
    *silence = stats.silence.max(*silence);
}

impl fmt::Debug for WatchedInformers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedInformers")
    }
}

/// A value of an informer: its name, its help, and where it is found.
type Value<T> = (&'static str, &'static str, fn(&InformerStats) -> T);

const TOTALS: [Value<u64>; 3] = [
    (
        "bellerophon_informer_relists",
        "Whole lists taken, the first included",
        |stats| stats.relists,
    ),
    (
        "bellerophon_informer_watches",
        "Watches asked for",
        |stats| stats.watches,
    ),
    (
        "bellerophon_informer_undecodable",
        "Objects that could not be decoded and were passed over",
        |stats| stats.undecodable,
    ),
];

const GAUGES: [Value<usize>; 2] = [
    ("bellerophon_informer_objects", "Cached objects", |stats| {
        stats.objects
    }),
    (
        "bellerophon_informer_handler_backlog",
        "Changes that handlers were not told yet, one an object and handler",
        |stats| stats.backlog,
    ),
];

const SECONDS: [Value<Duration>; 2] = [
    (
        "bellerophon_informer_lag_seconds",
        "How long the oldest change has waited that a handler was not told yet",
        |stats| stats.lag,
    ),
    (
        "bellerophon_informer_silence_seconds",
        "How long the server has said nothing to the most silent watch",
        |stats| stats.silence,
    ),
];

impl Collector for WatchedInformers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let informers = self.ask();
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
