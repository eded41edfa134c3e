//! One copy: what it holds, how it is marked, and what is to be done about what is in its place.
//!
//! Holds: a secret without our mark is somebody else's; a digest is salted with the owner's uid and kept only on the copy,
//! which nobody can read who may not read the secret itself.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest as _, Sha256};

use crate::crd::ConflictPolicy;

/// The label of a copy: the uid of the SecSynch that made it.
pub const OWNER_UID: &str = "secsynch.tutorial.study.dev/owner-uid";
/// The annotation of a copy: `namespace/name` of its source.
pub(crate) const SOURCE: &str = "secsynch.tutorial.study.dev/source";
/// The annotation of a copy: a salted digest of what it should hold.
pub(crate) const DIGEST: &str = "secsynch.tutorial.study.dev/digest";

/// Types of secrets that are credentials of the cluster itself, and are never copied.
const NEVER: [&str; 2] = [
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];

/// What a source gives its copies. It never shows what it holds.
pub(crate) struct Content {
    data: Option<BTreeMap<String, ByteString>>,
    type_: Option<String>,
    immutable: Option<bool>,
    pub(crate) digest: String,
}

impl Content {
    /// What a secret holds, for copies of a SecSynch. `None` for types that are never copied.
    pub(crate) fn of(secret: Secret, owner_uid: &str) -> Option<Self> {
        let digest = digest(&secret, owner_uid);
        let Secret {
            data,
            type_,
            immutable,
            ..
        } = secret;
        let copied = !type_.as_deref().is_some_and(|type_| NEVER.contains(&type_));
        copied.then_some(Self {
            data,
            type_,
            immutable,
            digest,
        })
    }

    /// The copy for a namespace; labels and annotations of others stay.
    pub(crate) fn copy(&self, mark: &Mark<'_>, metadata: ObjectMeta) -> Secret {
        let mut metadata = metadata;
        metadata.managed_fields = None;
        metadata
            .labels
            .get_or_insert_default()
            .insert(OWNER_UID.into(), mark.owner_uid.into());
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(SOURCE.into(), mark.source.into());
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

/// Whose copy of what.
pub(crate) struct Mark<'a> {
    pub(crate) owner_uid: &'a str,
    pub(crate) source: &'a str,
}

/// A digest of what a secret holds and is.
pub(crate) fn digest(secret: &Secret, owner_uid: &str) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        // Lengths keep the parts apart.
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

/// What is to be done where a copy should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is there.
    Create,
    /// It is to become the copy it is not.
    Replace,
    /// It says it is the right copy; look whether it is.
    Verify,
    /// It is the right copy.
    Keep,
    /// Somebody else's secret stays, and that is fine.
    Skip,
    /// Somebody else's secret stays, and that is a failure.
    Conflict,
    /// Another SecSynch's copy stays, and that is a failure.
    Rival,
}

