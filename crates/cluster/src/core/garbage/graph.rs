//! Graph: which object names which as its owner.
//!
//! In: changes of objects, from the watches of all kinds. Out: what has to be looked at because of them.
//! Holds: `dependents` has exactly the references of `objects`, turned round; an owner may be named before it is seen, or
//! never be seen at all.
//!
//! Pure: it knows what was observed, and asks nobody.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bellerophon::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::core::kinds::Kind;

/// The finalizer of an object that waits until what it owns is gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object that goes once what it owns is set free.
pub(super) const ORPHAN: &str = "orphan";

/// The uid of an object, which is never given twice.
pub(super) type Uid = Arc<str>;

/// How far the deletion of an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Deletion {
    /// It is not being deleted.
    #[default]
    None,
    /// It goes as soon as others let it.
    Underway,
    /// It waits until what it owns is gone.
    Foreground,
    /// It waits until what it owns is set free.
    Orphaning,
}

impl Deletion {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        let has = |name: &str| {
            meta.finalizers
                .iter()
                .flatten()
                .any(|finalizer| finalizer == name)
        };
        match meta.deletion_timestamp {
            None => Self::None,
            Some(_) if has(ORPHAN) => Self::Orphaning,
            Some(_) if has(FOREGROUND) => Self::Foreground,
            Some(_) => Self::Underway,
        }
    }
}

/// An object as its watch showed it last.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) kind: Arc<Kind>,
    pub(super) key: ObjectKey,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) deletion: Deletion,
}

impl Observed {
    /// Whether a reference from an object in this namespace means this object, and not only its uid.
    fn is_meant_by(&self, reference: &OwnerReference, namespace: Option<&str>) -> bool {
        let same_place = self.key.namespace().is_none() || self.key.namespace() == namespace;
        let named = reference.name == self.key.name() && reference.kind == self.kind.resource.kind;
        // A reference may name any version of the kind.
        let group = reference
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        same_place && named && group == self.kind.resource.group
    }

    /// Whether a reference from there names a namespace in which this object is not.
    fn is_elsewhere(&self, namespace: Option<&str>) -> bool {
        self.key.namespace().is_some() && self.key.namespace() != namespace
    }
}

/// What has to be done because of a change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Find out whether the object has lost its owners, or what it waits for.
    Examine(Uid),
    /// Set free what the object owns.
    Orphan(Uid),
    /// Tell people that an object names an owner of another namespace.
    Report {
        dependent: Uid,
        reference: OwnerReference,
    },
    /// Remember that the object is gone, for those that name it.
    Absent(Absent),
}

/// An owner that does not exist, as a reference names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Absent {
    pub(super) uid: String,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) key: ObjectKey,
}

