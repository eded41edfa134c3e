//! Stored objects for tests, by kind, namespace and name.

use std::{collections::BTreeMap, sync::Arc};

use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{Lookup, Source, User, rbac::Subject};

/// A few stored objects.
#[derive(Default)]
pub(crate) struct FakeLookup(BTreeMap<(Source, String, String), Arc<Object>>);

impl FakeLookup {
    /// With one more object, given as JSON.
    pub(crate) fn with(mut self, source: Source, value: Value) -> Self {
        self.put(source, value);
        self
    }

    /// Puts or replaces an object.
    pub(crate) fn put(&mut self, source: Source, value: Value) {
        let Value::Object(map) = value else {
            panic!("an object was expected")
        };
        let object = Object::from_map(map).expect("good metadata");
        self.0.insert(
            (
                source,
                object.meta.namespace.clone(),
                object.meta.name.clone(),
            ),
            Arc::new(object),
        );
    }

    /// With a role in namespace `ns` and its binding of the same name to `subject`, written `User
    /// ann` or `ServiceAccount default`.
    pub(crate) fn bound(self, name: &str, subject: &str, rules: Value) -> Self {
        let (kind, who) = subject.split_once(' ').expect("kind and name");
        self.with(Source::Role, json!({"metadata": {"name": name, "namespace": "ns"}, "rules": rules})).with(
            Source::RoleBinding,
            json!({"metadata": {"name": name, "namespace": "ns"}, "roleRef": {"kind": "Role", "name": name},
                   "subjects": [{"kind": kind, "name": who}]}),
        )
    }

    /// With a cluster role and its cluster-wide binding of the same name.
    pub(crate) fn bound_everywhere(self, name: &str, subject: &str, rules: Value) -> Self {
        let (kind, who) = subject.split_once(' ').expect("kind and name");
        self.with(Source::ClusterRole, json!({"metadata": {"name": name}, "rules": rules})).with(
            Source::ClusterRoleBinding,
            json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [{"kind": kind, "name": who}]}),
        )
    }

    /// Takes an object away.
    pub(crate) fn remove(&mut self, source: Source, namespace: &str, name: &str) {
        self.0
            .remove(&(source, namespace.to_owned(), name.to_owned()));
    }
}

impl Lookup for FakeLookup {
    fn get(&self, source: Source, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.0
            .get(&(source, namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    fn bindings_of(&self, user: &User, namespace: &str) -> Vec<Arc<Object>> {
        let source = match namespace {
            "" => Source::ClusterRoleBinding,
            _ => Source::RoleBinding,
        };
        self.0
            .iter()
            .filter(|((s, ns, _), _)| *s == source && ns == namespace)
            .map(|(_, binding)| binding)
            .filter(|binding| Subject::of(binding).any(|subject| subject.is(user, namespace)))
            .cloned()
            .collect()
    }
}
