//! Delta FIFO: from the changes of one list and watch to deltas.
//! In: changes as a reflector received them. Out: batches of deltas, oldest first.
//! Guarantees: order is kept; a relist is one batch; a key that is missing from a relist is deleted
//! exactly once; a key that was never emitted is never deleted. It keeps its own known keys and
//! never reads the store (as client-go's RealFIFO with `knownObjects` replaced by a set of keys).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{cached::CachedObject, key::ObjectKey};

/// Deltas in one batch at most, except for a relist, which is never split.
pub(crate) const BATCH_MAX: usize = 1000;

/// The keys of the objects that one reflector added to the store.
pub(crate) type KnownKeys = BTreeSet<Arc<ObjectKey>>;

/// An object that is written to the store.
#[derive(Debug)]
pub(crate) struct ReceivedObject {
    pub(crate) key: ObjectKey,
    pub(crate) object: CachedObject,
}

/// A change that a reflector received.
#[derive(Debug)]
pub(crate) enum Change {
    /// The object exists in this state.
    Applied(ReceivedObject),
    /// The object is deleted; its last state if it could be decoded.
    Deleted {
        key: ObjectKey,
        object: Option<CachedObject>,
        resource_version: Option<String>,
    },
    /// Exactly these objects exist. Those that exist but cannot be decoded stay as they are.
    Replaced {
        objects: Vec<ReceivedObject>,
        undecodable: Vec<ObjectKey>,
        resource_version: String,
    },
    /// Nothing changed up to this version.
    Bookmark { resource_version: String },
}

/// A change of one key.
#[derive(Debug)]
pub(crate) enum Delta {
    /// The object exists in this state.
    Applied {
        key: Arc<ObjectKey>,
        object: CachedObject,
    },
    /// The object is deleted; its last state if the source sent it.
    Deleted {
        key: Arc<ObjectKey>,
        object: Option<CachedObject>,
    },
}

/// Deltas to be applied together.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Oldest first; in a relist the deletes come first.
    pub(crate) deltas: Vec<Delta>,
    /// The version of the collection once the deltas are applied; `None` if it is not known.
    pub(crate) resource_version: Option<String>,
    /// Whether this is a whole list.
    pub(crate) is_list: bool,
}

/// The queue between one reflector and the store.
///
/// It is drained before the reflector reads on, so it holds the changes of one read at most.
#[derive(Debug)]
pub(crate) struct DeltaFifo {
    /// Every key that exists once all queued batches are applied.
    known: KnownKeys,
    /// Oldest first. None is empty but lists and bookmarks.
    queue: VecDeque<Batch>,
}

impl DeltaFifo {
    /// An empty queue for a store that has these objects already.
    pub(crate) fn with_known(known: KnownKeys) -> Self {
        Self {
            known,
            queue: VecDeque::new(),
        }
    }

    /// The objects that the store has once the queue is drained.
    pub(crate) fn into_known(self) -> KnownKeys {
        self.known
    }

    /// Queues a change behind all others.
    pub(crate) fn push(&mut self, change: Change) {
        match change {
            Change::Applied(ReceivedObject { key, object }) => {
                let key = self.intern(key);
                let version = object.resource_version();
                self.append(Delta::Applied { key, object }, version);
            }
            Change::Deleted {
                key,
                object,
                resource_version,
            } => match self.known.take(&key) {
                Some(key) => self.append(Delta::Deleted { key, object }, resource_version),
                // The deletion of an object that never matched or was never decoded; the version
                // still advances.
                None => self.set_version(resource_version),
            },
            Change::Replaced {
                objects,
                undecodable,
                resource_version,
            } => self.replace(objects, &undecodable, resource_version),
            Change::Bookmark { resource_version } => self.set_version(Some(resource_version)),
        }
        debug_assert!(self.is_consistent());
    }

    /// Takes the oldest batch.
    pub(crate) fn pop(&mut self) -> Option<Batch> {
        self.queue.pop_front()
    }

    /// One key, one allocation: the store and every handler queue share it.
    fn intern(&mut self, key: ObjectKey) -> Arc<ObjectKey> {
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let key = Arc::new(key);
        self.known.insert(key.clone());
        key
    }

    fn append(&mut self, delta: Delta, version: Option<String>) {
        let batch = self.open_batch();
        batch.deltas.push(delta);
        if version.is_some() {
            batch.resource_version = version;
        }
    }

    fn set_version(&mut self, version: Option<String>) {
        if version.is_some() {
            self.open_batch().resource_version = version;
        }
    }

    fn open_batch(&mut self) -> &mut Batch {
        if self
            .queue
            .back()
            .is_none_or(|last| last.is_list || last.deltas.len() >= BATCH_MAX)
        {
            self.queue.push_back(Batch {
                deltas: Vec::new(),
                resource_version: None,
                is_list: false,
            });
        }
        self.queue
            .back_mut()
            .expect("a batch was queued if there was none")
    }

    fn replace(
        &mut self,
        objects: Vec<ReceivedObject>,
        undecodable: &[ObjectKey],
        resource_version: String,
    ) {
        // Objects that cannot be decoded exist on the server. Reporting them as deleted would make
        // controllers clean up.
        let mut known = BTreeSet::new();
        for key in undecodable {
            known.extend(self.known.take(key));
        }
        let mut applied = Vec::with_capacity(objects.len());
        let mut positions = BTreeMap::new();
        for ReceivedObject { key, object } in objects {
            // Pages of a list may repeat an object after the continue token expired; the later one
            // is newer.
            if let Some(position) = known.get(&key).and_then(|key| positions.get(key)) {
                applied[*position] = (
                    known.get(&key).expect("its position is known").clone(),
                    object,
                );
                continue;
            }
            let key = self.known.take(&key).unwrap_or_else(|| Arc::new(key));
            known.insert(key.clone());
            positions.insert(key.clone(), applied.len());
            applied.push((key, object));
        }
        // Every key that the list contained was moved into the new set; those left in the old one
        // have vanished.
        let missing = std::mem::replace(&mut self.known, known);
        let deletes = missing
            .into_iter()
            .map(|key| Delta::Deleted { key, object: None });
        let applies = applied
            .into_iter()
            .map(|(key, object)| Delta::Applied { key, object });
        // Deletes first: the store never holds more than the larger of the two lists.
        let deltas = deletes.chain(applies).collect();
        self.queue.push_back(Batch {
            deltas,
            resource_version: Some(resource_version),
            is_list: true,
        });
    }

    fn is_consistent(&self) -> bool {
        self.queue
            .iter()
            .all(|batch| batch.is_list || batch.deltas.len() <= BATCH_MAX)
            && self.queue.iter().all(|batch| {
                batch.is_list || !batch.deltas.is_empty() || batch.resource_version.is_some()
            })
    }
}

#[cfg(test)]
mod tests;
