//! Delta fifo: from what one list and watch said to what changed.
//! In: changes as a reflector read them. Out: batches of deltas, oldest first.
//! Holds: order is kept; a relist leaves as one batch; a key that vanished between two lists is deleted exactly once;
//! a key that was never handed out is never deleted. It keeps its own known keys and never asks the index.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use kube::Resource;

use crate::{cached::Cached, key::ObjectKey};

/// Deltas in one batch at most, except for a relist, which is never split.
pub(crate) const BATCH_MAX: usize = 1000;

/// The objects that one reflector brought into an index.
pub(crate) type KnownKeys = BTreeSet<Arc<ObjectKey>>;

/// An object on its way into a cache.
#[derive(Debug)]
pub(crate) struct Arrival<K> {
    pub(crate) key: ObjectKey,
    pub(crate) object: Cached<K>,
}

/// What a reflector read.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// The object exists in this form.
    Applied(Arrival<K>),
    /// The object is gone; its last form if it could be read.
    Deleted {
        key: ObjectKey,
        object: Option<Cached<K>>,
        resource_version: Option<String>,
    },
    /// Exactly these objects exist. Those that exist but cannot be read stay as they were.
    Replaced {
        objects: Vec<Arrival<K>>,
        unreadable: Vec<ObjectKey>,
        resource_version: String,
    },
    /// Nothing changed up to this version.
    Bookmark { resource_version: String },
}

/// What changed for one key.
#[derive(Debug)]
pub(crate) enum Delta<K> {
    /// The object exists in this form.
    Applied {
        key: Arc<ObjectKey>,
        object: Cached<K>,
    },
    /// The object is gone; its last form if the source told it.
    Deleted {
        key: Arc<ObjectKey>,
        object: Option<Cached<K>>,
    },
}

/// Deltas to be applied together.
#[derive(Debug)]
pub(crate) struct Batch<K> {
    /// Oldest first; in a relist the deletes come first.
    pub(crate) deltas: Vec<Delta<K>>,
    /// The version of the collection once the deltas are applied; `None` when no source told one.
    pub(crate) resource_version: Option<String>,
    /// Whether this is a whole list.
    pub(crate) is_list: bool,
}

/// The queue between one reflector and the index.
///
/// Its reader empties it before the reflector reads on, so it holds one read at most.
#[derive(Debug)]
pub(crate) struct DeltaFifo<K> {
    /// Every key that exists once all queued batches are applied.
    known: KnownKeys,
    /// Oldest first. None is empty but lists and bookmarks.
    queue: VecDeque<Batch<K>>,
}

impl<K: Resource> DeltaFifo<K> {
    /// An empty queue to an index that has these objects already.
    pub(crate) fn knowing(known: KnownKeys) -> Self {
        Self {
            known,
            queue: VecDeque::new(),
        }
    }

    /// The objects that the index has once it was emptied.
    pub(crate) fn into_known(self) -> KnownKeys {
        self.known
    }

    /// Queues a change behind all others.
    pub(crate) fn push(&mut self, change: Change<K>) {
        match change {
            Change::Applied(Arrival { key, object }) => {
                let (key, version) = (self.learn(key), object.resource_version());
                self.append(Delta::Applied { key, object }, version);
            }
            Change::Deleted {
                key,
                object,
                resource_version,
            } => match self.known.take(&key) {
                Some(key) => self.append(Delta::Deleted { key, object }, resource_version),
                None => self.note_version(resource_version),
            },
            Change::Replaced {
                objects,
                unreadable,
                resource_version,
            } => self.replace(objects, &unreadable, resource_version),
            Change::Bookmark { resource_version } => self.note_version(Some(resource_version)),
        }
        debug_assert!(self.is_consistent());
    }

    /// Takes the oldest batch.
    pub(crate) fn pop(&mut self) -> Option<Batch<K>> {
        self.queue.pop_front()
    }

    /// One key, one allocation: the index and every mailbox share it.
    fn learn(&mut self, key: ObjectKey) -> Arc<ObjectKey> {
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let key = Arc::new(key);
        self.known.insert(key.clone());
        key
    }

    fn append(&mut self, delta: Delta<K>, version: Option<String>) {
        let batch = self.open_batch();
        batch.deltas.push(delta);
        if version.is_some() {
            batch.resource_version = version;
        }
    }

