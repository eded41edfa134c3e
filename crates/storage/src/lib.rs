//! Storage: every object, and the history of writes.
//! In: compare-and-swap writes. Out: reads at any kept revision, and the one stream of events that
//! all watchers of a resource share.
//! Guarantees: one increasing revision for the whole server; a reader sees a write completely or
//! not at all; events are in revision order.

mod field_selector; // field selectors
mod key; // keys and scopes
mod memory; // the store, in memory
#[cfg(test)]
mod model; // a simple store that tests compare with
mod notifier; // notifies watchers of a scope
mod resource_store; // the objects and the history of one resource
mod selector; // label and field selectors together
mod watch; // a watch of a scope

pub use field_selector::FieldSelector;
pub use key::{ObjectKey, Scope};
pub use memory::MemoryStore;
pub use selector::Selector;
pub use watch::{Lagged, StoreWatch};

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

use bellerophon_codec::object::{Draft, Encoded};

/// The position of a write in the one order of all writes; 0 is before the first.
pub type Revision = u64;

/// The name of a collection: `apps/deployments`. Versions of a kind share a collection.
pub type CollectionName = Arc<str>;

/// The attributes that selectors match, extracted when an object is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectableAttributes {
    /// The object's uid.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The fields that can be selected by, besides name and namespace.
    pub fields: Vec<(Arc<str>, String)>,
}

/// One version of one object. Never changes; shared by everyone who reads it.
#[derive(Debug)]
pub struct Stored {
    /// Its name in the collection.
    pub key: ObjectKey,
    /// The write that made it.
    pub revision: Revision,
    /// The object as JSON.
    pub encoded: Encoded,
    /// The attributes that selectors match.
    pub attributes: SelectableAttributes,
    /// The schema it was written under; readers under another schema complete it first.
    pub schema: u64,
}

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was not there before.
    Added,
    /// It was there and is now different.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// One write, as watchers see it.
#[derive(Debug)]
pub struct Event {
    /// The position of the write.
    pub revision: Revision,
    /// The type of the change.
    pub change: Change,
    /// The object after the write; for a deletion its last state with the revision of the deletion.
    pub object: Arc<Stored>,
    /// The object before the write; `None` when added.
    pub previous: Option<Arc<Stored>>,
}

impl Event {
    /// Bytes of objects that only this event or later ones reference.
    fn past_bytes(&self) -> usize {
        let last = (self.change == Change::Deleted).then_some(&self.object);
        self.previous
            .iter()
            .chain(last)
            .map(|stored| stored.encoded.bytes().len())
            .sum()
    }
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key is free.
    Absent,
    /// The key holds the version of this revision.
    Version(Revision),
}

/// One write.
#[derive(Debug)]
pub struct Write {
    /// Where.
    pub collection: CollectionName,
    /// Which object.
    pub key: ObjectKey,
    /// The expected current version.
    pub expect: Expect,
    /// The new version; `None` deletes.
    pub put: Option<Put>,
}

/// The new state of an object.
#[derive(Debug)]
pub struct Put {
    /// Its bytes, waiting for a revision.
    pub draft: Draft,
    /// The attributes that selectors match.
    pub attributes: SelectableAttributes,
    /// The schema it was written under.
    pub schema: u64,
}

/// The key does not hold what the write expected.
#[derive(Debug)]
pub struct Conflict {
    /// The current version.
    pub current: Option<Arc<Stored>>,
}

/// The requested revision is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The requested revision.
    pub requested: Revision,
    /// The oldest revision that can still be read.
    pub oldest: Revision,
}

/// Which objects of a collection to read.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// One namespace, or all.
    pub scope: Scope,
    /// Only keys behind this one.
    pub after: Option<ObjectKey>,
    /// At most this many objects; `None` for all.
    pub limit: Option<usize>,
}

impl Range {
    /// The limit as a number.
    fn most(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// Everything in a scope.
    pub fn all_of(scope: Scope) -> Self {
        Self {
            scope,
            after: None,
            limit: None,
        }
    }
}

/// The objects of a range at one revision, in key order.
#[derive(Debug)]
pub struct Listing {
    /// The revision they were read at.
    pub revision: Revision,
    /// The objects.
    pub objects: Vec<Arc<Stored>>,
    /// The number of objects in the whole scope at that revision, whatever the range left out.
    pub total: usize,
}

/// A write under way; resolves when it is safe to answer the client.
pub type Committing<'a> = Pin<Box<dyn Future<Output = Result<Arc<Stored>, Conflict>> + Send + 'a>>;

/// Receives the collection and the event of each commit. It must not block.
pub type CommitObserver = Arc<dyn Fn(&CollectionName, &Arc<Event>) + Send + Sync>;

/// Revisioned storage. A commit resolves when it is safe to answer the client.
pub trait Store: Send + Sync + 'static {
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

    /// Compacts history up to a revision; reads and watches from before it are rejected from then
    /// on.
    fn compact(&self, upto: Revision);

    /// The number of objects and bytes of a collection; `None` if it was never written.
    fn size(&self, collection: &str) -> Option<(usize, usize)>;

    /// How many objects and bytes each collection holds.
    fn sizes(&self) -> Vec<(CollectionName, usize, usize)>;
}
