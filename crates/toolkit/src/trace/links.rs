//! Index of links: which write caused which change, which change enqueued which key, which reconcile
//! wrote what.
//!
//! In: records in order, each once. Out: the reconciles that led to a key, or that followed from a
//! write.
//! Guarantees: incremental, so a query costs the records since the last one; each reconcile
//! appears once; entries of records that the ring has overwritten are removed.
//!
//! Pure: it reads records only.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::record::{TraceEvent, TraceRecord};
use super::ring::TraceBatch;
use super::timeline::{CauseLink, Timeline, TracedReconcile};
use crate::ObjectKey;
use crate::queue::CauseEvent;

type Record = Arc<TraceRecord>;

/// Kind, key and resource version of an object.
type Version = (Arc<str>, ObjectKey, Option<String>);

/// The number of a reconcile since the trace was created.
type Number = u64;

/// The records read so far, indexed by what links them.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The sequence number of the last record that was read.
    seen: u64,
    /// Reconciles in the order of their starts. Invariant: the number of the first is `dropped`.
    reconciles: VecDeque<TracedReconcile>,
    /// The number of reconciles that were removed.
    dropped: Number,
    /// Enqueued by controller and key, since the last start.
    enqueued: HashMap<(Arc<str>, ObjectKey), Vec<CauseLink>>,
    /// The running reconcile of a controller and key.
    running: HashMap<(Arc<str>, ObjectKey), Number>,
    /// The newest record of a change.
    delivered: HashMap<Version, Record>,
    /// Writes and the reconciles that sent them. Deletes have no version, so there may be several.
    written: HashMap<Version, Vec<(Record, Option<Number>)>>,
    /// The newest accepted write of a subresource of an object, and its version.
    accepted: HashMap<(Arc<str>, ObjectKey), (Arc<str>, u64)>,
    /// The versions of writes whose responses have none, by the sequence numbers of their records.
    resolved: HashMap<u64, Version>,
    /// The reconciles that a version enqueued.
    caused: HashMap<Version, Vec<Number>>,
    /// The oldest record at the last removal.
    removed_before: u64,
}

impl Links {
    /// The sequence number to continue after.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Reads the records after [`seen`](Self::seen). `oldest` is the oldest one in the ring, and
    /// `capacity` the number of records that the ring keeps.
    pub(super) fn update(&mut self, batch: &TraceBatch, oldest: u64, capacity: usize) {
        for record in &batch.records {
            self.read(record);
            self.seen = record.sequence;
        }
        // Not at every call: a removal costs the size of the index.
        let removal_interval = u64::try_from(capacity / 4).unwrap_or(u64::MAX).max(1);
        if oldest >= self.removed_before + removal_interval {
            self.removed_before = oldest;
            self.remove_before(oldest);
        }
    }

    fn remove_before(&mut self, oldest: u64) {
        while let Some(first) = self.reconciles.front()
            && first.started.sequence < oldest
        {
            self.reconciles.pop_front();
            self.dropped += 1;
        }
        let dropped = self.dropped;
        self.enqueued
            .retain(|_, causes| causes.iter().any(|cause| cause.enqueued.sequence >= oldest));
        self.running.retain(|_, number| *number >= dropped);
        self.delivered.retain(|_, record| record.sequence >= oldest);
        self.written.retain(|_, writes| {
            writes.retain(|(record, _)| record.sequence >= oldest);
            !writes.is_empty()
        });
        self.resolved.retain(|sequence, _| *sequence >= oldest);
        // A write and the response to it are close, so older ones are not needed.
        self.accepted.clear();
        self.caused.retain(|_, numbers| {
            numbers.retain(|number| *number >= dropped);
            !numbers.is_empty()
        });
    }

    fn reconcile(&self, number: Number) -> Option<&TracedReconcile> {
        let place = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.reconciles.get(place)
    }

    fn reconcile_mut(&mut self, number: Number) -> Option<&mut TracedReconcile> {
        let place = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.reconciles.get_mut(place)
    }

