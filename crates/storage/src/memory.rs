//! The store in memory.
//! Guarantees: one lock, never held across an await; watchers are notified after it is released.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::watch;

use super::{
    Change, CollectionName, CommitObserver, Committing, Compacted, Conflict, Event, Expect,
    Listing, ObjectKey, Put, Range, Revision, Scope, Store, StoreWatch, Stored, Write,
    resource_store::ResourceStore,
};

/// Objects and history in memory, gone with the process.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    observer: Option<CommitObserver>,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: RwLock<State>,
    reached: watch::Sender<Revision>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The revision of the newest write; no collection holds a newer one.
    pub(super) revision: Revision,
    /// Where history starts for collections that do not exist yet.
    compacted: Revision,
    collections: HashMap<CollectionName, ResourceStore>,
}

impl State {
    pub(super) fn collection(&self, name: &str) -> Option<&ResourceStore> {
        self.collections.get(name)
    }

    fn collection_mut(&mut self, name: &CollectionName) -> &mut ResourceStore {
        let compacted = self.compacted;
        self.collections
            .entry(name.clone())
            .or_insert_with(|| ResourceStore::new(compacted))
    }

    pub(super) fn unlisten(&mut self, collection: &str, scope: &Scope) {
        if let Some(collection) = self.collections.get_mut(collection) {
            collection.unlisten(scope);
        }
    }
}

impl Shared {
    pub(super) fn read<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        // A panic while the lock is held cannot leave a write half done: every write is one insert
        // and one push.
        f(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn write<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shared", &self.shared)
            .field("is_observed", &self.observer.is_some())
            .finish()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty store whose first write has the revision after this one.
    pub fn starting_at(revision: Revision) -> Self {
        let state = State {
            revision,
            compacted: revision,
            ..State::default()
        };
        Self {
            shared: Arc::new(Shared {
                state: RwLock::new(state),
                reached: watch::Sender::new(revision),
            }),
            observer: None,
        }
    }

    /// Calls an observer after each commit, before it resolves.
    #[must_use]
    pub fn observed_by(self, observer: CommitObserver) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    fn commit_now(&self, write: Write) -> Result<Arc<Stored>, Conflict> {
        let (event, notification) = self.shared.write(|state| {
            let revision = state.revision + 1;
            let collection = state.collection_mut(&write.collection);
            let previous = collection.get(&write.key).cloned();
            let as_expected = match (write.expect, &previous) {
                (Expect::Absent, None) => true,
                (Expect::Version(expected), Some(found)) => found.revision == expected,
                _ => false,
            };
            if !as_expected {
                return Err(Conflict { current: previous });
            }
            let event = event_of(revision, write.key, write.put, previous)
                .ok_or(Conflict { current: None })?;
            let event = Arc::new(event);
            let notification = collection.apply(event.clone());
            state.revision = revision;
            Ok((event, notification))
        })?;
        notification.notify();
        self.shared.reached.send_replace(event.revision);
        if let Some(observer) = &self.observer {
            observer(&write.collection, &event);
        }
        Ok(event.object.clone())
    }
}

/// The event of a write; `None` for the deletion of an object that does not exist.
fn event_of(
    revision: Revision,
    key: ObjectKey,
    put: Option<Put>,
    previous: Option<Arc<Stored>>,
) -> Option<Event> {
    match put {
        Some(Put {
            draft,
            attributes,
            schema,
        }) => {
            let object = Arc::new(Stored {
                key,
                revision,
                encoded: draft.at(revision),
                attributes,
                schema,
            });
            let change = if previous.is_some() {
                Change::Modified
            } else {
                Change::Added
            };
            Some(Event {
                revision,
                change,
                object,
                previous,
            })
        }
        None => {
            let last = previous.as_ref()?;
            let object = Arc::new(last.at_revision(revision));
            Some(Event {
                revision,
                change: Change::Deleted,
                object,
                previous,
            })
        }
    }
}

impl Stored {
    /// The same state under another revision, as deletions show it.
    pub fn at_revision(&self, revision: Revision) -> Self {
        Self {
            key: self.key.clone(),
            revision,
            encoded: self.encoded.with_revision(revision),
            attributes: self.attributes.clone(),
            schema: self.schema,
        }
    }
}

impl Store for MemoryStore {
    fn revision(&self) -> Revision {
        self.shared.read(|state| state.revision)
    }

    fn get(&self, collection: &str, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.shared
            .read(|state| state.collection(collection)?.get(key).cloned())
    }

    fn list(
        &self,
        collection: &str,
        range: &Range,
        at: Option<Revision>,
    ) -> Result<Listing, Compacted> {
        self.shared.read(|state| {
            let revision = at.unwrap_or(state.revision);
            let (objects, total) = match (state.collection(collection), at) {
                (Some(collection), None) => collection.list(range),
                (Some(collection), Some(at)) => collection.list_at(range, at)?,
                (None, Some(at)) if at < state.compacted => {
                    return Err(Compacted {
                        requested: at,
                        oldest: state.compacted,
                    });
                }
                (None, _) => (Vec::new(), 0),
            };
            Ok(Listing {
                revision,
                objects,
                total,
            })
        })
    }

    fn commit(&self, write: Write) -> Committing<'_> {
        Box::pin(std::future::ready(self.commit_now(write)))
    }

    fn watch(
        &self,
        collection: &CollectionName,
        scope: &Scope,
        since: Revision,
    ) -> Result<StoreWatch, Compacted> {
        self.shared.write(|state| {
            let found = state.collection_mut(collection);
            found.replayable(since)?;
            let (next, listener) = found.listen(scope, since);
            Ok(StoreWatch::new(
                self.shared.clone(),
                collection.clone(),
                scope.clone(),
                next,
                listener,
            ))
        })
    }

    fn reached(&self, revision: Revision) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut reached = self.shared.reached.subscribe();
        Box::pin(async move {
            // The sender lives in `self`, so waiting cannot fail.
            let _reached = reached.wait_for(|newest| *newest >= revision).await;
        })
    }

    fn compact(&self, upto: Revision) {
        self.shared.write(|state| {
            let upto = upto.min(state.revision);
            state.compacted = state.compacted.max(upto);
            for collection in state.collections.values_mut() {
                collection.compact(upto);
            }
        });
    }

    fn size(&self, collection: &str) -> Option<(usize, usize)> {
        self.shared
            .read(|state| Some(state.collection(collection)?.size()))
    }

    fn sizes(&self) -> Vec<(CollectionName, usize, usize)> {
        let mut sizes: Vec<_> = self.shared.read(|state| {
            state
                .collections
                .iter()
                .map(|(name, collection)| {
                    let (objects, bytes) = collection.size();
                    (name.clone(), objects, bytes)
                })
                .collect()
        });
        sizes.sort();
        sizes
    }
}
