//! Versions of objects: what each accepted write replaced and left.
//!
//! In: accepted writes with the states of their objects. Out: the two states of a write, and the kind
//! of each resource.
//! Guarantees: recording copies no object, it shares the bytes of the storage; at most
//! [`VERSIONS_MAX`] writes and [`BYTES_MAX`] bytes are kept, the oldest are forgotten first.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bellerophon::trace::AcceptedWrite;
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

/// An accepted write with the states of its object.
pub(crate) struct LoggedVersion {
    pub(crate) write: Arc<AcceptedWrite>,
    /// The object as JSON; for a deletion its last state.
    object: Bytes,
    /// The object before; `None` for a new object.
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
            let kind = &write.attributes.kind;
            let summarized = secret::summarized(kind, self.before.as_deref(), &self.object);
            let digest = Digest::of(kind, &summarized.after);
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
        let kind = &self.write.attributes.kind;
        secret::visible_pair(kind, self.before.as_deref(), &self.object)
    }

    /// Whether the state before the write is known, or there was none.
    pub(crate) fn has_before(&self) -> bool {
        self.before.is_some() || self.write.previous_version.is_none()
    }
}

/// A bounded log of accepted writes. Clones share one log.
#[derive(Clone, Default)]
pub struct ObjectLog(Arc<Mutex<Log>>);

struct Log {
    /// In the order of their versions, which are unique in a cluster.
    versions: VecDeque<Logged>,
    /// The bytes of `versions`.
    bytes: usize,
    /// The kind of each resource, by group and plural name.
    kinds: HashMap<Arc<str>, Arc<str>>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            // It never grows, so no write copies the others. Memory is used when it is written.
            versions: VecDeque::with_capacity(VERSIONS_MAX),
            bytes: 0,
            kinds: HashMap::new(),
        }
    }
}

/// A write in the log.
enum Logged {
    /// Not read yet, as most writes of a server under load.
    Unread {
        write: Arc<AcceptedWrite>,
        object: Bytes,
        before: Option<Bytes>,
    },
    Read(Arc<LoggedVersion>),
}

impl Logged {
    fn version(&self) -> u64 {
        match self {
            Self::Unread { write, .. } => write.resource_version,
            Self::Read(logged) => logged.write.resource_version,
        }
    }

    /// The bytes of both states.
    fn bytes(&self) -> usize {
        let (object, before) = match self {
            Self::Unread { object, before, .. } => (object, before),
            Self::Read(logged) => (&logged.object, &logged.before),
        };
        object.len() + before.as_ref().map_or(0, Bytes::len)
    }

    /// The write for its readers, who share it.
    fn read(&mut self) -> Arc<LoggedVersion> {
        let logged = match self {
            Self::Read(logged) => return logged.clone(),
            Self::Unread {
                write,
                object,
                before,
            } => LoggedVersion {
                write: write.clone(),
                object: object.clone(),
                before: before.clone(),
                summary: OnceLock::new(),
            },
        };
        let logged = Arc::new(logged);
        *self = Self::Read(logged.clone());
        logged
    }
}

