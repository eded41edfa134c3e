//! Owner references: which object another one belongs to.
//!
//! In: owner and child. Out: the child with a reference, or why that cannot be.
//! Holds: a reference never crosses namespaces, where the garbage collector would delete the child; a child has one controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use thiserror::Error;

use crate::ObjectKey;

/// Why an object cannot own another.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OwnerError {
    /// The owner is namespaced and the child is elsewhere.
    #[error(
        "{owner} cannot own {child}: an owner must be in the namespace of what it owns, or in none; use a finalizer and a label instead"
    )]
    CrossNamespace {
        /// The owner.
        owner: Box<ObjectKey>,
        /// The child.
        child: Box<ObjectKey>,
    },
    /// The child has another controller.
    #[error("{owner} cannot control {child}: it is controlled by {kind} {name} already")]
    AlreadyOwned {
        /// The owner.
        owner: Box<ObjectKey>,
        /// The child.
        child: Box<ObjectKey>,
        /// The kind of the present controller.
        kind: String,
        /// The name of the present controller.
        name: String,
    },
    /// The owner was never stored.
    #[error("{0} cannot own anything: it has no uid, so it was not read from the server")]
    NoUid(Box<ObjectKey>),
}

/// Makes `owner` the controller of `child`: it is reconciled when the child changes, and the child goes when it goes.
///
/// # Errors
/// The reference would cross namespaces, or the child has another controller.
pub fn set_controller_reference<K, C>(owner: &K, child: &mut C) -> Result<(), OwnerError>
where
    K: Resource<DynamicType = ()>,
    C: Resource,
{
    set_controller_reference_of_kind(&(), owner, child)
}

/// As [`set_controller_reference`], for an owner of a kind known only at run time.
///
/// # Errors
/// The reference would cross namespaces, or the child has another controller.
pub fn set_controller_reference_of_kind<K: Resource, C: Resource>(
    kind: &K::DynamicType,
    owner: &K,
    child: &mut C,
) -> Result<(), OwnerError> {
    let reference = reference(kind, owner, child, Some(true))?;
    if let Some(other) = controller_of(child).filter(|other| other.uid != reference.uid) {
        let (owner, child) = (
            Box::new(ObjectKey::of(owner)),
            Box::new(ObjectKey::of(child)),
        );
        return Err(OwnerError::AlreadyOwned {
            owner,
            child,
            kind: other.kind.clone(),
            name: other.name.clone(),
        });
    }
    upsert(child, reference);
    Ok(())
}

/// Makes `owner` one of the owners of `child`: the child goes when the last of them goes.
///
/// # Errors
/// The reference would cross namespaces.
pub fn set_owner_reference<K, C>(owner: &K, child: &mut C) -> Result<(), OwnerError>
where
    K: Resource<DynamicType = ()>,
    C: Resource,
{
    let reference = reference(&(), owner, child, None)?;
    upsert(child, reference);
    Ok(())
}

/// The reference to what controls an object, if anything does.
pub fn controller_of<C: Resource>(child: &C) -> Option<&OwnerReference> {
    child
        .meta()
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

fn reference<K: Resource, C: Resource>(
    kind: &K::DynamicType,
    owner: &K,
    child: &C,
    controller: Option<bool>,
) -> Result<OwnerReference, OwnerError> {
    if owner.namespace().is_some() && owner.namespace() != child.namespace() {
        return Err(OwnerError::CrossNamespace {
            owner: Box::new(ObjectKey::of(owner)),
            child: Box::new(ObjectKey::of(child)),
        });
    }
    let uid = owner
        .uid()
        .ok_or_else(|| OwnerError::NoUid(Box::new(ObjectKey::of(owner))))?;
    Ok(OwnerReference {
        api_version: K::api_version(kind).into_owned(),
        kind: K::kind(kind).into_owned(),
        name: owner.name_any(),
        uid,
        controller,
        block_owner_deletion: controller,
    })
}

fn upsert<C: Resource>(child: &mut C, reference: OwnerReference) {
    let references = child.owner_references_mut();
    match references
        .iter_mut()
        .find(|known| known.uid == reference.uid)
    {
        Some(known) => *known = reference,
        None => references.push(reference),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};

    use super::*;

    fn named<K: Resource + Default>(namespace: &str, name: &str, uid: &str) -> K {
        let mut object = K::default();
        object.meta_mut().namespace = (!namespace.is_empty()).then(|| namespace.into());
        object.meta_mut().name = Some(name.into());
        object.meta_mut().uid = (!uid.is_empty()).then(|| uid.into());
        object
    }

    #[test]
    fn reference_never_crosses_namespaces() {
        let owner: ConfigMap = named("team-a", "owner", "u1");
        for (namespace, allowed) in [("team-a", true), ("team-b", false), ("", false)] {
            let mut child: Secret = named(namespace, "child", "");
            assert_eq!(
                set_owner_reference(&owner, &mut child).is_ok(),
                allowed,
                "into {namespace:?}"
            );
            assert_eq!(
                set_controller_reference(&owner, &mut child).is_ok(),
                allowed,
                "into {namespace:?}"
            );
        }
        let node: Node = named("", "node", "u2");
        assert!(
            set_controller_reference(&node, &mut named::<Secret>("team-b", "child", "")).is_ok(),
            "cluster-scoped owners own anywhere"
        );
    }

    #[test]
    fn child_has_one_controller_and_each_owner_once() {
        let (one, two): (ConfigMap, ConfigMap) = (named("a", "one", "u1"), named("a", "two", "u2"));
        let mut child: Secret = named("a", "child", "");
        set_controller_reference(&one, &mut child).unwrap();
        set_controller_reference(&one, &mut child).unwrap();
        assert!(matches!(
            set_controller_reference(&two, &mut child),
            Err(OwnerError::AlreadyOwned { .. })
        ));
        set_owner_reference(&two, &mut child).unwrap();
        let owners: Vec<_> = child
            .owner_references()
            .iter()
            .map(|owner| (owner.name.as_str(), owner.controller))
            .collect();
        assert_eq!(owners, [("one", Some(true)), ("two", None)]);
        assert!(matches!(
            set_owner_reference(&named::<ConfigMap>("a", "new", ""), &mut child),
            Err(OwnerError::NoUid(_))
        ));
    }
}
