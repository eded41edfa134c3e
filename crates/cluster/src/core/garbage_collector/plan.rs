//! Plan: whether an object is deleted, given the state of each of its owners.
//!
//! Input: the live object and the state of its owners. Output: one action.
//! Guarantees: an object with a solid owner is never deleted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PropagationPolicy;

use super::graph::{Dependents, FOREGROUND, ORPHAN};

/// State of an owner, as in classifyReferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It exists and does not wait for its dependents to be deleted.
    Solid,
    /// It does not exist.
    Dangling,
    /// It exists and is deleted in the foreground, once its dependents are gone.
    WaitingForDependentsDeletion,
}

/// What to do with an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Nothing.
    Keep,
    /// Set these owner references, which leaves out dangling and waiting owners.
    SetOwnerReferences(Vec<OwnerReference>),
    /// Delete it.
    Delete {
        propagation: PropagationPolicy,
        /// Owner references to set first, with `blockOwnerDeletion: false`. Otherwise the objects
        /// of a cycle of foreground deletions would block each other forever.
        unblocked: Option<Vec<OwnerReference>>,
    },
}

/// The action for an object. `owner_states` are in the order of its owner references.
///
/// Mirrors attemptToDeleteItem.
pub(super) fn plan(
    object: &ObjectMeta,
    owner_states: &[OwnerState],
    dependents: Dependents,
) -> Action {
    let owners = object.owner_references.as_deref().unwrap_or_default();
    let any_owner = |state: OwnerState| owner_states.contains(&state);
    if owners.is_empty() || owner_states.iter().all(|state| *state == OwnerState::Solid) {
        return Action::Keep;
    }
    if any_owner(OwnerState::Solid) {
        // A waiting owner is removed too: it would wait for an object that is not deleted.
        let solid = owners
            .iter()
            .zip(owner_states)
            .filter(|(_, state)| **state == OwnerState::Solid);
        return Action::SetOwnerReferences(solid.map(|(owner, _)| owner.clone()).collect());
    }
    if any_owner(OwnerState::WaitingForDependentsDeletion) && dependents.exist {
        // The foreground deletion of the owner extends to the dependents of the object.
        let unblocked = dependents
            .deleting_dependents
            .then(|| owners.iter().cloned().map(unblock).collect());
        return Action::Delete {
            propagation: PropagationPolicy::Foreground,
            unblocked,
        };
    }
    let has_finalizer = |name: &str| {
        object
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == name)
    };
    // An explicit finalizer of the object takes precedence over the default policy.
    let propagation = if has_finalizer(ORPHAN) {
        PropagationPolicy::Orphan
    } else if has_finalizer(FOREGROUND) {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
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

    /// The action for an object with one owner per letter: `s`olid, `d`angling, `w`aiting.
    fn planned(owner_states: &str, finalizers: &[&str], dependents: Dependents) -> String {
        let owner = |uid: char| OwnerReference {
            uid: uid.into(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        let object = ObjectMeta {
            owner_references: Some(owner_states.chars().map(owner).collect()),
            finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
            ..ObjectMeta::default()
        };
        let state = |c| match c {
            's' => OwnerState::Solid,
            'd' => OwnerState::Dangling,
            _ => OwnerState::WaitingForDependentsDeletion,
        };
        let uids = |owners: &[OwnerReference]| {
            owners
                .iter()
                .map(|owner| owner.uid.as_str())
                .collect::<String>()
        };
        match plan(
            &object,
            &owner_states.chars().map(state).collect::<Vec<_>>(),
            dependents,
        ) {
            Action::Keep => "keep".into(),
            Action::SetOwnerReferences(owners) => format!("set owners {}", uids(&owners)),
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
    fn object_is_deleted_with_its_last_owner() {
        let no_dependents = Dependents::default();
        let with_dependents = Dependents {
            exist: true,
            deleting_dependents: false,
        };
        let cycle = Dependents {
            exist: true,
            deleting_dependents: true,
        };
        let cases: &[(&str, &[&str], Dependents, &str)] = &[
            ("", &[], no_dependents, "keep"),
            ("s", &[], no_dependents, "keep"),
            ("ss", &[], with_dependents, "keep"),
            ("d", &[], no_dependents, "delete Background"),
            ("dd", &[], with_dependents, "delete Background"),
            ("d", &[ORPHAN], with_dependents, "delete Orphan"),
            ("d", &[FOREGROUND], with_dependents, "delete Foreground"),
            ("sd", &[], no_dependents, "set owners s"),
            ("sw", &[], no_dependents, "set owners s"),
            ("dsw", &[], with_dependents, "set owners s"),
            ("w", &[], no_dependents, "delete Background"),
            ("w", &[], with_dependents, "delete Foreground"),
            ("wd", &[], with_dependents, "delete Foreground"),
            ("w", &[], cycle, "unblock w, delete Foreground"),
            ("d", &[], cycle, "delete Background"),
        ];
        for (owner_states, finalizers, dependents, expected) in cases {
            assert_eq!(
                planned(owner_states, finalizers, *dependents),
                *expected,
                "{owner_states} {finalizers:?} {dependents:?}"
            );
        }
    }
}
