//! `bellerophon_events_*`: what became of the notes of a recorder.
//!
//! In: the counts of recorders at scrape time. Out: two metrics a recorder.
//! Holds: a recorder that nobody holds any more is no longer reported; several of one controller are reported as one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::EventRecorder;
use crate::events::Counts;

/// The recorders that are asked at each scrape, as long as they live.
#[derive(Clone, Default)]
pub(super) struct WatchedRecorders(Arc<Mutex<Vec<Weak<Counts>>>>);

impl WatchedRecorders {
    pub(super) fn watch(&self, recorder: &EventRecorder) {
        self.lock().push(Arc::downgrade(recorder.counts()));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Counts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WatchedRecorders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedRecorders")
    }
}

/// What became of the notes of one controller.
#[derive(Default)]
struct Fates {
    written: u64,
    /// By reason.
    dropped: BTreeMap<&'static str, u64>,
}

fn add(controllers: &mut BTreeMap<String, Fates>, counts: &Counts) {
    let fates = controllers.entry(counts.controller().into()).or_default();
    fates.written += counts.written();
    counts
        .dropped()
        .into_iter()
        .for_each(|(reason, dropped)| *fates.dropped.entry(reason).or_default() += dropped);
}

impl Collector for WatchedRecorders {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut controllers = BTreeMap::<String, Fates>::new();
        self.lock().retain(|counts| {
            counts
                .upgrade()
                .map(|counts| add(&mut controllers, &counts))
                .is_some()
        });
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor(
            "bellerophon_events_written",
            "Events created or counted up on the server",
            None,
            kind,
        )?;
        for (controller, fates) in &controllers {
            ConstCounter::new(fates.written)
                .encode(family.encode_family(&[("controller", controller.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "bellerophon_events_dropped",
            "Notes that became no Event, by reason",
            None,
            kind,
        )?;
        for (controller, fates) in &controllers {
            for (reason, dropped) in &fates.dropped {
                let labels = [("controller", controller.as_str()), ("reason", reason)];
                ConstCounter::new(*dropped).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
