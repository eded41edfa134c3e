//! Storage: every object ever written, in the order it was written.
//! In: compare-and-swap writes. Out: reads at any kept revision, and the one stream of events that
//! all watchers of a resource share.
//! Guarantees: one growing revision for the whole server; a reader sees a write completely or not
//! at all; events come in revision order.

mod key;
mod memory;
#[cfg(test)]
mod model;
mod notifier; // notifies watchers of a scope
mod resource_store;
mod watch;

pub(crate) use key::{ObjectKey, Scope};
pub(crate) use memory::MemoryStore;
pub(crate) use watch::{Lagged, StoreWatch};

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

use crate::object::{Draft, Encoded};

/// The position of a write in the one order of all writes; 0 is before the first.
pub(crate) type Revision = u64;

/// What the storage keeps of a resource: `apps/deployments`. Versions of a kind share a collection.
pub(crate) type CollectionName = Arc<str>;

/// What selectors look at, taken out of an object once, when it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelectableAttributes {
    /// The object's uid.
    pub(crate) uid: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The fields that can be selected by, besides name and namespace.
    pub(crate) fields: Vec<(Arc<str>, String)>,
}

/// One version of one object. Never changes; shared by everyone who reads it.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Its name in the collection.
    pub(crate) key: ObjectKey,
    /// The write that made it.
    pub(crate) revision: Revision,
    /// The object as JSON.
    pub(crate) encoded: Encoded,
    /// What selectors look at.
    pub(crate) attributes: SelectableAttributes,
    /// The schema it was written under; readers under another schema complete it first.
    pub(crate) schema: u64,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was not there before.
    Added,
    /// It was there and is now different.
    Modified,
    /// It is gone.
    Deleted,
}

/// One write, as watchers see it.
#[derive(Debug)]
pub(crate) struct Event {
    /// The position of the write.
    pub(crate) revision: Revision,
    /// What happened.
    pub(crate) change: Change,
    /// The object after the write; for a deletion its last state with the revision of the deletion.
    pub(crate) object: Arc<Stored>,
    /// The object before the write; `None` when added.
    pub(crate) previous: Option<Arc<Stored>>,
}

impl Event {
    /// Bytes of objects that nothing but this event keeps, or nothing but later ones.
    fn past_bytes(&self) -> usize {
        let last = (self.change == Change::Deleted).then_some(&self.object);
        self.previous
            .iter()
            .chain(last)
            .map(|stored| stored.encoded.bytes().len())
            .sum()
    }
}

/// What a write finds, or else it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The key is free.
    Absent,
    /// The key holds the version of this revision.
    Version(Revision),
}

/// One write.
#[derive(Debug)]
pub(crate) struct Write {
    /// Where.
    pub(crate) collection: CollectionName,
    /// Which object.
    pub(crate) key: ObjectKey,
    /// What it replaces.
    pub(crate) expect: Expect,
    /// What it leaves; `None` deletes.
    pub(crate) put: Option<Put>,
}

/// The new state of an object.
#[derive(Debug)]
pub(crate) struct Put {
    /// Its bytes, waiting for a revision.
    pub(crate) draft: Draft,
    /// What selectors look at.
    pub(crate) attributes: SelectableAttributes,
    /// The schema it was written under.
    pub(crate) schema: u64,
}

/// The key does not hold what the write expected.
#[derive(Debug)]
pub(crate) struct Conflict {
    /// What it holds.
    pub(crate) current: Option<Arc<Stored>>,
}

/// The revision asked for is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// What was asked for.
    pub(crate) asked: Revision,
    /// The oldest revision that can still be read.
    pub(crate) oldest: Revision,
}

/// Which objects of a collection to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Range {
    /// One namespace, or all.
    pub(crate) scope: Scope,
    /// Only keys behind this one.
    pub(crate) after: Option<ObjectKey>,
    /// At most this many objects; `None` for all.
    pub(crate) limit: Option<usize>,
}

impl Range {
    /// The limit as a number.
    fn most(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// Everything in a scope.
    pub(crate) fn all_of(scope: Scope) -> Self {
        Self {
            scope,
            after: None,
            limit: None,
        }
    }
}

/// The objects of a range at one revision, in key order.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The revision they were read at.
    pub(crate) revision: Revision,
    /// The objects.
    pub(crate) objects: Vec<Arc<Stored>>,
    /// How many objects the whole scope held then, whatever the range left out.
    pub(crate) total: usize,
}

/// A write under way; resolves when it is safe to answer the client.
pub(crate) type Committing<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<Stored>, Conflict>> + Send + 'a>>;

/// Revisioned storage. In memory today; a durable one answers the same calls and resolves a commit
/// only when it is on disk.
pub(crate) trait Store: Send + Sync + 'static {
    /// The newest revision.
    fn revision(&self) -> Revision;

    /// The newest version of one object.
    fn get(&self, collection: &str, key: &ObjectKey) -> Option<Arc<Stored>>;

    /// The objects of a range, newest or exactly as they were at a revision. Costs what it returns,
    /// not what is stored; a read of the past also costs the writes since.
    ///
    /// # Errors
    /// The revision is older than the kept history.
    fn list(
        &self,
        collection: &str,
        range: &Range,
        at: Option<Revision>,
    ) -> Result<Listing, Compacted>;

    /// Writes if the key holds what is expected. A deletion resolves to the last state with the
    /// revision of the deletion.
    fn commit(&self, write: Write) -> Committing<'_>;

    /// The events of a part of a collection after a revision, past and future.
    ///
    /// # Errors
    /// The revision is older than the kept history.
    fn watch(
        &self,
        collection: &CollectionName,
        scope: &Scope,
        since: Revision,
    ) -> Result<StoreWatch, Compacted>;

    /// Resolves when the revision is reached.
    fn reached(&self, revision: Revision) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Forgets history up to a revision; reads and watches from before it are refused from then on.
    fn compact(&self, upto: Revision);

    /// How many objects and bytes a collection holds; `None` if nothing was ever written to it.
    fn size(&self, collection: &str) -> Option<(usize, usize)>;

    /// How many objects and bytes each collection holds.
    fn sizes(&self) -> Vec<(CollectionName, usize, usize)>;
}
