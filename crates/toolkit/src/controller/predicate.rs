//! Predicates: which changes lead to a reconcile.
//!
//! In: an object, or its old and new state. Out: pass or not.
//! Guarantees: a deletion, a resync and a re-creation under the same name always pass; an object
//! that stops matching a filter passes once more.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bellerophon_kinds::{Kind, KindCodec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt};

type FilterFn = Arc<dyn Fn(&dyn Any) -> bool + Send + Sync>;
type ChangedFn = Arc<dyn Fn(&dyn Any, &dyn Any) -> bool + Send + Sync>;

/// Decides which changes of a kind lead to a reconcile. It saves reconciles, not memory: the cache
/// has every object.
///
/// A predicate has two parts: a filter of objects, and a comparison of the old and new state. An
/// addition passes if the object passes the filter; an update passes if the old or the new state
/// passes the filter and the comparison finds a relevant change; a deletion always passes.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::Pod;
///
/// let spec_changed = Predicate::on_update(|old: &Pod, new: &Pod| old.spec != new.spec);
/// let predicate = spec_changed.or(Predicate::labels_changed());
/// ```
pub struct Predicate<K> {
    pub(super) erased: PredicateFn,
    kind: PhantomData<fn(&K)>,
}

/// A predicate without its type.
#[derive(Clone)]
pub(super) struct PredicateFn {
    filter: FilterFn,
    changed: ChangedFn,
    codec: &'static KindCodec,
}

impl<K: Kind> Predicate<K> {
    fn new(filter: FilterFn, changed: ChangedFn) -> Self {
        let codec = K::codec();
        Self {
            erased: PredicateFn {
                filter,
                changed,
                codec,
            },
            kind: PhantomData,
        }
    }

    /// Every addition passes, and updates for which this holds of the old and new state.
    pub fn on_update(changed: impl Fn(&K, &K) -> bool + Send + Sync + 'static) -> Self {
        let erased = move |old: &dyn Any, new: &dyn Any| changed(typed(old), typed(new));
        Self::new(Arc::new(|_| true), Arc::new(erased))
    }

    /// Objects for which this holds pass, with all their changes.
    pub fn filter(filter: impl Fn(&K) -> bool + Send + Sync + 'static) -> Self {
        let erased = move |object: &dyn Any| filter(typed(object));
        Self::new(Arc::new(erased), Arc::new(|_, _| true))
    }

    /// Nothing but deletions passes.
    pub fn deletions() -> Self {
        Self::new(Arc::new(|_| false), Arc::new(|_, _| false))
    }

    /// Updates that change `metadata.generation`: the spec, not the status.
    pub fn generation_changed() -> Self {
        Self::metadata_changed(|old, new| old.generation != new.generation)
    }

    /// Updates that change labels.
    pub fn labels_changed() -> Self {
        Self::metadata_changed(|old, new| {
            old.labels.iter().flatten().ne(new.labels.iter().flatten())
        })
    }

    /// Updates that change annotations.
    pub fn annotations_changed() -> Self {
        Self::metadata_changed(|old, new| {
            old.annotations
                .iter()
                .flatten()
                .ne(new.annotations.iter().flatten())
        })
    }

    /// Updates that change anything.
    pub fn resource_version_changed() -> Self {
        Self::metadata_changed(|old, new| old.resource_version != new.resource_version)
    }

    /// Objects whose labels match.
    pub fn label_selector(selector: Selector) -> Self {
        let codec = K::codec();
        let matches = move |object: &dyn Any| {
            let labels = codec.metadata(object).labels.as_ref();
            labels.map_or_else(
                || selector.matches(&std::collections::BTreeMap::new()),
                |labels| selector.matches(labels),
            )
        };
        Self::new(Arc::new(matches), Arc::new(|_, _| true))
    }

    /// Passes what both pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            erased: self.erased.and(other.erased),
            kind: PhantomData,
        }
    }

    /// Passes what either passes.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            erased: self.erased.or(other.erased),
            kind: PhantomData,
        }
    }

    fn metadata_changed(changed: fn(&ObjectMeta, &ObjectMeta) -> bool) -> Self {
        let codec = K::codec();
        let erased =
            move |old: &dyn Any, new: &dyn Any| changed(codec.metadata(old), codec.metadata(new));
        Self::new(Arc::new(|_| true), Arc::new(erased))
    }
}