impl ObjectLog {
    /// Adds a write. The object and the one before it are JSON; for a deletion the object is its
    /// last state.
    pub fn add(&self, write: Arc<AcceptedWrite>, object: Bytes, before: Option<Bytes>) {
        self.lock().add(Logged::Unread {
            write,
            object,
            before,
        });
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

    /// The resources of a kind. There may be several: a CustomResourceDefinition can be replaced.
    pub(crate) fn resources_of(&self, kind: &str) -> Vec<Arc<str>> {
        let log = self.lock();
        let resources = log.kinds.iter().filter(|(_, known)| ***known == *kind);
        resources.map(|(resource, _)| resource.clone()).collect()
    }

    /// A write by its version; `None` if it is unknown or forgotten.
    pub(crate) fn get(&self, version: u64) -> Option<Arc<LoggedVersion>> {
        let mut log = self.lock();
        let at = log.position(version).ok()?;
        Some(log.versions.get_mut(at)?.read())
    }

    /// The oldest version that is kept.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.lock().versions.front().map(Logged::version)
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn add(&mut self, logged: Logged) {
        let version = logged.version();
        let bytes = logged.bytes();
        while self.versions.len() == VERSIONS_MAX || self.bytes + bytes > BYTES_MAX {
            let Some(oldest) = self.versions.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        self.bytes += bytes;
        let is_last = |last: &Logged| last.version() < version;
        if self.versions.back().is_none_or(is_last) {
            self.versions.push_back(logged);
        } else {
            // Writes of two threads may arrive in another order than that of their versions.
            let at = self.position(version).unwrap_or_else(|at| at);
            self.versions.insert(at, logged);
        }
    }

    fn position(&self, version: u64) -> Result<usize, usize> {
        self.versions
            .binary_search_by_key(&version, Logged::version)
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
    use bellerophon::ObjectKey;
    use bellerophon::trace::WriteAttributes;
    use serde_json::json;

    use super::*;

    type Versions = (Option<u64>, u64);

    fn object(name: &str, version: u64, replicas: u32) -> Bytes {
        let object = json!({ "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": { "name": name, "resourceVersion": version.to_string() },
            "spec": { "replicas": replicas } });
        object.to_string().into()
    }

    fn write(name: &str, versions: Versions) -> Arc<AcceptedWrite> {
        let attributes = WriteAttributes {
            user: "admin".into(),
            manager: "kubectl".into(),
            verb: "update",
            subresource: "".into(),
            kind: "Deployment.apps".into(),
            is_in_process: false,
        };
        Arc::new(AcceptedWrite {
            attributes: attributes.into(),
            key: ObjectKey::namespaced("default", name),
            previous_version: versions.0,
            resource_version: versions.1,
            is_deletion: false,
        })
    }

    #[test]
    fn summary_has_changes_without_bookkeeping() {
        let log = ObjectLog::default();
        let states = [object("web", 1, 2), object("web", 2, 4)];
        log.add(write("web", (None, 1)), states[0].clone(), None);
        log.add(
            write("web", (Some(1), 2)),
            states[1].clone(),
            Some(states[0].clone()),
        );
        let first = log.get(1).unwrap();
        assert!(first.summary().changes.is_empty(), "all of it is new");
        let second = log.get(2).unwrap();
        let changes = &second.summary().changes;
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!(changes[0].path, "spec.replicas");
        assert_eq!(changes[0].new, Some(json!(4)));
    }

    #[test]
    fn write_that_arrives_late_is_before_newer_ones() {
        let log = ObjectLog::default();
        let states = [2, 3, 4].map(|version| object("web", version, version as u32));
        log.add(
            write("web", (Some(3), 4)),
            states[2].clone(),
            Some(states[1].clone()),
        );
        log.add(write("web", (Some(1), 2)), states[0].clone(), None);
        log.add(
            write("web", (Some(2), 3)),
            states[1].clone(),
            Some(states[0].clone()),
        );
        assert_eq!(log.oldest(), Some(2));
        assert!(!log.get(2).unwrap().has_before());
        for version in [2, 3, 4] {
            let logged = log.get(version).unwrap();
            assert_eq!(logged.write.resource_version, version);
            let (_, after) = logged.states();
            assert_eq!(after.value()["spec"]["replicas"], version);
        }
        assert!(log.get(3).unwrap().has_before());
        assert!(log.get(5).is_none());
    }

    #[test]
    fn readers_share_a_version() {
        let log = ObjectLog::default();
        log.add(write("web", (None, 1)), object("web", 1, 2), None);
        let readers = [log.get(1).unwrap(), log.get(1).unwrap()];
        assert!(Arc::ptr_eq(&readers[0], &readers[1]));
    }

    #[test]
    fn kind_of_a_resource_has_its_group() {
        let log = ObjectLog::default();
        let object = object("web", 1, 1);
        assert_eq!(
            &*log.kind_of(&"apps/deployments".into(), &object),
            "Deployment.apps"
        );
        assert_eq!(
            &*log.kind_of(&"apps/deployments".into(), b""),
            "Deployment.apps",
            "the first object decides"
        );
        assert_eq!(
            log.resources_of("Deployment.apps"),
            ["apps/deployments".into()]
        );
        assert!(log.resources_of("Deployment").is_empty());
    }
}
