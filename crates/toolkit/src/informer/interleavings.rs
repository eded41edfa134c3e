//! The cache under concurrent threads: a scheduler tries many interleavings of its locks.
//!
//! A run in which a thread waits forever ends with "deadlock" instead of hanging.

use std::{any::Any, any::TypeId, collections::BTreeMap, sync::Arc};

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ApiResource};
use shuttle::thread;
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, Scope},
    handler::Handler,
    handler_queue::HandlerQueue,
    store::IndexFn,
};
use crate::{
    cached::{CachedObject, DecodedLru},
    fifo::{Batch, Delta},
    key::ObjectKey,
    locks::Interleaved,
    trace::Trace,
};

/// Interleavings per test and strategy.
const RUNS: usize = 1_000;

type Cache = Arc<Core<Interleaved>>;

fn cache() -> Cache {
    let resource = ApiResource::erase::<ConfigMap>(&());
    let cache = Core::new(&resource, Arc::new(DecodedLru::new(0)), Trace::off());
    cache.set_scopes(&[None].into());
    Arc::new(cache)
}

/// Tries interleavings at random, and with the few switches that most races need.
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), RUNS);
    shuttle::check_pct(run, RUNS, 3);
}

/// Applies this version of every name, or deletes all of them.
fn write(cache: &Cache, names: &[&str], version: Option<u64>) {
    let delta = |name: &&str| {
        let key = Arc::new(ObjectKey::cluster(*name));
        match version {
            None => Delta::Deleted { key, object: None },
            Some(version) => {
                let mut object = ConfigMap::default();
                object.metadata.name = Some((*name).into());
                object.metadata.resource_version = Some(version.to_string());
                let object = CachedObject::decoded(Arc::new(object), ConfigMap::codec());
                Delta::Applied { key, object }
            }
        }
    };
    let batch = Batch {
        deltas: names.iter().map(delta).collect(),
        resource_version: version.map(|version| version.to_string()),
        is_list: version == Some(1),
    };
    cache.apply(&Scope::None, batch);
}

fn versions(cache: &Cache) -> Vec<String> {
    cache
        .store()
        .entries()
        .filter_map(|(_, object)| object.resource_version())
        .collect()
}

/// The objects that a handler knows once its queue is empty. Panics if calls contradict each other.
fn delivered(queue: &HandlerQueue) -> BTreeMap<String, Option<String>> {
    let mut known = BTreeMap::new();
    while let Some(notification) = queue.take() {
        let name = notification.key.name().to_owned();
        let calls = notification.calls();
        if calls.delete.is_some() {
            assert!(known.remove(&name).is_some(), "{name} was never added");
        }
        if let Some((old, new)) = calls.update {
            let before = known.insert(name.clone(), new.resource_version());
            assert_eq!(before, Some(old.resource_version()));
        }
        if let Some(object) = calls.add {
            assert_eq!(known.insert(name, object.resource_version()), None);
        }
    }
    known
}

#[test]
fn readers_see_a_batch_completely_or_not_at_all() {
    check(|| {
        let cache = cache();
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    let seen = versions(&cache);
                    if !seen.is_empty() {
                        assert_eq!(seen.len(), 2, "{seen:?}");
                        assert_eq!(seen[0], seen[1]);
                    }
                }
            })
        };
        for version in [Some(1), Some(2), None] {
            write(&cache, &["a", "b"], version);
        }
        reader.join().unwrap();
    });
}

#[test]
fn handler_added_at_any_moment_ends_with_the_objects_of_the_store() {
    check(|| {
        let cache = cache();
        let writer = {
            let cache = cache.clone();
            thread::spawn(move || {
                write(&cache, &["a", "b"], Some(1));
                write(&cache, &["b", "c"], Some(2));
                write(&cache, &["a"], None);
            })
        };
        let slots: Vec<_> = (0..2)
            .flat_map(|_| {
                let handler = Handler::Keys(Box::new(|_| ()));
                cache.add_handler(handler, None, CancellationToken::new());
                cache.unserved()
            })
            .collect();
        writer.join().unwrap();
        let stored: BTreeMap<_, _> = cache
            .store()
            .entries()
            .map(|(key, object)| (key.name().to_owned(), object.resource_version()))
            .collect();
        assert_eq!(slots.len(), 2);
        for slot in &slots {
            assert_eq!(delivered(&slot.queue), stored);
        }
    });
}

#[test]
fn index_added_at_any_moment_agrees_with_the_objects() {
    fn by_version(object: &dyn Any) -> Vec<String> {
        let map = object.downcast_ref::<ConfigMap>().expect("a config map");
        map.resource_version().into_iter().collect()
    }
    check(|| {
        let cache = cache();
        let adder = {
            let cache = cache.clone();
            thread::spawn(move || {
                let (index, conflicts) = cache.index(IndexFn {
                    name: "version",
                    identity: TypeId::of::<ConfigMap>(),
                    function: Arc::new(by_version),
                });
                assert!(!conflicts);
                index
            })
        };
        write(&cache, &["a", "b"], Some(1));
        write(&cache, &["b"], Some(2));
        let index = adder.join().unwrap();
        let store = cache.store();
        for (value, name) in [("1", "a"), ("2", "b")] {
            let found: Vec<_> = store
                .keys_by_index(index, value)
                .map(|key| key.name())
                .collect();
            assert_eq!(found, [name]);
        }
    });
}