impl PredicateFn {
    pub(super) fn and(self, other: Self) -> Self {
        let codec = self.codec;
        let filters = (self.filter, other.filter);
        let comparisons = (self.changed, other.changed);
        Self {
            filter: Arc::new(move |object| filters.0(object) && filters.1(object)),
            changed: Arc::new(move |old, new| comparisons.0(old, new) && comparisons.1(old, new)),
            codec,
        }
    }

    fn or(self, other: Self) -> Self {
        let codec = self.codec;
        let filters = (self.filter.clone(), other.filter.clone());
        Self {
            filter: Arc::new(move |object| filters.0(object) || filters.1(object)),
            changed: Arc::new(move |old, new| {
                self.passes_update(old, new) || other.passes_update(old, new)
            }),
            codec,
        }
    }

    pub(super) fn passes_add(&self, object: &dyn Any) -> bool {
        (self.filter)(object)
    }

    pub(super) fn passes_update(&self, old: &dyn Any, new: &dyn Any) -> bool {
        let before = self.codec.metadata(old);
        let after = self.codec.metadata(new);
        // A recreated object has another uid and is no update; a resync enqueues although nothing
        // changed.
        let relevant =
            before.uid != after.uid || is_same_version(before, after) || (self.changed)(old, new);
        // Also with the old state: the reconcile that follows can clean up what belonged to a
        // matching object.
        relevant && ((self.filter)(old) || (self.filter)(new))
    }
}

/// Whether an update is a resync, which changes nothing.
pub(super) fn is_same_version(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    old.resource_version.is_some() && old.resource_version == new.resource_version
}

fn typed<K: Kind>(object: &dyn Any) -> &K {
    object
        .downcast_ref()
        .expect("a predicate of K is given only K")
}

impl<K> Clone for Predicate<K> {
    fn clone(&self) -> Self {
        Self {
            erased: self.erased.clone(),
            kind: PhantomData,
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
    fn pod(text: &str) -> Pod {
        let part: Vec<_> = text.split('/').collect();
        let mut pod = Pod::default();
        pod.metadata.uid = Some(part[0].into());
        pod.metadata.resource_version = Some(part[1].into());
        pod.metadata.generation = Some(part[2].parse().unwrap());
        pod.metadata.labels = Some([("app".to_string(), part[3].to_string())].into());
        pod.metadata.annotations = Some([("checked".to_string(), part[4].to_string())].into());
        pod
    }

    #[test]
    fn updates_pass_by_what_they_change() {
        let in_x = || {
            Predicate::<Pod>::label_selector(Selector::from_iter([(
                "app".to_string(),
                "x".to_string(),
            )]))
        };
        let cases: [(&str, Predicate<Pod>, &str, &str, bool); 16] = [
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
            (
                "deletions",
                Predicate::deletions(),
                "u/1/1/x/n",
                "u/2/2/y/m",
                false,
            ),
            (
                "deletions or generation",
                Predicate::deletions().or(Predicate::generation_changed()),
                "u/1/1/x/n",
                "u/2/2/x/n",
                true,
            ),
            (
                "deletions and generation",
                Predicate::deletions().and(Predicate::generation_changed()),
                "u/1/1/x/n",
                "u/2/2/x/n",
                false,
            ),
        ];
        for (why, predicate, old, new, passes) in cases {
            assert_eq!(
                predicate.erased.passes_update(&pod(old), &pod(new)),
                passes,
                "{why}: {old} -> {new}"
            );
        }
    }

    #[test]
    fn additions_pass_by_the_filter_alone() {
        let cases: [(&str, Predicate<Pod>, bool); 5] = [
            ("generation", Predicate::generation_changed(), true),
            ("filter", Predicate::filter(|_: &Pod| false), false),
            ("deletions", Predicate::deletions(), false),
            (
                "either",
                Predicate::deletions().or(Predicate::labels_changed()),
                true,
            ),
            (
                "both",
                Predicate::deletions().and(Predicate::labels_changed()),
                false,
            ),
        ];
        for (why, predicate, passes) in cases {
            let passed = predicate.erased.passes_add(&pod("u/1/1/x/n"));
            assert_eq!(passed, passes, "{why}");
        }
    }
}
