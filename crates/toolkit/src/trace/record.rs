//! Trace events and their text form.
//!
//! In: facts from one stage of the pipeline. Out: one line of text.
//! Guarantees: a write and the watch event it caused have equal kind, key and resource version.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ObjectKey;
use crate::queue::{CauseEvent, Causes};

/// One step between a change on the server and the writes that it caused.
///
/// A write and the watch event it caused have equal kind, key and resource version. Kinds are
/// written `Pod` or `Deployment.apps`. [`Display`](fmt::Display) is one line of text.
///
/// ```
/// use bellerophon::queue::Causes;
/// use bellerophon::{ObjectKey, trace::TraceEvent};
///
/// let event = TraceEvent::Started {
///     controller: "hero".into(),
///     key: ObjectKey::namespaced("team-a", "icarus"),
///     causes: Causes::default(),
///     attempt: 1,
///     waited: None,
/// };
/// assert_eq!(event.to_string(), "hero reconciles team-a/icarus, attempt 1");
/// ```
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// The API server accepted a write of any client. Only an API server in this process records
    /// it, and may share it with a log of its own.
    Accepted(Arc<AcceptedWrite>),
    /// An informer received its initial list. The objects are not recorded one by one.
    Listed {
        /// Their kind.
        kind: Arc<str>,
        /// Their number.
        objects: usize,
        /// The resource version of the list.
        resource_version: Option<String>,
    },
    /// A watch event, or a relist after a dropped watch, changed a cache.
    Cached {
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// Its resource version after the change, if known.
        resource_version: Option<String>,
        /// The event.
        event: CauseEvent,
    },
    /// An informer delivered a change to a controller's event handler.
    Delivered {
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// Its resource version after the change, if known.
        resource_version: Option<String>,
        /// The event.
        event: CauseEvent,
    },
    /// A change enqueued a key in a controller's work queue.
    Enqueued {
        /// The controller.
        controller: Arc<str>,
        /// The key to reconcile.
        key: ObjectKey,
        /// The kind of the object that changed.
        cause_kind: Arc<str>,
        /// The object that changed.
        cause_key: ObjectKey,
        /// Its resource version, which links to [`TraceEvent::Delivered`].
        cause_version: Option<String>,
    },
    /// A worker started a reconcile.
    Started {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// Its merged causes.
        causes: Causes,
        /// 1 for the first attempt.
        attempt: u32,
        /// How long the key was ready before; `None` if that was not measured.
        waited: Option<Duration>,
    },
    /// A reconcile wrote an object, and the server responded.
    Wrote {
        /// The controller.
        controller: Arc<str>,
        /// The key that was reconciled.
        reconciling: ObjectKey,
        /// The kind of the object written.
        kind: Arc<str>,
        /// The object written.
        key: ObjectKey,
        /// The resource version of the response; `None` for a delete.
        resource_version: Option<String>,
    },
    /// A reconcile wrote a subresource whose response has no resource version, such as `binding`.
    SubresourceWritten {
        /// The controller.
        controller: Arc<str>,
        /// The key that was reconciled.
        reconciling: ObjectKey,
        /// The kind of the object.
        kind: Arc<str>,
        /// The object.
        key: ObjectKey,
        /// The subresource and a short description of the request: `binding to node-1`.
        subresource: String,
    },
    /// A worker finished a reconcile.
    Finished {
        /// The controller.
        controller: Arc<str>,
        /// The key.
        key: ObjectKey,
        /// The result as the metrics name it: `success`, `requeue_after`, `requeue` or `error`.
        result: &'static str,
        /// The duration of the reconcile.
        took: Duration,
        /// The delay that the reconciler requested for the next reconcile.
        requeue_after: Option<Duration>,
        /// The error, at most [`ERROR_MAX_BYTES`] of it.
        error: Option<Arc<str>>,
    },
}

/// The maximum length of an error in a trace record: messages of the API server fit.
pub const ERROR_MAX_BYTES: usize = 512;

