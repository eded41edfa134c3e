//! `bellerophon_events_*`: the metrics of event recorders.
//!
//! In: the counts of recorders at scrape time. Out: two metrics for each controller.
//! Guarantees: a dropped recorder is no longer reported; the counts of recorders of one controller
//! are summed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::events::{EventCounts, EventRecorder};

/// The counts of all recorders, read at each scrape.
#[derive(Clone, Default)]
pub(super) struct TrackedRecorders(Arc<Mutex<Vec<Weak<EventCounts>>>>);

impl TrackedRecorders {
    pub(super) fn track(&self, recorder: &EventRecorder) {
        self.lock().push(Arc::downgrade(recorder.counts()));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<EventCounts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TrackedRecorders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrackedRecorders")
    }
}

/// The summed counts of one controller.
#[derive(Default)]
struct Totals {
    written: u64,
    /// By reason.
    dropped: BTreeMap<&'static str, u64>,
}

fn add(controllers: &mut BTreeMap<String, Totals>, counts: &EventCounts) {
    let totals = controllers.entry(counts.controller().into()).or_default();
    totals.written += counts.written();
    counts
        .dropped()
        .into_iter()
        .for_each(|(reason, dropped)| *totals.dropped.entry(reason).or_default() += dropped);
}

impl Collector for TrackedRecorders {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut controllers = BTreeMap::<String, Totals>::new();
        // Weak references of dropped recorders are removed here, at the latest with the next
        // scrape.
        self.lock().retain(|counts| {
            counts
                .upgrade()
                .map(|counts| add(&mut controllers, &counts))
                .is_some()
        });
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor(
            "bellerophon_events_written",
            "Event objects created or updated",
            None,
            kind,
        )?;
        for (controller, totals) in &controllers {
            ConstCounter::new(totals.written)
                .encode(family.encode_family(&[("controller", controller.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "bellerophon_events_dropped",
            "Events that were not written, by reason",
            None,
            kind,
        )?;
        for (controller, totals) in &controllers {
            for (reason, dropped) in &totals.dropped {
                let labels = [("controller", controller.as_str()), ("reason", reason)];
                ConstCounter::new(*dropped).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
