//! Compares the store with a model: random histories of writes, reads, watches and compactions, and
//! a plain list of all events.
//! Guarantees: the store shows what the list shows after every operation.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bellerophon_codec::object::Object;
use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::*;

const COLLECTIONS: [&str; 2] = ["/configmaps", "apps/deployments"];

/// The keys of a history: two namespaces, one a prefix of the other.
const KEYS: [(&str, &str); 6] = [
    ("a", "x"),
    ("a", "y"),
    ("a", "z"),
    ("a-b", "x"),
    ("a-b", "y"),
    ("", "cluster"),
];

/// Events older than this go with the next write.
const HISTORY_KEPT: Duration = Duration::from_secs(300);

/// One step of a history. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// Creates the key or, when it is there, changes it.
    Put { collection: usize, key: usize },
    /// Deletes the key if it is there.
    Delete { collection: usize, key: usize },
    /// Writes with a precondition that does not hold.
    PutStale { collection: usize, key: usize },
    /// Reads a scope of a collection as it was this many revisions ago, whole and in pages of this
    /// size.
    List {
        collection: usize,
        back: u64,
        scope: usize,
        page: usize,
    },
    /// Opens a watch of a scope of a collection from this many revisions ago.
    Open {
        collection: usize,
        back: u64,
        scope: usize,
    },
    /// Reads the pending events of a watch.
    Read { watch: usize },
    /// Closes a watch.
    Close { watch: usize },
    /// Compacts what is older than this many revisions.
    Compact { back: u64 },
    /// Lets seconds pass.
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let collection = 0..COLLECTIONS.len();
    let key = 0..KEYS.len();
    prop_oneof![
        8 => (collection.clone(), key.clone()).prop_map(|(collection, key)| Step::Put { collection, key }),
        3 => (collection.clone(), key.clone()).prop_map(|(collection, key)| Step::Delete { collection, key }),
        1 => (collection.clone(), key).prop_map(|(collection, key)| Step::PutStale { collection, key }),
        4 => (collection.clone(), 0..20u64, 0..4usize, 1..4usize).prop_map(|(collection, back, scope, page)| Step::List { collection, back, scope, page }),
        2 => (collection, 0..20u64, 0..4usize).prop_map(|(collection, back, scope)| Step::Open { collection, back, scope }),
        4 => (0..8usize).prop_map(|watch| Step::Read { watch }),
        1 => (0..8usize).prop_map(|watch| Step::Close { watch }),
        1 => (0..20u64).prop_map(|back| Step::Compact { back }),
        1 => (0..400u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// A write in the model.
#[derive(Clone)]
struct Seen {
    revision: Revision,
    collection: usize,
    key: ObjectKey,
    change: Change,
    /// The object's JSON, with the revision of this write.
    bytes: Vec<u8>,
    /// The JSON it replaced.
    previous: Option<Vec<u8>>,
    at: Instant,
}

/// A store, everything that was done to it, and its open watches.
struct Model {
    store: MemoryStore,
    events: Vec<Seen>,
    /// The oldest revision each collection can still show.
    oldest: [Revision; 2],
    watches: Vec<Open>,
}

/// A watch of a scope of a collection, and the revision it has reached.
struct Open {
    collection: usize,
    scope: Scope,
    since: Revision,
    watch: StoreWatch,
}

fn scope(index: usize) -> Scope {
    match index {
        0 => Scope::All,
        1 => Scope::Namespace("a".into()),
        2 => Scope::Namespace("a-b".into()),
        _ => Scope::Object(key(0)),
    }
}

fn key(index: usize) -> ObjectKey {
    ObjectKey::new(KEYS[index].0, KEYS[index].1)
}

fn draft(key: &ObjectKey, count: impl serde::Serialize) -> Draft {
    let object: Object = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Thing", "metadata": {"name": key.name(), "namespace": key.namespace()}, "count": count,
    }))
    .expect("an object");
    object.draft()
}

impl Model {
    fn new() -> Self {
        Self {
            store: MemoryStore::new(),
            events: Vec::new(),
            oldest: [0; 2],
            watches: Vec::new(),
        }
    }

