//! Index: the objects of one kind, by key, by namespace and by whatever the user names.
//! In: batches of deltas, from the informer alone. Out: objects, and what each delta really changed.
//! Holds: every named index agrees with the objects; a batch is applied as a whole before anyone reads again;
//! order is by key, never by hash; nothing is decoded while readers wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube::Resource;

use crate::{
    cached::Cached,
    fifo::{Batch, Delta},
    key::ObjectKey,
};

/// Indexes up to this length are checked entry by entry in debug builds.
const FULLY_CHECKED_MAX: usize = 64;

/// Says under which values an object is found. Others who write wait for it, so it must be quick.
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
    Applied {
        key: Arc<ObjectKey>,
        before: Option<Cached<K>>,
        after: Cached<K>,
    },
    /// There is none now; `last` is the newest form that is known.
    Deleted {
        key: Arc<ObjectKey>,
        before: Cached<K>,
        last: Cached<K>,
    },
}

/// The values of one object, one list for each named index; `None` if nobody asked the index functions yet.
type Values = Option<Vec<Vec<String>>>;

/// A batch whose objects were shown to the index functions.
pub(crate) struct Evaluated<K>(Vec<(Delta<K>, Values)>);

#[derive(Debug)]
pub(crate) struct Index<K> {
    /// Ordered by namespace, then name: a namespace is a range.
    objects: BTreeMap<Arc<ObjectKey>, Cached<K>>,
    /// By the name of the index.
    named: BTreeMap<String, Named<K>>,
}

/// One named index. Values stand beside the objects, so that taking an object out needs no look at it.
pub(crate) struct Named<K> {
    function: IndexFn<K>,
    /// No set is empty, and each key in one is in `objects`, with the value in `values`.
    keys: BTreeMap<Arc<str>, BTreeSet<Arc<ObjectKey>>>,
    /// The values of each object that has any, none twice.
    values: BTreeMap<Arc<ObjectKey>, Box<[Arc<str>]>>,
}

impl<K> std::fmt::Debug for Named<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Named")
            .field("values", &self.keys.len())
            .finish_non_exhaustive()
    }
}

