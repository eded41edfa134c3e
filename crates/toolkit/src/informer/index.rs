//! Index: the objects of one kind, by key, by namespace and by whatever the user names.
//! In: batches of deltas, from the informer alone. Out: objects, and what each delta really changed.
//! Holds: every named index agrees with the objects; a batch is applied as a whole before anyone reads again;
//! order is by key, never by hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube::{Resource, ResourceExt};

use crate::{
    fifo::{Batch, Delta},
    key::ObjectKey,
};

/// Indexes up to this length are checked entry by entry in debug builds.
const FULLY_CHECKED_MAX: usize = 64;

/// Says under which values an object is found. It is called with locks held: it must be pure and quick.
pub(crate) type IndexFn<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// Why an index cannot be used or added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The name is taken; its function stays the one in use.
    #[error("an index named {0} exists already; choose another name")]
    Exists(String),
    /// Nobody added such an index.
    #[error("no index is named {0}; add it to the informer first")]
    Unknown(String),
}

/// What a delta did to one key, as seen by those who had seen everything before it.
#[derive(Debug)]
pub(crate) enum Transition<K> {
    /// There is an object now; `before` is what there was.
    Applied { key: Arc<ObjectKey>, before: Option<Arc<K>>, after: Arc<K> },
    /// There is none now; `last` is the newest form that is known.
    Deleted { key: Arc<ObjectKey>, before: Arc<K>, last: Arc<K> },
}

#[derive(Debug)]
pub(crate) struct Index<K> {
    /// Ordered by namespace, then name: a namespace is a range.
    objects: BTreeMap<Arc<ObjectKey>, Arc<K>>,
    /// By the name of the index.
    named: BTreeMap<String, Named<K>>,
}

struct Named<K> {
    function: IndexFn<K>,
    /// No set is empty, and each key in one is in `objects`.
    keys: BTreeMap<String, BTreeSet<Arc<ObjectKey>>>,
}

impl<K> std::fmt::Debug for Named<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Named").field("values", &self.keys.len()).finish_non_exhaustive()
    }
}

impl<K: Resource> Index<K> {
    pub(crate) fn new() -> Self {
        Self { objects: BTreeMap::new(), named: BTreeMap::new() }
    }

    /// Adds an index; objects that are here already are in it at once.
    pub(crate) fn add(&mut self, name: String, function: IndexFn<K>) -> Result<(), IndexError> {
        if self.named.contains_key(&name) {
            return Err(IndexError::Exists(name));
        }
        let mut index = Named { function, keys: BTreeMap::new() };
        self.objects.iter().for_each(|(key, object)| index.insert(key, object));
        self.named.insert(name, index);
        debug_assert!(self.is_consistent());
        Ok(())
    }

    /// Applies a batch and says what it changed. What changed nothing is left out: a relist of what is known, or the
    /// last event told again after a reconnect.
    pub(crate) fn apply(&mut self, batch: Batch<K>) -> Vec<Transition<K>> {
        let mut transitions = Vec::with_capacity(batch.deltas.len());
        for delta in batch.deltas {
            match delta {
                Delta::Applied { key, object } => self.insert(key, object, &mut transitions),
                Delta::Deleted { key, object } => transitions.extend(self.remove(key, object)),
            }
        }
        debug_assert!(self.is_consistent());
        transitions
    }

    fn insert(&mut self, key: Arc<ObjectKey>, after: Arc<K>, transitions: &mut Vec<Transition<K>>) {
        let mut before = self.objects.get(&*key).cloned();
        if before.as_ref().is_some_and(|before| is_same_version(&**before, &*after)) {
            return;
        }
        // Deleted and made again while nobody looked: two objects that share a name, and no update from one to the other.
        if before.as_ref().is_some_and(|before| before.uid() != after.uid()) {
            transitions.extend(self.remove(key.clone(), None));
            before = None;
        }
        for index in self.named.values_mut() {
            if let Some(before) = &before {
                index.remove(&key, before);
            }
            index.insert(&key, &after);
        }
        self.objects.insert(key.clone(), after.clone());
        transitions.push(Transition::Applied { key, before, after });
    }

    fn remove(&mut self, key: Arc<ObjectKey>, last: Option<Arc<K>>) -> Option<Transition<K>> {
        let before = self.objects.remove(&*key)?;
        self.named.values_mut().for_each(|index| index.remove(&key, &before));
        let last = last.unwrap_or_else(|| before.clone());
        Some(Transition::Deleted { key, before, last })
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Arc<K>)> {
        self.objects.iter()
    }

