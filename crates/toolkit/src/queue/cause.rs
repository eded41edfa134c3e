//! Causes: why a key is in the queue.
//!
//! In: one cause per add. Out: the merged set, handed out with the key.
//! Guarantees: a set has at most [`CAUSES_MAX`] entries; equal causes are merged, further ones are
//! counted.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::ObjectKey;

/// The number of different causes that a queue entry keeps. Further ones are counted in
/// [`Causes::omitted`].
pub const CAUSES_MAX: usize = 8;

/// The event of the object that enqueued a key.
///
/// ```
/// use bellerophon::queue::CauseEvent;
///
/// assert_eq!(CauseEvent::Updated.as_str(), "updated");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CauseEvent {
    /// The object was added to the cache.
    Added,
    /// The object was updated.
    Updated,
    /// The object was deleted.
    Deleted,
    /// Nothing changed: the resync period ended.
    Resync,
    /// The key was enqueued by something other than an informer.
    Generic,
    /// The last reconcile failed or requeued the key.
    Retry,
}

impl CauseEvent {
    /// The text in logs, spans and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::Resync => "resync",
            Self::Generic => "generic",
            Self::Retry => "retry",
        }
    }
}

/// One cause of a reconcile: an event of one object.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::ObjectKey;
/// use bellerophon::queue::{Cause, CauseEvent};
/// use tokio::time::Instant;
///
/// let cause = Cause {
///     kind: "Hero".into(),
///     key: ObjectKey::namespaced("team-a", "icarus"),
///     resource_version: None,
///     event: CauseEvent::Retry,
///     at: Instant::now(),
///     reason: Some("no DNS record yet".into()),
/// };
/// assert_eq!(cause.to_string(), "Hero team-a/icarus retry: no DNS record yet");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cause {
    /// The kind of the object, which need not be the kind that is reconciled.
    pub kind: Arc<str>,
    /// The object.
    pub key: ObjectKey,
    /// Its resource version after the event, if known.
    pub resource_version: Option<String>,
    /// The event.
    pub event: CauseEvent,
    /// When the event was delivered.
    pub at: Instant,
    /// The reason given with a requeue or with an enqueue from outside.
    pub reason: Option<Arc<str>>,
}

impl Cause {
    /// Whether both merge into one. A cause without a reason merges with any reason.
    fn is_same(&self, other: &Self) -> bool {
        let same_reason = match (&self.reason, &other.reason) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.event == other.event && self.kind == other.kind && self.key == other.key && same_reason
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.key, self.event.as_str())?;
        if let Some(version) = &self.resource_version {
            write!(f, " at {version}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// The merged causes of one queue entry, in the order of their first adds.
///
/// Events of the same type on the same object with the same reason merge: the newest resource
/// version, the earliest time and the reason stay. The set has at most [`CAUSES_MAX`] entries.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::ObjectKey;
/// use bellerophon::queue::{Cause, CauseEvent, Causes};
/// use tokio::time::Instant;
///
/// let cause = |version: &str| Cause {
///     kind: "Pod".into(),
///     key: ObjectKey::namespaced("team-a", "web"),
///     resource_version: Some(version.into()),
///     event: CauseEvent::Updated,
///     at: Instant::now(),
///     reason: None,
/// };
/// let mut causes = Causes::from(cause("7"));
/// causes.add(cause("8"));
/// assert_eq!(causes.to_string(), "Pod team-a/web updated at 8");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Causes(Option<Box<Known>>);

/// Most entries have one cause, which takes one allocation.
#[derive(Clone, Debug)]
struct Known {
    first: Cause,
    more: Vec<Cause>,
    omitted: u64,
}

impl Causes {
    /// Merges a cause into the set.
    pub fn add(&mut self, cause: Cause) {
        let Some(known) = &mut self.0 else {
            *self = cause.into();
            return;
        };
        let mut all = std::iter::once(&mut known.first).chain(&mut known.more);
        if let Some(same) = all.find(|known| known.is_same(&cause)) {
            // The newest version is what the reconcile acts on. The time of the first cause stays:
            // it measures how long the key waited.
            same.resource_version = cause.resource_version;
            same.reason = same.reason.take().or(cause.reason);
        } else if known.more.len() + 1 < CAUSES_MAX {
            known.more.push(cause);
        } else {
            known.omitted += 1;
        }
    }

    /// Merges another set into this one.
    pub(super) fn merge(&mut self, others: Self) {
        let Some(others) = others.0 else { return };
        if self.0.is_none() {
            self.0 = Some(others);
            return;
        }
        let Known {
            first,
            more,
            omitted,
        } = *others;
        std::iter::once(first)
            .chain(more)
            .for_each(|cause| self.add(cause));
        self.0.iter_mut().for_each(|known| known.omitted += omitted);
    }

    /// The causes, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Cause> {
        self.0
            .iter()
            .flat_map(|known| std::iter::once(&known.first).chain(&known.more))
    }

    /// The number of causes that were added after the set was full.
    pub fn omitted(&self) -> u64 {
        self.0.as_ref().map_or(0, |known| known.omitted)
    }

    /// Whether no cause was added.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        Self(Some(Box::new(Known {
            first: cause,
            more: Vec::new(),
            omitted: 0,
        })))
    }
}

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, cause) in self.iter().enumerate() {
            write!(f, "{}{cause}", if i == 0 { "" } else { ", " })?;
        }
        match self.omitted() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(name: &str, event: CauseEvent, version: &str) -> Cause {
        Cause {
            kind: "Pod".into(),
            key: ObjectKey::namespaced("a", name),
            resource_version: Some(version.into()),
            event,
            at: Instant::now(),
            reason: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_causes_merge_and_keep_the_newest_resource_version() {
        let mut causes = Causes::default();
        causes.add(cause("x", CauseEvent::Updated, "1"));
        causes.add(cause("x", CauseEvent::Deleted, "2"));
        causes.add(cause("x", CauseEvent::Updated, "3"));
        assert_eq!(
            causes.to_string(),
            "Pod a/x updated at 3, Pod a/x deleted at 2"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn merged_cause_keeps_its_reason() {
        let mut causes = Causes::default();
        for reason in [
            None,
            Some("no DNS record yet"),
            None,
            Some("no address yet"),
        ] {
            causes.add(Cause {
                reason: reason.map(Into::into),
                ..cause("x", CauseEvent::Retry, "1")
            });
        }
        assert_eq!(
            causes.to_string(),
            "Pod a/x retry at 1: no DNS record yet, Pod a/x retry at 1: no address yet"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn causes_beyond_the_bound_are_counted() {
        let mut causes = Causes::default();
        for i in 0..CAUSES_MAX + 3 {
            causes.add(cause(&i.to_string(), CauseEvent::Added, "1"));
        }
        assert_eq!(causes.iter().count(), CAUSES_MAX);
        assert_eq!(causes.omitted(), 3);
        assert!(causes.to_string().ends_with("and 3 more"));
    }
}
