//! Managed fields after an update: the manager that changed a field takes it from all others.
//! In: an object before and after, and who wrote it. Out: its `managedFields`.

use std::{collections::BTreeMap, sync::Arc};

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::{
    object::{ManagedFieldsEntry, Object, ObjectMeta},
    types::{self, Type},
};
use serde_json::{Map, Value};

use super::{
    Comparison, FieldManager, FieldSet, Node, Operation, ResetFields,
    apply::are_equal_without_times, cap_updaters, compare::ComparisonBuilder, read_managed_fields,
    schema::Atom, write_managed_fields,
};
use crate::registry::{Catalog, Resource};

/// Records the changes of one write under its field manager.
pub(crate) struct Tracker<'a> {
    /// Where other versions of the resource are found.
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) resource: &'a Resource,
    /// The subresource that is written; empty for the object itself.
    pub(crate) subresource: &'a str,
    pub(crate) manager: String,
    pub(crate) now: Time,
}

impl Tracker<'_> {
    /// Sets the owners of an object that was created or changed.
    pub(crate) fn update(&self, old: Option<&Object>, new: &mut Object) {
        let mut field_managers = self.field_managers_before(old, new);
        new.meta.managed_fields.clear();
        if field_managers.is_empty() && old.is_some() {
            self.settle(new);
            return;
        }
        let field_manager = self.field_manager(&self.manager, Operation::Update);
        let tracked = (self.resource.strategy.tracked)(new);
        let seen = tracked.as_ref().unwrap_or(new);
        match old {
            Some(old) => self.track(&mut field_managers, field_manager, old, seen),
            None => self.track(
                &mut field_managers,
                field_manager,
                &empty(self.resource),
                seen,
            ),
        }
        cap_updaters(&mut field_managers);
        self.settle(new);
        let field_managers = write_managed_fields(field_managers);
        // Times move only together with something else: a list that was sent empty and is stored as
        // none is no change.
        let unchanged =
            |old: &Object| old.body == new.body && metadata(&old.meta, &new.meta).is_none();
        new.meta.managed_fields = match old {
            Some(old)
                if unchanged(old)
                    && are_equal_without_times(&old.meta.managed_fields, &field_managers) =>
            {
                old.meta.managed_fields.clone()
            }
            _ => field_managers,
        };
    }

    /// Makes of a written object what storage can keep of it.
    pub(super) fn settle(&self, object: &mut Object) {
        if let Node::Struct(ty, _) = root(self.resource) {
            types::settle(ty, &mut object.body);
        }
    }

    /// The owners that the write starts from: those it sends, or else those the object had.
    fn field_managers_before(&self, old: Option<&Object>, new: &Object) -> Vec<FieldManager> {
        let before = || {
            old.and_then(|old| read_managed_fields(&old.meta.managed_fields))
                .unwrap_or_default()
        };
        let sent = &new.meta.managed_fields;
        if !self.subresource.is_empty() {
            return before();
        }
        if *sent == [ManagedFieldsEntry::default()] {
            return Vec::new();
        }
        read_managed_fields(sent)
            .filter(|field_managers| !field_managers.is_empty())
            .unwrap_or_else(before)
    }

    /// This writer, owning nothing yet.
    pub(super) fn field_manager(&self, manager: &str, operation: Operation) -> FieldManager {
        FieldManager {
            manager: if manager.is_empty() {
                "unknown".into()
            } else {
                manager.to_owned()
            },
            operation,
            api_version: self.resource.api_version(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields: FieldSet::default(),
        }
    }

    /// Records what differs between two objects under a field manager.
    pub(super) fn track(
        &self,
        field_managers: &mut Vec<FieldManager>,
        mut field_manager: FieldManager,
        old: &Object,
        new: &Object,
    ) {
        let mut comparisons = Comparisons::new(self, old, new);
        field_managers.retain_mut(|other| {
            let Some(changed) = comparisons.at(&other.api_version) else {
                return false;
            };
            if !changed.all.is_empty() {
                other.fields = other.fields.difference(&changed.all);
            }
            !other.fields.is_empty()
        });
        if let Some(own) = comparisons.at(&field_manager.api_version) {
            field_manager.fields = own.set.clone();
        }
        if field_manager.fields.is_empty() {
            return;
        }
        field_manager.time = Some(self.now);
        match field_managers
            .iter_mut()
            .find(|other| other.is(&field_manager))
        {
            Some(same) => {
                same.fields = same.fields.union(&field_manager.fields);
                same.time = field_manager.time;
            }
            None => field_managers.push(field_manager),
        }
    }

    /// An object in another version of its kind; the same kind in another group is not found, here
    /// as in kube-apiserver.
    pub(super) fn convert(
        &self,
        object: &Object,
        api_version: &str,
    ) -> Option<(Arc<Resource>, Object)> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let other = self.catalog.find_kind(group, version, &self.resource.kind);
        let other = other.filter(|other| {
            other.group == self.resource.group && other.collection == self.resource.collection
        })?;
        let mut object = object.clone();
        self.resource.to_storage(&mut object);
        other.out_of_storage(&mut object);
        Some((other, object))
    }
}

