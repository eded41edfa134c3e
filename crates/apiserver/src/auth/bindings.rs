//! Role bindings by subject.
//!
//! In: the stored bindings and their changes. Out: the bindings that name a user or one of its
//! groups.
//! Guarantees: a lookup sees every write that was acknowledged before it began; its cost grows with
//! the bindings that it returns, not with those of other subjects.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use bellerophon_codec::object::Object;
use bellerophon_storage::{
    Change, CollectionName, Lagged, ObjectKey, Range, Scope, Store, StoreWatch, Stored,
};

use super::{
    Source, User,
    rbac::{Subject, SubjectKey},
};

/// The bindings of one kind, by subject.
#[derive(Debug)]
pub(crate) struct BindingIndex {
    source: Source,
    /// `None` until the first lookup, and after more changes than the store keeps.
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    changes: StoreWatch,
    by_subject: BySubject,
}

/// Names of bindings by namespace and subject. Namespace and name of a binding are its `ObjectKey`;
/// no set is empty.
#[derive(Debug, Default)]
struct BySubject(HashMap<(Box<str>, SubjectKey), BTreeSet<ObjectKey>>);

impl BindingIndex {
    /// An index of `RoleBinding`s or of `ClusterRoleBinding`s.
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            state: Mutex::default(),
        }
    }

    /// The bindings in `namespace`, or cluster-wide ones, that name the user or one of its groups,
    /// sorted by name.
    pub(crate) fn of(
        &self,
        user: &User,
        namespace: &str,
        store: &dyn Store,
    ) -> BTreeSet<ObjectKey> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match state.take() {
            Some(current) => current.up_to_date(),
            None => Err(Lagged),
        };
        let current = current.unwrap_or_else(|Lagged| State::read(self.source, store));
        let found = current.by_subject.of(user, namespace);
        *state = Some(current);
        found
    }
}

impl State {
    /// The index of everything that is stored now.
    fn read(source: Source, store: &dyn Store) -> Self {
        let collection: CollectionName = source.storage_name().into();
        loop {
            let listing = store
                .list(&collection, &Range::all_of(Scope::All), None)
                .expect("the newest state is always kept");
            // It fails if the history was compacted between the two calls.
            if let Ok(changes) = store.watch(&collection, &Scope::All, listing.revision) {
                let mut by_subject = BySubject::default();
                for stored in &listing.objects {
                    by_subject.add(stored);
                }
                return Self {
                    changes,
                    by_subject,
                };
            }
        }
    }

    /// Applies the changes since the last lookup.
    fn up_to_date(mut self) -> Result<Self, Lagged> {
        loop {
            let (events, _) = self.changes.ready()?;
            if events.is_empty() {
                return Ok(self);
            }
            for event in events {
                if let Some(previous) = &event.previous {
                    self.by_subject.remove(previous);
                }
                if event.change != Change::Deleted {
                    self.by_subject.add(&event.object);
                }
            }
        }
    }
}

impl BySubject {
    fn add(&mut self, stored: &Stored) {
        for subject in subjects(stored) {
            let bindings = self.0.entry((stored.key.namespace().into(), subject));
            bindings.or_default().insert(stored.key.clone());
        }
    }

