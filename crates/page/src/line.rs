//! The trace format: one JSON object per line.
//!
//! In: trace records. Out: lines. The first line of a file is the [header](HEADER_FORMAT); each other
//! line has `seq`, `time_us` (microseconds since 1970) and `type`. Readers ignore members and types
//! that they do not know; a change that breaks readers increments the version.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::clock::Clock;
use bellerophon::queue::{Cause, Causes};
use bellerophon::trace::{AcceptedWrite, TraceEvent, TraceRecord};
use serde::Serialize;

use crate::diff::Change;
use crate::digest::Digest;
use crate::object_log::{LoggedVersion, ObjectLog};
use crate::stored::ExistingObject;

/// `format` in the first line of a file.
pub(crate) const HEADER_FORMAT: &str = "bellerophon-trace";

/// `version` in the first line of a file.
pub(crate) const HEADER_VERSION: u32 = 1;

/// The types of records that only a file has: caches and handlers receive each change again.
pub(crate) const TYPES_OF_FILES: [&str; 2] = ["cached", "delivered"];

/// The first line of a file.
#[derive(Serialize)]
pub(crate) struct Header {
    format: &'static str,
    version: u32,
    time_us: i64,
}

impl Header {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            format: HEADER_FORMAT,
            version: HEADER_VERSION,
            time_us: clock.now().as_microsecond(),
        }
    }
}

/// A line.
#[derive(Serialize)]
pub(crate) struct Line<'a> {
    seq: u64,
    time_us: i64,
    #[serde(flatten)]
    event: Event<'a>,
}

/// The members of an object: `{"namespace":"default","name":"stable"}`.
#[derive(Serialize)]
struct Name<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
}

impl<'a> From<&'a ObjectKey> for Name<'a> {
    fn from(key: &'a ObjectKey) -> Self {
        Self {
            namespace: key.namespace(),
            name: key.name(),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event<'a> {
    Accepted(Box<Accepted<'a>>),
    Listed {
        kind: &'a str,
        objects: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<&'a str>,
    },
    Cached(Changed<'a>),
    Delivered(Changed<'a>),
    Enqueued {
        controller: &'a str,
        key: Name<'a>,
        cause: CauseMember<'a>,
    },
    Started {
        controller: &'a str,
        key: Name<'a>,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        wait_us: Option<u64>,
        causes: Vec<CauseMember<'a>>,
        #[serde(skip_serializing_if = "is_zero")]
        omitted: u64,
    },
    Wrote {
        controller: &'a str,
        key: Name<'a>,
        kind: &'a str,
        object: Name<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        subresource: Option<&'a str>,
    },
    Finished {
        controller: &'a str,
        key: Name<'a>,
        result: &'a str,
        took_us: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        requeue_us: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct Changed<'a> {
    kind: &'a str,
    object: Name<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    event: &'a str,
}

#[derive(Serialize)]
struct CauseMember<'a> {
    kind: &'a str,
    object: Name<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> From<&'a Cause> for CauseMember<'a> {
    fn from(cause: &'a Cause) -> Self {
        Self {
            kind: &cause.kind,
            object: (&cause.key).into(),
            version: cause.resource_version.as_deref(),
            event: Some(cause.event.as_str()),
            reason: cause.reason.as_deref(),
        }
    }
}

/// An accepted write, with what it changed if that is known.
#[derive(Serialize)]
struct Accepted<'a> {
    user: &'a str,
    manager: &'a str,
    verb: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
    kind: &'a str,
    object: Name<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<u64>,
    version: u64,
    #[serde(skip_serializing_if = "is_false")]
    deletion: bool,
    #[serde(skip_serializing_if = "is_false")]
    in_process: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<Change>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// An object that exists, with its newest version.
#[derive(Serialize)]
pub(crate) struct Existing<'a> {
    kind: &'a str,
    object: Name<'a>,
    version: u64,
    digest: &'a Digest,
}

impl<'a> From<&'a ExistingObject> for Existing<'a> {
    fn from(existing: &'a ExistingObject) -> Self {
        Self {
            kind: &existing.kind,
            object: (&existing.key).into(),
            version: existing.version,
            digest: &existing.digest,
        }
    }
}

/// The name of the type of a record.
pub(crate) fn type_of(event: &TraceEvent) -> &'static str {
    match event {
        TraceEvent::Accepted(_) => "accepted",
        TraceEvent::Listed { .. } => "listed",
        TraceEvent::Cached { .. } => "cached",
        TraceEvent::Delivered { .. } => "delivered",
        TraceEvent::Enqueued { .. } => "enqueued",
        TraceEvent::Started { .. } => "started",
        TraceEvent::Wrote { .. } | TraceEvent::SubresourceWritten { .. } => "wrote",
        TraceEvent::Finished { .. } => "finished",
    }
}

/// A record as a line, without a line break.
pub(crate) fn line(record: &TraceRecord, clock: &Clock, objects: Option<&ObjectLog>) -> String {
    let line = Line {
        seq: record.sequence,
        time_us: clock.at(record.at).as_microsecond(),
        event: event(&record.event, objects),
    };
    serde_json::to_string(&line).expect("keys are strings and numbers are finite")
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn event<'a>(event: &'a TraceEvent, objects: Option<&ObjectLog>) -> Event<'a> {
    match event {
        TraceEvent::Accepted(write) => Event::Accepted(Box::new(accepted(write, objects))),
        TraceEvent::Listed {
            kind,
            objects,
            resource_version,
        } => Event::Listed {
            kind,
            objects: *objects,
            version: resource_version.as_deref(),
        },
        TraceEvent::Cached {
            kind,
            key,
            resource_version,
            event,
        } => Event::Cached(changed(kind, key, resource_version, event.as_str())),
        TraceEvent::Delivered {
            kind,
            key,
            resource_version,
            event,
        } => Event::Delivered(changed(kind, key, resource_version, event.as_str())),
        TraceEvent::Enqueued {
            controller,
            key,
            cause_kind,
            cause_key,
            cause_version,
        } => Event::Enqueued {
            controller,
            key: key.into(),
            cause: CauseMember {
                kind: cause_kind,
                object: cause_key.into(),
                version: cause_version.as_deref(),
                event: None,
                reason: None,
            },
        },
        TraceEvent::Started {
            controller,
            key,
            causes,
            attempt,
            waited,
        } => Event::Started {
            controller,
            key: key.into(),
            attempt: *attempt,
            wait_us: waited.map(micros),
            causes: members(causes),
            omitted: causes.omitted(),
        },
        TraceEvent::Wrote {
            controller,
            reconciling,
            kind,
            key,
            resource_version,
        } => Event::Wrote {
            controller,
            key: reconciling.into(),
            kind,
            object: key.into(),
            version: resource_version.as_deref(),
            subresource: None,
        },
        TraceEvent::SubresourceWritten {
            controller,
            reconciling,
            kind,
            key,
            subresource,
        } => Event::Wrote {
            controller,
            key: reconciling.into(),
            kind,
            object: key.into(),
            version: None,
            subresource: Some(subresource),
        },
        TraceEvent::Finished {
            controller,
            key,
            result,
            took,
            requeue_after,
            error,
        } => Event::Finished {
            controller,
            key: key.into(),
            result,
            took_us: micros(*took),
            requeue_us: requeue_after.map(micros),
            error: error.as_deref(),
        },
    }
}

fn changed<'a>(
    kind: &'a str,
    key: &'a ObjectKey,
    version: &'a Option<String>,
    event: &'a str,
) -> Changed<'a> {
    Changed {
        kind,
        object: key.into(),
        version: version.as_deref(),
        event,
    }
}