impl Absent {
    /// The owner that a reference names, in a namespace or in none.
    pub(super) fn named(reference: &OwnerReference, namespace: Option<&str>) -> Self {
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

/// What is known of an object that is to be examined.
#[derive(Clone, Debug)]
pub(super) enum Case {
    /// It waits for dependents; these block it.
    Waiting {
        object: Observed,
        blocking: Vec<Uid>,
    },
    /// Some owner is not known to be there and to stay.
    Doubtful {
        object: Observed,
        has_dependents: bool,
        dependent_waits: bool,
    },
}

/// Owners and dependents of a whole cluster.
#[derive(Debug, Default)]
pub(super) struct Graph {
    objects: HashMap<Uid, Observed>,
    /// Who names an object as owner, whether or not that object has been seen.
    dependents: HashMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    /// An object was added or changed.
    pub(super) fn applied(&mut self, kind: &Arc<Kind>, meta: &ObjectMeta) -> Vec<Next> {
        let Some(uid) = meta.uid.as_deref().map(Uid::from) else {
            return Vec::new();
        };
        let key = ObjectKey::new(
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let owners = meta.owner_references.clone().unwrap_or_default();
        let now = Observed {
            kind: kind.clone(),
            key,
            owners,
            deletion: Deletion::of(meta),
        };
        let was = self.objects.insert(uid.clone(), now.clone());
        let mut next = Vec::new();
        if was.is_none() {
            self.greet(&uid, &now, &mut next);
        }
        let old = was.as_ref().map_or(&[][..], |was| &was.owners);
        self.relink(&uid, &now, old, &mut next);
        if was.is_none_or(|was| was.deletion != now.deletion) {
            self.begin_deletion(&uid, now.deletion, &mut next);
        }
        next
    }

    /// An object is gone.
    pub(super) fn deleted(&mut self, uid: &str) -> Vec<Next> {
        let uid = Uid::from(uid);
        let Some(gone) = self.objects.remove(&uid) else {
            return Vec::new();
        };
        let mut next = Vec::new();
        for reference in &gone.owners {
            self.unlink(&uid, &reference.uid);
            self.wake_if_waiting(&reference.uid, &mut next);
        }
        if let Some(dependents) = self.dependents.get(&uid) {
            let api_version = gone.kind.resource.api_version.clone();
            let kind = gone.kind.resource.kind.clone();
            next.push(Next::Absent(Absent {
                uid: uid.to_string(),
                api_version,
                kind,
                key: gone.key,
            }));
            next.extend(dependents.iter().cloned().map(Next::Examine));
        }
        next
    }

    /// A kind is no longer served, so nothing more will be heard of its objects.
    pub(super) fn forget_kind(&mut self, kind: &Kind) -> Vec<Next> {
        let gone: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, object)| *object.kind == *kind)
            .map(|(uid, _)| uid.clone())
            .collect();
        let next = gone
            .iter()
            .flat_map(|uid| self.deleted(uid))
            .collect::<Vec<_>>();
        // That nobody tells of them is not the same as that they are gone: whoever names them is asked about live.
        next.into_iter()
            .filter(|next| !matches!(next, Next::Absent(_)))
            .collect()
    }

    /// What there is to find out about an object; `None` if nothing.
    pub(super) fn case(&self, uid: &Uid) -> Option<Case> {
        let object = self.objects.get(uid)?;
        match object.deletion {
            Deletion::Underway | Deletion::Orphaning => None,
            Deletion::Foreground => {
                let blocking = self
                    .dependents_of(uid)
                    .filter(|(_, dependent)| dependent.blocks(uid))
                    .map(|(uid, _)| uid.clone());
                Some(Case::Waiting {
                    object: object.clone(),
                    blocking: blocking.collect(),
                })
            }
            Deletion::None
                if object
                    .owners
                    .iter()
                    .all(|owner| self.is_solid(object, owner)) =>
            {
                None
            }
            Deletion::None => Some(Case::Doubtful {
                object: object.clone(),
                has_dependents: self.dependents_of(uid).next().is_some(),
                dependent_waits: self
                    .dependents_of(uid)
                    .any(|(_, dependent)| dependent.deletion == Deletion::Foreground),
            }),
        }
    }

    /// The object of this uid.
    pub(super) fn get(&self, uid: &str) -> Option<&Observed> {
        self.objects.get(uid)
    }

    /// What names this object as an owner.
    pub(super) fn dependents_of(&self, uid: &str) -> impl Iterator<Item = (&Uid, &Observed)> {
        self.dependents
            .get(uid)
            .into_iter()
            .flatten()
            .filter_map(|uid| self.objects.get_key_value(uid))
    }

    /// Whether the owner was seen, is the one that is meant, and does not wait for its dependents to go.
    fn is_solid(&self, object: &Observed, reference: &OwnerReference) -> bool {
        self.get(&reference.uid).is_some_and(|owner| {
            owner.is_meant_by(reference, object.key.namespace())
                && owner.deletion != Deletion::Foreground
        })
    }

    /// An owner is seen for the first time: whoever named it otherwise than it is has to be looked at.
    fn greet(&self, uid: &Uid, owner: &Observed, next: &mut Vec<Next>) {
        for (dependent, object) in self.dependents_of(uid) {
            let namespace = object.key.namespace();
            for reference in object
                .owners
                .iter()
                .filter(|reference| *reference.uid == **uid)
            {
                if owner.is_elsewhere(namespace) {
                    next.push(Next::Report {
                        dependent: dependent.clone(),
                        reference: reference.clone(),
                    });
                }
                if !owner.is_meant_by(reference, namespace) {
                    next.push(Next::Examine(dependent.clone()));
                }
            }
        }
    }

    fn relink(&mut self, uid: &Uid, now: &Observed, old: &[OwnerReference], next: &mut Vec<Next>) {
        for reference in old {
            let kept = now.owners.iter().find(|new| new.uid == reference.uid);
            if kept.is_none() {
                self.unlink(uid, &reference.uid);
            }
            if is_blocking(reference) && kept.is_none_or(|kept| !is_blocking(kept)) {
                self.wake_if_waiting(&reference.uid, next);
            }
        }
        let mut doubtful = false;
        for reference in now
            .owners
            .iter()
            .filter(|reference| !old.contains(reference))
        {
            self.dependents
                .entry(reference.uid.as_str().into())
                .or_default()
                .insert(uid.clone());
            doubtful |= !self.is_solid(now, reference);
            let elsewhere = self
                .get(&reference.uid)
                .is_some_and(|owner| owner.is_elsewhere(now.key.namespace()));
            if elsewhere && !old.iter().any(|old| old.uid == reference.uid) {
                next.push(Next::Report {
                    dependent: uid.clone(),
                    reference: reference.clone(),
                });
            }
        }
        if doubtful {
            next.push(Next::Examine(uid.clone()));
        }
    }

    fn begin_deletion(&self, uid: &Uid, deletion: Deletion, next: &mut Vec<Next>) {
        match deletion {
            Deletion::None | Deletion::Underway => {}
            Deletion::Orphaning => next.push(Next::Orphan(uid.clone())),
            Deletion::Foreground => {
                next.extend(
                    self.dependents_of(uid)
                        .map(|(dependent, _)| Next::Examine(dependent.clone())),
                );
                next.push(Next::Examine(uid.clone()));
            }
        }
    }

    fn wake_if_waiting(&self, owner: &str, next: &mut Vec<Next>) {
        if let Some((uid, owner)) = self.objects.get_key_value(owner)
            && owner.deletion == Deletion::Foreground
        {
            next.push(Next::Examine(uid.clone()));
        }
    }

    fn unlink(&mut self, dependent: &Uid, owner: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    #[cfg(test)]
    fn is_consistent(&self) -> bool {
        let linked = |uid: &Uid, owner: &str| {
            self.dependents
                .get(owner)
                .is_some_and(|dependents| dependents.contains(uid))
        };
        let references = |uid: &Uid, owner: &Uid| {
            self.objects
                .get(uid)
                .is_some_and(|object| object.owners.iter().any(|o| *o.uid == **owner))
        };
        self.objects
            .iter()
            .all(|(uid, object)| object.owners.iter().all(|owner| linked(uid, &owner.uid)))
            && self.dependents.iter().all(|(owner, uids)| {
                !uids.is_empty() && uids.iter().all(|uid| references(uid, owner))
            })
    }
}

impl Observed {
    /// Whether its owner of this uid must not go before it.
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
