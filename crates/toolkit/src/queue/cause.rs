//! Causes: why a key is in the queue.
//!
//! In: one cause per add. Out: the merged set, handed out with the key.
//! Holds: a set has at most [`CAUSES_MAX`] entries; equal causes are merged, what does not fit is counted.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::ObjectKey;

/// How many different causes one queue entry remembers. More are counted in [`Causes::omitted`].
pub const CAUSES_MAX: usize = 8;

/// What happened to the object that woke a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CauseEvent {
    /// The object appeared.
    Added,
    /// The object changed.
    Updated,
    /// The object is gone.
    Deleted,
    /// Nothing changed: the informer's resync period ended.
    Resync,
    /// Something outside the cluster asked for it.
    Generic,
    /// The last reconcile failed, or asked to be called again.
    Retry,
}

impl CauseEvent {
    /// The word used in logs, spans and traces.
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

/// One reason for a reconcile: an event of one object.
#[derive(Clone, Debug)]
pub struct Cause {
    /// The kind of the object the event is about, which need not be the kind being reconciled.
    pub kind: Arc<str>,
    /// That object.
    pub key: ObjectKey,
    /// Its version after the event, if it has one.
    pub resource_version: Option<String>,
    /// What happened.
    pub event: CauseEvent,
    /// When it was noticed.
    pub at: Instant,
}

impl Cause {
    fn says_the_same_as(&self, other: &Self) -> bool {
        self.event == other.event && self.kind == other.kind && self.key == other.key
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.key, self.event.as_str())?;
        match &self.resource_version {
            Some(version) => write!(f, " at {version}"),
            None => Ok(()),
        }
    }
}

/// The merged causes of one queue entry, in the order they first came.
///
/// Events of the same type on the same object merge: the newest version and the earliest time stay.
#[derive(Clone, Debug, Default)]
pub struct Causes(Option<Box<Known>>);

/// Most entries have one cause, which then takes one allocation.
#[derive(Clone, Debug)]
struct Known {
    first: Cause,
    more: Vec<Cause>,
    omitted: u64,
}

impl Causes {
    /// Merges one more cause into the set.
    pub fn add(&mut self, cause: Cause) {
        let Some(known) = &mut self.0 else {
            *self = cause.into();
            return;
        };
        let mut all = std::iter::once(&mut known.first).chain(&mut known.more);
        if let Some(same) = all.find(|known| known.says_the_same_as(&cause)) {
            same.resource_version = cause.resource_version;
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

    /// The causes, first come first.
    pub fn iter(&self) -> impl Iterator<Item = &Cause> {
        self.0
            .iter()
            .flat_map(|known| std::iter::once(&known.first).chain(&known.more))
    }

    /// How many causes came after the set was full.
    pub fn omitted(&self) -> u64 {
        self.0.as_ref().map_or(0, |known| known.omitted)
    }

    /// Whether nobody gave a cause.
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
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_causes_merge_and_keep_the_newest_version() {
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
    async fn causes_beyond_the_bound_are_counted() {
        let mut causes = Causes::default();
        for i in 0..CAUSES_MAX + 3 {
            causes.add(cause(&i.to_string(), CauseEvent::Added, "1"));
        }
        assert_eq!((causes.iter().count(), causes.omitted()), (CAUSES_MAX, 3));
        assert!(causes.to_string().ends_with("and 3 more"));
    }
}
