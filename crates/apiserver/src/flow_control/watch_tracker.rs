//! Watches by what they watch: how many watchers receive an event of an object.
//! In: watches that begin and end. Out: counts for work estimates.
//! Guarantees: counts as kube-apiserver's `WatchTracker`, where a watch of the pods of one node
//! counts for none, since the watch cache does not visit it for others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon_storage::FieldSelector;

use crate::http::query::Query;

/// The scope of a watch: an object, a namespace, or everything if both are empty.
type Scope = (String, String);

/// The watches of every resource.
#[derive(Debug, Default)]
pub(crate) struct WatchTracker {
    watches: Mutex<HashMap<Arc<str>, HashMap<Scope, usize>>>,
}

/// Counts a watch until it is dropped.
#[derive(Debug)]
pub(crate) struct WatchRegistration {
    tracker: Arc<WatchTracker>,
    resource: Arc<str>,
    scope: Scope,
}

impl WatchTracker {
    /// Registers a watch of a resource; `namespace` and `name` are empty where the watch selects
    /// more. `None` if the watch is not visited for events of others.
    pub(crate) fn register(
        self: &Arc<Self>,
        resource: &Arc<str>,
        namespace: &str,
        name: &str,
        query: &Query,
    ) -> Option<WatchRegistration> {
        if &**resource == "/pods" && selects_node(query) {
            return None;
        }
        let scope = (namespace.to_owned(), name.to_owned());
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        *watches
            .entry(resource.clone())
            .or_default()
            .entry(scope.clone())
            .or_default() += 1;
        Some(WatchRegistration {
            tracker: self.clone(),
            resource: resource.clone(),
            scope,
        })
    }

    /// How many watches receive an event of an object; the name of one that is created may be
    /// empty.
    pub(crate) fn count(&self, resource: &str, namespace: &str, name: &str) -> usize {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(scopes) = watches.get(resource) else {
            return 0;
        };
        let matches = |(watched_namespace, watched_name): &&Scope| {
            (watched_namespace.is_empty() || watched_namespace == namespace)
                && (watched_name.is_empty() || watched_name == name)
        };
        // A handful of scopes is compared faster than three keys are made and hashed.
        if scopes.len() <= 8 {
            return scopes
                .iter()
                .filter(|(scope, _)| matches(scope))
                .map(|(_, count)| count)
                .sum();
        }
        let mut keys = vec![Scope::default()];
        if !namespace.is_empty() {
            keys.push((namespace.to_owned(), String::new()));
        }
        if !name.is_empty() {
            keys.push((namespace.to_owned(), name.to_owned()));
            keys.push((String::new(), name.to_owned()));
        }
        keys.dedup();
        keys.iter().filter_map(|key| scopes.get(key)).sum()
    }
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        let mut watches = self
            .tracker
            .watches
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(scopes) = watches.get_mut(&self.resource) else {
            return;
        };
        if let Some(count) = scopes.get_mut(&self.scope) {
            *count -= 1;
            if *count == 0 {
                scopes.remove(&self.scope);
            }
        }
        if scopes.is_empty() {
            watches.remove(&self.resource);
        }
    }
}

/// Whether the pods of one node are selected.
fn selects_node(query: &Query) -> bool {
    query
        .get("fieldSelector")
        .and_then(|text| FieldSelector::parse(text).ok())
        .is_some_and(|selector| {
            selector
                .required("spec.nodeName")
                .is_some_and(|node| !node.is_empty())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_of_an_object_are_counted_until_they_end() {
        let tracker = Arc::new(WatchTracker::default());
        let pods: Arc<str> = "/pods".into();
        let query = |text| Query::parse(text).expect("a query");
        let all = tracker.register(&pods, "", "", &query(""));
        let namespace = tracker.register(&pods, "a", "", &query(""));
        let object = tracker.register(&pods, "a", "x", &query(""));
        assert!(
            tracker
                .register(&pods, "", "", &query("fieldSelector=spec.nodeName%3Dn1"))
                .is_none()
        );
        let unscheduled = tracker.register(&pods, "", "", &query("fieldSelector=spec.nodeName%3D"));
        assert!(unscheduled.is_some());
        assert_eq!(tracker.count("/pods", "a", "x"), 4);
        assert_eq!(tracker.count("/pods", "a", ""), 3);
        assert_eq!(tracker.count("/pods", "b", "x"), 2);
        assert_eq!(tracker.count("/nodes", "", "x"), 0);
        let many: Vec<_> = (0..20)
            .map(|n| tracker.register(&pods, "a", &format!("y{n}"), &query("")))
            .collect();
        assert_eq!(
            tracker.count("/pods", "a", "x"),
            4,
            "the same with many scopes"
        );
        assert_eq!(tracker.count("/pods", "a", ""), 3);
        drop((all, namespace, object, unscheduled, many));
        assert_eq!(tracker.count("/pods", "a", "x"), 0);
        assert!(tracker.watches.lock().expect("not poisoned").is_empty());
    }
}
