//! Dependency graph: owner references of all observed objects.
//!
//! Input: watch events of all resources. Output: work for the attempt-to-delete and
//! attempt-to-orphan workers.
//! Invariant: `dependents` is the inverse of the owner references in `nodes`. An owner may be
//! referenced before it is observed, or never be observed.
//!
//! No IO: the graph holds what the watches delivered.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bellerophon::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::core::discovery::ServedResource;

/// Finalizer of an object that is deleted once its blocking dependents are gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an object that is deleted once its dependents are orphaned.
pub(super) const ORPHAN: &str = "orphan";

/// The uid of an object. A uid is never reused.
pub(super) type Uid = Arc<str>;

/// Deletion state of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeletionState {
    /// No deletion timestamp.
    #[default]
    None,
    /// Terminating, with neither of the garbage collector's finalizers.
    Terminating,
    /// Terminating, with finalizer `foregroundDeletion`.
    Foreground,
    /// Terminating, with finalizer `orphan`.
    Orphaning,
}

impl DeletionState {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        let has_finalizer = |name: &str| {
            meta.finalizers
                .iter()
                .flatten()
                .any(|finalizer| finalizer == name)
        };
        match meta.deletion_timestamp {
            None => Self::None,
            // Mirrors processTransitions: with both finalizers, orphaning takes precedence.
            Some(_) if has_finalizer(ORPHAN) => Self::Orphaning,
            Some(_) if has_finalizer(FOREGROUND) => Self::Foreground,
            Some(_) => Self::Terminating,
        }
    }
}

/// An observed object.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) resource: Arc<ServedResource>,
    pub(super) key: ObjectKey,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) deletion: DeletionState,
}

impl Node {
    /// Whether kind, group, name and namespace of the reference match this node, beyond the uid.
    /// Mirrors ownerReferenceMatchesCoordinates.
    fn matches_reference(&self, reference: &OwnerReference, namespace: Option<&str>) -> bool {
        let same_namespace = self.key.namespace().is_none() || self.key.namespace() == namespace;
        let same_name =
            reference.name == self.key.name() && reference.kind == self.resource.api_resource.kind;
        // A reference may have any version of the group.
        let group = reference
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        same_namespace && same_name && group == self.resource.api_resource.group
    }

    /// Whether this node is namespaced and in another namespace than the dependent.
    fn is_in_other_namespace(&self, namespace: Option<&str>) -> bool {
        self.key.namespace().is_some() && self.key.namespace() != namespace
    }
}

/// Follow-up of a watch event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GraphAction {
    /// Add the object to the attempt-to-delete queue.
    AttemptToDelete(Uid),
    /// Add the object to the attempt-to-orphan queue.
    AttemptToOrphan(Uid),
    /// Record an event: the object references an owner in another namespace.
    ReportInvalidNamespace {
        dependent: Uid,
        reference: OwnerReference,
    },
    /// Add the deleted object, which has dependents, to the absent owner cache.
    AbsentOwner(OwnerIdentity),
}

/// An owner as identified by an owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerIdentity {
    pub(super) uid: String,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) key: ObjectKey,
}

impl OwnerIdentity {
    /// The owner of a reference; `namespace` is `None` for a cluster-scoped owner.
    pub(super) fn of(reference: &OwnerReference, namespace: Option<&str>) -> Self {
        let OwnerReference {
            uid,
            api_version,
            kind,
            name,
            ..
        } = reference.clone();
        Self {
            uid,
            api_version,
            kind,
            key: ObjectKey::new(namespace, &name),
        }
    }
}

/// State of the dependents of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dependents {
    /// The object has dependents.
    pub(super) exist: bool,
    /// A dependent is deleted in the foreground, so the object may be part of a cycle.
    pub(super) deleting_dependents: bool,
}

/// An object that the attempt-to-delete worker has to process.
#[derive(Clone, Debug)]
pub(super) enum Candidate {
    /// It is deleted in the foreground and blocked by these dependents.
    DeletingDependents { object: Node, blocking: Vec<Uid> },
    /// At least one owner is not known to be solid.
    UnverifiedOwners {
        object: Node,
        dependents: Dependents,
    },
}

