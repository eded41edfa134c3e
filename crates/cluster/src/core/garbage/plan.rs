//! Plan: what becomes of an object, given what its owners turned out to be.
//!
//! In: the object as it is now, and a verdict on each of its owners. Out: one action.
//! Holds: an object with an owner that is there and stays is never deleted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PropagationPolicy;

use super::graph::{FOREGROUND, ORPHAN};

/// What an owner turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is there, and stays.
    Solid,
    /// It does not exist.
    Dangling,
    /// It is there, and goes as soon as what it owns is gone.
    Waiting,
}

/// What becomes of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// It stays as it is.
    Keep,
    /// It stays with these owners only.
    KeepWith(Vec<OwnerReference>),
    /// It goes. In a circle of waiting objects its references first stop blocking, or none could ever go.
    Delete {
        propagation: PropagationPolicy,
        unblocked: Option<Vec<OwnerReference>>,
    },
}

/// What depends on the object itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Below {
    /// Something does.
    pub(super) has_dependents: bool,
    /// Something does that waits for its own dependents, which may include the object.
    pub(super) dependent_waits: bool,
}

/// What to do about an object whose owners are judged, in the order of its references.
pub(super) fn plan(object: &ObjectMeta, verdicts: &[Verdict], below: Below) -> Action {
    let owners = object.owner_references.as_deref().unwrap_or_default();
    let is = |verdict: Verdict| verdicts.contains(&verdict);
    if owners.is_empty() || verdicts.iter().all(|verdict| *verdict == Verdict::Solid) {
        return Action::Keep;
    }
    if is(Verdict::Solid) {
        // Those who wait must be named no longer, or they would wait for an object that stays.
        let solid = owners
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| **verdict == Verdict::Solid);
        return Action::KeepWith(solid.map(|(owner, _)| owner.clone()).collect());
    }
    if is(Verdict::Waiting) && below.has_dependents {
        let unblocked = below
            .dependent_waits
            .then(|| owners.iter().cloned().map(unblock).collect());
        return Action::Delete {
            propagation: PropagationPolicy::Foreground,
            unblocked,
        };
    }
    let has = |name: &str| {
        object
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == name)
    };
    let propagation = match () {
        () if has(ORPHAN) => PropagationPolicy::Orphan,
        () if has(FOREGROUND) => PropagationPolicy::Foreground,
        () => PropagationPolicy::Background,
    };
    Action::Delete {
        propagation,
        unblocked: None,
    }
}

fn unblock(owner: OwnerReference) -> OwnerReference {
    OwnerReference {
        block_owner_deletion: owner.block_owner_deletion.map(|_| false),
        ..owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with an owner per verdict: `s`olid, `d`angling, `w`aiting.
    fn planned(verdicts: &str, finalizers: &[&str], below: Below) -> String {
        let owner = |uid: char| OwnerReference {
            uid: uid.into(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        let object = ObjectMeta {
            owner_references: Some(verdicts.chars().map(owner).collect()),
            finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
            ..ObjectMeta::default()
        };
        let verdict = |c| match c {
            's' => Verdict::Solid,
            'd' => Verdict::Dangling,
            _ => Verdict::Waiting,
        };
        let uids = |owners: &[OwnerReference]| {
            owners
                .iter()
                .map(|owner| owner.uid.as_str())
                .collect::<String>()
        };
        match plan(
            &object,
            &verdicts.chars().map(verdict).collect::<Vec<_>>(),
            below,
        ) {
            Action::Keep => "keep".into(),
            Action::KeepWith(owners) => format!("keep with {}", uids(&owners)),
            Action::Delete {
                propagation,
                unblocked: None,
            } => format!("delete {propagation:?}"),
            Action::Delete {
                propagation,
                unblocked: Some(owners),
            } => {
                assert!(
                    owners
                        .iter()
                        .all(|owner| owner.block_owner_deletion == Some(false))
                );
                format!("unblock {}, delete {propagation:?}", uids(&owners))
            }
        }
    }

    #[test]
    fn object_goes_with_its_last_owner() {
        let none = Below::default();
        let some = Below {
            has_dependents: true,
            dependent_waits: false,
        };
        let circle = Below {
            has_dependents: true,
            dependent_waits: true,
        };
        let cases: &[(&str, &[&str], Below, &str)] = &[
            ("", &[], none, "keep"),
            ("s", &[], none, "keep"),
            ("ss", &[], some, "keep"),
            ("d", &[], none, "delete Background"),
            ("dd", &[], some, "delete Background"),
            ("d", &[ORPHAN], some, "delete Orphan"),
            ("d", &[FOREGROUND], some, "delete Foreground"),
            ("sd", &[], none, "keep with s"),
            ("sw", &[], none, "keep with s"),
            ("dsw", &[], some, "keep with s"),
            ("w", &[], none, "delete Background"),
            ("w", &[], some, "delete Foreground"),
            ("wd", &[], some, "delete Foreground"),
            ("w", &[], circle, "unblock w, delete Foreground"),
            ("d", &[], circle, "delete Background"),
        ];
        for (verdicts, finalizers, below, wanted) in cases {
            assert_eq!(
                planned(verdicts, finalizers, *below),
                *wanted,
                "{verdicts} {finalizers:?} {below:?}"
            );
        }
    }
}