    fn revision(&self) -> Revision {
        self.events.last().map_or(0, |e| e.revision)
    }

    fn back(&self, revisions: u64) -> Revision {
        self.revision().saturating_sub(revisions)
    }

    /// The objects of a collection at a revision: key to JSON.
    fn at(&self, collection: usize, revision: Revision) -> BTreeMap<ObjectKey, Vec<u8>> {
        let mut objects = BTreeMap::new();
        for event in self
            .events
            .iter()
            .filter(|e| e.collection == collection && e.revision <= revision)
        {
            match event.change {
                Change::Deleted => objects.remove(&event.key),
                _ => objects.insert(event.key.clone(), event.bytes.clone()),
            };
        }
        objects
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Put { collection, key: k } => self.write(collection, key(k), true).await,
            Step::Delete { collection, key: k } => self.write(collection, key(k), false).await,
            Step::PutStale { collection, key: k } => self.write_stale(collection, key(k)).await,
            Step::List {
                collection,
                back,
                scope,
                page,
            } => self.list(collection, self.back(back), scope, page),
            Step::Open {
                collection,
                back,
                scope,
            } => self.open(collection, self.back(back), scope),
            Step::Read { watch } => self.read(watch),
            Step::Close { watch } => {
                if !self.watches.is_empty() {
                    self.watches.swap_remove(watch % self.watches.len());
                }
            }
            Step::Compact { back } => self.compact(self.back(back)),
            Step::Pass { seconds } => tokio::time::advance(Duration::from_secs(seconds)).await,
        }
        assert_eq!(self.store.revision(), self.revision());
    }

    async fn write(&mut self, collection: usize, key: ObjectKey, put: bool) {
        let current = self.store.get(COLLECTIONS[collection], &key);
        let known = self.at(collection, self.revision()).remove(&key);
        assert_eq!(
            current.as_ref().map(|s| s.encoded.bytes().to_vec()),
            known,
            "{key}"
        );
        if !put && current.is_none() {
            return;
        }
        let expect = current
            .as_ref()
            .map_or(Expect::Absent, |s| Expect::Version(s.revision));
        let revision = self.revision() + 1;
        let body = put.then(|| draft(&key, revision));
        let (change, bytes) = match (&body, &current) {
            (Some(body), None) => (Change::Added, body.at(revision).bytes().to_vec()),
            (Some(body), Some(_)) => (Change::Modified, body.at(revision).bytes().to_vec()),
            (None, last) => {
                let last = last.as_ref().expect("only what is there is deleted");
                (
                    Change::Deleted,
                    last.encoded.with_revision(revision).bytes().to_vec(),
                )
            }
        };
        let put = body.map(|draft| Put {
            draft,
            attributes: SelectableAttributes::default(),
            schema: 0,
        });
        let write = Write {
            collection: COLLECTIONS[collection].into(),
            key: key.clone(),
            expect,
            put,
        };
        let stored = self
            .store
            .commit(write)
            .await
            .expect("the expectation was read just now");
        assert_eq!(stored.revision, revision);
        assert_eq!(stored.encoded.bytes().to_vec(), bytes.clone());

        let now = Instant::now();
        self.events.push(Seen {
            revision,
            collection,
            key,
            change,
            bytes,
            previous: known,
            at: now,
        });
        let old = self
            .events
            .iter()
            .filter(|e| e.collection == collection && now - e.at > HISTORY_KEPT);
        self.oldest[collection] = old
            .map(|e| e.revision)
            .fold(self.oldest[collection], Revision::max);
    }

    async fn write_stale(&mut self, collection: usize, key: ObjectKey) {
        let current = self.store.get(COLLECTIONS[collection], &key);
        let expectations = [
            Expect::Version(current.as_ref().map_or(7, |s| s.revision + 1)),
            Expect::Absent,
        ];
        for expect in expectations
            .into_iter()
            .filter(|e| current.is_some() || *e != Expect::Absent)
        {
            let put = Some(Put {
                draft: draft(&key, 0),
                attributes: SelectableAttributes::default(),
                schema: 0,
            });
            let refused = self
                .store
                .commit(Write {
                    collection: COLLECTIONS[collection].into(),
                    key: key.clone(),
                    expect,
                    put,
                })
                .await;
            let Err(Conflict { current: found }) = refused else {
                panic!("a stale write to {key} was taken")
            };
            assert_eq!(
                found.map(|s| s.revision),
                current.as_ref().map(|s| s.revision)
            );
        }
    }

    fn list(&self, collection: usize, at: Revision, part: usize, page: usize) {
        let scope = scope(part);
        let whole = self.store.list(
            COLLECTIONS[collection],
            &Range::all_of(scope.clone()),
            Some(at),
        );
        if at < self.oldest[collection] {
            assert_eq!(
                whole.expect_err("it is forgotten"),
                Compacted {
                    requested: at,
                    oldest: self.oldest[collection]
                }
            );
            return;
        }
        let whole = whole.expect("it is kept");
        let wanted: Vec<_> = self
            .at(collection, at)
            .into_iter()
            .filter(|(key, _)| scope.contains(key))
            .collect();
        let shown = |objects: &[Arc<Stored>]| -> Vec<_> {
            objects
                .iter()
                .map(|s| (s.key.clone(), s.encoded.bytes().to_vec()))
                .collect()
        };
        assert_eq!(whole.revision, at);
        assert_eq!(whole.total, wanted.len());
        assert_eq!(shown(&whole.objects), wanted);
        if at == self.revision() {
            let now = self
                .store
                .list(COLLECTIONS[collection], &Range::all_of(scope.clone()), None)
                .expect("the newest state is always kept");
            assert_eq!(now.total, whole.total);
            assert_eq!(shown(&now.objects), shown(&whole.objects));
        }
        let mut pages = Vec::new();
        let mut after = None;
        loop {
            let range = Range {
                scope: scope.clone(),
                after,
                limit: Some(page),
            };
            let part = self
                .store
                .list(COLLECTIONS[collection], &range, Some(at))
                .expect("it is kept");
            assert_eq!(part.total, whole.total);
            let Some(last) = part.objects.last() else {
                break;
            };
            after = Some(last.key.clone());
            pages.extend(shown(&part.objects));
        }
        assert_eq!(pages, shown(&whole.objects), "pages of {page}");
    }

    fn open(&mut self, collection: usize, since: Revision, part: usize) {
        let scope = scope(part);
        match self
            .store
            .watch(&COLLECTIONS[collection].into(), &scope, since)
        {
            Ok(watch) => {
                assert!(
                    since >= self.oldest[collection],
                    "a watch from {since} would miss events"
                );
                self.watches.push(Open {
                    collection,
                    scope,
                    since,
                    watch,
                });
            }
            Err(gone) => {
                assert_eq!(gone.requested, since);
                assert_eq!(gone.oldest, self.oldest[collection]);
                assert!(since < self.oldest[collection]);
            }
        }
    }

    fn read(&mut self, index: usize) {
        if self.watches.is_empty() {
            return;
        }
        let index = index % self.watches.len();
        let newest = self.revision();
        let Open {
            collection,
            scope,
            since,
            watch,
        } = &mut self.watches[index];
        let concerns = |e: &&Seen| {
            e.collection == *collection && e.revision > *since && scope.contains(&e.key)
        };
        let wanted: Vec<&Seen> = self.events.iter().filter(concerns).collect();
        let lost = wanted
            .iter()
            .any(|e| e.revision <= self.oldest[*collection]);
        match watch.ready() {
            Err(Lagged) => {
                assert!(
                    lost,
                    "a watch of {scope:?} from {since} was cut for nothing"
                );
                self.watches.swap_remove(index);
            }
            Ok((events, upto)) => {
                assert!(!lost, "a watch of {scope:?} from {since} misses events");
                let delivered: Vec<_> = events.iter().map(|e| shown(e)).collect();
                let wanted: Vec<_> = wanted
                    .iter()
                    .map(|e| {
                        (
                            e.revision,
                            e.change,
                            e.key.clone(),
                            e.bytes.clone(),
                            e.previous.clone(),
                        )
                    })
                    .collect();
                assert_eq!(delivered, wanted);
                assert_eq!(upto, newest);
                *since = upto;
            }
        }
    }

    fn compact(&mut self, upto: Revision) {
        self.store.compact(upto);
        self.oldest = self.oldest.map(|oldest| oldest.max(upto));
    }
}