    pub(crate) fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let first = ObjectKey::namespaced(namespace, "");
        let range = self.objects.range::<ObjectKey, _>(first..);
        range.take_while(move |(key, _)| key.namespace.as_deref() == Some(namespace)).map(|(_, object)| object)
    }

    pub(crate) fn by_index(&self, name: &str, value: &str) -> Result<Vec<Arc<K>>, IndexError> {
        let index = self.named.get(name).ok_or_else(|| IndexError::Unknown(name.to_owned()))?;
        let keys = index.keys.get(value).into_iter().flatten();
        Ok(keys.filter_map(|key| self.objects.get(&**key)).cloned().collect())
    }

    fn is_consistent(&self) -> bool {
        // Looking at every entry after every event would make debug builds quadratic.
        self.objects.len() > FULLY_CHECKED_MAX || self.named.values().all(|index| index.agrees_with(&self.objects))
    }
}

impl<K: Resource> Named<K> {
    fn insert(&mut self, key: &Arc<ObjectKey>, object: &K) {
        for value in self.values(key, object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Arc<ObjectKey>, object: &K) {
        for value in self.values(key, object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(&**key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }

    fn agrees_with(&self, objects: &BTreeMap<Arc<ObjectKey>, Arc<K>>) -> bool {
        self.keys.values().all(|keys| !keys.is_empty() && keys.iter().all(|key| objects.contains_key(&**key)))
    }

    /// A function that panics on an object leaves it out of this index, and out of nothing else.
    fn values(&self, key: &ObjectKey, object: &K) -> Vec<String> {
        catch_unwind(AssertUnwindSafe(|| (self.function)(object))).unwrap_or_else(|_| {
            tracing::error!(%key, "an index function panicked; the object is not in that index");
            Vec::new()
        })
    }
}

fn is_same_version<K: Resource>(before: &K, after: &K) -> bool {
    before.resource_version().is_some() && before.resource_version() == after.resource_version() && before.uid() == after.uid()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(namespace: &str, name: &str, version: u64, app: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
        object
    }

    fn batch(deltas: Vec<Delta<ConfigMap>>) -> Batch<ConfigMap> {
        Batch { deltas, resource_version: None, is_list: false }
    }

    fn applied(object: ConfigMap) -> Delta<ConfigMap> {
        Delta::Applied { key: Arc::new(ObjectKey::of(&object)), object: Arc::new(object) }
    }

    fn deleted(namespace: &str, name: &str) -> Delta<ConfigMap> {
        Delta::Deleted { key: Arc::new(ObjectKey::namespaced(namespace, name)), object: None }
    }

    fn by_app() -> IndexFn<ConfigMap> {
        Arc::new(|object| object.labels().get("app").cloned().into_iter().collect())
    }

    fn names(index: &Index<ConfigMap>, app: &str) -> Vec<String> {
        index.by_index("app", app).expect("the index was added").iter().map(|object| object.name_any()).collect()
    }

    #[test]
    fn index_added_late_knows_earlier_objects() {
        let mut index = Index::new();
        index.apply(batch(vec![applied(object("n", "a", 1, "x")), applied(object("n", "b", 2, "y"))]));
        index.add("app".into(), by_app()).expect("a new name");
        assert_eq!(names(&index, "x"), ["a"]);
        assert_eq!(index.add("app".into(), by_app()), Err(IndexError::Exists("app".into())));
        assert_eq!(index.by_index("owner", "x").err(), Some(IndexError::Unknown("owner".into())));
    }

    #[test]
    fn changed_and_deleted_objects_leave_old_values() {
        let mut index = Index::new();
        index.add("app".into(), by_app()).expect("a new name");
        index.apply(batch(vec![applied(object("n", "a", 1, "x")), applied(object("n", "b", 2, "x"))]));
        index.apply(batch(vec![applied(object("n", "a", 3, "y")), deleted("n", "b")]));
        assert_eq!((names(&index, "x"), names(&index, "y")), (vec![], vec!["a".to_owned()]));
    }

    #[test]
    fn namespace_is_a_range_without_its_neighbours() {
        let mut index = Index::new();
        index.apply(batch(["m", "n", "n-1", "o"].map(|namespace| applied(object(namespace, "a", 1, "x"))).into()));
        let found: Vec<_> = index.in_namespace("n").map(|object| object.namespace()).collect();
        assert_eq!(found, [Some("n".to_owned())]);
    }

    #[test]
    fn same_version_told_again_changes_nothing() {
        let mut index = Index::new();
        assert_eq!(index.apply(batch(vec![applied(object("n", "a", 1, "x"))])).len(), 1);
        assert_eq!(index.apply(batch(vec![applied(object("n", "a", 1, "x")), deleted("n", "z")])).len(), 0);
    }

    #[test]
    fn panicking_index_function_costs_only_its_entry() {
        let mut index = Index::new();
        index
            .add("app".into(), Arc::new(|object: &ConfigMap| vec![object.data.clone().expect("data")["app"].clone()]))
            .expect("a new name");
        index.apply(batch(vec![applied(object("n", "a", 1, "x"))]));
        assert_eq!((index.len(), names(&index, "x").len()), (1, 0));
    }
}
