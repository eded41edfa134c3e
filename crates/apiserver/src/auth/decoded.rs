//! Decoded roles and bindings, one decode per version.
//! In: stored versions. Out: the decoded objects, shared.
//! Guarantees: the versions kept are limited by their size; the least recently used is evicted
//! first.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon_codec::object::Object;
use bellerophon_storage::{ObjectKey, Revision, Stored};

use super::Source;

/// JSON of the versions that are kept: about 40,000 usual roles and bindings.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Decoded versions, so that authorization does not read the same JSON for every request.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    cache: Mutex<Cache>,
}

/// An LRU cache.
///
/// Invariant: `by_use` has exactly the keys of `versions`, each at its `last_use`; `bytes` is the
/// sum of their sizes.
#[derive(Debug, Default)]
struct Cache {
    /// The newest version requested, by object.
    versions: HashMap<(Source, ObjectKey), Version>,
    by_use: BTreeMap<u64, (Source, ObjectKey)>,
    /// Counts uses.
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Version {
    revision: Revision,
    object: Arc<Object>,
    bytes: usize,
    last_use: u64,
}

impl Decoded {
    /// The object in a stored version. Only policy is kept: the rest is read rarely, and secrets
    /// not twice in memory.
    pub(crate) fn of(&self, source: Source, stored: &Stored) -> Arc<Object> {
        if !source.is_policy() {
            return Arc::new(stored.encoded.decode());
        }
        let key = (source, stored.key.clone());
        if let Some(object) = self.with(|cache| cache.get(&key, stored.revision)) {
            return object;
        }
        let object = Arc::new(stored.encoded.decode());
        let version = Version {
            revision: stored.revision,
            object: object.clone(),
            bytes: stored.encoded.bytes().len(),
            last_use: 0,
        };
        self.with(|cache| cache.insert(key, version));
        object
    }

    fn with<T>(&self, f: impl FnOnce(&mut Cache) -> T) -> T {
        f(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Cache {
    fn get(&mut self, key: &(Source, ObjectKey), revision: Revision) -> Option<Arc<Object>> {
        let version = self.versions.get_mut(key)?;
        if version.revision != revision {
            return None;
        }
        self.clock += 1;
        if let Some(key) = self.by_use.remove(&version.last_use) {
            self.by_use.insert(self.clock, key);
        }
        version.last_use = self.clock;
        Some(version.object.clone())
    }

    fn insert(&mut self, key: (Source, ObjectKey), version: Version) {
        self.remove(&key);
        self.clock += 1;
        self.bytes += version.bytes;
        self.by_use.insert(self.clock, key.clone());
        let version = Version {
            last_use: self.clock,
            ..version
        };
        self.versions.insert(key, version);
        while self.bytes > KEPT_BYTES_MAX
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &(Source, ObjectKey)) {
        if let Some(version) = self.versions.remove(key) {
            self.by_use.remove(&version.last_use);
            self.bytes -= version.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use bellerophon_storage::SelectableAttributes;
    use serde_json::json;

    use super::*;

    fn stored(name: &str, revision: Revision) -> Stored {
        stored_with(name, revision, "")
    }

    fn stored_with(name: &str, revision: Revision, note: &str) -> Stored {
        let metadata = json!({
            "name": name, "generation": revision, "annotations": {"note": note},
        });
        let map = json!({"kind": "Role", "metadata": metadata})
            .as_object()
            .cloned()
            .expect("an object");
        let object = Object::from_map(map).expect("good metadata");
        let key = ObjectKey::new("ns", name);
        let encoded = object.draft().at(revision);
        Stored {
            key,
            revision,
            encoded,
            attributes: SelectableAttributes::default(),
            schema: 0,
        }
    }

    #[test]
    fn version_is_decoded_once_and_replaced_by_the_next() {
        let decoded = Decoded::default();
        let first = decoded.of(Source::Role, &stored("r", 1));
        assert!(Arc::ptr_eq(
            &first,
            &decoded.of(Source::Role, &stored("r", 1))
        ));
        assert_eq!(decoded.of(Source::Role, &stored("r", 2)).meta.generation, 2);
        assert_eq!(
            decoded
                .of(Source::ClusterRole, &stored("r", 3))
                .meta
                .generation,
            3
        );
        assert_eq!(decoded.with(|cache| cache.versions.len()), 2);
    }

    #[test]
    fn secrets_are_not_kept() {
        let decoded = Decoded::default();
        decoded.of(Source::Secret, &stored("s", 1));
        assert_eq!(decoded.with(|cache| cache.versions.len()), 0);
    }

    /// The cache used to be emptied when it was full, so a cluster with one more role than fits
    /// decoded every role again and again.
    #[test]
    fn version_that_was_not_used_for_longest_is_evicted() {
        let decoded = Decoded::default();
        let note = "x".repeat(1 << 20);
        let role = stored_with("r0", 1, &note);
        let size = role.encoded.bytes().len();
        let first = decoded.of(Source::Role, &role);
        let fit = KEPT_BYTES_MAX / size;
        for n in 1..2 * fit as u64 {
            decoded.of(Source::Role, &stored_with(&format!("r{n}"), 1, &note));
            assert!(Arc::ptr_eq(&decoded.of(Source::Role, &role), &first));
        }
        decoded.with(|cache| {
            assert!(cache.bytes <= KEPT_BYTES_MAX);
            assert!(cache.bytes > KEPT_BYTES_MAX - 2 * size);
            assert_eq!(cache.versions.len(), cache.by_use.len());
            let bytes: usize = cache.versions.values().map(|version| version.bytes).sum();
            assert_eq!(cache.bytes, bytes);
        });
    }
}
