//! What one record says.
//!
//! In: facts from one stage. Out: a line for people.
//! Holds: a write and the watch event it caused share kind, key and resource version.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::{CauseEvent, ObjectKey};

/// What one record says. A write and the watch event it caused share kind, key and resource version.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// A cache was filled for the first time. Its objects are not told one by one.
    Listed {
        /// Their kind.
        kind: Arc<str>,
        /// How many there were.
        objects: usize,
        /// The version of the list.
        resource_version: Option<String>,
    },
    /// A watch, or a list that followed a cut one, told a cache of a change.
    Cached {
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// Its version after the change, if known.
        resource_version: Option<String>,
        /// What happened.
        event: CauseEvent,
    },
    /// A controller was told of a change.
    Noticed {
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// Its version after the change, if known.
        resource_version: Option<String>,
        /// What happened.
        event: CauseEvent,
    },
    /// A change put a key into a controller's queue.
    Enqueued {
        /// The controller.
        controller: Arc<str>,
        /// The key to reconcile.
        key: ObjectKey,
        /// The kind of the object that changed.
        because_kind: Arc<str>,
        /// The object that changed.
        because_key: ObjectKey,
        /// Its version, which links to [`TraceEvent::Noticed`].
        because_version: Option<String>,
    },
    /// A worker began.
    Started {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// Its merged causes, in words.
        causes: String,
        /// 1 for the first try.
        attempt: u32,
    },
    /// A write went through the toolkit.
    Wrote {
        /// The controller.
        controller: Arc<str>,
        /// The key it was reconciling.
        reconciling: ObjectKey,
        /// The kind written.
        kind: Arc<str>,
        /// The object written.
        key: ObjectKey,
        /// The version the server answered with; `None` for a delete.
        resource_version: Option<String>,
    },
    /// A write to a part of an object, such as `binding`, to which the server answers without a version.
    Called {
        /// The controller.
        controller: Arc<str>,
        /// The key it was reconciling.
        reconciling: ObjectKey,
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// The part, and what it was told, in words: `binding to node-1`.
        what: String,
    },
    /// A worker ended.
    Ended {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// `success`, `requeue_after` or `error`.
        result: &'static str,
        /// How long it took.
        took: Duration,
    },
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Its place in the order of everything; no number is given twice.
    pub sequence: u64,
    /// When; [`WallClock::at`](crate::WallClock::at) tells the time of day.
    pub at: Instant,
    /// What.
    pub event: TraceEvent,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |version: &Option<String>| {
            version
                .as_ref()
                .map_or(String::new(), |version| format!(" at {version}"))
        };
        match self {
            Self::Listed {
                kind,
                objects,
                resource_version,
            } => write!(f, "{objects} of {kind} listed{}", at(resource_version)),
            Self::Cached {
                kind,
                key,
                resource_version,
                event,
            } => {
                write!(
                    f,
                    "cache of {kind}: {key} {}{}",
                    event.as_str(),
                    at(resource_version)
                )
            }
            Self::Noticed {
                kind,
                key,
                resource_version,
                event,
            } => {
                write!(f, "{kind} {key} {}{}", event.as_str(), at(resource_version))
            }
            Self::Enqueued {
                controller,
                key,
                because_kind,
                because_key,
                because_version,
            } => {
                write!(
                    f,
                    "{controller} queued {key} because of {because_kind} {because_key}{}",
                    at(because_version)
                )
            }
            Self::Started {
                controller,
                key,
                causes,
                attempt,
            } if causes.is_empty() => {
                write!(f, "{controller} reconciles {key}, attempt {attempt}")
            }
            Self::Started {
                controller,
                key,
                causes,
                attempt,
            } => {
                write!(
                    f,
                    "{controller} reconciles {key}, attempt {attempt}: {causes}"
                )
            }
            Self::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version: Some(version),
            } => {
                write!(
                    f,
                    "{controller} wrote {kind} {key} at {version} for {reconciling}"
                )
            }
            Self::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version: None,
            } => {
                write!(f, "{controller} deleted {kind} {key} for {reconciling}")
            }
            Self::Called {
                controller,
                reconciling,
                kind,
                key,
                what,
            } => {
                write!(
                    f,
                    "{controller} wrote {what} of {kind} {key} for {reconciling}"
                )
            }
            Self::Ended {
                controller,
                key,
                result,
                took,
            } => write!(f, "{controller} ended {key}: {result} after {took:?}"),
        }
    }
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.sequence, self.event)
    }
}