    fn read(&mut self, record: &Record) {
        match &record.event {
            // Other accepted writes are linked by the responses to them.
            TraceEvent::Accepted(write) if !write.attributes.subresource.is_empty() => {
                let attributes = &write.attributes;
                let object = (attributes.kind.clone(), write.key.clone());
                let accepted = (attributes.subresource.clone(), write.resource_version);
                self.accepted.insert(object, accepted);
            }
            // Changes of a cache are linked by their delivery to the controller.
            TraceEvent::Accepted(_) | TraceEvent::Listed { .. } | TraceEvent::Cached { .. } => {}
            TraceEvent::Delivered {
                kind,
                key,
                resource_version,
                ..
            } => {
                let version = (kind.clone(), key.clone(), resource_version.clone());
                self.delivered.insert(version, record.clone());
            }
            TraceEvent::Enqueued {
                controller,
                key,
                cause_kind,
                cause_key,
                cause_version,
            } => {
                let version = (cause_kind.clone(), cause_key.clone(), cause_version.clone());
                let cause = CauseLink {
                    enqueued: record.clone(),
                    delivered: self.delivered.get(&version).cloned(),
                    written: None,
                };
                let queued = (controller.clone(), key.clone());
                self.enqueued.entry(queued).or_default().push(cause);
            }
            TraceEvent::Started {
                controller, key, ..
            } => self.start(controller, key, record),
            TraceEvent::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version,
            } => {
                let by = self.add_write(controller, reconciling, record);
                let version = (kind.clone(), key.clone(), resource_version.clone());
                let writes = self.written.entry(version).or_default();
                writes.push((record.clone(), by));
            }
            TraceEvent::SubresourceWritten {
                controller,
                reconciling,
                kind,
                key,
                subresource,
            } => {
                let by = self.add_write(controller, reconciling, record);
                if let Some(version) = self.accepted_version(kind, key, subresource) {
                    let writes = self.written.entry(version.clone()).or_default();
                    writes.push((record.clone(), by));
                    self.resolved.insert(record.sequence, version);
                }
            }
            TraceEvent::Finished {
                controller, key, ..
            } => {
                let ended = self.running.remove(&(controller.clone(), key.clone()));
                if let Some(reconcile) = ended.and_then(|number| self.reconcile_mut(number)) {
                    reconcile.finished = Some(record.clone());
                }
            }
        }
    }

    fn start(&mut self, controller: &Arc<str>, key: &ObjectKey, record: &Record) {
        let running = (controller.clone(), key.clone());
        let causes = self.enqueued.remove(&running).unwrap_or_default();
        let number = self.dropped + self.reconciles.len() as u64;
        for cause in &causes {
            if let Some(version) = cause_version(&cause.enqueued) {
                self.caused.entry(version).or_default().push(number);
            }
        }
        self.running.insert(running, number);
        self.reconciles.push_back(TracedReconcile {
            controller: controller.clone(),
            key: key.clone(),
            started: record.clone(),
            finished: None,
            causes,
            writes: Vec::new(),
        });
    }

    /// Adds a write to the running reconcile of a key, and returns its number.
    fn add_write(
        &mut self,
        controller: &Arc<str>,
        key: &ObjectKey,
        record: &Record,
    ) -> Option<Number> {
        let by = *self.running.get(&(controller.clone(), key.clone()))?;
        self.reconcile_mut(by)?.writes.push(record.clone());
        Some(by)
    }

    /// The version of a write of a subresource, whose response has none. An API server in this
    /// process records it before it responds.
    fn accepted_version(&self, kind: &Arc<str>, key: &ObjectKey, call: &str) -> Option<Version> {
        let object = (kind.clone(), key.clone());
        let (subresource, version) = self.accepted.get(&object)?;
        let is_same = call.split(' ').next() == Some(&**subresource);
        is_same.then(|| (object.0, object.1, Some(version.to_string())))
    }

    /// The version that a reconcile wrote.
    fn written_version(&self, write: &Record) -> Option<Version> {
        match &write.event {
            TraceEvent::Wrote {
                kind,
                key,
                resource_version: Some(version),
                ..
            } => Some((kind.clone(), key.clone(), Some(version.clone()))),
            _ => self.resolved.get(&write.sequence).cloned(),
        }
    }

    /// The write that caused a change. Its record may be newer: a watch event can arrive before the
    /// response to the write.
    fn origin(&self, delivered: &TraceRecord) -> Option<&(Record, Option<Number>)> {
        let TraceEvent::Delivered {
            kind,
            key,
            resource_version,
            event,
        } = &delivered.event
        else {
            return None;
        };
        // The response to a delete has no version, while the event of the deletion has one.
        let version = if *event == CauseEvent::Deleted {
            None
        } else {
            Some(resource_version.clone()?)
        };
        let writes = self.written.get(&(kind.clone(), key.clone(), version))?;
        writes
            .iter()
            // Of several deletes of one name, the closest in time.
            .min_by_key(|(write, _)| write.sequence.abs_diff(delivered.sequence))
    }

    /// The reconciles of a key, and those whose writes led to them.
    pub(super) fn trace_back(&self, key: &ObjectKey) -> Timeline {
        let all = (self.dropped..).zip(&self.reconciles);
        let own = all.filter(|(_, reconcile)| reconcile.key == *key);
        let mut found: BTreeSet<Number> = own.map(|(number, _)| number).collect();
        let mut pending: Vec<Number> = found.iter().copied().collect();
        while let Some(reconcile) = pending.pop().and_then(|number| self.reconcile(number)) {
            for cause in &reconcile.causes {
                let origin = cause.delivered.as_deref();
                let origin = origin.and_then(|delivered| self.origin(delivered));
                if let Some(by) = origin.and_then(|(_, by)| *by)
                    // Each reconcile is visited once, so cycles of controllers that write to each
                    // other end.
                    && found.insert(by)
                {
                    pending.push(by);
                }
            }
        }
        self.timeline(&found)
    }

    /// The reconciles that a version of an object led to.
    pub(super) fn effects(&self, kind: &str, key: &ObjectKey, version: &str) -> Timeline {
        let mut found = BTreeSet::new();
        let mut pending: Vec<Version> = vec![(kind.into(), key.clone(), Some(version.to_owned()))];
        while let Some(version) = pending.pop() {
            for number in self.caused.get(&version).into_iter().flatten() {
                let Some(reconcile) = self.reconcile(*number) else {
                    continue;
                };
                if found.insert(*number) {
                    let writes = reconcile.writes.iter();
                    pending.extend(writes.filter_map(|write| self.written_version(write)));
                }
            }
        }
        self.timeline(&found)
    }

    fn timeline(&self, numbers: &BTreeSet<Number>) -> Timeline {
        let found = numbers.iter().filter_map(|number| self.reconcile(*number));
        let linked = found.map(|reconcile| {
            let mut reconcile = reconcile.clone();
            for cause in &mut reconcile.causes {
                let origin = cause.delivered.as_deref();
                let origin = origin.and_then(|delivered| self.origin(delivered));
                cause.written = origin.map(|(write, _)| write.clone());
            }
            reconcile
        });
        Timeline {
            reconciles: linked.collect(),
        }
    }
}