type Shown = (Revision, Change, ObjectKey, Vec<u8>, Option<Vec<u8>>);

fn shown(event: &Event) -> Shown {
    let previous = event.previous.as_ref().map(|p| p.encoded.bytes().to_vec());
    (
        event.revision,
        event.change,
        event.object.key.clone(),
        event.object.encoded.bytes().to_vec(),
        previous,
    )
}

#[test]
fn store_agrees_with_the_model() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let config = ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(steps in proptest::collection::vec(step(), 1..60))| {
        runtime.block_on(async {
            let mut model = Model::new();
            for step in steps {
                model.take(step).await;
            }
            // Every open watch is read to its end, and every kept revision can be read and resumed
            // from.
            for watch in (0..model.watches.len()).rev() {
                model.read(watch);
            }
            for (collection, at) in (0..=model.revision()).flat_map(|at| [(0, at), (1, at)]) {
                model.list(collection, at, 0, 2);
                (0..4).for_each(|part| model.open(collection, at, part));
            }
            for watch in (0..model.watches.len()).rev() {
                model.read(watch);
            }
        });
    });
}

#[tokio::test(start_paused = true)]
async fn slow_watcher_is_ended_and_delays_no_other() {
    const EVENTS: u64 = 100_300;
    let store = MemoryStore::new();
    let collection: CollectionName = COLLECTIONS[0].into();
    let mut slow = store
        .watch(&collection, &Scope::All, 0)
        .expect("nothing is forgotten yet");
    let mut quick = store
        .watch(&collection, &Scope::All, 0)
        .expect("nothing is forgotten yet");
    let mut delivered = 0;
    let body = draft(&key(0), 0);
    for revision in 1..=EVENTS {
        let expect = if revision == 1 {
            Expect::Absent
        } else {
            Expect::Version(revision - 1)
        };
        let put = Some(Put {
            draft: body.clone(),
            attributes: SelectableAttributes::default(),
            schema: 0,
        });
        store
            .commit(Write {
                collection: collection.clone(),
                key: key(0),
                expect,
                put,
            })
            .await
            .expect("there is no other writer");
        if revision % 1000 == 0 || revision == EVENTS {
            while let (events, _) = quick.ready().expect("it keeps up")
                && !events.is_empty()
            {
                assert!(
                    events
                        .iter()
                        .map(|e| e.revision)
                        .eq(delivered + 1..=delivered + events.len() as u64),
                    "each once, in order"
                );
                delivered += events.len() as u64;
            }
        }
    }
    assert_eq!(delivered, EVENTS);
    assert_eq!(slow.ready().expect_err("its events are gone"), Lagged);
    assert_eq!(
        store.watch(&collection, &Scope::All, 0).err(),
        Some(Compacted {
            requested: 0,
            oldest: EVENTS - 100_000
        }),
        "history has a length"
    );
}

#[tokio::test(start_paused = true)]
async fn history_of_large_objects_is_shorter() {
    let store = MemoryStore::new();
    let collection: CollectionName = COLLECTIONS[0].into();
    let body = draft(&key(0), "x".repeat(4 << 20));
    for revision in 1..=40 {
        let expect = if revision == 1 {
            Expect::Absent
        } else {
            Expect::Version(revision - 1)
        };
        let put = Some(Put {
            draft: body.clone(),
            attributes: SelectableAttributes::default(),
            schema: 0,
        });
        store
            .commit(Write {
                collection: collection.clone(),
                key: key(0),
                expect,
                put,
            })
            .await
            .expect("there is no other writer");
    }
    let Err(Compacted { oldest, .. }) = store.watch(&collection, &Scope::All, 1) else {
        panic!("it keeps 160 MB")
    };
    assert!(
        (5..15).contains(&oldest),
        "of 40 times 4 MB some 128 MB are kept, not what came up to {oldest}"
    );
    assert!(store.watch(&collection, &Scope::All, oldest).is_ok());
}