    fn remove(&mut self, stored: &Stored) {
        for subject in subjects(stored) {
            let key = (stored.key.namespace().into(), subject);
            if let Some(bindings) = self.0.get_mut(&key) {
                bindings.remove(&stored.key);
                if bindings.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    fn of(&self, user: &User, namespace: &str) -> BTreeSet<ObjectKey> {
        let groups = user
            .groups
            .iter()
            .map(|g| SubjectKey::Group(g.as_str().into()));
        let keys = [SubjectKey::User(user.name.as_str().into())]
            .into_iter()
            .chain(groups);
        keys.filter_map(|key| self.0.get(&(namespace.into(), key)))
            .flatten()
            .cloned()
            .collect()
    }
}

fn subjects(binding: &Stored) -> BTreeSet<SubjectKey> {
    let object: Object = binding.encoded.decode();
    let namespace = binding.key.namespace();
    let subjects = Subject::of(&object).filter_map(|subject| subject.key(namespace));
    subjects.collect()
}

#[cfg(test)]
mod tests {
    use bellerophon_storage::{Expect, MemoryStore, Put, SelectableAttributes, Write};
    use futures_util::FutureExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::entropy::Entropy;

    const COLLECTION: &str = "rbac.authorization.k8s.io/rolebindings";

    /// Binds a role to these subjects; `None` deletes the binding.
    fn write(store: &MemoryStore, key: &ObjectKey, subjects: Option<Value>) {
        let expect = match store.get(COLLECTION, key) {
            Some(found) => Expect::Version(found.revision),
            None if subjects.is_none() => return,
            None => Expect::Absent,
        };
        let put = subjects.map(|subjects| {
            let metadata = json!({"name": key.name(), "namespace": key.namespace()});
            let binding =
                json!({"kind": "RoleBinding", "metadata": metadata, "subjects": subjects});
            let object = Object::from_map(binding.as_object().cloned().expect("an object"));
            Put {
                draft: object.expect("good metadata").draft(),
                attributes: SelectableAttributes::default(),
                schema: 0,
            }
        });
        let write = Write {
            collection: COLLECTION.into(),
            key: key.clone(),
            expect,
            put,
        };
        let committed = store
            .commit(write)
            .now_or_never()
            .expect("memory is immediate");
        assert!(committed.is_ok());
    }

    /// The result of a scan of all bindings.
    fn scanned(store: &MemoryStore, user: &User, namespace: &str) -> BTreeSet<ObjectKey> {
        let range = Range::all_of(Scope::Namespace(namespace.to_owned()));
        let listing = store
            .list(COLLECTION, &range, None)
            .expect("the newest state");
        let names_user = |stored: &&std::sync::Arc<Stored>| {
            let binding: Object = stored.encoded.decode();
            Subject::of(&binding).any(|subject| subject.is(user, namespace))
        };
        let found = listing.objects.iter().filter(names_user);
        found.map(|stored| stored.key.clone()).collect()
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..User::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lookup_finds_what_a_scan_of_all_bindings_finds() {
        let subjects = [
            json!({"kind": "User", "name": "ann"}),
            json!({"kind": "User", "name": "system:serviceaccount:a:robot"}),
            json!({"kind": "Group", "name": "devs"}),
            json!({"kind": "Group", "name": "ann"}),
            json!({"kind": "ServiceAccount", "name": "robot"}),
            json!({"kind": "ServiceAccount", "name": "robot", "namespace": "a"}),
            json!({"kind": "Robot", "name": "ann"}),
            json!({}),
        ];
        let users = [
            user("ann", &["devs", "devs"]),
            user("bob", &["ann"]),
            user("system:serviceaccount:a:robot", &[]),
            user("", &[]),
        ];
        let entropy = Entropy::seeded(1);
        let store = MemoryStore::new();
        let index = BindingIndex::new(Source::RoleBinding);
        let mut found = 0;
        for round in 0..3_000 {
            let namespace = ["a", "b"][usize::from(entropy.below(2) == 0)];
            let key = ObjectKey::new(namespace, &format!("b{}", entropy.below(12)));
            let some = subjects.iter().filter(|_| entropy.below(4) == 0).cloned();
            let some: Vec<Value> = some.collect();
            write(&store, &key, (entropy.below(4) > 0).then(|| some.into()));
            if round % 500 == 0 {
                // The index misses events that it has not seen yet.
                store.compact(store.revision());
            }
            if entropy.below(3) > 0 {
                continue;
            }
            for user in &users {
                let expected = scanned(&store, user, namespace);
                assert_eq!(index.of(user, namespace, &store), expected);
                found += expected.len();
            }
        }
        assert!(found > 1_000, "{found}");
    }

    #[tokio::test(start_paused = true)]
    async fn index_drops_deleted_bindings() {
        let store = MemoryStore::new();
        let index = BindingIndex::new(Source::RoleBinding);
        let ann = user("ann", &[]);
        let key = ObjectKey::new("a", "b");
        write(&store, &key, Some(json!([{"kind": "User", "name": "ann"}])));
        assert_eq!(index.of(&ann, "a", &store).len(), 1);
        write(&store, &key, None);
        assert_eq!(index.of(&ann, "a", &store).len(), 0);
        let state = index.state.lock().expect("not poisoned");
        let by_subject = &state.as_ref().expect("it was read").by_subject;
        assert!(by_subject.0.is_empty());
    }
}
