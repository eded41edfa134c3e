//! Events: what a controller tells people about an object, in `events.k8s.io/v1`.
//!
//! In: notes from reconciles. Out: Event objects, few of them.
//! Holds: recording never waits and never fails; at most [`WAITING_MAX`] notes wait, further ones are dropped and counted;
//! repetitions become a series of one Event; one object cannot flood the cluster; what is told first comes first in a list
//! of an object's events.

mod counts; // what became of notes
mod series; // which notes become an Event, and which are counted

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{Entropy, WallClock};
pub(crate) use counts::Counts;
use series::{Act, Series, Topic};

/// What stands before a note that stands for several.
const COMBINED: &str = "(combined from similar events): ";

/// How many notes may wait to be written.
pub const WAITING_MAX: usize = 1000;

/// The longest note the server takes.
const NOTE_MAX: usize = 1024;

/// How often finished series are written.
const TICK: Duration = Duration::from_secs(30);

/// Whether an event is good or bad news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// All is well.
    Normal,
    /// Somebody may have to look.
    Warning,
}

/// One thing to tell.
#[derive(Clone, Debug)]
pub struct Note {
    /// Good or bad news.
    pub type_: EventType,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// What was done or tried, in one CamelCase word.
    pub action: String,
    /// For people. Never a secret. Cut at 1024 bytes.
    pub note: String,
}

/// Records events about objects. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    notes: mpsc::Sender<Told>,
    counts: Arc<Counts>,
    instance: Arc<str>,
}

/// A note on its way to the server.
#[derive(Debug)]
struct Told {
    regarding: ObjectReference,
    note: Note,
    /// Who says it.
    instance: Arc<str>,
}

impl EventRecorder {
    /// A recorder and the task that writes what it records, as this controller on this instance (such as the pod's name).
    pub fn new(
        client: Client,
        controller: impl Into<String>,
        instance: impl Into<String>,
        clock: WallClock,
        entropy: Entropy,
    ) -> (Self, EventWriter) {
        let (notes, waiting) = mpsc::channel(WAITING_MAX);
        let controller = controller.into();
        let counts = Arc::new(Counts::new(controller.clone()));
        let writer = EventWriter {
            client,
            counts: counts.clone(),
            controller,
            clock,
            entropy,
            named_at: 0,
            waiting,
            series: Series::default(),
        };
        (
            Self {
                notes,
                counts,
                instance: instance.into().into(),
            },
            writer,
        )
    }

    /// The same recorder, speaking for another instance: one process may be many, as that of all kubelets of a test.
    #[must_use]
    pub fn with_instance(&self, instance: impl Into<Arc<str>>) -> Self {
        Self {
            instance: instance.into(),
            ..self.clone()
        }
    }

    /// Tells something about an object. When too much waits already, it is dropped and counted.
    pub fn event<K: Resource<DynamicType = ()>>(&self, regarding: &K, note: Note) {
        self.event_about(regarding.object_ref(&()), note);
    }

    /// As [`event`](Self::event), about an object of a kind known only at run time: `object.object_ref(&kind)`.
    pub fn event_about(&self, regarding: ObjectReference, note: Note) {
        if self
            .notes
            .try_send(Told {
                regarding,
                note,
                instance: self.instance.clone(),
            })
            .is_err()
        {
            self.counts.count_full();
        }
    }

