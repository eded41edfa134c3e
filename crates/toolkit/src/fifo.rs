//! Delta FIFO: from the changes of one list and watch to deltas.
//! In: changes as a reflector received them. Out: batches of deltas, oldest first.
//! Guarantees: order is kept; a relist is one batch; a key that is missing from a relist is deleted
//! exactly once; a key that was never emitted is never deleted. It keeps its own known keys and never
//! reads the store (as client-go's RealFIFO with `knownObjects` replaced by a set of keys).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{cached::CachedObject, key::ObjectKey};

/// Deltas in one batch at most, except for a relist, which is never split.
pub(crate) const BATCH_MAX: usize = 1000;

/// The keys of the objects that one reflector added to the store.
pub(crate) type KnownKeys = BTreeSet<Arc<ObjectKey>>;

/// An object on its way into the store.
#[derive(Debug)]
pub(crate) struct ReceivedObject {
    pub(crate) key: ObjectKey,
    pub(crate) object: CachedObject,
}

/// A change that a reflector received.
#[derive(Debug)]
pub(crate) enum Change {
    /// The object exists in this state.
    Applied(ReceivedObject),
    /// The object is deleted; its last state if it could be decoded.
    Deleted {
        key: ObjectKey,
        object: Option<CachedObject>,
        resource_version: Option<String>,
    },
    /// Exactly these objects exist. Those that exist but cannot be decoded stay as they are.
    Replaced {
        objects: Vec<ReceivedObject>,
        undecodable: Vec<ObjectKey>,
        resource_version: String,
    },
    /// Nothing changed up to this version.
    Bookmark { resource_version: String },
}

/// A change of one key.
#[derive(Debug)]
pub(crate) enum Delta {
    /// The object exists in this state.
    Applied {
        key: Arc<ObjectKey>,
        object: CachedObject,
    },
    /// The object is deleted; its last state if the source sent it.
    Deleted {
        key: Arc<ObjectKey>,
        object: Option<CachedObject>,
    },
}

/// Deltas to be applied together.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Oldest first; in a relist the deletes come first.
    pub(crate) deltas: Vec<Delta>,
    /// The version of the collection once the deltas are applied; `None` if it is not known.
    pub(crate) resource_version: Option<String>,
    /// Whether this is a whole list.
    pub(crate) is_list: bool,
}

/// The queue between one reflector and the store.
///
/// It is drained before the reflector reads on, so it holds the changes of one read at most.
#[derive(Debug)]
pub(crate) struct DeltaFifo {
    /// Every key that exists once all queued batches are applied.
    known: KnownKeys,
    /// Oldest first. None is empty but lists and bookmarks.
    queue: VecDeque<Batch>,
}

impl DeltaFifo {
    /// An empty queue for a store that has these objects already.
    pub(crate) fn with_known(known: KnownKeys) -> Self {
        Self {
            known,
            queue: VecDeque::new(),
        }
    }

    /// The objects that the store has once the queue is drained.
    pub(crate) fn into_known(self) -> KnownKeys {
        self.known
    }

    /// Queues a change behind all others.
    pub(crate) fn push(&mut self, change: Change) {
        match change {
            Change::Applied(ReceivedObject { key, object }) => {
                let key = self.intern(key);
                let version = object.resource_version();
                self.append(Delta::Applied { key, object }, version);
            }
            Change::Deleted {
                key,
                object,
                resource_version,
            } => match self.known.take(&key) {
                Some(key) => self.append(Delta::Deleted { key, object }, resource_version),
                None => self.set_version(resource_version),
            },
            Change::Replaced {
                objects,
                undecodable,
                resource_version,
            } => self.replace(objects, &undecodable, resource_version),
            Change::Bookmark { resource_version } => self.set_version(Some(resource_version)),
        }
        debug_assert!(self.is_consistent());
    }

    /// Takes the oldest batch.
    pub(crate) fn pop(&mut self) -> Option<Batch> {
        self.queue.pop_front()
    }

    /// One key, one allocation: the store and every handler queue share it.
    fn intern(&mut self, key: ObjectKey) -> Arc<ObjectKey> {
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let key = Arc::new(key);
        self.known.insert(key.clone());
        key
    }

    fn append(&mut self, delta: Delta, version: Option<String>) {
        let batch = self.open_batch();
        batch.deltas.push(delta);
        if version.is_some() {
            batch.resource_version = version;
        }
    }

    fn set_version(&mut self, version: Option<String>) {
        if version.is_some() {
            self.open_batch().resource_version = version;
        }
    }

