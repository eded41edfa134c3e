//! Predicates: which changes are worth a reconcile.
//!
//! In: an object, or its old and new form. Out: yes or no.
//! Holds: a deletion, a resync and a re-creation under the same name always pass; an object that stops matching passes once more.

use std::fmt;
use std::sync::Arc;

use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

type Concerns<K> = Arc<dyn Fn(&K) -> bool + Send + Sync>;
type Changed<K> = Arc<dyn Fn(&K, &K) -> bool + Send + Sync>;

/// Decides which changes of a kind lead to a reconcile. It saves reconciles, not memory: the cache holds everything.
///
/// Two questions make one predicate: does the object concern the controller at all, and did anything relevant change?
/// An add is asked the first; an update passes if the old or the new form concerns it and something relevant changed;
/// a deletion is asked nothing.
pub struct Predicate<K> {
    concerns: Concerns<K>,
    changed: Changed<K>,
}

impl<K: Resource + 'static> Predicate<K> {
    /// Every object concerns the controller; only updates are judged, by their old and new form.
    pub fn changed(judge: impl Fn(&K, &K) -> bool + Send + Sync + 'static) -> Self {
        Self {
            concerns: Arc::new(|_| true),
            changed: Arc::new(judge),
        }
    }

    /// Only objects for which this holds concern the controller; all their changes do.
    pub fn concerns(judge: impl Fn(&K) -> bool + Send + Sync + 'static) -> Self {
        Self {
            concerns: Arc::new(judge),
            changed: Arc::new(|_, _| true),
        }
    }

    /// Updates that change `metadata.generation`: the spec, not the status.
    pub fn generation_changed() -> Self {
        Self::changed(|old, new| old.meta().generation != new.meta().generation)
    }

    /// Updates that change labels.
    pub fn labels_changed() -> Self {
        Self::changed(|old, new| old.labels() != new.labels())
    }

    /// Updates that change annotations.
    pub fn annotations_changed() -> Self {
        Self::changed(|old, new| old.annotations() != new.annotations())
    }

    /// Updates that change anything at all.
    pub fn resource_version_changed() -> Self {
        Self::changed(|old, new| old.meta().resource_version != new.meta().resource_version)
    }

    /// Objects whose labels match.
    pub fn labels_match(selector: Selector) -> Self {
        Self::concerns(move |object| selector.matches(object.labels()))
    }

    /// Passes what both pass.
    pub fn and(self, other: Self) -> Self {
        let (a, b) = (self.concerns, other.concerns);
        let (c, d) = (self.changed, other.changed);
        Self {
            concerns: Arc::new(move |object| a(object) && b(object)),
            changed: Arc::new(move |old, new| c(old, new) && d(old, new)),
        }
    }

    /// Passes what either passes.
    pub fn or(self, other: Self) -> Self {
        let (a, b) = (self.clone(), other.clone());
        Self {
            concerns: Arc::new(move |object| a.passes_add(object) || b.passes_add(object)),
            changed: Arc::new(move |old, new| {
                self.passes_update(old, new) || other.passes_update(old, new)
            }),
        }
    }

    pub(super) fn passes_add(&self, object: &K) -> bool {
        (self.concerns)(object)
    }

    pub(super) fn passes_update(&self, old: &K, new: &K) -> bool {
        let relevant =
            old.meta().uid != new.meta().uid || same_version(old, new) || (self.changed)(old, new);
        relevant && ((self.concerns)(old) || (self.concerns)(new))
    }
}

/// Whether an update is a resync, which tells nothing new.
pub(super) fn same_version<K: Resource>(old: &K, new: &K) -> bool {
    old.meta().resource_version.is_some()
        && old.meta().resource_version == new.meta().resource_version
}

impl<K> Clone for Predicate<K> {
    fn clone(&self) -> Self {
        Self {
            concerns: self.concerns.clone(),
            changed: self.changed.clone(),
        }
    }
}

impl<K> fmt::Debug for Predicate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    /// `uid/version/generation/label/annotation`.
    fn pod(form: &str) -> Pod {
        let part: Vec<_> = form.split('/').collect();
        let mut pod = Pod::default();
        pod.metadata.uid = Some(part[0].into());
        pod.metadata.resource_version = Some(part[1].into());
        pod.metadata.generation = Some(part[2].parse().unwrap());
        pod.metadata.labels = Some([("app".to_string(), part[3].to_string())].into());
        pod.metadata.annotations = Some([("note".to_string(), part[4].to_string())].into());
        pod
    }

    #[test]
    fn updates_pass_for_their_reason_only() {
        let in_x = || {
            Predicate::<Pod>::labels_match(Selector::from_iter([(
                "app".to_string(),
                "x".to_string(),
            )]))
        };
        let cases: [(&str, Predicate<Pod>, &str, &str, bool); 13] = [
            (
                "generation",
                Predicate::generation_changed(),
                "u/1/1/x/n",
                "u/2/2/x/n",
                true,
            ),
            (
                "generation",
                Predicate::generation_changed(),
                "u/1/1/x/n",
                "u/2/1/y/m",
                false,
            ),
            (
                "labels",
                Predicate::labels_changed(),
                "u/1/1/x/n",
                "u/2/1/y/n",
                true,
            ),
            (
                "labels",
                Predicate::labels_changed(),
                "u/1/1/x/n",
                "u/2/2/x/m",
                false,
            ),
            (
                "annotations",
                Predicate::annotations_changed(),
                "u/1/1/x/n",
                "u/2/1/x/m",
                true,
            ),
            (
                "version",
                Predicate::resource_version_changed(),
                "u/1/1/x/n",
                "u/2/1/x/n",
                true,
            ),
            (
                "a re-creation is no update",
                Predicate::generation_changed(),
                "u/1/1/x/n",
                "v/2/1/x/n",
                true,
            ),
            (
                "a resync is no change",
                Predicate::generation_changed(),
                "u/1/1/x/n",
                "u/1/1/x/n",
                true,
            ),
            ("stops matching", in_x(), "u/1/1/x/n", "u/2/1/y/n", true),
            ("never matched", in_x(), "u/1/1/z/n", "u/2/1/y/n", false),
            (
                "and",
                Predicate::generation_changed().and(in_x()),
                "u/1/1/x/n",
                "u/2/1/x/m",
                false,
            ),
            (
                "or",
                Predicate::generation_changed().or(Predicate::annotations_changed()),
                "u/1/1/x/n",
                "u/2/1/x/m",
                true,
            ),
            (
                "or",
                Predicate::generation_changed().or(Predicate::annotations_changed()),
                "u/1/1/x/n",
                "u/2/1/y/n",
                false,
            ),
        ];
        for (why, predicate, old, new, passes) in cases {
            assert_eq!(
                predicate.passes_update(&pod(old), &pod(new)),
                passes,
                "{why}: {old} -> {new}"
            );
        }
    }
}