/// Decides from the metadata of what is there. `verified` is the version whose content was last seen to be right.
pub(crate) fn decide(
    there: Option<&ObjectMeta>,
    owner_uid: &str,
    digest: &str,
    policy: ConflictPolicy,
    verified: Option<&str>,
) -> Step {
    let Some(there) = there else {
        return Step::Create;
    };
    let note = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned()
    };
    match (note(&there.labels, OWNER_UID), policy) {
        (Some(uid), _) if uid == owner_uid => {
            match note(&there.annotations, DIGEST).as_deref() == Some(digest) {
                false => Step::Replace,
                true if verified.is_some() && verified == there.resource_version.as_deref() => {
                    Step::Keep
                }
                true => Step::Verify,
            }
        }
        (Some(_), _) => Step::Rival,
        (None, ConflictPolicy::Fail) => Step::Conflict,
        (None, ConflictPolicy::Skip) => Step::Skip,
        (None, ConflictPolicy::Adopt) => Step::Replace,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(value: serde_json::Value) -> Secret {
        serde_json::from_value(value).expect("a secret")
    }

    #[test]
    fn digest_tells_contents_types_and_owners_apart() {
        let base = json!({"type": "Opaque", "data": {"a": "MQ==", "b": "Mg=="}});
        let of = |value: &serde_json::Value| digest(&secret(value.clone()), "u1");
        for other in [
            json!({"type": "Opaque", "data": {"a": "MQ=="}}),
            json!({"type": "Opaque", "data": {"a": "MQ==", "b": "Mw=="}}),
            json!({"type": "Opaque", "data": {"a": "", "b": "MTI="}}),
            json!({"type": "other", "data": {"a": "MQ==", "b": "Mg=="}}),
            json!({"type": "Opaque", "immutable": true, "data": {"a": "MQ==", "b": "Mg=="}}),
        ] {
            assert_ne!(of(&base), of(&other), "{other}");
        }
        assert_eq!(
            of(&base),
            of(&json!({"data": {"b": "Mg==", "a": "MQ=="}})),
            "order and default type do not count"
        );
        assert_ne!(
            of(&base),
            digest(&secret(base.clone()), "u2"),
            "equal secrets of different owners look different"
        );
    }

    #[test]
    fn credentials_of_the_cluster_are_never_copied() {
        for (type_, copied) in [
            ("Opaque", true),
            ("kubernetes.io/tls", true),
            (NEVER[0], false),
            (NEVER[1], false),
        ] {
            assert_eq!(
                Content::of(secret(json!({"type": type_})), "u").is_some(),
                copied,
                "{type_}"
            );
        }
    }

    #[test]
    fn step_follows_from_what_is_there() {
        let ours = |digest: &str| json!({"resourceVersion": "5", "labels": {(OWNER_UID): "u1"}, "annotations": {(DIGEST): digest}});
        let foreign = json!({"resourceVersion": "5"});
        let rival = json!({"resourceVersion": "5", "labels": {(OWNER_UID): "u2"}});
        use ConflictPolicy::{Adopt, Fail, Skip};
        for (there, policy, verified, expected) in [
            (None, Fail, None, Step::Create),
            (Some(ours("d")), Fail, Some("5"), Step::Keep),
            (Some(ours("d")), Fail, Some("4"), Step::Verify),
            (Some(ours("d")), Fail, None, Step::Verify),
            (Some(ours("old")), Fail, Some("5"), Step::Replace),
            (Some(foreign.clone()), Fail, None, Step::Conflict),
            (Some(foreign.clone()), Skip, None, Step::Skip),
            (Some(foreign), Adopt, None, Step::Replace),
            (Some(rival.clone()), Adopt, None, Step::Rival),
            (Some(rival), Skip, None, Step::Rival),
        ] {
            let there: Option<ObjectMeta> =
                there.map(|value| serde_json::from_value(value).expect("metadata"));
            assert_eq!(
                decide(there.as_ref(), "u1", "d", policy, verified),
                expected,
                "{there:?} {policy:?}"
            );
        }
    }

    #[test]
    fn copy_keeps_what_others_wrote_on_it() {
        let content = Content::of(secret(json!({"type": "t", "data": {"a": "MQ=="}})), "u1")
            .expect("it is copied");
        let there = serde_json::from_value(
            json!({"name": "s", "namespace": "n", "uid": "x", "labels": {"team": "a"}}),
        )
        .expect("metadata");
        let copy = content.copy(
            &Mark {
                owner_uid: "u1",
                source: "src/s",
            },
            there,
        );
        let value = json!(copy);
        assert_eq!(
            value["metadata"]["labels"],
            json!({"team": "a", (OWNER_UID): "u1"})
        );
        assert_eq!(
            (
                &value["type"],
                &value["data"]["a"],
                &value["metadata"]["uid"]
            ),
            (&json!("t"), &json!("MQ=="), &json!("x"))
        );
    }
}
