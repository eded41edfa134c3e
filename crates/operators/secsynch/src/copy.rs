//! One copy: its content, its ownership label, and the action for the Secret in its place.
//!
//! Guarantees: a Secret without the ownership label is not ours, and becomes ours only if its own
//! annotation accepts it; the digest is salted with the owner's UID and stored only on the copy,
//! which is readable only with access to the Secret itself.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest as _, Sha256};

use crate::{crd::ConflictPolicy, destinations::accepts};

/// The label of a copy: the UID of the SecSynch that owns it.
pub const OWNER_UID: &str = "secsynch.tutorial.study.dev/owner-uid";
/// The annotation of a copy: `namespace/name` of its source.
pub(crate) const SOURCE: &str = "secsynch.tutorial.study.dev/source";
/// The annotation of a copy: a salted digest of its desired content.
pub(crate) const DIGEST: &str = "secsynch.tutorial.study.dev/digest";

/// The annotation of a copy that was another Secret before. Such a copy is released, not deleted.
pub(crate) const ADOPTED: &str = "secsynch.tutorial.study.dev/adopted";

/// Secret types that hold credentials of the cluster itself. They are never copied.
const NEVER_COPIED: [&str; 2] = [
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];

/// The content of a source Secret. It implements neither `Debug` nor `Serialize`, so that values
/// are not logged.
pub(crate) struct SecretContent {
    data: Option<BTreeMap<String, ByteString>>,
    type_: Option<String>,
    immutable: Option<bool>,
    pub(crate) digest: String,
}

impl SecretContent {
    /// The content of a Secret for the copies of a SecSynch. `None` for types that are never
    /// copied.
    pub(crate) fn new(secret: Secret, owner_uid: &str) -> Option<Self> {
        let digest = digest(&secret, owner_uid);
        let Secret {
            data,
            type_,
            immutable,
            ..
        } = secret;
        if let Some(type_) = &type_
            && NEVER_COPIED.contains(&type_.as_str())
        {
            return None;
        }
        Some(Self {
            data,
            type_,
            immutable,
            digest,
        })
    }

    /// The copy with this metadata. Labels and annotations of other managers are kept.
    pub(crate) fn to_copy(&self, owner: &CopyOwner<'_>, mut metadata: ObjectMeta) -> Secret {
        // Absent managed fields make the server keep its own; those of a cached version could be
        // outdated.
        metadata.managed_fields = None;
        metadata
            .labels
            .get_or_insert_default()
            .insert(OWNER_UID.into(), owner.uid.into());
        let annotations = metadata.annotations.get_or_insert_default();
        let source = format!("{}/{}", owner.source_namespace, owner.source_name);
        annotations.insert(SOURCE.into(), source);
        annotations.insert(DIGEST.into(), self.digest.clone());
        Secret {
            metadata,
            data: self.data.clone(),
            type_: self.type_.clone(),
            immutable: self.immutable,
            string_data: None,
        }
    }
}

/// What marks a copy: its SecSynch and its source.
pub(crate) struct CopyOwner<'a> {
    /// The UID of the SecSynch.
    pub(crate) uid: &'a str,
    /// The namespace of the source.
    pub(crate) source_namespace: &'a str,
    /// The name of the source.
    pub(crate) source_name: &'a str,
}

/// Whether a copy was another Secret before.
pub(crate) fn is_adopted(metadata: &ObjectMeta) -> bool {
    value_of(&metadata.annotations, ADOPTED).is_some()
}

/// The metadata of a Secret that becomes a copy.
pub(crate) fn adopt(mut metadata: ObjectMeta) -> ObjectMeta {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(ADOPTED.into(), "true".into());
    metadata
}

/// The metadata of a copy that becomes an ordinary Secret.
pub(crate) fn release(mut metadata: ObjectMeta) -> ObjectMeta {
    if let Some(labels) = &mut metadata.labels {
        labels.remove(OWNER_UID);
    }
    if let Some(annotations) = &mut metadata.annotations {
        for annotation in [SOURCE, DIGEST, ADOPTED] {
            annotations.remove(annotation);
        }
    }
    metadata
}

