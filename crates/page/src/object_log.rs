//! Versions of objects: what each accepted write replaced and left.
//!
//! In: accepted writes. Out: the two states of a write, and the newest state of every object.
//! Guarantees: recording copies no object, it shares the bytes of the storage; at most
//! [`VERSIONS_MAX`] writes and [`BYTES_MAX`] bytes are kept, the oldest are forgotten first.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bellerophon::ObjectKey;
use bellerophon::trace::AcceptedWrite;
use bytes::Bytes;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use serde_json::Value;

use crate::diff::{self, Change};
use crate::digest::Digest;
use crate::secret::{self, Visible};

/// The number of writes whose diff can be shown: as many as the trace of `up` has records.
const VERSIONS_MAX: usize = 1 << 16;

/// The bytes of objects that nothing else may keep.
const BYTES_MAX: usize = 64 << 20;

/// The number of changes that come with the record of a write. All are in the diff of the write.
pub(crate) const SUMMARY_MAX: usize = 16;

/// An accepted write with the states of its object.
pub(crate) struct LoggedVersion {
    pub(crate) write: Arc<AcceptedWrite>,
    /// The object as JSON; for a deletion its last state.
    object: Bytes,
    /// The object before; `None` for a new object, and if it was forgotten.
    before: Option<Bytes>,
    /// Computed for the first reader and shared by all.
    summary: OnceLock<Box<Summary>>,
}

/// What the record of a write shows.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// The first changes, without fields that change with every write.
    pub(crate) changes: Vec<Change>,
    /// The number of further ones.
    pub(crate) more: usize,
    /// What the tree shows of the object.
    pub(crate) digest: Digest,
}

impl LoggedVersion {
    pub(crate) fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| {
            let write = &self.write;
            let summarized = secret::summarized(&write.kind, self.before.as_deref(), &self.object);
            let digest = Digest::of(&write.kind, &summarized.after);
            let (before, after) = summarized.into_changed();
            let mut changes = match &before {
                // All fields of a new or removed object have changed, which is no news.
                Some(before) if !write.is_deletion => diff::changes(before, &after),
                _ => Vec::new(),
            };
            changes.retain(|change| !change.is_bookkeeping());
            let more = changes.len().saturating_sub(SUMMARY_MAX);
            changes.truncate(SUMMARY_MAX);
            changes.iter_mut().for_each(Change::shorten);
            Box::new(Summary {
                changes,
                more,
                digest,
            })
        })
    }

    /// The object before and after the write, without values of Secrets.
    pub(crate) fn states(&self) -> (Option<Visible>, Visible) {
        secret::visible_pair(&self.write.kind, self.before.as_deref(), &self.object)
    }

    /// Whether the state before the write is known, or there was none.
    pub(crate) fn has_before(&self) -> bool {
        self.before.is_some() || self.write.previous_version.is_none()
    }

    fn bytes(&self) -> usize {
        self.object.len() + self.before.as_ref().map_or(0, Bytes::len)
    }
}

/// A bounded log of accepted writes. Clones share one log.
#[derive(Clone, Default)]
pub struct ObjectLog(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// In the order of their versions, which are unique in a cluster.
    versions: VecDeque<Arc<LoggedVersion>>,
    /// The bytes of `versions`.
    bytes: usize,
    /// The newest write of each object that exists, by kind and key.
    newest: HashTable<Newest>,
    hasher: RandomState,
    /// The kind of each resource, by group and plural name.
    kinds: HashMap<Arc<str>, Arc<str>>,
}

/// An entry of [`Log::newest`].
struct Newest {
    /// The hash of kind and key, so that growth of the table reads no object.
    hash: u64,
    logged: Arc<LoggedVersion>,
}

impl ObjectLog {
    /// Adds a write. The object is JSON; for a deletion it is its last state.
    pub fn add(&self, write: Arc<AcceptedWrite>, object: Bytes) {
        self.lock().add(write, object);
    }

    /// The kind of a resource, such as `Deployment.apps` of `apps/deployments`. The first object of
    /// each resource is parsed for it.
    pub fn kind_of(&self, resource: &Arc<str>, object: &[u8]) -> Arc<str> {
        if let Some(kind) = self.lock().kinds.get(resource) {
            return kind.clone();
        }
        let object: Value = serde_json::from_slice(object).unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let api_version = object["apiVersion"].as_str().unwrap_or_default();
        let kind: Arc<str> = match api_version.split_once('/') {
            Some((group, _)) => format!("{kind}.{group}").into(),
            None => kind.into(),
        };
        self.lock().kinds.insert(resource.clone(), kind.clone());
        kind
    }

    /// A write by its version; `None` if it is unknown or forgotten.
    pub(crate) fn get(&self, version: u64) -> Option<Arc<LoggedVersion>> {
        self.lock().get(version).cloned()
    }

