//! The objects that exist now, as the storage of the API server has them.
//!
//! In: the objects of a resource, or of all. Out: their newest state, as JSON.
//! Guarantees: read when requested; values of Secrets are in no result.

use std::fmt;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bytes::Bytes;

use crate::digest::Digest;
use crate::filter::Filter;
use crate::object_log::ObjectLog;
use crate::secret::{self, Visible};

/// A stored object.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// The group and plural name of its resource: `apps/deployments`, `/pods`.
    pub resource: Arc<str>,
    /// Its key.
    pub key: ObjectKey,
    /// The version of its newest write.
    pub resource_version: u64,
    /// The object as JSON.
    pub object: Bytes,
}

/// Reads the objects that an API server stores.
pub trait StoredObjects: fmt::Debug + Send + Sync {
    /// All objects of all resources.
    fn list(&self) -> Vec<StoredObject>;

    /// An object of a resource.
    fn get(&self, resource: &Arc<str>, key: &ObjectKey) -> Option<StoredObject>;
}

/// An object as the tree shows it.
pub(crate) struct ExistingObject {
    pub(crate) kind: Arc<str>,
    pub(crate) key: ObjectKey,
    /// The version of its newest write.
    pub(crate) version: u64,
    pub(crate) digest: Digest,
}

/// The objects that pass a filter, in the order of their versions.
pub(crate) fn existing(
    stored: &dyn StoredObjects,
    log: &ObjectLog,
    filter: &Filter,
) -> Vec<ExistingObject> {
    let mut objects = stored.list();
    objects.sort_by_key(|object| object.resource_version);
    let existing = objects.into_iter().filter_map(|object| {
        let kind = log.kind_of(&object.resource, &object.object);
        filter.passes_object(&kind, &object.key).then(|| {
            let version = object.resource_version;
            // The log computes it once for all readers.
            let digest = match log.get(version) {
                Some(logged) => logged.summary().digest.clone(),
                None => digest(&kind, &object.object),
            };
            ExistingObject {
                kind,
                key: object.key,
                version,
                digest,
            }
        })
    });
    existing.collect()
}

/// The newest state of an object of a kind.
pub(crate) fn newest(
    stored: &dyn StoredObjects,
    log: &ObjectLog,
    kind: &str,
    key: &ObjectKey,
) -> Option<Visible> {
    let resources = log.resources_of(kind);
    let found = resources
        .iter()
        .find_map(|resource| stored.get(resource, key))?;
    let (_, visible) = secret::visible_pair(kind, None, &found.object);
    Some(visible)
}

fn digest(kind: &str, object: &[u8]) -> Digest {
    Digest::of(kind, &secret::summarized(kind, None, object).after)
}

#[cfg(test)]
mod tests {
    use bellerophon::trace::{AcceptedWrite, WriteAttributes};
    use serde_json::{Value, json};

    use super::*;
    use crate::line::Existing;

    #[derive(Debug)]
    struct Storage(Vec<StoredObject>);

    impl StoredObjects for Storage {
        fn list(&self) -> Vec<StoredObject> {
            self.0.clone()
        }

        fn get(&self, resource: &Arc<str>, key: &ObjectKey) -> Option<StoredObject> {
            let mut objects = self.0.iter();
            objects
                .find(|object| object.resource == *resource && object.key == *key)
                .cloned()
        }
    }

    fn stored(resource: &str, kind: &str, name: &str, resource_version: u64) -> StoredObject {
        let object = json!({ "kind": kind, "apiVersion": "v1", "data": { "password": "canary" },
            "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") } });
        StoredObject {
            resource: resource.into(),
            key: ObjectKey::namespaced("default", name),
            resource_version,
            object: object.to_string().into(),
        }
    }

    fn shown(storage: &Storage, log: &ObjectLog, filter: &Filter) -> Value {
        let objects = existing(storage, log, filter);
        let lines: Vec<_> = objects.iter().map(Existing::from).collect();
        serde_json::to_value(lines).unwrap()
    }

    #[test]
    fn existing_objects_are_in_the_order_of_their_versions() {
        let storage = Storage(vec![
            stored("/configmaps", "ConfigMap", "b", 7),
            stored("/configmaps", "ConfigMap", "a", 9),
            stored("/secrets", "Secret", "s", 4),
        ]);
        let log = ObjectLog::default();
        let all = shown(&storage, &log, &Filter::default());
        let names: Vec<_> = all.as_array().unwrap().iter().collect();
        let version = |object: &Value| object["version"].as_u64().unwrap();
        assert_eq!(
            names.iter().map(|one| version(one)).collect::<Vec<_>>(),
            [4, 7, 9]
        );
        assert_eq!(
            all[1]["object"],
            json!({ "namespace": "default", "name": "b" })
        );
        assert_eq!(all[1]["digest"]["uid"], "uid-b");
        let secrets = Filter {
            kinds: vec!["Secret".to_owned()],
            ..Filter::default()
        };
        let secrets = shown(&storage, &log, &secrets);
        assert_eq!(secrets.as_array().unwrap().len(), 1);
        assert!(!secrets.to_string().contains("canary"));
    }

    #[test]
    fn digest_is_the_same_with_and_without_a_logged_write() {
        let object = stored("/configmaps", "ConfigMap", "a", 9);
        let storage = Storage(vec![object.clone()]);
        let empty = ObjectLog::default();
        let log = ObjectLog::default();
        let attributes = WriteAttributes {
            user: "admin".into(),
            manager: "kubectl".into(),
            verb: "update",
            subresource: "".into(),
            kind: "ConfigMap".into(),
            is_in_process: false,
        };
        let write = AcceptedWrite {
            attributes: attributes.into(),
            key: object.key.clone(),
            previous_version: Some(8),
            resource_version: 9,
            is_deletion: false,
        };
        log.add(Arc::new(write), object.object.clone(), None);
        let all = Filter::default();
        assert_eq!(shown(&storage, &log, &all), shown(&storage, &empty, &all));
    }

    #[test]
    fn newest_object_of_a_kind_has_no_values_of_secrets() {
        let storage = Storage(vec![stored("/secrets", "Secret", "s", 4)]);
        let log = ObjectLog::default();
        let key = ObjectKey::namespaced("default", "s");
        assert!(
            newest(&storage, &log, "Secret", &key).is_none(),
            "never written"
        );
        log.kind_of(&"/secrets".into(), &storage.0[0].object);
        let found = newest(&storage, &log, "Secret", &key).unwrap();
        assert_eq!(found.value()["metadata"]["name"], "s");
        assert!(!found.value().to_string().contains("canary"));
        assert!(newest(&storage, &log, "ConfigMap", &key).is_none());
    }
}