    /// How many notes were dropped because too many were waiting, or because the writer ended.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped_unread()
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

/// Writes what recorders record. Run it as background work of a [`Manager`](crate::Manager).
pub struct EventWriter {
    client: Client,
    counts: Arc<Counts>,
    controller: String,
    clock: WallClock,
    entropy: Entropy,
    /// The time in the last name that was given.
    named_at: u64,
    waiting: mpsc::Receiver<Told>,
    series: Series,
}

impl EventWriter {
    /// Writes until told to stop; what waits then is still written, and open series get their final count.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(told) = self.waiting.recv() => self.take(told).await,
                _ = tick.tick() => {
                    let due = self.series.due(Instant::now());
                    self.patch_all(due).await;
                }
            }
        }
        self.waiting.close();
        while let Some(told) = self.waiting.recv().await {
            self.take(told).await;
        }
        let due = self.series.close();
        self.patch_all(due).await;
    }

    async fn take(&mut self, mut told: Told) {
        let now = Instant::now();
        let topic = self.series.topic(&told.regarding, &told.note, now);
        match self.series.note(&topic, now) {
            Act::Count => {}
            Act::Refuse => self.counts.count_spam(),
            Act::Create => {
                if topic.is_combined() {
                    told.note.note.insert_str(0, COMBINED);
                }
                let event = self.first(told);
                self.create(topic, event).await;
            }
            Act::Patch(event, count) => self.patch(topic, *event, count).await,
        }
    }

    async fn patch_all(&mut self, due: Vec<(Topic, Event, i32)>) {
        for (topic, event, count) in due {
            self.patch(topic, event, count).await;
        }
    }

    async fn create(&mut self, topic: Topic, event: Event) {
        match self
            .events(&event)
            .create(&PostParams::default(), &event)
            .await
        {
            Ok(stored) => self.stored(&topic, stored),
            // Events are for people: worth a log line, never worth a retry storm. If it happens again it is news again.
            Err(error) => {
                self.counts.count_refused();
                self.series.forget(&topic);
                tracing::warn!(reason = event.reason, %error, "cannot record an event");
            }
        }
    }

    async fn patch(&mut self, topic: Topic, mut event: Event, count: i32) {
        let last = MicroTime(self.clock.now());
        let series = json!({ "series": { "count": count, "lastObservedTime": last } });
        match self
            .events(&event)
            .patch(
                &event.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&series),
            )
            .await
        {
            Ok(stored) => self.stored(&topic, stored),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                // The server keeps events for an hour; a series may outlive its Event.
                event.metadata = ObjectMeta {
                    name: Some(self.name(&event)),
                    namespace: event.namespace(),
                    ..ObjectMeta::default()
                };
                event.series = Some(k8s_openapi::api::events::v1::EventSeries {
                    count,
                    last_observed_time: last,
                });
                self.create(topic, event).await;
            }
            Err(error) => {
                self.counts.count_refused();
                tracing::warn!(reason = event.reason, %error, "cannot record how often an event happened");
            }
        }
    }

    fn stored(&mut self, topic: &Topic, event: Event) {
        self.counts.count_written();
        self.series.stored(topic, event);
    }

    fn first(&mut self, told: Told) -> Event {
        let Told {
            regarding,
            note,
            instance,
        } = told;
        // Events about cluster-scoped objects live in `default`, as everywhere in Kubernetes.
        let namespace = regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".into());
        let mut event = Event {
            metadata: ObjectMeta {
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            action: Some(note.action),
            event_time: Some(MicroTime(self.clock.now())),
            note: Some(cut(note.note)),
            reason: Some(note.reason),
            regarding: Some(regarding),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(instance.to_string()),
            type_: Some(format!("{:?}", note.type_)),
            ..Event::default()
        };
        event.metadata.name = Some(self.name(&event));
        event
    }

    /// The object and the time, as everywhere in Kubernetes, so that lists are in order; and chance, because others name
    /// events of the same object at the same time.
    fn name(&mut self, event: &Event) -> String {
        let object = event
            .regarding
            .as_ref()
            .and_then(|regarding| regarding.name.as_deref())
            .unwrap_or("unknown");
        let now = u64::try_from(self.clock.now().as_nanosecond()).unwrap_or_default();
        self.named_at = now.max(self.named_at + 1);
        format!(
            "{object}.{:016x}{:08x}",
            self.named_at,
            self.entropy.below(1 << 32)
        )
    }

    fn events(&self, event: &Event) -> Api<Event> {
        Api::namespaced(
            self.client.clone(),
            event.metadata.namespace.as_deref().unwrap_or("default"),
        )
    }
}

impl std::fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventWriter")
            .field("controller", &self.controller)
            .finish_non_exhaustive()
    }
}

fn cut(mut note: String) -> String {
    let end = (0..=NOTE_MAX.min(note.len()))
        .rev()
        .find(|end| note.is_char_boundary(*end))
        .unwrap_or(0);
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests;