fn members(causes: &Causes) -> Vec<CauseMember<'_>> {
    causes.iter().map(CauseMember::from).collect()
}

fn accepted<'a>(write: &'a AcceptedWrite, objects: Option<&ObjectLog>) -> Accepted<'a> {
    let logged: Option<Arc<LoggedVersion>> =
        objects.and_then(|objects| objects.get(write.resource_version));
    let summary = logged.as_ref().map(|logged| logged.summary());
    let attributes = &write.attributes;
    Accepted {
        user: &attributes.user,
        manager: &attributes.manager,
        verb: attributes.verb,
        subresource: &attributes.subresource,
        kind: &attributes.kind,
        object: (&write.key).into(),
        previous: write.previous_version,
        version: write.resource_version,
        deletion: write.is_deletion,
        in_process: attributes.is_in_process,
        changes: summary.map(|summary| summary.changes.clone()),
        more: summary.map(|summary| summary.more).filter(|more| *more > 0),
        digest: summary.map(|summary| summary.digest.clone()),
    }
}

/// The causes of a queue entry.
pub(crate) fn causes_json(causes: &Causes) -> serde_json::Value {
    serde_json::to_value(members(causes)).expect("keys are strings and numbers are finite")
}

#[cfg(test)]
mod tests {
    use bellerophon::trace::{Trace, WriteAttributes};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;

    fn check(event: TraceEvent, expected: Value) {
        let trace = Trace::new(10);
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        trace.record(|| event);
        let text = line(&trace.snapshot()[0], &clock, None);
        let mut line: Value = serde_json::from_str(&text).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(line["seq"], 1);
        assert!(line["time_us"].is_i64());
        let members = line.as_object_mut().unwrap();
        members.remove("seq");
        members.remove("time_us");
        assert_eq!(line, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn records_have_the_members_of_the_format() {
        let key = ObjectKey::namespaced("default", "web");
        let name = json!({ "namespace": "default", "name": "web" });
        let attributes = WriteAttributes {
            user: "admin".into(),
            manager: "kubectl".into(),
            verb: "patch",
            subresource: "scale".into(),
            kind: "Deployment.apps".into(),
            is_in_process: false,
        };
        check(
            TraceEvent::Finished {
                controller: "hero".into(),
                key: key.clone(),
                result: "error",
                took: Duration::from_micros(1500),
                requeue_after: Some(Duration::from_secs(1)),
                error: Some("no".into()),
            },
            json!({ "type": "finished", "controller": "hero", "key": name, "result": "error",
                "took_us": 1500, "requeue_us": 1_000_000, "error": "no" }),
        );
        check(
            TraceEvent::SubresourceWritten {
                controller: "scheduler".into(),
                reconciling: key.clone(),
                kind: "Pod".into(),
                key: key.clone(),
                subresource: "binding to node-1".into(),
            },
            json!({ "type": "wrote", "controller": "scheduler", "key": name, "kind": "Pod",
                "object": name, "subresource": "binding to node-1" }),
        );
        check(
            TraceEvent::Accepted(Arc::new(AcceptedWrite {
                attributes: attributes.into(),
                key,
                previous_version: Some(4),
                resource_version: 5,
                is_deletion: false,
            })),
            json!({ "type": "accepted", "user": "admin", "manager": "kubectl", "verb": "patch",
                "subresource": "scale", "kind": "Deployment.apps", "object": name, "previous": 4,
                "version": 5 }),
        );
    }
}