    fn open_batch(&mut self) -> &mut Batch {
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
        objects: Vec<ReceivedObject>,
        undecodable: &[ObjectKey],
        resource_version: String,
    ) {
        let mut known = BTreeSet::new();
        for key in undecodable {
            known.extend(self.known.take(key));
        }
        let mut applied = Vec::with_capacity(objects.len());
        let mut positions = BTreeMap::new();
        for ReceivedObject { key, object } in objects {
            // Pages of a list may repeat an object after the continue token expired; the later one is newer.
            if let Some(position) = known.get(&key).and_then(|key| positions.get(key)) {
                applied[*position] = (
                    known.get(&key).expect("its position is known").clone(),
                    object,
                );
                continue;
            }
            let key = self.known.take(&key).unwrap_or_else(|| Arc::new(key));
            known.insert(key.clone());
            positions.insert(key.clone(), applied.len());
            applied.push((key, object));
        }
        let missing = std::mem::replace(&mut self.known, known);
        let deletes = missing
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
    use crate::clock::Rng;

    fn object(name: &str, version: u64) -> ReceivedObject {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("n".into());
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.to_string());
        ReceivedObject {
            key: ObjectKey::from_object(&object),
            object: CachedObject::decoded(Arc::new(object), ConfigMap::codec()),
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("n", name)
    }

    /// `+a5` applies, `-a` deletes, `=5:a5,b6` lists, `^5` bookmarks, `!` in front of a listed name marks it undecodable.
    fn change(text: &str) -> Change {
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
                let undecodable = names
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
                    undecodable,
                    resource_version: version.into(),
                }
            }
        }
    }

    fn printed(batch: &Batch) -> String {
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
        let mut fifo = DeltaFifo::with_known(KnownKeys::new());
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
    fn listed_but_undecodable_objects_are_not_deleted() {
        check("=1:a1,b1 =5:!a -a", &["+a1 +b1@1", "-b@5", "-a@?"]);
        check("=1:!z", &["@1"]);
    }

    #[test]
    fn repeated_object_of_a_list_counts_once() {
        check("=7:a1,b2,a6", &["+a6 +b2@7"]);
    }

    #[test]
    fn first_list_tells_what_became_of_the_objects_of_a_predecessor() {
        let mut before = DeltaFifo::with_known(KnownKeys::new());
        before.push(change("=1:a1,b1,c1"));
        before.push(change("-c"));
        let mut fifo = DeltaFifo::with_known(before.into_known());
        fifo.push(change("=5:b1,d5"));
        assert_eq!(
            fifo.pop().as_ref().map(printed).as_deref(),
            Some("-a +b1 +d5@5")
        );
    }

    #[test]
    fn batches_have_a_length() {
        let mut fifo = DeltaFifo::with_known(KnownKeys::new());
        (0..2500).for_each(|n| fifo.push(Change::Applied(object("a", n))));
        let sizes: Vec<_> = std::iter::from_fn(|| fifo.pop())
            .map(|batch| batch.deltas.len())
            .collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    #[test]
    fn random_histories_end_like_a_plain_map() {
        for seed in 0..2000 {
            let rng = Rng::seeded(seed);
            let (mut fifo, mut server, mut seen) = (
                DeltaFifo::with_known(KnownKeys::new()),
                BTreeMap::new(),
                BTreeMap::new(),
            );
            for version in 1..30 {
                let name = ["a", "b", "c", "d", "e"][usize::try_from(rng.below(5)).expect("small")];
                // A cut watch: the change happens and is not told, until the next list.
                let told = rng.below(3) > 0;
                match rng.below(3) {
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
                if rng.below(2) == 0 {
                    std::iter::from_fn(|| fifo.pop())
                        .for_each(|batch| apply(&mut seen, batch, seed));
                }
            }
            fifo.push(list(&server, 99));
            std::iter::from_fn(|| fifo.pop()).for_each(|batch| apply(&mut seen, batch, seed));
            assert_eq!(seen, server, "seed {seed}");
        }
    }

    fn list(server: &BTreeMap<ObjectKey, u64>, version: u64) -> Change {
        let objects = server
            .iter()
            .map(|(key, version)| object(key.name(), *version))
            .collect();
        Change::Replaced {
            objects,
            undecodable: Vec::new(),
            resource_version: version.to_string(),
        }
    }

    fn apply(seen: &mut BTreeMap<ObjectKey, u64>, batch: Batch, seed: u64) {
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
