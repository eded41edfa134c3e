//! `bellerophon_informer_*`: how well caches follow the server, and their handlers the caches.
//!
//! In: the state of informers at scrape time. Out: five metrics an informer.
//! Holds: an informer that is gone is no longer reported.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        self.lock().push((informer.what().to_owned(), Box::new(informer.stats_while_alive())));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Ask)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Vec<(String, InformerStats)> {
        let mut alive = Vec::new();
        self.lock().retain(|(name, ask)| ask().inspect(|stats| alive.push((name.clone(), *stats))).is_some());
        alive
    }
}

impl fmt::Debug for WatchedInformers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedInformers")
    }
}

/// A value of an informer: its name, its help, and where it is found.
type Value<T> = (&'static str, &'static str, fn(&InformerStats) -> T);

const TOTALS: [Value<u64>; 3] = [
    ("bellerophon_informer_relists", "Whole lists taken, the first included", |stats| stats.relists),
    ("bellerophon_informer_watches", "Watches asked for", |stats| stats.watches),
    ("bellerophon_informer_undecodable", "Objects that could not be decoded and were passed over", |stats| stats.undecodable),
];

const GAUGES: [Value<usize>; 2] = [
    ("bellerophon_informer_objects", "Cached objects", |stats| stats.objects),
    ("bellerophon_informer_handler_backlog", "Changes that handlers were not told yet, one an object and handler", |stats| stats.backlog),
];

impl Collector for WatchedInformers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let informers = self.ask();
        for (name, help, value) in TOTALS {
            let mut family = encoder.encode_descriptor(name, help, None, ConstCounter::new(0u64).metric_type())?;
            for (informer, stats) in &informers {
                ConstCounter::new(value(stats)).encode(family.encode_family(&[("name", informer.as_str())])?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, ConstGauge::new(0i64).metric_type())?;
            for (informer, stats) in &informers {
                let value = i64::try_from(value(stats)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&[("name", informer.as_str())])?)?;
            }
        }
        Ok(())
    }
}
