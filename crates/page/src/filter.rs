//! Which records a reader receives.
//!
//! In: namespaces and kinds, and a record. Out: whether the record is sent.
//! Guarantees: a record that names no namespace (or kind) passes that part of the filter, so
//! cluster-scoped objects, starts and ends of reconciles are never missing; without namespaces and
//! kinds everything passes.

use bellerophon::ObjectKey;
use bellerophon::trace::TraceEvent;
use serde::Deserialize;

/// The namespaces and kinds of a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Empty for all.
    pub(crate) namespaces: Vec<String>,
    /// With or without group: `Deployment`, `Deployment.apps`. Empty for all.
    pub(crate) kinds: Vec<String>,
}

/// What a record names.
#[derive(Default)]
struct Named<'a> {
    keys: [Option<Option<&'a str>>; 2],
    kind: Option<&'a str>,
}

impl Filter {
    pub(crate) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.kinds.is_empty()
    }

    /// Whether a record is sent.
    pub(crate) fn passes(&self, event: &TraceEvent) -> bool {
        self.is_empty() || self.matches(&named(event))
    }

    /// Whether a line of a file is sent.
    pub(crate) fn passes_line(&self, line: &str) -> bool {
        if self.is_empty() {
            return true;
        }
        let Ok(members) = serde_json::from_str::<Members<'_>>(line) else {
            return true;
        };
        self.matches(&members.named())
    }

    /// Whether an object is sent.
    pub(crate) fn passes_object(&self, kind: &str, key: &ObjectKey) -> bool {
        self.matches(&Named {
            keys: [Some(key.namespace()), None],
            kind: Some(kind),
        })
    }

    fn matches(&self, named: &Named<'_>) -> bool {
        let mut namespaces = named.keys.iter().flatten().flatten().peekable();
        let is_selected = |namespace: &&str| self.namespaces.iter().any(|one| one == *namespace);
        let in_namespace = self.namespaces.is_empty()
            || namespaces.peek().is_none()
            || namespaces.any(is_selected);
        let of_kind = self.kinds.is_empty()
            || named.kind.is_none_or(|kind| {
                let short = kind.split('.').next().unwrap_or_default();
                self.kinds.iter().any(|one| one == kind || one == short)
            });
        in_namespace && of_kind
    }
}

fn named(event: &TraceEvent) -> Named<'_> {
    let (kind, keys): (Option<&str>, [Option<&ObjectKey>; 2]) = match event {
        TraceEvent::Accepted(write) => (Some(&write.attributes.kind), [Some(&write.key), None]),
        TraceEvent::Listed { kind, .. } => (Some(kind), [None, None]),
        TraceEvent::Cached { kind, key, .. } | TraceEvent::Delivered { kind, key, .. } => {
            (Some(kind), [Some(key), None])
        }
        TraceEvent::Enqueued {
            key,
            cause_kind,
            cause_key,
            ..
        } => (Some(cause_kind), [Some(key), Some(cause_key)]),
        TraceEvent::Started { key, .. } | TraceEvent::Finished { key, .. } => {
            (None, [Some(key), None])
        }
        TraceEvent::Wrote {
            reconciling,
            kind,
            key,
            ..
        }
        | TraceEvent::SubresourceWritten {
            reconciling,
            kind,
            key,
            ..
        } => (Some(kind), [Some(reconciling), Some(key)]),
    };
    Named {
        keys: keys.map(|key| key.map(ObjectKey::namespace)),
        kind,
    }
}

/// The members of a line that name objects.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    kind: Option<&'a str>,
    #[serde(borrow)]
    object: Option<Key<'a>>,
    #[serde(borrow)]
    key: Option<Key<'a>>,
    #[serde(borrow)]
    cause: Option<CauseMembers<'a>>,
}

#[derive(Deserialize)]
struct CauseMembers<'a> {
    #[serde(borrow)]
    kind: Option<&'a str>,
    #[serde(borrow)]
    object: Option<Key<'a>>,
}

#[derive(Deserialize)]
struct Key<'a> {
    #[serde(borrow)]
    namespace: Option<&'a str>,
}

impl<'a> Members<'a> {
    fn named(&self) -> Named<'a> {
        let namespace = |key: &Option<Key<'a>>| key.as_ref().map(|key| key.namespace);
        let cause = self.cause.as_ref();
        Named {
            keys: [
                namespace(&self.key),
                cause
                    .and_then(|cause| namespace(&cause.object))
                    .or_else(|| namespace(&self.object)),
            ],
            kind: self.kind.or_else(|| cause.and_then(|cause| cause.kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellerophon::clock::Clock;
    use bellerophon::trace::{Trace, TraceEvent};

    use super::*;
    use crate::line;

    fn filter(namespaces: &[&str], kinds: &[&str]) -> Filter {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Filter {
            namespaces: owned(namespaces),
            kinds: owned(kinds),
        }
    }

    fn enqueued(namespace: &str, cause: ObjectKey) -> TraceEvent {
        TraceEvent::Enqueued {
            controller: "hero".into(),
            key: ObjectKey::namespaced(namespace, "icarus"),
            cause_kind: "Deployment.apps".into(),
            cause_key: cause,
            cause_version: Some("7".to_owned()),
        }
    }

    fn finished(key: ObjectKey) -> TraceEvent {
        TraceEvent::Finished {
            controller: "hero".into(),
            key,
            result: "success",
            took: Duration::ZERO,
            requeue_after: None,
            error: None,
        }
    }

    #[tokio::test]
    async fn records_and_their_lines_pass_alike() {
        let a = ObjectKey::namespaced("a", "web");
        let b = ObjectKey::namespaced("b", "web");
        let node = ObjectKey::cluster("node-1");
        for (filter, event, passes) in [
            (filter(&[], &[]), enqueued("a", a.clone()), true),
            (filter(&["a"], &[]), enqueued("a", a.clone()), true),
            (filter(&["a"], &[]), enqueued("b", b.clone()), false),
            (filter(&["a"], &[]), enqueued("a", b.clone()), true),
            (filter(&["a"], &[]), enqueued("b", node.clone()), false),
            (filter(&["a", "b"], &[]), finished(b.clone()), true),
            (filter(&["a"], &[]), finished(b), false),
            (filter(&["a"], &[]), finished(node), true),
            (filter(&[], &["Deployment"]), enqueued("b", a.clone()), true),
            (
                filter(&[], &["Deployment.apps"]),
                enqueued("b", a.clone()),
                true,
            ),
            (filter(&[], &["Pod"]), enqueued("b", a.clone()), false),
            (filter(&[], &["Pod"]), finished(a), true),
        ] {
            assert_eq!(filter.passes(&event), passes, "{filter:?} {event}");
            let trace = Trace::new(1);
            trace.record(|| event);
            let record = &trace.snapshot()[0];
            let line = line::line(record, &Clock::system(), None);
            assert_eq!(filter.passes_line(&line), passes, "{filter:?} {line}");
        }
    }
}
