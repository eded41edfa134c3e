//! Store: the objects of one informer, by key, by namespace and by index values.
//! In: batches of deltas, from the informer alone. Out: objects, and what each delta changed.
//! Guarantees: every index agrees with the objects; a batch is applied as a whole before anyone
//! reads again; order is by key, never by hash; nothing is decoded under the write lock.

use std::{
    any::{Any, TypeId},
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    cached::CachedObject,
    fifo::{Batch, Delta},
    key::ObjectKey,
};

/// Indexes up to this length are checked entry by entry in debug builds.
const FULLY_CHECKED_MAX: usize = 64;

/// Computes the values of an object.
type ValuesFn = Arc<dyn Fn(&dyn Any) -> Vec<String> + Send + Sync>;

/// The values under which an object is found (client-go's IndexFunc). Writers wait for it, so it
/// must be quick.
#[derive(Clone)]
pub(crate) struct IndexFn {
    pub(crate) name: &'static str,
    /// The type of the function: two equal ones are one index.
    pub(crate) identity: TypeId,
    pub(crate) function: ValuesFn,
}

/// The number of an index in its store.
pub(crate) type IndexId = usize;

/// The change of one key by a delta, for an observer of everything before it.
#[derive(Debug)]
pub(crate) enum Transition {
    /// The object exists now; `before` is its previous state.
    Applied {
        key: Arc<ObjectKey>,
        before: Option<CachedObject>,
        after: CachedObject,
    },
    /// The object is deleted; `last` is its newest known state.
    Deleted {
        key: Arc<ObjectKey>,
        before: CachedObject,
        last: CachedObject,
    },
}

/// The values of one object, one list per index; `None` if the index functions were not called.
type Values = Option<Vec<Vec<String>>>;

/// A batch whose index values are computed.
pub(crate) struct Evaluated(Vec<(Delta, Values)>);

#[derive(Debug)]
pub(crate) struct Store {
    /// Ordered by namespace, then name: a namespace is a range.
    objects: BTreeMap<Arc<ObjectKey>, CachedObject>,
    /// By number. An index is never removed.
    indexes: Vec<NamedIndex>,
}

/// One index. Values are stored beside the objects, so that removing an object needs no decoding.
pub(crate) struct NamedIndex {
    index_fn: IndexFn,
    /// No set is empty, and each key in one is in `objects`, with the value in `values`.
    keys: BTreeMap<Arc<str>, BTreeSet<Arc<ObjectKey>>>,
    /// The values of each object that has any, none twice.
    values: BTreeMap<Arc<ObjectKey>, Box<[Arc<str>]>>,
}