/// Owners and dependents of the whole cluster.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<Uid, Node>,
    /// Uids of the dependents of each owner, observed or not. Invariant: no set is empty.
    dependents: HashMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    /// Applies an add or update event. Mirrors processGraphChanges.
    pub(super) fn applied(
        &mut self,
        resource: &Arc<ServedResource>,
        meta: &ObjectMeta,
    ) -> Vec<GraphAction> {
        let Some(uid) = meta.uid.as_deref().map(Uid::from) else {
            return Vec::new();
        };
        let key = ObjectKey::new(
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let owners = meta.owner_references.clone().unwrap_or_default();
        let current = Node {
            resource: resource.clone(),
            key,
            owners,
            deletion: DeletionState::of(meta),
        };
        let previous = self.nodes.insert(uid.clone(), current.clone());
        let mut actions = Vec::new();
        // Mirrors processGraphChanges: references to a virtual node are verified once it is
        // observed.
        if previous.is_none() {
            self.process_new_owner(&uid, &current, &mut actions);
        }
        let old = previous
            .as_ref()
            .map_or(&[][..], |previous| &previous.owners);
        self.update_owners(&uid, &current, old, &mut actions);
        // Mirrors startsWaitingForDependentsDeleted and startsWaitingForDependentsOrphaned.
        if previous.is_none_or(|previous| previous.deletion != current.deletion) {
            self.process_deletion(&uid, current.deletion, &mut actions);
        }
        actions
    }

    /// Applies a delete event. Mirrors processGraphChanges.
    pub(super) fn deleted(&mut self, uid: &str) -> Vec<GraphAction> {
        let uid = Uid::from(uid);
        let Some(deleted) = self.nodes.remove(&uid) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        for reference in &deleted.owners {
            // The edges of a deleted dependent go first. Its owner may wait for exactly this
            // deletion.
            self.remove_dependent(&uid, &reference.uid);
            self.enqueue_if_deleting_dependents(&reference.uid, &mut actions);
        }
        // The dependents have to find out that their owner is gone.
        if let Some(dependents) = self.dependents.get(&uid) {
            let api_version = deleted.resource.api_resource.api_version.clone();
            let kind = deleted.resource.api_resource.kind.clone();
            actions.push(GraphAction::AbsentOwner(OwnerIdentity {
                uid: uid.to_string(),
                api_version,
                kind,
                key: deleted.key,
            }));
            actions.extend(dependents.iter().cloned().map(GraphAction::AttemptToDelete));
        }
        actions
    }

    /// Removes all objects of a resource that is no longer served and therefore no longer watched.
    pub(super) fn remove_resource(&mut self, resource: &ServedResource) -> Vec<GraphAction> {
        let uids: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, object)| *object.resource == *resource)
            .map(|(uid, _)| uid.clone())
            .collect();
        let actions = uids
            .iter()
            .flat_map(|uid| self.deleted(uid))
            .collect::<Vec<_>>();
        // The objects may still exist. Their dependents look the owner up instead of using the
        // cache.
        actions
            .into_iter()
            .filter(|action| !matches!(action, GraphAction::AbsentOwner(_)))
            .collect()
    }

    /// The object as a candidate for deletion; `None` if there is nothing to process.
    pub(super) fn candidate(&self, uid: &Uid) -> Option<Candidate> {
        let object = self.nodes.get(uid)?;
        match object.deletion {
            // Mirrors attemptToDeleteItem: an object that is already being deleted needs no second
            // delete.
            DeletionState::Terminating | DeletionState::Orphaning => None,
            DeletionState::Foreground => {
                let blocking = self
                    .dependents_of(uid)
                    .filter(|(_, dependent)| dependent.blocks(uid))
                    .map(|(uid, _)| uid.clone());
                Some(Candidate::DeletingDependents {
                    object: object.clone(),
                    blocking: blocking.collect(),
                })
            }
            DeletionState::None
                if object
                    .owners
                    .iter()
                    .all(|owner| self.is_solid(object, owner)) =>
            {
                None
            }
            DeletionState::None => Some(Candidate::UnverifiedOwners {
                object: object.clone(),
                dependents: Dependents {
                    exist: self.dependents_of(uid).next().is_some(),
                    deleting_dependents: self
                        .dependents_of(uid)
                        .any(|(_, dependent)| dependent.deletion == DeletionState::Foreground),
                },
            }),
        }
    }

    /// The object of this uid.
    pub(super) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// The observed objects that reference this object as an owner.
    pub(super) fn dependents_of(&self, uid: &str) -> impl Iterator<Item = (&Uid, &Node)> {
        self.dependents
            .get(uid)
            .into_iter()
            .flatten()
            .filter_map(|uid| self.nodes.get_key_value(uid))
    }

    /// Whether the owner was observed, matches the reference and is not deleted in the foreground.
    fn is_solid(&self, object: &Node, reference: &OwnerReference) -> bool {
        self.get(&reference.uid).is_some_and(|owner| {
            owner.matches_reference(reference, object.key.namespace())
                && owner.deletion != DeletionState::Foreground
        })
    }

    /// Enqueues the dependents whose references do not match an owner observed for the first time.
    fn process_new_owner(&self, uid: &Uid, owner: &Node, actions: &mut Vec<GraphAction>) {
        for (dependent, object) in self.dependents_of(uid) {
            let namespace = object.key.namespace();
            for reference in object
                .owners
                .iter()
                .filter(|reference| *reference.uid == **uid)
            {
                if owner.is_in_other_namespace(namespace) {
                    actions.push(GraphAction::ReportInvalidNamespace {
                        dependent: dependent.clone(),
                        reference: reference.clone(),
                    });
                }
                if !owner.matches_reference(reference, namespace) {
                    actions.push(GraphAction::AttemptToDelete(dependent.clone()));
                }
            }
        }
    }

    /// Updates the edges to the owners. Mirrors referencesDiffs, addDependentToOwners,
    /// removeDependentFromOwners and addUnblockedOwnersToDeleteQueue.
    fn update_owners(
        &mut self,
        uid: &Uid,
        current: &Node,
        old: &[OwnerReference],
        actions: &mut Vec<GraphAction>,
    ) {
        for reference in old {
            let kept = current.owners.iter().find(|new| new.uid == reference.uid);
            if kept.is_none() {
                self.remove_dependent(uid, &reference.uid);
            }
            // Mirrors addUnblockedOwnersToDeleteQueue: the owner may be the last one that was
            // blocked.
            if is_blocking(reference) && kept.is_none_or(|kept| !is_blocking(kept)) {
                self.enqueue_if_deleting_dependents(&reference.uid, actions);
            }
        }
        let mut unverified = false;
        for reference in current
            .owners
            .iter()
            .filter(|reference| !old.contains(reference))
        {
            self.dependents
                .entry(reference.uid.as_str().into())
                .or_default()
                .insert(uid.clone());
            unverified |= !self.is_solid(current, reference);
            let in_other_namespace = self
                .get(&reference.uid)
                .is_some_and(|owner| owner.is_in_other_namespace(current.key.namespace()));
            if in_other_namespace && !old.iter().any(|old| old.uid == reference.uid) {
                actions.push(GraphAction::ReportInvalidNamespace {
                    dependent: uid.clone(),
                    reference: reference.clone(),
                });
            }
        }
        if unverified {
            actions.push(GraphAction::AttemptToDelete(uid.clone()));
        }
    }

    /// Enqueues what a change of the deletion state requires. Mirrors processTransitions.
    fn process_deletion(&self, uid: &Uid, deletion: DeletionState, actions: &mut Vec<GraphAction>) {
        match deletion {
            DeletionState::None | DeletionState::Terminating => {}
            DeletionState::Orphaning => actions.push(GraphAction::AttemptToOrphan(uid.clone())),
            DeletionState::Foreground => {
                actions.extend(
                    self.dependents_of(uid)
                        .map(|(dependent, _)| GraphAction::AttemptToDelete(dependent.clone())),
                );
                actions.push(GraphAction::AttemptToDelete(uid.clone()));
            }
        }
    }

    fn enqueue_if_deleting_dependents(&self, owner: &str, actions: &mut Vec<GraphAction>) {
        if let Some((uid, owner)) = self.nodes.get_key_value(owner)
            && owner.deletion == DeletionState::Foreground
        {
            actions.push(GraphAction::AttemptToDelete(uid.clone()));
        }
    }

    fn remove_dependent(&mut self, dependent: &Uid, owner: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    /// Spells out the invariants of `dependents`.
    #[cfg(test)]
    fn is_consistent(&self) -> bool {
        let linked = |uid: &Uid, owner: &str| {
            self.dependents
                .get(owner)
                .is_some_and(|dependents| dependents.contains(uid))
        };
        let references = |uid: &Uid, owner: &Uid| {
            self.nodes
                .get(uid)
                .is_some_and(|object| object.owners.iter().any(|o| *o.uid == **owner))
        };
        self.nodes
            .iter()
            .all(|(uid, object)| object.owners.iter().all(|owner| linked(uid, &owner.uid)))
            && self.dependents.iter().all(|(owner, uids)| {
                !uids.is_empty() && uids.iter().all(|uid| references(uid, owner))
            })
    }
}

impl Node {
    /// Whether it blocks the foreground deletion of this owner.
    fn blocks(&self, owner: &str) -> bool {
        self.owners
            .iter()
            .any(|reference| reference.uid == owner && is_blocking(reference))
    }
}

fn is_blocking(reference: &OwnerReference) -> bool {
    reference.block_owner_deletion == Some(true)
}

#[cfg(test)]
mod tests;
