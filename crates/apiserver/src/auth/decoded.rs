//! Roles and bindings as objects, taken from their bytes once per version.
//! In: stored versions. Out: the objects in them, shared.
//! Holds: at most a fixed number are kept; when full, all are forgotten and taken from their bytes again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::Source;
use crate::{
    object::Object,
    store::{ObjectKey, Revision, Stored},
};

/// Far more than the roles and bindings of a usual cluster.
const KEPT_MAX: usize = 8192;

/// Decoded versions, so that authorization does not read the same JSON for every request.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The newest version asked for, by object.
    kept: Mutex<BTreeMap<(Source, ObjectKey), Version>>,
}

#[derive(Debug)]
struct Version {
    revision: Revision,
    object: Arc<Object>,
}

impl Decoded {
    /// The object in a stored version. Only policy is kept: the rest is read rarely, and secrets not twice in memory.
    pub(crate) fn of(&self, source: Source, stored: &Stored) -> Arc<Object> {
        if !source.is_policy() {
            return Arc::new(stored.encoded.decode());
        }
        let place = (source, stored.key.clone());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = kept.get(&place).filter(|v| v.revision == stored.revision) {
            return version.object.clone();
        }
        let object = Arc::new(stored.encoded.decode());
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(
            place,
            Version {
                revision: stored.revision,
                object: object.clone(),
            },
        );
        object
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Facets;

    fn stored(name: &str, revision: Revision) -> Stored {
        let map = json!({"kind": "Role", "metadata": {"name": name, "generation": revision}})
            .as_object()
            .cloned()
            .expect("an object");
        let object = Object::from_map(map).expect("good metadata");
        let (key, encoded) = (ObjectKey::new("ns", name), object.draft().at(revision));
        Stored {
            key,
            revision,
            encoded,
            facets: Facets::default(),
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
        assert_eq!(decoded.kept.lock().expect("not poisoned").len(), 2);
    }

    #[test]
    fn secrets_are_not_kept_and_the_rest_is_bounded() {
        let decoded = Decoded::default();
        decoded.of(Source::Secret, &stored("s", 1));
        assert_eq!(decoded.kept.lock().expect("not poisoned").len(), 0);
        for n in 0..=KEPT_MAX as u64 {
            decoded.of(Source::Role, &stored(&format!("r{n}"), n));
        }
        assert_eq!(decoded.kept.lock().expect("not poisoned").len(), 1);
    }
}
