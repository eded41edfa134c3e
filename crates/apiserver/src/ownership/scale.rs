//! Who owns the number of replicas when it is written through `scale`.
//! In: an object before and after a scale write. Out: its `managedFields`.
//! Holds: only the replicas change hands; entries that lose them keep the rest.

use super::{
    FieldSet, Operation, Owner, apply::Conflicts, read_owners, track::Tracker, write_owners,
};
use crate::{error::ApiError, object::Object};

/// The owners of the replicas of one object.
pub(crate) struct ScaleOwners<'a> {
    pub(crate) tracker: &'a Tracker<'a>,
    /// Where the object keeps its replicas.
    pub(crate) path: Vec<&'a str>,
}

impl ScaleOwners<'_> {
    /// Books changed replicas to the writer. Replicas that nobody owns stay so.
    pub(crate) fn update(&self, old: &Object, new: &mut Object) {
        let mut owners = read_owners(&old.meta.managed_fields).unwrap_or_default();
        let changed = self.replicas(old) != self.replicas(new);
        if !changed || !owners.iter().any(|owner| owner.fields.has(&self.path)) {
            return;
        }
        self.take(&mut owners);
        owners.push(self.owner(Operation::Update));
        new.meta.managed_fields = write_owners(owners);
    }

    /// Books applied replicas to the writer.
    ///
    /// # Errors
    /// Somebody else owns the replicas, and they would change.
    pub(crate) fn apply(
        &self,
        old: &Object,
        new: &mut Object,
        force: bool,
    ) -> Result<(), ApiError> {
        let mut owners = read_owners(&old.meta.managed_fields).unwrap_or_default();
        let mut owner = self.owner(Operation::Apply);
        if !owners.iter().any(|other| other.fields.has(&self.path)) {
            let first = Owner {
                manager: "before-first-apply".into(),
                ..self.owner(Operation::Update)
            };
            owners.push(first);
        }
        if self.replicas(old) != self.replicas(new) {
            let contested = owners
                .iter()
                .find(|other| !other.is(&owner) && other.fields.has(&self.path));
            if let Some(other) = contested.filter(|_| !force) {
                return Err(
                    Conflicts::of(other.clone(), FieldSet::of_path(&["spec", "replicas"]))
                        .into_error(),
                );
            }
            self.take(&mut owners);
        }
        if let Some(at) = owners.iter().position(|other| other.is(&owner)) {
            owner.time = owners.remove(at).time;
        }
        owners.push(owner);
        new.meta.managed_fields = write_owners(owners);
        Ok(())
    }

    fn owner(&self, operation: Operation) -> Owner {
        Owner {
            fields: FieldSet::of_path(&self.path),
            ..self.tracker.owner(&self.tracker.manager, operation)
        }
    }

    /// Takes the replicas from whoever has them.
    fn take(&self, owners: &mut Vec<Owner>) {
        let replicas = FieldSet::of_path(&self.path);
        for owner in owners.iter_mut() {
            owner.fields = owner.fields.difference(&replicas);
        }
        owners.retain(|owner| !owner.fields.is_empty());
    }

    fn replicas<'o>(&self, object: &'o Object) -> Option<&'o serde_json::Value> {
        let (first, rest) = self.path.split_first()?;
        rest.iter()
            .try_fold(object.body.get(*first)?, |value, step| value.get(step))
    }
}