    /// The oldest version that is kept.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let log = self.lock();
        log.versions
            .front()
            .map(|oldest| oldest.write.resource_version)
    }

    /// The newest write of every object that exists, in the order of their versions.
    pub(crate) fn existing(&self) -> Vec<Arc<LoggedVersion>> {
        let mut existing: Vec<_> = {
            let log = self.lock();
            log.newest
                .iter()
                .map(|entry| entry.logged.clone())
                .collect()
        };
        existing.sort_by_key(|logged| logged.write.resource_version);
        existing
    }

    /// The newest write of an object that exists.
    pub(crate) fn newest(&self, kind: &str, key: &ObjectKey) -> Option<Arc<LoggedVersion>> {
        let log = self.lock();
        let hash = log.hash_of(kind, key);
        log.newest(hash, kind, key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn add(&mut self, write: Arc<AcceptedWrite>, object: Bytes) {
        let version = write.resource_version;
        let hash = self.hash_of(&write.kind, &write.key);
        let newest = self.newest(hash, &write.kind, &write.key);
        // Writes of two threads may arrive in another order than that of their versions.
        let is_newest = newest.is_none_or(|newest| newest.write.resource_version < version);
        let before = write.previous_version.and_then(|previous| {
            let found = newest.filter(|newest| newest.write.resource_version == previous);
            let found = found.or_else(|| self.get(previous));
            found.map(|found| found.object.clone())
        });
        let logged = Arc::new(LoggedVersion {
            write,
            object,
            before,
            summary: OnceLock::new(),
        });
        if is_newest {
            self.set_newest(hash, &logged);
        }
        self.bytes += logged.bytes();
        let is_last = |last: &Arc<LoggedVersion>| last.write.resource_version < version;
        let at = match self.versions.back().is_none_or(is_last) {
            true => self.versions.len(),
            false => self.position(version).unwrap_or_else(|at| at),
        };
        self.versions.insert(at, logged);
        while self.versions.len() > VERSIONS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.versions.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
    }

    fn position(&self, version: u64) -> Result<usize, usize> {
        let versions = &self.versions;
        versions.binary_search_by_key(&version, |logged| logged.write.resource_version)
    }

    fn get(&self, version: u64) -> Option<&Arc<LoggedVersion>> {
        let at = self.position(version).ok()?;
        self.versions.get(at)
    }

    fn hash_of(&self, kind: &str, key: &ObjectKey) -> u64 {
        self.hasher.hash_one((kind, key))
    }

    fn newest(&self, hash: u64, kind: &str, key: &ObjectKey) -> Option<&Arc<LoggedVersion>> {
        let found = self.newest.find(hash, |entry| entry.is_of(hash, kind, key));
        found.map(|entry| &entry.logged)
    }

    /// Makes a write the newest of its object, or forgets the object that it deleted.
    fn set_newest(&mut self, hash: u64, logged: &Arc<LoggedVersion>) {
        let AcceptedWrite { kind, key, .. } = &*logged.write;
        let is_of = |entry: &Newest| entry.is_of(hash, kind, key);
        match self.newest.entry(hash, is_of, |entry| entry.hash) {
            Entry::Occupied(entry) if logged.write.is_deletion => drop(entry.remove()),
            Entry::Occupied(mut entry) => entry.get_mut().logged = logged.clone(),
            Entry::Vacant(_) if logged.write.is_deletion => {}
            Entry::Vacant(entry) => {
                let logged = logged.clone();
                entry.insert(Newest { hash, logged });
            }
        }
    }
}

impl Newest {
    /// Whether this is the newest write of that object.
    fn is_of(&self, hash: u64, kind: &str, key: &ObjectKey) -> bool {
        let write = &self.logged.write;
        self.hash == hash && *write.kind == *kind && write.key == *key
    }
}

impl fmt::Debug for ObjectLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.lock();
        f.debug_struct("ObjectLog")
            .field("versions", &log.versions.len())
            .field("bytes", &log.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(name: &str, versions: (Option<u64>, u64), replicas: u32) -> (AcceptedWrite, Bytes) {
        let object = json!({ "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": { "name": name, "resourceVersion": versions.1.to_string() },
            "spec": { "replicas": replicas } });
        let write = AcceptedWrite {
            user: "admin".into(),
            manager: "kubectl".into(),
            verb: "update",
            subresource: "".into(),
            kind: "Deployment.apps".into(),
            key: ObjectKey::namespaced("default", name),
            previous_version: versions.0,
            resource_version: versions.1,
            is_deletion: false,
            is_in_process: false,
        };
        (write, object.to_string().into())
    }

    fn add(log: &ObjectLog, (write, object): (AcceptedWrite, Bytes)) {
        log.add(Arc::new(write), object);
    }

    #[test]
    fn summary_has_changes_without_bookkeeping() {
        let log = ObjectLog::default();
        add(&log, write("web", (None, 1), 2));
        add(&log, write("web", (Some(1), 2), 4));
        let first = log.get(1).unwrap();
        assert!(first.summary().changes.is_empty(), "all of it is new");
        let second = log.get(2).unwrap();
        let changes = &second.summary().changes;
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0].path, "spec.replicas");
        assert_eq!(changes[0].new, Some(json!(4)));
    }

    #[test]
    fn write_that_arrives_late_does_not_become_the_newest() {
        let log = ObjectLog::default();
        add(&log, write("web", (Some(2), 3), 3));
        add(&log, write("web", (Some(1), 2), 2));
        assert_eq!(log.existing()[0].write.resource_version, 3);
        assert!(!log.get(3).unwrap().has_before());
        let (mut deletion, object) = write("web", (Some(3), 4), 3);
        deletion.is_deletion = true;
        add(&log, (deletion, object));
        assert!(log.existing().is_empty());
        assert_eq!(log.oldest(), Some(2));
    }

    #[test]
    fn kind_of_a_resource_has_its_group() {
        let log = ObjectLog::default();
        let (_, object) = write("web", (None, 1), 1);
        assert_eq!(
            &*log.kind_of(&"apps/deployments".into(), &object),
            "Deployment.apps"
        );
        assert_eq!(
            &*log.kind_of(&"apps/deployments".into(), b""),
            "Deployment.apps",
            "the first object decides"
        );
    }
}