    fn note_version(&mut self, version: Option<String>) {
        if version.is_some() {
            self.open_batch().resource_version = version;
        }
    }

    fn open_batch(&mut self) -> &mut Batch<K> {
        if self
            .queue
            .back()
            .is_none_or(|last| last.is_list || last.deltas.len() >= BATCH_MAX)
        {
            self.queue.push_back(Batch {
                deltas: Vec::new(),
                resource_version: None,
                is_list: false,
            });
        }
        self.queue
            .back_mut()
            .expect("a batch was queued if there was none")
    }

    fn replace(
        &mut self,
        objects: Vec<Arrival<K>>,
        unreadable: &[ObjectKey],
        resource_version: String,
    ) {
        let mut known = BTreeSet::new();
        for key in unreadable {
            known.extend(self.known.take(key));
        }
        let mut applied = Vec::with_capacity(objects.len());
        let mut places = BTreeMap::new();
        for Arrival { key, object } in objects {
            // Pages of an expired list may repeat an object; the later one is newer.
            if let Some(place) = known.get(&key).and_then(|key| places.get(key)) {
                applied[*place] = (known.get(&key).expect("its place is known").clone(), object);
                continue;
            }
            let key = self.known.take(&key).unwrap_or_else(|| Arc::new(key));
            known.insert(key.clone());
            places.insert(key.clone(), applied.len());
            applied.push((key, object));
        }
        let vanished = std::mem::replace(&mut self.known, known);
        let deletes = vanished
            .into_iter()
            .map(|key| Delta::Deleted { key, object: None });
        let applies = applied
            .into_iter()
            .map(|(key, object)| Delta::Applied { key, object });
        let deltas = deletes.chain(applies).collect();
        self.queue.push_back(Batch {
            deltas,
            resource_version: Some(resource_version),
            is_list: true,
        });
    }

    fn is_consistent(&self) -> bool {
        self.queue
            .iter()
            .all(|batch| batch.is_list || batch.deltas.len() <= BATCH_MAX)
            && self.queue.iter().all(|batch| {
                batch.is_list || !batch.deltas.is_empty() || batch.resource_version.is_some()
            })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::clock::Entropy;

    fn object(name: &str, version: u64) -> Arrival<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("n".into());
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.to_string());
        Arrival {
            key: ObjectKey::of(&object),
            object: Cached::decoded(object),
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("n", name)
    }

    /// `+a5` applies, `-a` deletes, `=5:a5,b6` lists, `^5` bookmarks, `!` in front of a listed name marks it unreadable.
    fn change(text: &str) -> Change<ConfigMap> {
        let (verb, rest) = text.split_at(1);
        let parse = |text: &str| object(&text[..1], text[1..].parse().expect("a version"));
        match verb {
            "+" => Change::Applied(parse(rest)),
            "-" => Change::Deleted {
                key: key(rest),
                object: None,
                resource_version: None,
            },
            "^" => Change::Bookmark {
                resource_version: rest.into(),
            },
            _ => {
                let (version, names) = rest.split_once(':').expect("a version");
                let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
                let unreadable = names
                    .iter()
                    .filter_map(|name| name.strip_prefix('!'))
                    .map(key)
                    .collect();
                let objects = names
                    .iter()
                    .filter(|name| !name.starts_with('!'))
                    .map(|name| parse(name))
                    .collect();
                Change::Replaced {
                    objects,
                    unreadable,
                    resource_version: version.into(),
                }
            }
        }
    }

    fn printed(batch: &Batch<ConfigMap>) -> String {
        let deltas = batch.deltas.iter().map(|delta| match delta {
            Delta::Applied { key, object } => format!(
                "+{}{}",
                key.name(),
                object.resource_version().unwrap_or_default()
            ),
            Delta::Deleted { key, .. } => format!("-{}", key.name()),
        });
        format!(
            "{}@{}",
            deltas.collect::<Vec<_>>().join(" "),
            batch.resource_version.as_deref().unwrap_or("?")
        )
    }

    fn check(changes: &str, batches_wanted: &[&str]) {
        let mut fifo = DeltaFifo::knowing(KnownKeys::new());
        changes
            .split_whitespace()
            .for_each(|text| fifo.push(change(text)));
        let batches: Vec<_> = std::iter::from_fn(|| fifo.pop())
            .map(|batch| printed(&batch))
            .collect();
        assert_eq!(batches, batches_wanted, "after {changes}");
    }