/// Records every field of an object under the manager that sent it. It is an answer to a request
/// and of a kind that is never stored.
pub(crate) fn claim(
    ty: &'static Type,
    object: &mut Object,
    subresource: &str,
    manager: String,
    now: Time,
) {
    let mut body = Map::new();
    types::complete(ty, &mut body);
    let nothing = Object {
        meta: ObjectMeta::default(),
        body,
        ..object.clone()
    };
    let Comparison {
        added, modified, ..
    } = compare_objects(Node::Struct(ty, false), &nothing, object);
    let field_manager = FieldManager {
        manager,
        operation: Operation::Update,
        api_version: object.api_version.clone(),
        subresource: subresource.to_owned(),
        time: Some(now),
        fields: added.union(&modified),
    };
    object.meta.managed_fields = if field_manager.fields.is_empty() {
        Vec::new()
    } else {
        write_managed_fields(vec![field_manager])
    };
}

/// The differences of one write in every version that a manager's fields are named in.
pub(super) struct Comparisons<'a> {
    tracker: &'a Tracker<'a>,
    old: &'a Object,
    new: &'a Object,
    found: BTreeMap<String, Option<Changed>>,
}

/// A difference as owners are compared with it: computed once, however many there are.
pub(super) struct Changed {
    /// The added and modified fields.
    pub(super) set: FieldSet,
    pub(super) removed: FieldSet,
    /// Both together.
    pub(super) all: FieldSet,
}

impl From<Comparison> for Changed {
    fn from(difference: Comparison) -> Self {
        let set = difference.added.union(&difference.modified);
        Self {
            all: set.union(&difference.removed),
            set,
            removed: difference.removed,
        }
    }
}

impl<'a> Comparisons<'a> {
    pub(super) fn new(tracker: &'a Tracker<'a>, old: &'a Object, new: &'a Object) -> Self {
        Self {
            tracker,
            old,
            new,
            found: BTreeMap::new(),
        }
    }

    /// The changed fields in a version; `None` for one that is not served any more.
    pub(super) fn at(&mut self, api_version: &str) -> Option<&Changed> {
        if !self.found.contains_key(api_version) {
            let difference = self.compute(api_version).map(Changed::from);
            self.found.insert(api_version.to_owned(), difference);
        }
        self.found[api_version].as_ref()
    }

    fn compute(&self, api_version: &str) -> Option<Comparison> {
        let tracker = self.tracker;
        let resource = self.tracker.resource;
        if api_version == resource.api_version() {
            return Some(
                ResetFields::of(resource, tracker.subresource).keep_all(compare_objects(
                    root(resource),
                    self.old,
                    self.new,
                )),
            );
        }
        let is_converted = resource
            .custom()
            .is_some_and(|custom| custom.conversion.is_some());
        if is_converted {
            // Fields of other versions stay with their managers: only a webhook could convert the
            // object, and a write does not wait for one per manager.
            return Some(Comparison::default());
        }
        let (_, old) = tracker.convert(self.old, api_version)?;
        let (other, new) = tracker.convert(self.new, api_version)?;
        Some(
            ResetFields::of(&other, tracker.subresource).keep_all(compare_objects(
                root(&other),
                &old,
                &new,
            )),
        )
    }
}

/// The type of an object of the resource.
pub(super) fn root(resource: &Resource) -> Node<'_> {
    match resource.custom() {
        Some(custom) => Node::Custom(custom.schema.structure()),
        None => {
            let ty = types::find(&resource.group, &resource.version, &resource.kind)
                .expect("built-in kinds have a type");
            Node::Struct(ty, false)
        }
    }
}

/// An empty object of the resource.
pub(super) fn empty(resource: &Resource) -> Object {
    let mut body = Map::new();
    if let Node::Struct(ty, _) = root(resource) {
        types::complete(ty, &mut body);
    }
    Object {
        api_version: resource.api_version(),
        kind: resource.kind.clone(),
        meta: ObjectMeta::default(),
        body,
    }
}

/// Compares two objects without the metadata that no manager owns.
pub(super) fn compare_objects(root: Node<'_>, old: &Object, new: &Object) -> Comparison {
    let mut comparison = ComparisonBuilder::default();
    let Atom::Map(map) = root.atom(&Value::Null) else {
        return Comparison::default();
    };
    for (key, left, right) in super::compare::zip(Some(&old.body), Some(&new.body)) {
        if let Some(child) = map.child(key) {
            comparison.compare(key, child.node, left, right);
        }
    }
    if let Some((left, right)) = metadata(&old.meta, &new.meta) {
        comparison.compare(
            "metadata",
            Node::Struct(types::object_meta(), false),
            Some(&left),
            Some(&right),
        );
    }
    comparison.finish()
}

/// The metadata that can be owned, if it differs.
fn metadata(old: &ObjectMeta, new: &ObjectMeta) -> Option<(Value, Value)> {
    let equal = old.labels == new.labels
        && old.annotations == new.annotations
        && old.finalizers == new.finalizers
        && old.owner_references == new.owner_references
        && old.generate_name == new.generate_name
        && old.deletion_timestamp == new.deletion_timestamp
        && old.deletion_grace_period_seconds == new.deletion_grace_period_seconds;
    let shown = |meta: &ObjectMeta| {
        let owned = ObjectMeta {
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
            finalizers: meta.finalizers.clone(),
            owner_references: meta.owner_references.clone(),
            generate_name: meta.generate_name.clone(),
            deletion_timestamp: meta.deletion_timestamp,
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            ..ObjectMeta::default()
        };
        serde_json::to_value(owned).expect("metadata has string keys only")
    };
    (!equal).then(|| (shown(old), shown(new)))
}
