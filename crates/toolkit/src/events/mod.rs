//! Event recorder: records events (`events.k8s.io/v1`) about objects.
//!
//! In: events from reconciles. Out: Event objects on the API server, written by one task.
//! Guarantees: recording never waits and never fails; at most 1,000 events are queued, further
//! ones are dropped and counted; repeated events become a series of one Event object; the events
//! of one object are rate limited; the names of an object's Events sort in the order of recording.
//!
//! ```text
//! EventRecorder → bounded queue → correlator (aggregation, rate limit) → writer → API server
//! ```

mod correlator; // which events become an Event object, and which are counted
mod counts; // how many events were written and dropped
mod writer; // writes Event objects

use std::sync::Arc;

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use crate::owner::types_of;
use tokio::sync::mpsc;

use crate::clock::{Clock, Rng};
pub(crate) use counts::EventCounts;
pub(crate) use writer::EventWriter;

/// The capacity of the queue between recorders and writer; when full, new events are dropped.
const QUEUED_EVENTS_MAX: usize = 1000;

/// The type of an event.
///
/// ```
/// use bellerophon::events::EventType;
///
/// assert_eq!(EventType::Warning.as_str(), "Warning");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information.
    Normal,
    /// Something may need attention.
    Warning,
}

impl EventType {
    /// The value of the `type` field: `Normal` or `Warning`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event to record about an object.
///
/// ```
/// use bellerophon::events::{Event, EventType};
///
/// let event = Event::warning("InvalidSpec", "Validate", "spec.replicas must be 0 or more");
/// assert_eq!(event.type_, EventType::Warning);
/// assert_eq!(event.reason, "InvalidSpec");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `Normal` or `Warning`.
    pub type_: EventType,
    /// Why the action was taken, one CamelCase word.
    pub reason: String,
    /// The action that was done or tried, one CamelCase word.
    pub action: String,
    /// A description for humans, truncated at 1,024 bytes. It must not contain secrets.
    pub note: String,
}

impl Event {
    /// An event of type `Normal`.
    pub fn normal(
        reason: impl Into<String>,
        action: impl Into<String>,
        note: impl Into<String>,
    ) -> Self {
        Self {
            type_: EventType::Normal,
            reason: reason.into(),
            action: action.into(),
            note: note.into(),
        }
    }

    /// An event of type `Warning`.
    pub fn warning(
        reason: impl Into<String>,
        action: impl Into<String>,
        note: impl Into<String>,
    ) -> Self {
        Self {
            type_: EventType::Warning,
            ..Self::normal(reason, action, note)
        }
    }
}

/// The regarding object of an event: of any [`Kind`], by reference, or an [`ObjectReference`].
///
/// ```
/// use bellerophon::events::{Event, EventRecorder};
/// use k8s_openapi::api::core::v1::{Node, ObjectReference};
///
/// fn rebooted(recorder: &EventRecorder, node: &Node, agent: ObjectReference) {
///     recorder.event(node, Event::normal("Rebooted", "Reboot", "the kernel is up to date"));
///     recorder.event(agent, Event::normal("Released", "Release", "the slot is free"));
/// }
/// ```
pub trait Regarding: sealed::Sealed {
    #[doc(hidden)]
    fn into_reference(self) -> ObjectReference;
}

impl<K: Kind> Regarding for &K {
    fn into_reference(self) -> ObjectReference {
        let metadata = self.meta();
        let types = types_of(self);
        ObjectReference {
            api_version: types.as_ref().map(|types| types.api_version.clone()),
            kind: types.map(|types| types.kind),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }
}

impl Regarding for ObjectReference {
    fn into_reference(self) -> ObjectReference {
        self
    }
}

mod sealed {
    pub trait Sealed {}

    impl<K: bellerophon_kinds::Kind> Sealed for &K {}

    impl Sealed for super::ObjectReference {}
}

/// Records events about objects. Cheap to clone, usable from any thread.
///
/// [`event`](Self::event) returns immediately; a task of the Manager writes the Event objects.
/// Events are best effort: they are dropped and counted when 1,000 are queued, when one object has
/// too many, or when the server rejects them.
///
/// ```
/// use bellerophon::events::{Event, EventRecorder};
/// use k8s_openapi::api::apps::v1::Deployment;
///
/// fn scaled(recorder: &EventRecorder, deployment: &Deployment, replicas: i32) {
///     let note = format!("scaled to {replicas} replicas");
///     recorder.event(deployment, Event::normal("Scaled", "Scale", note));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<QueuedEvent>,
    counts: Arc<EventCounts>,
    instance: Arc<str>,
}

/// An event that is queued for the writer.
#[derive(Debug)]
struct QueuedEvent {
    regarding: ObjectReference,
    event: Event,
    /// The `reportingInstance`.
    instance: Arc<str>,
}

impl EventRecorder {
    /// A recorder and the task that writes its events, with this `reportingController` and
    /// `reportingInstance` (such as the pod's name).
    pub(crate) fn new(
        client: Client,
        controller: impl Into<String>,
        instance: impl Into<Arc<str>>,
        clock: Clock,
        rng: Rng,
    ) -> (Self, EventWriter) {
        let (queue, queued) = mpsc::channel(QUEUED_EVENTS_MAX);
        let counts = Arc::new(EventCounts::new(controller.into()));
        let recorder = Self {
            queue,
            counts: counts.clone(),
            instance: instance.into(),
        };
        let writer = EventWriter::new(client, queued, counts, clock, rng);
        (recorder, writer)
    }

    /// The same recorder with another `reportingInstance`, for a process that acts as several, such
    /// as simulated kubelets.
    #[must_use]
    pub fn with_instance(&self, instance: impl Into<Arc<str>>) -> Self {
        Self {
            instance: instance.into(),
            ..self.clone()
        }
    }

    /// Records an event about an object. If the queue is full, the event is dropped and counted.
    pub fn event(&self, regarding: impl Regarding, event: Event) {
        self.enqueue(regarding.into_reference(), event);
    }

    fn enqueue(&self, regarding: ObjectReference, event: Event) {
        let queued = QueuedEvent {
            regarding,
            event,
            instance: self.instance.clone(),
        };
        // A reconcile must not wait for the API server to store an event.
        if self.queue.try_send(queued).is_err() {
            self.counts.count_queue_full();
        }
    }

    /// The number of events dropped because the queue was full or the writer had ended.
    pub fn dropped(&self) -> u64 {
        self.counts.queue_full()
    }

    pub(crate) fn counts(&self) -> &Arc<EventCounts> {
        &self.counts
    }
}

#[cfg(test)]
mod tests;