impl std::fmt::Debug for NamedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedIndex")
            .field("values", &self.keys.len())
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            indexes: Vec::new(),
        }
    }

    /// The number of an index of this name and function, if there is one.
    pub(crate) fn find_index(&self, index_fn: &IndexFn) -> Option<IndexId> {
        self.indexes.iter().position(|index| {
            index.index_fn.name == index_fn.name && index.index_fn.identity == index_fn.identity
        })
    }

    /// Whether an index of this name has another function.
    pub(crate) fn has_conflicting_index(&self, index_fn: &IndexFn) -> bool {
        self.indexes.iter().any(|index| {
            index.index_fn.name == index_fn.name && index.index_fn.identity != index_fn.identity
        })
    }

    /// An index of the present objects; nothing may change before it is added.
    pub(crate) fn build_index(&self, index_fn: IndexFn) -> NamedIndex {
        let mut index = NamedIndex {
            index_fn,
            keys: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        for (key, object) in &self.objects {
            let values = index.values_of(key, object);
            index.set(key, values);
        }
        index
    }

    pub(crate) fn add_index(&mut self, index: NamedIndex) -> IndexId {
        self.indexes.push(index);
        debug_assert!(self.is_consistent());
        self.indexes.len() - 1
    }

    /// Calls the index functions for the objects of a batch, which may have to decode them. Nothing
    /// may change before the batch is applied.
    pub(crate) fn evaluate(&self, batch: Batch) -> Evaluated {
        let values = |delta: &Delta| match delta {
            Delta::Applied { key, object }
                if self
                    .objects
                    .get(&**key)
                    // A relist repeats every object. Most are unchanged, and their index values are
                    // known.
                    .is_none_or(|before| !before.is_same_version(object)) =>
            {
                Some(self.values_of(key, object))
            }
            _ => None,
        };
        let deltas = batch.deltas.into_iter();
        Evaluated(
            deltas
                .map(|delta| (values(&delta), delta))
                .map(|(values, delta)| (delta, values))
                .collect(),
        )
    }

    /// Applies a batch and returns what it changed. Deltas that change nothing are left out: known
    /// objects of a relist, or the last event repeated after a reconnect.
    pub(crate) fn apply(&mut self, batch: Evaluated) -> Vec<Transition> {
        let mut transitions = Vec::with_capacity(batch.0.len());
        for (delta, values) in batch.0 {
            match delta {
                Delta::Applied { key, object } => {
                    self.insert(key, object, values, &mut transitions)
                }
                Delta::Deleted { key, object } => transitions.extend(self.remove(key, object)),
            }
        }
        debug_assert!(self.is_consistent());
        transitions
    }

    fn insert(
        &mut self,
        key: Arc<ObjectKey>,
        after: CachedObject,
        values: Values,
        transitions: &mut Vec<Transition>,
    ) {
        // Compared again under the write lock: an earlier delta of the batch may have changed the
        // object.
        let mut before = self.objects.get(&*key).cloned();
        if before
            .as_ref()
            .is_some_and(|before| before.is_same_version(&after))
        {
            return;
        }
        // Deleted and created again between two events: two objects that share a name, and no
        // update from one to the other.
        if before
            .as_ref()
            .is_some_and(|before| !before.is_same_object(&after))
        {
            transitions.extend(self.remove(key.clone(), None));
            before = None;
        }
        let values = values.unwrap_or_else(|| self.values_of(&key, &after));
        for (index, values) in self.indexes.iter_mut().zip(values) {
            index.set(&key, values);
        }
        self.objects.insert(key.clone(), after.clone());
        transitions.push(Transition::Applied { key, before, after });
    }

    fn remove(&mut self, key: Arc<ObjectKey>, last: Option<CachedObject>) -> Option<Transition> {
        let before = self.objects.remove(&*key)?;
        self.indexes.iter_mut().for_each(|index| index.remove(&key));
        let last = last.unwrap_or_else(|| before.clone());
        Some(Transition::Deleted { key, before, last })
    }

    fn values_of(&self, key: &ObjectKey, object: &CachedObject) -> Vec<Vec<String>> {
        self.indexes
            .iter()
            .map(|index| index.values_of(key, object))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&CachedObject> {
        self.objects.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &CachedObject)> {
        self.objects.iter()
    }

    pub(crate) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a CachedObject> {
        // The empty name sorts before all others of the namespace.
        let first = ObjectKey::namespaced(namespace, "");
        let range = self.objects.range::<ObjectKey, _>(first..);
        range
            .take_while(move |(key, _)| key.namespace() == Some(namespace))
            .map(|(_, object)| object)
    }

    /// The keys that an index has under this value.
    pub(crate) fn keys_by_index(
        &self,
        index: IndexId,
        value: &str,
    ) -> impl Iterator<Item = &Arc<ObjectKey>> {
        let index = self.indexes.get(index);
        index
            .and_then(|index| index.keys.get(value))
            .into_iter()
            .flatten()
    }

    pub(crate) fn by_index(&self, index: IndexId, value: &str) -> Vec<CachedObject> {
        let keys = self.keys_by_index(index, value);
        keys.filter_map(|key| self.objects.get(&**key))
            .cloned()
            .collect()
    }

    fn is_consistent(&self) -> bool {
        // Looking at every entry after every event would make debug builds quadratic.
        self.objects.len() > FULLY_CHECKED_MAX
            || self
                .indexes
                .iter()
                .all(|index| index.agrees_with(&self.objects))
    }
}

impl NamedIndex {
    /// A function that panics on an object leaves it out of this index only.
    fn values_of(&self, key: &ObjectKey, object: &CachedObject) -> Vec<String> {
        // Not kept decoded: an index function reads every object once, which would evict what
        // others read.
        let object = object.read_uncached();
        catch_unwind(AssertUnwindSafe(|| (self.index_fn.function)(&*object))).unwrap_or_else(|_| {
            let index = self.index_fn.name;
            tracing::error!(%key, index, "an index function panicked; the object is not indexed");
            Vec::new()
        })
    }

    /// Gives an object these values and no others.
    fn set(&mut self, key: &Arc<ObjectKey>, mut values: Vec<String>) {
        values.sort_unstable();
        values.dedup();
        let had = self.values.get(&**key).map_or(&[][..], |had| had);
        if had
            .iter()
            .map(|value| &**value)
            .eq(values.iter().map(String::as_str))
        {
            return;
        }
        self.remove(key);
        if !values.is_empty() {
            let values: Box<[_]> = values
                .into_iter()
                .map(|value| self.insert(key, value))
                .collect();
            self.values.insert(key.clone(), values);
        }
    }

    /// One value, one allocation: every object that has it shares it.
    fn insert(&mut self, key: &Arc<ObjectKey>, value: String) -> Arc<str> {
        let value = self
            .keys
            .get_key_value(&*value)
            .map_or_else(|| value.into(), |(value, _)| value.clone());
        self.keys
            .entry(value.clone())
            .or_default()
            .insert(key.clone());
        value
    }

    fn remove(&mut self, key: &ObjectKey) {
        for value in self.values.remove(key).into_iter().flatten() {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }

    fn agrees_with(&self, objects: &BTreeMap<Arc<ObjectKey>, CachedObject>) -> bool {
        let placed = self.keys.values().map(BTreeSet::len).sum::<usize>();
        placed
            == self
                .values
                .values()
                .map(|values| values.len())
                .sum::<usize>()
            && self.keys.values().all(|keys| !keys.is_empty())
            && self.values.iter().all(|(key, values)| {
                objects.contains_key(&**key)
                    && values.iter().all(|value| {
                        self.keys
                            .get(value)
                            .is_some_and(|keys| keys.contains(&**key))
                    })
            })
    }
}

#[cfg(test)]
mod tests;