impl<K: Resource> Index<K> {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// A named index of the objects that are here; nothing may change before it is adopted.
    pub(crate) fn build(&self, name: &str, function: IndexFn<K>) -> Result<Named<K>, IndexError> {
        if self.named.contains_key(name) {
            return Err(IndexError::Exists(name.to_owned()));
        }
        let mut index = Named {
            function,
            keys: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        for (key, object) in &self.objects {
            let values = index.values_of(key, object);
            index.set(key, values);
        }
        Ok(index)
    }

    pub(crate) fn adopt(&mut self, name: String, index: Named<K>) {
        self.named.insert(name, index);
        debug_assert!(self.is_consistent());
    }

    /// Shows the objects of a batch to the index functions, which may have to decode them. Nothing may change before the
    /// batch is applied.
    pub(crate) fn evaluate(&self, batch: Batch<K>) -> Evaluated<K> {
        let values = |delta: &Delta<K>| match delta {
            Delta::Applied { key, object }
                if self
                    .objects
                    .get(&**key)
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

    /// Applies a batch and says what it changed. What changed nothing is left out: a relist of what is known, or the
    /// last event told again after a reconnect.
    pub(crate) fn apply(&mut self, batch: Evaluated<K>) -> Vec<Transition<K>> {
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
        after: Cached<K>,
        values: Values,
        transitions: &mut Vec<Transition<K>>,
    ) {
        let mut before = self.objects.get(&*key).cloned();
        if before
            .as_ref()
            .is_some_and(|before| before.is_same_version(&after))
        {
            return;
        }
        // Deleted and made again while nobody looked: two objects that share a name, and no update from one to the other.
        if before
            .as_ref()
            .is_some_and(|before| !before.is_same_object(&after))
        {
            transitions.extend(self.remove(key.clone(), None));
            before = None;
        }
        let values = values.unwrap_or_else(|| self.values_of(&key, &after));
        for (index, values) in self.named.values_mut().zip(values) {
            index.set(&key, values);
        }
        self.objects.insert(key.clone(), after.clone());
        transitions.push(Transition::Applied { key, before, after });
    }

    fn remove(&mut self, key: Arc<ObjectKey>, last: Option<Cached<K>>) -> Option<Transition<K>> {
        let before = self.objects.remove(&*key)?;
        self.named.values_mut().for_each(|index| index.remove(&key));
        let last = last.unwrap_or_else(|| before.clone());
        Some(Transition::Deleted { key, before, last })
    }

    fn values_of(&self, key: &ObjectKey, object: &Cached<K>) -> Vec<Vec<String>> {
        self.named
            .values()
            .map(|index| index.values_of(key, object))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Cached<K>> {
        self.objects.get(key)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Cached<K>)> {
        self.objects.iter()
    }

    pub(crate) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Cached<K>> {
        let first = ObjectKey::namespaced(namespace, "");
        let range = self.objects.range::<ObjectKey, _>(first..);
        range
            .take_while(move |(key, _)| key.namespace() == Some(namespace))
            .map(|(_, object)| object)
    }

    /// The keys that a named index has under this value.
    pub(crate) fn keys_by_index(
        &self,
        name: &str,
        value: &str,
    ) -> Result<impl Iterator<Item = &Arc<ObjectKey>>, IndexError> {
        let index = self
            .named
            .get(name)
            .ok_or_else(|| IndexError::Unknown(name.to_owned()))?;
        Ok(index.keys.get(value).into_iter().flatten())
    }

    pub(crate) fn by_index(&self, name: &str, value: &str) -> Result<Vec<Cached<K>>, IndexError> {
        Ok(self
            .keys_by_index(name, value)?
            .filter_map(|key| self.objects.get(&**key))
            .cloned()
            .collect())
    }

    fn is_consistent(&self) -> bool {
        // Looking at every entry after every event would make debug builds quadratic.
        self.objects.len() > FULLY_CHECKED_MAX
            || self
                .named
                .values()
                .all(|index| index.agrees_with(&self.objects))
    }
}

impl<K> Named<K> {
    /// A function that panics on an object leaves it out of this index, and out of nothing else.
    fn values_of(&self, key: &ObjectKey, object: &Cached<K>) -> Vec<String> {
        let object = object.glance();
        catch_unwind(AssertUnwindSafe(|| (self.function)(&object))).unwrap_or_else(|_| {
            tracing::error!(%key, "an index function panicked; the object is not in that index");
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

    fn agrees_with(&self, objects: &BTreeMap<Arc<ObjectKey>, Cached<K>>) -> bool {
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
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use kube::ResourceExt;

    use super::*;

    fn object(namespace: &str, name: &str, version: u64, app: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
        object
    }

    fn applied(object: ConfigMap) -> Delta<ConfigMap> {
        Delta::Applied {
            key: Arc::new(ObjectKey::of(&object)),
            object: Cached::decoded(object),
        }
    }

    fn apply(
        index: &mut Index<ConfigMap>,
        deltas: Vec<Delta<ConfigMap>>,
    ) -> Vec<Transition<ConfigMap>> {
        let evaluated = index.evaluate(Batch {
            deltas,
            resource_version: None,
            is_list: false,
        });
        index.apply(evaluated)
    }

    fn add(
        index: &mut Index<ConfigMap>,
        name: &str,
        function: IndexFn<ConfigMap>,
    ) -> Result<(), IndexError> {
        let built = index.build(name, function)?;
        index.adopt(name.into(), built);
        Ok(())
    }

    fn deleted(namespace: &str, name: &str) -> Delta<ConfigMap> {
        Delta::Deleted {
            key: Arc::new(ObjectKey::namespaced(namespace, name)),
            object: None,
        }
    }

    fn by_app() -> IndexFn<ConfigMap> {
        Arc::new(|object| object.labels().get("app").cloned().into_iter().collect())
    }

    fn names(index: &Index<ConfigMap>, app: &str) -> Vec<String> {
        index
            .by_index("app", app)
            .expect("the index was added")
            .iter()
            .map(|object| object.glance().name_any())
            .collect()
    }

    #[test]
    fn index_added_late_knows_earlier_objects() {
        let mut index = Index::new();
        apply(
            &mut index,
            vec![
                applied(object("n", "a", 1, "x")),
                applied(object("n", "b", 2, "y")),
            ],
        );
        add(&mut index, "app", by_app()).expect("a new name");
        assert_eq!(names(&index, "x"), ["a"]);
        assert_eq!(
            add(&mut index, "app", by_app()),
            Err(IndexError::Exists("app".into()))
        );
        assert_eq!(
            index.by_index("owner", "x").err(),
            Some(IndexError::Unknown("owner".into()))
        );
    }

    #[test]
    fn changed_and_deleted_objects_leave_old_values() {
        let mut index = Index::new();
        add(&mut index, "app", by_app()).expect("a new name");
        apply(
            &mut index,
            vec![
                applied(object("n", "a", 1, "x")),
                applied(object("n", "b", 2, "x")),
            ],
        );
        apply(
            &mut index,
            vec![applied(object("n", "a", 3, "y")), deleted("n", "b")],
        );
        assert_eq!(
            (names(&index, "x"), names(&index, "y")),
            (vec![], vec!["a".to_owned()])
        );
    }

    #[test]
    fn namespace_is_a_range_without_its_neighbours() {
        let mut index = Index::new();
        apply(
            &mut index,
            ["m", "n", "n-1", "o"]
                .map(|namespace| applied(object(namespace, "a", 1, "x")))
                .into(),
        );
        let found: Vec<_> = index
            .in_namespace("n")
            .map(|object| object.glance().namespace())
            .collect();
        assert_eq!(found, [Some("n".to_owned())]);
    }

    #[test]
    fn same_version_told_again_changes_nothing() {
        let mut index = Index::new();
        assert_eq!(
            apply(&mut index, vec![applied(object("n", "a", 1, "x"))]).len(),
            1
        );
        assert_eq!(
            apply(
                &mut index,
                vec![applied(object("n", "a", 1, "x")), deleted("n", "z")]
            )
            .len(),
            0
        );
    }

    #[test]
    fn panicking_index_function_costs_only_its_entry() {
        let mut index = Index::new();
        let panics: IndexFn<ConfigMap> =
            Arc::new(|object| vec![object.data.clone().expect("data")["app"].clone()]);
        add(&mut index, "app", panics).expect("a new name");
        apply(&mut index, vec![applied(object("n", "a", 1, "x"))]);
        assert_eq!((index.len(), names(&index, "x").len()), (1, 0));
    }
}
