//! Versions of objects: what each accepted write replaced and left.
//!
//! In: accepted writes. Out: the two states of a write, and the newest state of every object.
//! Guarantees: recording copies no object, it shares the bytes of the storage; at most
//! [`VERSIONS_MAX`] writes and [`BYTES_MAX`] bytes are kept, the oldest are forgotten first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bellerophon::ObjectKey;
use bytes::Bytes;
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

/// One accepted write.
pub struct ObjectVersion {
    /// The kind: `Pod`, `Deployment.apps`.
    pub kind: Arc<str>,
    /// The object.
    pub key: ObjectKey,
    /// The version that it replaced; `None` for a new object.
    pub previous_version: Option<u64>,
    /// Its version.
    pub version: u64,
    /// The object as JSON; for a deletion its last state.
    pub object: Bytes,
    /// The object was removed.
    pub is_deletion: bool,
}

/// A write with what is derived from it.
pub(crate) struct LoggedVersion {
    pub(crate) write: ObjectVersion,
    /// The object before; `None` for a new object, and if it was forgotten.
    before: Option<Bytes>,
    /// Computed for the first reader and shared by all.
    summary: OnceLock<Summary>,
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
            let summarized = secret::summarized(&write.kind, self.before.as_deref(), &write.object);
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
            Summary {
                changes,
                more,
                digest,
            }
        })
    }

    /// The object before and after the write, without values of Secrets.
    pub(crate) fn states(&self) -> (Option<Visible>, Visible) {
        secret::visible_pair(&self.write.kind, self.before.as_deref(), &self.write.object)
    }

    /// Whether the state before the write is known, or there was none.
    pub(crate) fn has_before(&self) -> bool {
        self.before.is_some() || self.write.previous_version.is_none()
    }

    fn bytes(&self) -> usize {
        self.write.object.len() + self.before.as_ref().map_or(0, Bytes::len)
    }
}

/// A bounded log of accepted writes. Clones share one log.
#[derive(Clone, Default)]
pub struct ObjectLog(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// By version, which is unique in a cluster.
    versions: BTreeMap<u64, Arc<LoggedVersion>>,
    /// The bytes of `versions`.
    bytes: usize,
    /// The newest write of each object that exists.
    newest: HashMap<(Arc<str>, ObjectKey), Arc<LoggedVersion>>,
    /// The kind of each resource, by group and plural name.
    kinds: HashMap<Arc<str>, Arc<str>>,
}

impl ObjectLog {
    /// Adds a write.
    pub fn add(&self, write: ObjectVersion) {
        let mut log = self.lock();
        let object = (write.kind.clone(), write.key.clone());
        let before = write.previous_version.and_then(|previous| {
            let newest = log.newest.get(&object);
            let found = newest.filter(|newest| newest.write.version == previous);
            let found = found.or_else(|| log.versions.get(&previous));
            found.map(|found| found.write.object.clone())
        });
        let logged = Arc::new(LoggedVersion {
            write,
            before,
            summary: OnceLock::new(),
        });
        log.add(object, logged);
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
        self.lock().versions.get(&version).cloned()
    }

    /// The oldest version that is kept.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.lock().versions.keys().next().copied()
    }

    /// The newest write of every object that exists, in the order of their versions.
    pub(crate) fn existing(&self) -> Vec<Arc<LoggedVersion>> {
        let mut existing: Vec<_> = self.lock().newest.values().cloned().collect();
        existing.sort_by_key(|logged| logged.write.version);
        existing
    }

    /// The newest write of an object that exists.
    pub(crate) fn newest(&self, kind: &str, key: &ObjectKey) -> Option<Arc<LoggedVersion>> {
        let object = (Arc::from(kind), key.clone());
        self.lock().newest.get(&object).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn add(&mut self, object: (Arc<str>, ObjectKey), logged: Arc<LoggedVersion>) {
        let version = logged.write.version;
        // Writes of two threads may arrive in another order than that of their versions.
        let is_newest = self
            .newest
            .get(&object)
            .is_none_or(|newest| newest.write.version < version);
        if is_newest && logged.write.is_deletion {
            self.newest.remove(&object);
        } else if is_newest {
            self.newest.insert(object, logged.clone());
        }
        self.bytes += logged.bytes();
        self.versions.insert(version, logged);
        while self.versions.len() > VERSIONS_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.versions.pop_first() else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
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

impl fmt::Debug for ObjectVersion {
    /// Without the object, which may be a Secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.kind, self.key, self.version)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(name: &str, versions: (Option<u64>, u64), replicas: u32) -> ObjectVersion {
        let object = json!({ "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": { "name": name, "resourceVersion": versions.1.to_string() },
            "spec": { "replicas": replicas } });
        ObjectVersion {
            kind: "Deployment.apps".into(),
            key: ObjectKey::namespaced("default", name),
            previous_version: versions.0,
            version: versions.1,
            object: object.to_string().into(),
            is_deletion: false,
        }
    }

    #[test]
    fn summary_has_changes_without_bookkeeping() {
        let log = ObjectLog::default();
        log.add(version("web", (None, 1), 2));
        log.add(version("web", (Some(1), 2), 4));
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
        log.add(version("web", (Some(2), 3), 3));
        log.add(version("web", (Some(1), 2), 2));
        assert_eq!(log.existing()[0].write.version, 3);
        assert!(!log.get(3).unwrap().has_before());
        log.add(ObjectVersion {
            is_deletion: true,
            ..version("web", (Some(3), 4), 3)
        });
        assert!(log.existing().is_empty());
        assert_eq!(log.oldest(), Some(2));
    }

    #[test]
    fn kind_of_a_resource_has_its_group() {
        let log = ObjectLog::default();
        let object = version("web", (None, 1), 1).object;
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
