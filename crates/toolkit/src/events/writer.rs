//! Event writer: the task that writes Event objects.
//!
//! In: queued events. Out: creates and patches of Event objects.
//! Guarantees: when stopped, queued events are still written and open series get their final
//! count; a failed write is counted and logged, not retried.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::events::v1 as events_v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::QueuedEvent;
use super::correlator::{Correlator, Decision, DueSeries, EventKey};
use super::counts::EventCounts;
use crate::clock::{Clock, Rng};

/// The prefix of an aggregated event, as EventAggregatorByReasonMessageFunc writes it.
const AGGREGATED_PREFIX: &str = "(combined from similar events): ";

/// The API server rejects a longer `note`.
const NOTE_BYTES_MAX: usize = 1024;

/// How often the writer looks for series to update.
const SERIES_PERIOD: Duration = Duration::from_secs(30);

/// Writes the events of one recorder and its clones. The Manager runs it.
pub(crate) struct EventWriter {
    client: Client,
    queued: mpsc::Receiver<QueuedEvent>,
    counts: Arc<EventCounts>,
    clock: Clock,
    rng: Rng,
    /// The time in the name of the last Event, in ns. Names need strictly increasing times.
    named_at: u64,
    correlator: Correlator,
}

impl EventWriter {
    pub(super) fn new(
        client: Client,
        queued: mpsc::Receiver<QueuedEvent>,
        counts: Arc<EventCounts>,
        clock: Clock,
        rng: Rng,
    ) -> Self {
        Self {
            client,
            queued,
            counts,
            clock,
            rng,
            named_at: 0,
            correlator: Correlator::default(),
        }
    }

    /// Writes until stopped; what is queued then is still written, and open series get their final
    /// count.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(SERIES_PERIOD);
        // After slow writes one look at the series is enough.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(queued) = self.queued.recv() => self.write(queued).await,
                _ = tick.tick() => {
                    let due = self.correlator.due(Instant::now());
                    self.update_series(due).await;
                }
            }
        }
        // Closed first: recorders get an error from now on, so the loop below ends.
        self.queued.close();
        while let Some(queued) = self.queued.recv().await {
            self.write(queued).await;
        }
        let due = self.correlator.finish();
        self.update_series(due).await;
    }

    async fn write(&mut self, mut queued: QueuedEvent) {
        let now = Instant::now();
        let key = self.correlator.key(&queued.regarding, &queued.event, now);
        match self.correlator.correlate(&key, now) {
            Decision::Count => {}
            Decision::RateLimited => self.counts.count_rate_limited(),
            Decision::Create => {
                if key.is_aggregate() {
                    queued.event.note.insert_str(0, AGGREGATED_PREFIX);
                }
                let event = self.new_event(queued);
                self.create(key, event).await;
            }
            Decision::Patch { event, count } => self.patch(key, *event, count).await,
        }
    }

    async fn update_series(&mut self, due: Vec<DueSeries>) {
        for DueSeries { key, event, count } in due {
            self.patch(key, event, count).await;
        }
    }

    async fn create(&mut self, key: EventKey, event: events_v1::Event) {
        let params = PostParams::default();
        match self.events(&event).create(&params, &event).await {
            Ok(stored) => self.stored(&key, stored),
            // The series is forgotten, so the next such event is created instead of counted.
            Err(error) => {
                self.counts.count_refused();
                self.correlator.forget(&key);
                tracing::warn!(reason = event.reason, %error, "failed to create an event");
            }
        }
    }

    async fn patch(&mut self, key: EventKey, mut event: events_v1::Event, count: i32) {
        let last_observed_time = MicroTime(self.clock.now());
        let series = json!({ "count": count, "lastObservedTime": last_observed_time });
        let patch = Patch::Merge(json!({ "series": series }));
        let name = event.name_any();
        let patched = self
            .events(&event)
            .patch(&name, &PatchParams::default(), &patch)
            .await;
        match patched {
            Ok(stored) => self.stored(&key, stored),
            // The server deletes Events after an hour (--event-ttl); a series may last longer.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                event.metadata = ObjectMeta {
                    name: Some(self.event_name(&event)),
                    namespace: event.namespace(),
                    ..ObjectMeta::default()
                };
                event.series = Some(events_v1::EventSeries {
                    count,
                    last_observed_time,
                });
                self.create(key, event).await;
            }
            Err(error) => {
                self.counts.count_refused();
                tracing::warn!(reason = event.reason, %error, "failed to update an event series");
            }
        }
    }

    fn stored(&mut self, key: &EventKey, event: events_v1::Event) {
        self.counts.count_written();
        self.correlator.stored(key, event);
    }

    fn new_event(&mut self, queued: QueuedEvent) -> events_v1::Event {
        // Mirrors makeEvent: Events about cluster-scoped objects are in namespace `default`.
        let namespace = queued.regarding.namespace.clone();
        let mut event = events_v1::Event {
            metadata: ObjectMeta {
                namespace: Some(namespace.unwrap_or_else(|| "default".into())),
                ..ObjectMeta::default()
            },
            action: Some(queued.event.action),
            event_time: Some(MicroTime(self.clock.now())),
            note: Some(truncate_note(queued.event.note)),
            reason: Some(queued.event.reason),
            regarding: Some(queued.regarding),
            reporting_controller: Some(self.counts.controller().into()),
            reporting_instance: Some(queued.instance.to_string()),
            type_: Some(queued.event.type_.as_str().into()),
            ..events_v1::Event::default()
        };
        event.metadata.name = Some(self.event_name(&event));
        event
    }

    /// The object's name and the time in hexadecimal, as client-go names Events, so that lists are
    /// in order; then 32 random bits, because other writers use the same names and times.
    fn event_name(&mut self, event: &events_v1::Event) -> String {
        let object = event
            .regarding
            .as_ref()
            .and_then(|regarding| regarding.name.as_deref())
            .unwrap_or("unknown");
        let now = u64::try_from(self.clock.now().as_nanosecond()).unwrap_or_default();
        // A paused clock, or one that was set back, must not lead to equal or unordered names.
        self.named_at = now.max(self.named_at + 1);
        let random = self.rng.below(1 << 32);
        format!("{object}.{:016x}{random:08x}", self.named_at)
    }

    fn events(&self, event: &events_v1::Event) -> Api<events_v1::Event> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter")
            .field("controller", &self.counts.controller())
            .finish_non_exhaustive()
    }
}

fn truncate_note(mut note: String) -> String {
    let end = (0..=NOTE_BYTES_MAX.min(note.len()))
        .rev()
        .find(|end| note.is_char_boundary(*end))
        .unwrap_or(0);
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_truncated_between_characters() {
        assert_eq!(truncate_note("é".repeat(1000)).len(), 1024);
        assert_eq!(truncate_note("short".into()), "short");
    }
}
