//! Managed fields of the number of replicas when it is written through `scale`.
//! In: an object before and after a scale write. Out: its `managedFields`.
//! Guarantees: only the manager of the replicas changes; entries that lose them keep the rest.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

use super::{
    FieldManager, FieldSet, Operation, apply::Conflicts, read_managed_fields, track::Tracker,
    write_managed_fields,
};

/// The owners of the replicas of one object.
pub(crate) struct ScaleManagedFields<'a> {
    pub(crate) tracker: &'a Tracker<'a>,
    /// Where the object keeps its replicas.
    pub(crate) path: Vec<&'a str>,
}

impl ScaleManagedFields<'_> {
    /// Records changed replicas under the writer. Replicas that no manager owns remain unowned.
    pub(crate) fn update(&self, old: &Object, new: &mut Object) {
        let mut field_managers = read_managed_fields(&old.meta.managed_fields).unwrap_or_default();
        let changed = self.replicas(old) != self.replicas(new);
        if !changed
            || !field_managers
                .iter()
                .any(|field_manager| field_manager.fields.has(&self.path))
        {
            return;
        }
        self.take(&mut field_managers);
        field_managers.push(self.field_manager(Operation::Update));
        new.meta.managed_fields = write_managed_fields(field_managers);
    }

    /// Records applied replicas under the writer.
    ///
    /// # Errors
    /// Another manager owns the replicas, and they would change.
    pub(crate) fn apply(
        &self,
        old: &Object,
        new: &mut Object,
        force: bool,
    ) -> Result<(), ApiError> {
        let mut field_managers = read_managed_fields(&old.meta.managed_fields).unwrap_or_default();
        let mut field_manager = self.field_manager(Operation::Apply);
        if !field_managers
            .iter()
            .any(|other| other.fields.has(&self.path))
        {
            let first = FieldManager {
                manager: "before-first-apply".into(),
                ..self.field_manager(Operation::Update)
            };
            field_managers.push(first);
        }
        if self.replicas(old) != self.replicas(new) {
            let contested = field_managers
                .iter()
                .find(|other| !other.is(&field_manager) && other.fields.has(&self.path));
            if let Some(other) = contested.filter(|_| !force) {
                return Err(
                    Conflicts::of(other.clone(), FieldSet::of_path(&["spec", "replicas"]))
                        .into_error(),
                );
            }
            self.take(&mut field_managers);
        }
        if let Some(at) = field_managers
            .iter()
            .position(|other| other.is(&field_manager))
        {
            field_manager.time = field_managers.remove(at).time;
        }
        field_managers.push(field_manager);
        new.meta.managed_fields = write_managed_fields(field_managers);
        Ok(())
    }

    fn field_manager(&self, operation: Operation) -> FieldManager {
        FieldManager {
            fields: FieldSet::of_path(&self.path),
            ..self.tracker.field_manager(&self.tracker.manager, operation)
        }
    }

    /// Removes the replicas from all managers.
    fn take(&self, field_managers: &mut Vec<FieldManager>) {
        let replicas = FieldSet::of_path(&self.path);
        for field_manager in field_managers.iter_mut() {
            field_manager.fields = field_manager.fields.difference(&replicas);
        }
        field_managers.retain(|field_manager| !field_manager.fields.is_empty());
    }

    fn replicas<'o>(&self, object: &'o Object) -> Option<&'o serde_json::Value> {
        let (first, rest) = self.path.split_first()?;
        rest.iter()
            .try_fold(object.body.get(*first)?, |value, step| value.get(step))
    }
}