/// A write that an API server accepted, and the request that made it.
///
/// ```
/// use bellerophon::{ObjectKey, trace::{AcceptedWrite, WriteAttributes}};
///
/// let attributes = WriteAttributes {
///     user: "admin".into(),
///     manager: "kubectl".into(),
///     verb: "patch",
///     subresource: "scale".into(),
///     kind: "Deployment.apps".into(),
///     is_in_process: false,
/// };
/// let write = AcceptedWrite {
///     attributes: attributes.into(),
///     key: ObjectKey::namespaced("default", "stable"),
///     previous_version: Some(4217),
///     resource_version: 4218,
///     is_deletion: false,
/// };
/// assert_eq!(
///     write.to_string(),
///     "kubectl patched scale of Deployment.apps default/stable at 4218, user admin"
/// );
/// ```
#[derive(Clone, Debug)]
pub struct AcceptedWrite {
    /// Who wrote an object of which kind, and how. Consecutive writes of a client share them.
    pub attributes: Arc<WriteAttributes>,
    /// The object.
    pub key: ObjectKey,
    /// The version that was replaced; `None` for a new object.
    pub previous_version: Option<u64>,
    /// The version of the write, which is also that of its watch event.
    pub resource_version: u64,
    /// The object was removed.
    pub is_deletion: bool,
}

/// What the writes of a client to the objects of a kind have in common.
///
/// ```
/// use bellerophon::trace::WriteAttributes;
///
/// fn is_of_a_client(attributes: &WriteAttributes) -> bool {
///     !attributes.is_in_process && !attributes.user.is_empty()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WriteAttributes {
    /// The user of the request; empty for a write of the API server itself.
    pub user: Arc<str>,
    /// The field manager, or the program of the user agent.
    pub manager: Arc<str>,
    /// The verb: `create`, `update`, `patch`, `apply`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The subresource; empty for the object itself.
    pub subresource: Arc<str>,
    /// The kind of the object.
    pub kind: Arc<str>,
    /// The request came from a client in this process, such as a built-in controller.
    pub is_in_process: bool,
}

impl fmt::Display for AcceptedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes = &*self.attributes;
        let verb = match attributes.verb {
            "create" => "created",
            "update" => "updated",
            "patch" => "patched",
            "apply" => "applied",
            _ => "deleted",
        };
        write!(f, "{} {verb} ", attributes.manager)?;
        if !attributes.subresource.is_empty() {
            write!(f, "{} of ", attributes.subresource)?;
        }
        let version = self.resource_version;
        write!(f, "{} {} at {version}", attributes.kind, self.key)?;
        match &*attributes.user {
            "" => Ok(()),
            user => write!(f, ", user {user}"),
        }
    }
}

/// A trace event with its sequence number and time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::trace::{Trace, TraceEvent};
///
/// let trace = Trace::new(100);
/// trace.record(|| TraceEvent::Listed {
///     kind: "Pod".into(),
///     objects: 3,
///     resource_version: Some("17".into()),
/// });
/// let record = &trace.snapshot()[0];
/// assert_eq!(record.to_string(), "#1 3 of Pod listed at 17");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Its position in the total order of all records; unique, from 1.
    pub sequence: u64,
    /// When it was recorded; [`Clock::at`](crate::clock::Clock::at) converts it to the time of day.
    pub at: Instant,
    /// The event.
    pub event: TraceEvent,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_version = |version: &Option<String>| {
            version
                .as_ref()
                .map_or(String::new(), |version| format!(" at {version}"))
        };
        match self {
            Self::Accepted(write) => write!(f, "{write}"),
            Self::Listed {
                kind,
                objects,
                resource_version,
            } => write!(
                f,
                "{objects} of {kind} listed{}",
                at_version(resource_version)
            ),
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
                    at_version(resource_version)
                )
            }
            Self::Delivered {
                kind,
                key,
                resource_version,
                event,
            } => {
                write!(
                    f,
                    "{kind} {key} {}{}",
                    event.as_str(),
                    at_version(resource_version)
                )
            }
            Self::Enqueued {
                controller,
                key,
                cause_kind,
                cause_key,
                cause_version,
            } => {
                write!(
                    f,
                    "{controller} queued {key} because of {cause_kind} {cause_key}{}",
                    at_version(cause_version)
                )
            }
            Self::Started {
                controller,
                key,
                causes,
                attempt,
                ..
            } if causes.is_empty() => {
                write!(f, "{controller} reconciles {key}, attempt {attempt}")
            }
            Self::Started {
                controller,
                key,
                causes,
                attempt,
                ..
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
            Self::SubresourceWritten {
                controller,
                reconciling,
                kind,
                key,
                subresource,
            } => {
                write!(
                    f,
                    "{controller} wrote {subresource} of {kind} {key} for {reconciling}"
                )
            }
            Self::Finished {
                controller,
                key,
                result,
                took,
                error,
                ..
            } => {
                write!(f, "{controller} ended {key}: {result} after {took:?}")?;
                match error {
                    Some(error) => write!(f, ": {error}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}", self.sequence, self.event)
    }
}