    #[test]
    fn changes_leave_in_the_order_they_came() {
        check("+a1 +b2 +a3 -b", &["+a1 +b2 +a3 -b@3"]);
        check("^4", &["@4"]);
        check("+a1 ^9", &["+a1@9"]);
    }

    #[test]
    fn relist_reports_vanished_keys_exactly_once() {
        check(
            "=1:a1,b1,c1 =5:b1,d5 =6:b1,d5",
            &["+a1 +b1 +c1@1", "-a -c +b1 +d5@5", "+b1 +d5@6"],
        );
        check("=1:a1 -a =5:", &["+a1@1", "-a@?", "@5"]);
    }

    #[test]
    fn deletion_of_an_unknown_key_is_silent() {
        check("-a =1:b1 -a", &["+b1@1"]);
        check("+a1 -a -a", &["+a1 -a@1"]);
    }

    #[test]
    fn listed_but_unreadable_objects_are_not_deleted() {
        check("=1:a1,b1 =5:!a -a", &["+a1 +b1@1", "-b@5", "-a@?"]);
        check("=1:!z", &["@1"]);
    }

    #[test]
    fn repeated_object_of_a_list_counts_once() {
        check("=7:a1,b2,a6", &["+a6 +b2@7"]);
    }

    #[test]
    fn first_list_tells_what_became_of_the_objects_of_a_predecessor() {
        let mut before = DeltaFifo::knowing(KnownKeys::new());
        before.push(change("=1:a1,b1,c1"));
        before.push(change("-c"));
        let mut fifo = DeltaFifo::knowing(before.into_known());
        fifo.push(change("=5:b1,d5"));
        assert_eq!(
            fifo.pop().as_ref().map(printed).as_deref(),
            Some("-a +b1 +d5@5")
        );
    }

    #[test]
    fn batches_have_a_length() {
        let mut fifo = DeltaFifo::knowing(KnownKeys::new());
        (0..2500).for_each(|n| fifo.push(Change::Applied(object("a", n))));
        let sizes: Vec<_> = std::iter::from_fn(|| fifo.pop())
            .map(|batch| batch.deltas.len())
            .collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn random_histories_end_like_a_plain_map() {
        for seed in 0..2000 {
            let entropy = Entropy::seeded(seed);
            let (mut fifo, mut server, mut seen) = (
                DeltaFifo::knowing(KnownKeys::new()),
                BTreeMap::new(),
                BTreeMap::new(),
            );
            for version in 1..30 {
                let name =
                    ["a", "b", "c", "d", "e"][usize::try_from(entropy.below(5)).expect("small")];
                // A cut watch: the change happens and is not told, until the next list.
                let told = entropy.below(3) > 0;
                match entropy.below(3) {
                    0 if server.remove(&key(name)).is_some() && told => {
                        fifo.push(change(&format!("-{name}")))
                    }
                    0 => {}
                    1 => {
                        server.insert(key(name), version);
                        if told {
                            fifo.push(Change::Applied(object(name, version)));
                        }
                    }
                    _ => fifo.push(list(&server, version)),
                }
                if entropy.below(2) == 0 {
                    std::iter::from_fn(|| fifo.pop())
                        .for_each(|batch| apply(&mut seen, batch, seed));
                }
            }
            fifo.push(list(&server, 99));
            std::iter::from_fn(|| fifo.pop()).for_each(|batch| apply(&mut seen, batch, seed));
            assert_eq!(seen, server, "seed {seed}");
        }
    }

    fn list(server: &BTreeMap<ObjectKey, u64>, version: u64) -> Change<ConfigMap> {
        let objects = server
            .iter()
            .map(|(key, version)| object(key.name(), *version))
            .collect();
        Change::Replaced {
            objects,
            unreadable: Vec::new(),
            resource_version: version.to_string(),
        }
    }

    fn apply(seen: &mut BTreeMap<ObjectKey, u64>, batch: Batch<ConfigMap>, seed: u64) {
        for delta in batch.deltas {
            match delta {
                Delta::Applied { key, object } => {
                    let version = object
                        .resource_version()
                        .expect("a version")
                        .parse()
                        .expect("a number");
                    seen.insert((*key).clone(), version);
                }
                Delta::Deleted { key, .. } => assert!(
                    seen.remove(&*key).is_some(),
                    "{key} deleted twice, seed {seed}"
                ),
            }
        }
    }
}