/// The version that enqueued a key.
fn cause_version(enqueued: &TraceRecord) -> Option<Version> {
    match &enqueued.event {
        TraceEvent::Enqueued {
            cause_kind,
            cause_key,
            cause_version: Some(version),
            ..
        } => Some((cause_kind.clone(), cause_key.clone(), Some(version.clone()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::ObjectKey;
    use crate::queue::Causes;
    use crate::trace::{Trace, TraceEvent};

    /// A reconcile of `key` that a version of itself enqueued, and that writes the next one.
    fn reconcile(trace: &Trace, key: &ObjectKey, version: u64) {
        let controller = || "hero".into();
        trace.record(|| TraceEvent::Enqueued {
            controller: controller(),
            key: key.clone(),
            cause_kind: "Hero".into(),
            cause_key: key.clone(),
            cause_version: Some(version.to_string()),
        });
        trace.record(|| TraceEvent::Started {
            controller: controller(),
            key: key.clone(),
            causes: Causes::default(),
            attempt: 1,
            waited: None,
        });
        trace.record(|| TraceEvent::Wrote {
            controller: controller(),
            reconciling: key.clone(),
            kind: "Hero".into(),
            key: key.clone(),
            resource_version: Some((version + 1).to_string()),
        });
        trace.record(|| TraceEvent::Finished {
            controller: controller(),
            key: key.clone(),
            result: "success",
            took: Duration::ZERO,
            requeue_after: None,
            error: None,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn effects_follow_writes_to_the_last_reconcile() {
        let trace = Trace::new(100);
        let key = ObjectKey::cluster("h");
        (1..5).for_each(|version| reconcile(&trace, &key, version));
        for (version, expected) in [("1", 4), ("3", 2), ("4", 1), ("5", 0), ("99", 0)] {
            let effects = trace.effects("Hero", &key, version);
            assert_eq!(effects.reconciles.len(), expected, "from {version}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn overwritten_records_leave_the_index() {
        let trace = Trace::new(16);
        let key = ObjectKey::cluster("h");
        for version in 1..200 {
            reconcile(&trace, &key, version);
            let kept = trace.timeline(&key).reconciles.len();
            assert!(kept <= 8, "{kept} reconciles of a ring of 16 records");
        }
        // A reader that was away for longer than the ring starts again.
        (200..300).for_each(|version| reconcile(&trace, &key, version));
        assert_eq!(trace.effects("Hero", &key, "299").reconciles.len(), 1);
        assert_eq!(trace.effects("Hero", &key, "1").reconciles.len(), 0);
    }
}
