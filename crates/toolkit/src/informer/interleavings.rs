//! The cache where threads meet, under a scheduler that tries many interleavings of its locks.
//!
//! A run in which somebody waits for ever ends with "deadlock" instead of hanging.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use shuttle::thread;
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, Scope},
    handler::{Handler, HandlerOptions},
    mailbox::Mailbox,
};
use crate::{
    cached::Cached,
    fifo::{Batch, Delta},
    key::ObjectKey,
    locks::Interleaved,
    trace::TraceBus,
};

/// How many interleavings each promise is held against.
const RUNS: usize = 1_000;

type Cache = Arc<Core<ConfigMap, Interleaved>>;

fn cache() -> Cache {
    let cache = Core::new(
        "configmaps".into(),
        0,
        (TraceBus::off(), "ConfigMap".into()),
    );
    cache.watch_scopes(&[None].into());
    Arc::new(cache)
}

/// Tries interleavings at random, and with the few switches that most races need.
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), RUNS);
    shuttle::check_pct(run, RUNS, 3);
}

/// Gives every name this version, or takes all of them away.
fn write(cache: &Cache, names: &[&str], version: Option<u64>) {
    let delta = |name: &&str| {
        let key = Arc::new(ObjectKey::cluster(*name));
        match version {
            None => Delta::Deleted { key, object: None },
            Some(version) => {
                let mut object = ConfigMap::default();
                object.metadata.name = Some((*name).into());
                object.metadata.resource_version = Some(version.to_string());
                Delta::Applied {
                    key,
                    object: Cached::decoded(object),
                }
            }
        }
    };
    let (deltas, resource_version) = (
        names.iter().map(delta).collect(),
        version.map(|version| version.to_string()),
    );
    cache.apply(
        &Scope::None,
        Batch {
            deltas,
            resource_version,
            is_list: version == Some(1),
        },
    );
}

fn versions(cache: &Cache) -> Vec<String> {
    cache
        .index()
        .entries()
        .filter_map(|(_, object)| object.resource_version())
        .collect()
}

/// What a handler believes once it was told everything. Panics if it was told nonsense.
fn told(mailbox: &Mailbox<ConfigMap>) -> BTreeMap<String, Option<String>> {
    let mut believed = BTreeMap::new();
    while let Some(notice) = mailbox.take() {
        let name = notice.key.name().to_owned();
        let calls = notice.calls();
        if calls.delete.is_some() {
            assert!(believed.remove(&name).is_some(), "{name} was never there");
        }
        if let Some((old, new)) = calls.update {
            assert_eq!(
                believed.insert(name.clone(), new.resource_version()),
                Some(old.resource_version())
            );
        }
        if let Some(object) = calls.add {
            assert_eq!(believed.insert(name, object.resource_version()), None);
        }
    }
    believed
}

#[test]
fn readers_see_a_batch_whole_or_not_at_all() {
    check(|| {
        let cache = cache();
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    let seen = versions(&cache);
                    assert!(
                        seen.is_empty() || seen.len() == 2 && seen[0] == seen[1],
                        "{seen:?}"
                    );
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
fn handler_that_comes_at_any_moment_ends_with_what_is_there() {
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
                cache.add_handler(
                    Handler::Keys(Box::new(|_| ())),
                    HandlerOptions::default(),
                    CancellationToken::new(),
                );
                cache.unserved()
            })
            .collect();
        writer.join().unwrap();
        let there: BTreeMap<_, _> = cache
            .index()
            .entries()
            .map(|(key, object)| (key.name().to_owned(), object.resource_version()))
            .collect();
        assert_eq!(slots.len(), 2);
        slots
            .iter()
            .for_each(|slot| assert_eq!(told(&slot.mailbox), there));
    });
}

#[test]
fn index_added_at_any_moment_agrees_with_the_objects() {
    check(|| {
        let cache = cache();
        let adder = {
            let cache = cache.clone();
            thread::spawn(move || {
                let by_version =
                    |object: &ConfigMap| object.resource_version().into_iter().collect();
                cache
                    .add_index("version".into(), Arc::new(by_version))
                    .expect("a new name");
            })
        };
        write(&cache, &["a", "b"], Some(1));
        write(&cache, &["b"], Some(2));
        adder.join().unwrap();
        let index = cache.index();
        for (value, wanted) in [("1", "a"), ("2", "b")] {
            let found: Vec<_> = index
                .keys_by_index("version", value)
                .expect("it was added")
                .map(|key| key.name())
                .collect();
            assert_eq!(found, [wanted]);
        }
    });
}
