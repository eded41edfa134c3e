//! Owner references, with the function names of controller-runtime's `controllerutil`.
//!
//! In: owner and child. Out: the child with an owner reference, or an error.
//! Guarantees: a reference never crosses namespaces, where the garbage collector would delete the
//! child; a child has at most one controller.

use bellerophon_kinds::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::TypeMeta;
use kube::{Resource, ResourceExt};
use thiserror::Error;

use crate::ObjectKey;

/// Why an object cannot own another.
///
/// ```
/// use bellerophon::owner::{OwnerError, set_owner_reference};
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
///
/// let unsaved = ConfigMap::default();
/// let error = set_owner_reference(&unsaved, &mut Secret::default()).unwrap_err();
/// assert!(matches!(error, OwnerError::NoUid(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OwnerError {
    /// The owner is namespaced and the child is in another namespace or cluster-scoped.
    #[error(
        "{owner} cannot own {child}: an owner must be in the namespace of what it owns, or in \
         none; use a finalizer and a label instead"
    )]
    CrossNamespace {
        /// The owner.
        owner: Box<ObjectKey>,
        /// The child.
        child: Box<ObjectKey>,
    },
    /// The child has another controller: controller-runtime's AlreadyOwnedError.
    #[error("{owner} cannot control {child}: it is controlled by {kind} {name} already")]
    AlreadyOwned {
        /// The owner.
        owner: Box<ObjectKey>,
        /// The child.
        child: Box<ObjectKey>,
        /// The kind of the current controller.
        kind: String,
        /// The name of the current controller.
        name: String,
    },
    /// The owner has no UID: it was not read from the server.
    #[error("{0} cannot own anything: it has no uid, so it was not read from the server")]
    NoUid(Box<ObjectKey>),
    /// The owner is a dynamic object without `apiVersion` and `kind`.
    #[error("{0} cannot own anything: it has no apiVersion and kind")]
    NoKind(Box<ObjectKey>),
}

/// The `apiVersion` and `kind` of an object: those of its type, or those a dynamic object carries.
pub(crate) fn types_of<K: Kind>(object: &K) -> Option<TypeMeta> {
    let codec = K::codec();
    match codec.resource() {
        Some(resource) => Some(TypeMeta {
            api_version: resource.api_version,
            kind: resource.kind,
        }),
        None => codec.types(object).cloned(),
    }
}

/// Makes `owner` the controller of `child`.
///
/// A controller that `owns` the child's kind reconciles the owner when the child changes; the
/// garbage collector deletes the child when the owner is deleted. Calling it again changes nothing.
///
/// ```
/// use bellerophon::owner::{controller_of, set_controller_reference};
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
///
/// # fn main() -> Result<(), bellerophon::owner::OwnerError> {
/// let mut owner = ConfigMap::default();
/// owner.metadata.name = Some("settings".into());
/// owner.metadata.uid = Some("6a7e0d5c".into());
/// let mut child = Secret::default();
/// set_controller_reference(&owner, &mut child)?;
/// assert_eq!(controller_of(&child).map(|owner| owner.kind.as_str()), Some("ConfigMap"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The reference would cross namespaces, the child has another controller, or the owner has no UID.
pub fn set_controller_reference<K: Kind, C: Resource>(
    owner: &K,
    child: &mut C,
) -> Result<(), OwnerError> {
    // Mirrors controllerutil.SetControllerReference.
    let reference = reference(owner, child, Some(true))?;
    if let Some(other) = controller_of(child).filter(|other| other.uid != reference.uid) {
        return Err(OwnerError::AlreadyOwned {
            owner: Box::new(ObjectKey::from_object(owner)),
            child: Box::new(ObjectKey::from_object(child)),
            kind: other.kind.clone(),
            name: other.name.clone(),
        });
    }
    upsert_reference(child, reference);
    Ok(())
}

/// Makes `owner` one of the owners of `child`: the garbage collector deletes the child when the
/// last owner is deleted. Calling it again changes nothing.
///
/// # Errors
/// The reference would cross namespaces, or the owner has no UID.
pub fn set_owner_reference<K: Kind, C: Resource>(
    owner: &K,
    child: &mut C,
) -> Result<(), OwnerError> {
    let reference = reference(owner, child, None)?;
    upsert_reference(child, reference);
    Ok(())
}

/// The owner reference of the controller of an object, if it has one.
pub fn controller_of<C: Resource>(child: &C) -> Option<&OwnerReference> {
    // Mirrors metav1.GetControllerOfNoCopy.
    child
        .meta()
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

fn reference<K: Kind, C: Resource>(
    owner: &K,
    child: &C,
    controller: Option<bool>,
) -> Result<OwnerReference, OwnerError> {
    // Mirrors controllerutil.validateOwner: a cluster-scoped owner may own objects of any
    // namespace.
    if owner.namespace().is_some() && owner.namespace() != child.namespace() {
        return Err(OwnerError::CrossNamespace {
            owner: Box::new(ObjectKey::from_object(owner)),
            child: Box::new(ObjectKey::from_object(child)),
        });
    }
    let uid = owner
        .uid()
        .ok_or_else(|| OwnerError::NoUid(Box::new(ObjectKey::from_object(owner))))?;
    let types = types_of(owner)
        .ok_or_else(|| OwnerError::NoKind(Box::new(ObjectKey::from_object(owner))))?;
    Ok(OwnerReference {
        api_version: types.api_version,
        kind: types.kind,
        name: owner.name_any(),
        uid,
        controller,
        block_owner_deletion: controller,
    })
}

fn upsert_reference<C: Resource>(child: &mut C, reference: OwnerReference) {
    let references = child.owner_references_mut();
    match references
        .iter_mut()
        .find(|known| known.uid == reference.uid)
    {
        // By uid: a reference may become a controller reference, or name another version of the
        // API.
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
            "a cluster-scoped owner may own objects of any namespace"
        );
    }

    #[test]
    fn child_has_one_controller_and_each_owner_once() {
        let one: ConfigMap = named("a", "one", "u1");
        let two: ConfigMap = named("a", "two", "u2");
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