/// A digest of a Secret's data, type and immutability.
pub(crate) fn digest(secret: &Secret, owner_uid: &str) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        // Length prefixes keep adjacent fields apart.
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    add(owner_uid.as_bytes());
    add(secret.type_.as_deref().unwrap_or("Opaque").as_bytes());
    add(&[u8::from(secret.immutable == Some(true))]);
    for (key, value) in secret.data.iter().flatten() {
        add(key.as_bytes());
        add(&value.0);
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What to do about the Secret in the place of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyAction {
    /// No Secret exists.
    Create,
    /// The Secret is to be replaced by the copy.
    Replace,
    /// Another Secret exists and is to be replaced by the copy.
    Adopt,
    /// An adopted Secret no longer accepts copies, and is to become an ordinary Secret.
    Release,
    /// The metadata is that of the desired copy; the content has to be read and compared.
    Verify,
    /// The copy is up to date.
    UpToDate,
    /// Another Secret exists and is left unchanged.
    Skip,
    /// Another Secret exists, which is a failure.
    Conflict,
    /// Another Secret exists and does not accept copies, which is a failure.
    NotAccepted,
    /// A copy of another SecSynch exists, which is a failure.
    OwnedByAnother,
}

/// Decides from the metadata of the current Secret. `verified` is the resource version whose
/// content was last compared and found equal.
pub(crate) fn plan_copy(
    current: Option<&ObjectMeta>,
    owner: &CopyOwner<'_>,
    digest: &str,
    policy: ConflictPolicy,
    verified: Option<&str>,
) -> CopyAction {
    let Some(current) = current else {
        return CopyAction::Create;
    };
    let is_accepted = accepts(current, owner.source_namespace);
    match (value_of(&current.labels, OWNER_UID), policy) {
        (Some(uid), _) if uid == owner.uid => {
            if is_adopted(current) && !is_accepted {
                CopyAction::Release
            } else if value_of(&current.annotations, DIGEST) != Some(digest) {
                CopyAction::Replace
            } else if verified.is_some() && verified == current.resource_version.as_deref() {
                CopyAction::UpToDate
            } else {
                // The annotation records what was written, not the current data: another client can
                // change the data and leave the digest. Each version is therefore compared once.
                CopyAction::Verify
            }
        }
        // Also with `Adopt`: two SecSynches of one destination would replace each other's copy
        // forever.
        (Some(_), _) => CopyAction::OwnedByAnother,
        (None, ConflictPolicy::Fail) => CopyAction::Conflict,
        (None, ConflictPolicy::Skip) => CopyAction::Skip,
        (None, ConflictPolicy::Adopt) if is_accepted => CopyAction::Adopt,
        (None, ConflictPolicy::Adopt) => CopyAction::NotAccepted,
    }
}

fn value_of<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    Some(map.as_ref()?.get(key)?.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::destinations::ACCEPT_FROM;

    const OWNER: CopyOwner<'_> = CopyOwner {
        uid: "u1",
        source_namespace: "src",
        source_name: "s",
    };

    fn secret(value: serde_json::Value) -> Secret {
        serde_json::from_value(value).expect("a Secret")
    }

    #[test]
    fn digest_depends_on_data_type_and_immutability() {
        let base = json!({"type": "Opaque", "data": {"a": "MQ==", "b": "Mg=="}});
        let digest = |value: &serde_json::Value| digest(&secret(value.clone()), "u1");
        for other in [
            json!({"type": "Opaque", "data": {"a": "MQ=="}}),
            json!({"type": "Opaque", "data": {"a": "MQ==", "b": "Mw=="}}),
            json!({"type": "Opaque", "data": {"a": "", "b": "MTI="}}),
            json!({"type": "other", "data": {"a": "MQ==", "b": "Mg=="}}),
            json!({"type": "Opaque", "immutable": true, "data": {"a": "MQ==", "b": "Mg=="}}),
        ] {
            assert_ne!(digest(&base), digest(&other), "{other}");
        }
        let reordered = json!({"data": {"b": "Mg==", "a": "MQ=="}});
        assert_eq!(
            digest(&base),
            digest(&reordered),
            "the order of keys and the default type do not matter"
        );
    }

    #[test]
    fn digest_is_salted_with_the_owner() {
        let value = json!({"data": {"a": "MQ=="}});
        let first = digest(&secret(value.clone()), "u1");
        let second = digest(&secret(value), "u2");
        assert_ne!(first, second);
    }

    #[test]
    fn credentials_of_the_cluster_are_never_copied() {
        for (type_, is_copied) in [
            ("Opaque", true),
            ("kubernetes.io/tls", true),
            (NEVER_COPIED[0], false),
            (NEVER_COPIED[1], false),
        ] {
            let content = SecretContent::new(secret(json!({"type": type_})), "u");
            assert_eq!(content.is_some(), is_copied, "{type_}");
        }
    }

    #[test]
    fn action_follows_from_owner_digest_and_policy() {
        use ConflictPolicy::{Adopt, Fail, Skip};

        let owned = |digest: &str| {
            json!({
                "resourceVersion": "5",
                "labels": {(OWNER_UID): "u1"},
                "annotations": {(DIGEST): digest},
            })
        };
        let foreign = json!({"resourceVersion": "5"});
        let accepting = |namespaces: &str| {
            let annotations = json!({(ACCEPT_FROM): namespaces});
            json!({"resourceVersion": "5", "annotations": annotations})
        };
        let adopted = |namespaces: &str| {
            json!({
                "resourceVersion": "5",
                "labels": {(OWNER_UID): "u1"},
                "annotations": {(DIGEST): "d", (ADOPTED): "true", (ACCEPT_FROM): namespaces},
            })
        };
        let other_owner = json!({"resourceVersion": "5", "labels": {(OWNER_UID): "u2"}});
        for (current, policy, verified, expected) in [
            (None, Fail, None, CopyAction::Create),
            (Some(owned("d")), Fail, Some("5"), CopyAction::UpToDate),
            (Some(owned("d")), Fail, Some("4"), CopyAction::Verify),
            (Some(owned("d")), Fail, None, CopyAction::Verify),
            (Some(owned("old")), Fail, Some("5"), CopyAction::Replace),
            (Some(foreign.clone()), Fail, None, CopyAction::Conflict),
            (Some(foreign.clone()), Skip, None, CopyAction::Skip),
            (Some(foreign), Adopt, None, CopyAction::NotAccepted),
            (
                Some(accepting("other")),
                Adopt,
                None,
                CopyAction::NotAccepted,
            ),
            (Some(accepting("src")), Adopt, None, CopyAction::Adopt),
            (Some(accepting("src")), Fail, None, CopyAction::Conflict),
            (Some(adopted("src")), Fail, Some("5"), CopyAction::UpToDate),
            (Some(adopted("")), Adopt, Some("5"), CopyAction::Release),
            (
                Some(other_owner.clone()),
                Adopt,
                None,
                CopyAction::OwnedByAnother,
            ),
            (Some(other_owner), Skip, None, CopyAction::OwnedByAnother),
        ] {
            let current: Option<ObjectMeta> =
                current.map(|value| serde_json::from_value(value).expect("metadata"));
            assert_eq!(
                plan_copy(current.as_ref(), &OWNER, "d", policy, verified),
                expected,
                "{current:?} {policy:?}"
            );
        }
    }

    #[test]
    fn copy_keeps_labels_of_other_managers() {
        let source = secret(json!({"type": "t", "data": {"a": "MQ=="}}));
        let content = SecretContent::new(source, "u1").expect("the type is copied");
        let current = json!({"name": "s", "namespace": "n", "uid": "x", "labels": {"team": "a"}});
        let current = serde_json::from_value(current).expect("metadata");
        let value = json!(content.to_copy(&OWNER, current));
        let labels = json!({"team": "a", (OWNER_UID): "u1"});
        assert_eq!(value["metadata"]["labels"], labels);
        assert_eq!(value["metadata"]["uid"], "x");
        assert_eq!(value["type"], "t");
        assert_eq!(value["data"]["a"], "MQ==");
    }

    #[test]
    fn released_copy_has_only_its_former_metadata() {
        let former = json!({
            "name": "s", "labels": {"team": "a"}, "annotations": {(ACCEPT_FROM): "src"},
        });
        let former: ObjectMeta = serde_json::from_value(former).expect("metadata");
        let content = SecretContent::new(secret(json!({})), "u1").expect("the type is copied");
        let copy = content.to_copy(&OWNER, adopt(former.clone()));
        assert!(is_adopted(&copy.metadata));
        assert_eq!(release(copy.metadata), former);
    }
}
