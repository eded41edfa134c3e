//! Server-side apply: merges an applied configuration and removes the fields that its manager no
//! longer applies.
//! In: the current object and a configuration. Out: the new object with its managed fields, or the
//! conflicts.
//! Guarantees: a field of another manager changes only by force; a field is removed only if its
//! manager applied it last time and no other manager has it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use bellerophon_apimachinery::error::{ApiError, Cause};
use bellerophon_codec::object::{ManagedFieldsEntry, Object, ObjectMeta};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    FieldManager, FieldSet, Node, Operation, ResetFields,
    collect::{collect, remove, with_named},
    compare::{compare, same},
    merge::merge,
    read_managed_fields,
    track::{Comparisons, Tracker, empty, root},
    validate::validate,
    write_managed_fields,
};
use crate::registry::Resource;

/// Records fields of objects that no manager tracked before the first apply.
const BEFORE_FIRST: &str = "before-first-apply";

/// The manager of `kubectl apply --server-side` in older versions.
const KUBECTL: &str = "kubectl";

/// Where `kubectl apply` without a server's help keeps what it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields that no manager owns: identity, and metadata that the server sets.
static STRIP_SET: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_paths(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// Fields that an apply would change and others own.
#[derive(Default)]
pub(super) struct Conflicts(Vec<(FieldManager, FieldSet)>);

/// The object before an apply.
struct Live<'a> {
    object: Cow<'a, Object>,
    /// Without its managed fields.
    value: Value,
}

/// The value, in the version of the resource, and its managers after an apply.
struct Applied {
    /// `None` if it is that before the apply.
    value: Option<Value>,
    field_managers: Vec<FieldManager>,
}

impl Tracker<'_> {
    /// Applies a configuration to an object, or makes a new one of it.
    ///
    /// # Errors
    /// A configuration of another kind or a malformed one; conflicts with other managers, unless
    /// `force` is set.
    pub(crate) fn apply(
        &self,
        old: Option<&Object>,
        config: &Value,
        force: bool,
    ) -> Result<Object, ApiError> {
        self.validate_kind(config)?;
        let object = match old {
            Some(old) => Cow::Borrowed(old),
            None => Cow::Owned(empty(self.resource)),
        };
        let live = Live {
            value: value_of(&object),
            object,
        };
        let entries = old
            .map(|old| old.meta.managed_fields.as_slice())
            .unwrap_or_default();
        let mut field_managers = read_managed_fields(entries).unwrap_or_default();
        if field_managers.is_empty() {
            self.track(
                &mut field_managers,
                self.field_manager(BEFORE_FIRST, Operation::Update),
                &empty(self.resource),
                &live.object,
            );
        }
        if config
            .get("metadata")
            .and_then(|meta| meta.get("managedFields"))
            .is_some_and(|entries| !entries.is_null())
        {
            return Err(ApiError::BadRequest(
                "metadata.managedFields must be nil".into(),
            ));
        }
        validate(root(self.resource), config).map_err(|why| {
            ApiError::Unnamed(format!(
                "failed to create typed patch object ({}): {why}",
                named(config)
            ))
        })?;
        let before_retry = (self.manager == KUBECTL).then(|| field_managers.clone());
        let applied = match (
            self.merge_config(&live, config, field_managers, force),
            before_retry,
        ) {
            (Err(conflicts), Some(field_managers)) => {
                let conflicts = conflicts.without(&self.last_applied(&live));
                if conflicts.is_empty() {
                    self.merge_config(&live, config, field_managers, true)
                } else {
                    Err(conflicts)
                }
            }
            (outcome, _) => outcome,
        };
        let applied = applied.map_err(|conflicts| conflicts.into_error())?;
        self.finish(old, &live, config, applied)
    }

    fn validate_kind(&self, config: &Value) -> Result<(), ApiError> {
        let api_version = text(config, "apiVersion");
        let kind = text(config, "kind");
        if api_version == self.resource.api_version() && kind == self.resource.kind {
            return Ok(());
        }
        Err(ApiError::BadRequest(format!(
            "invalid object type: {}",
            shown_kind(api_version, kind)
        )))
    }

    fn merge_config(
        &self,
        live: &Live<'_>,
        config: &Value,
        mut field_managers: Vec<FieldManager>,
        force: bool,
    ) -> Result<Applied, Conflicts> {
        let node = root(self.resource);
        let mut field_manager = self.field_manager(&self.manager, Operation::Apply);
        field_manager.fields =
            ResetFields::of(self.resource, self.subresource).keep(collect(node, config));
        let last = field_managers
            .iter()
            .position(|other| other.is(&field_manager))
            .map(|at| field_managers.remove(at));
        field_manager.time = last.as_ref().and_then(|last| last.time);

        let merged = merge(node, &live.value, config);
        let value = match last.filter(|last| gives_up(last, &field_manager)) {
            Some(last) => self.prune(merged, &field_managers, &field_manager, &last),
            None => merged,
        };
        let is_changed = !same(&live.value, &value);
        let value = if is_changed {
            field_manager.time = Some(self.now);
            Some(self.take_over_value(&mut field_managers, live, value, force)?)
        } else {
            self.take_over(&mut field_managers, &live.object, &live.object, force)?;
            None
        };
        field_manager.fields = field_manager.fields.difference(&STRIP_SET);
        if !field_manager.fields.is_empty() {
            field_managers.push(field_manager);
        }
        Ok(Applied {
            value,
            field_managers,
        })
    }

    /// Takes what changed from all other managers. Returns the value again: its body is moved into an
    /// object and back, since it may be large.
    fn take_over_value(
        &self,
        field_managers: &mut Vec<FieldManager>,
        live: &Live<'_>,
        value: Value,
        force: bool,
    ) -> Result<Value, Conflicts> {
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        let has_metadata = metadata.is_null() || ObjectMeta::deserialize(metadata).is_ok();
        let Value::Object(map) = value else {
            return Ok(value);
        };
        if !has_metadata {
            // The object cannot be decoded, which the caller finds out.
            return Ok(Value::Object(map));
        }
        let new = Object::from_map(map).expect("metadata is checked above");
        self.take_over(field_managers, &live.object, &new, force)?;
        Ok(new.into_value())
    }

    /// Takes what changed from all other managers.
    fn take_over(
        &self,
        field_managers: &mut Vec<FieldManager>,
        live: &Object,
        new: &Object,
        force: bool,
    ) -> Result<(), Conflicts> {
        let mut comparisons = Comparisons::new(self, live, new);
        let mut conflicts = Conflicts::default();
        field_managers.retain_mut(|other| {
            let Some(changed) = comparisons.at(&other.api_version) else {
                return false;
            };
            let contested = other.fields.intersection(&changed.set);
            let left = other
                .fields
                .difference(&contested)
                .difference(&changed.removed);
            if !contested.is_empty() {
                conflicts.0.push((other.clone(), contested));
            }
            other.fields = left;
            !other.fields.is_empty()
        });
        if force || conflicts.is_empty() {
            Ok(())
        } else {
            Err(conflicts)
        }
    }

    /// Takes out what the manager applied last time and not now, unless another manager owns it.
    fn prune(
        &self,
        merged: Value,
        field_managers: &[FieldManager],
        field_manager: &FieldManager,
        last: &FieldManager,
    ) -> Value {
        let Some(merged) = self.view(&merged, &last.api_version) else {
            return merged;
        };
        let node = merged.node();
        let last_fields = with_named(node, &last.fields);
        let mut pruned = remove(node, &merged.value, &last_fields);

        let mut owned: BTreeMap<(bool, &str), Vec<FieldSet>> = BTreeMap::new();
        for other in field_managers.iter().chain([field_manager]) {
            // The version that is pruned comes first: other versions may need what it adds back.
            owned
                .entry((other.api_version != last.api_version, &other.api_version))
                .or_default()
                .push(other.fields.clone());
        }
        for ((_, api_version), fields) in owned {
            let fields = FieldSet::union_all(fields);
            pruned = self.add_back(&merged, pruned, api_version, &fields);
        }
        let kept = with_named(node, &collect(node, &pruned));
        let all = with_named(node, &collect(node, &merged.value));
        let value = remove(
            node,
            &merged.value,
            &all.difference(&kept).intersection(&last_fields),
        );
        self.back(&merged, value)
    }

    /// Puts back what was pruned and another manager owns, in the version its fields are named in.
    fn add_back(
        &self,
        merged: &View<'_>,
        pruned: Value,
        api_version: &str,
        fields: &FieldSet,
    ) -> Value {
        let (Some(whole), Some(cut)) = (
            merged.to(self, &merged.value, api_version),
            merged.to(self, &pruned, api_version),
        ) else {
            return pruned;
        };
        let node = whole.node();
        let named = |set: &FieldSet| with_named(node, set);
        let keep = named(&collect(node, &cut.value)).union(&named(fields));
        let value = remove(
            node,
            &whole.value,
            &named(&collect(node, &whole.value)).difference(&keep),
        );
        whole
            .to(self, &value, merged.api_version())
            .map_or(pruned, |view| view.value)
    }

    fn view(&self, value: &Value, api_version: &str) -> Option<View<'_>> {
        View {
            other: None,
            resource: self.resource,
            value: Value::Null,
        }
        .to(self, value, api_version)
    }

    fn back(&self, view: &View<'_>, value: Value) -> Value {
        view.to(self, &value, &self.resource.api_version())
            .map_or(value, |view| view.value)
    }

    /// The fields that `kubectl apply` set on the client side and that are unchanged since.
    fn last_applied(&self, live: &Live<'_>) -> FieldSet {
        let node = root(self.resource);
        let config = live
            .object
            .meta
            .annotations
            .get(LAST_APPLIED)
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        let Some(config) = config.filter(|config| {
            config.get("apiVersion").and_then(Value::as_str) == Some(&live.object.api_version)
        }) else {
            return FieldSet::default();
        };
        if validate(node, &config).is_err() {
            return FieldSet::default();
        }
        let difference = compare(node, &config, &live.value);
        collect(node, &config)
            .difference(&difference.modified)
            .difference(&difference.added)
            .difference(&difference.removed)
    }

    fn finish(
        &self,
        old: Option<&Object>,
        live: &Live<'_>,
        config: &Value,
        applied: Applied,
    ) -> Result<Object, ApiError> {
        let Applied {
            value,
            field_managers,
        } = applied;
        let mut object = match value {
            None => Object::clone(&live.object),
            Some(value) => {
                let refuse = |why| {
                    ApiError::Unnamed(format!(
                        "failed to convert new object ({}) to proper version: {why}",
                        named(config)
                    ))
                };
                self.resource.decode_value(value).map_err(refuse)?.object
            }
        };
        if self.manager == KUBECTL
            && let Some(last) = object
                .meta
                .annotations
                .get_mut(LAST_APPLIED)
                .filter(|last| !last.is_empty())
        {
            *last = last_applied_text(config);
        }
        self.settle(&mut object);
        object.meta.managed_fields.clear();
        let entries = write_managed_fields(field_managers);
        // Times move only together with something else.
        object.meta.managed_fields = match old {
            Some(old)
                if is_unchanged(&object, old)
                    && are_equal_without_times(&old.meta.managed_fields, &entries) =>
            {
                old.meta.managed_fields.clone()
            }
            _ => entries,
        };
        Ok(object)
    }
}

/// An object as JSON, without its managed fields.
fn value_of(object: &Object) -> Value {
    let mut value = object.body.clone();
    let meta = ObjectMeta {
        managed_fields: Vec::new(),
        ..object.meta.clone()
    };
    value.insert("apiVersion".into(), object.api_version.clone().into());
    value.insert("kind".into(), object.kind.clone().into());
    value.insert("metadata".into(), meta.to_value());
    Value::Object(value)
}

/// Whether an object without managed fields is the old one besides these.
fn is_unchanged(object: &Object, old: &Object) -> bool {
    let meta = ObjectMeta {
        managed_fields: Vec::new(),
        ..old.meta.clone()
    };
    object.api_version == old.api_version
        && object.kind == old.kind
        && object.meta == meta
        && object.body == old.body
}

/// Whether a manager applied a field last time that it does not apply now. Usually there is none,
/// and nothing is removed then.
fn gives_up(last: &FieldManager, now: &FieldManager) -> bool {
    last.api_version != now.api_version || !last.fields.difference(&now.fields).is_empty()
}

/// An object in one version of its kind.
struct View<'a> {
    /// Where it is another one than the tracker's.
    other: Option<Arc<Resource>>,
    resource: &'a Resource,
    value: Value,
}

impl<'a> View<'a> {
    fn resource(&self) -> &Resource {
        self.other.as_deref().unwrap_or(self.resource)
    }

    fn api_version(&self) -> &str {
        self.value
            .get("apiVersion")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn node(&self) -> Node<'_> {
        root(self.resource())
    }

    /// A value of this view's version in another version; `None` for one that is not served.
    fn to(&self, tracker: &'a Tracker<'_>, value: &Value, api_version: &str) -> Option<Self> {
        if self.resource().api_version() == api_version {
            return Some(Self {
                other: self.other.clone(),
                resource: self.resource,
                value: value.clone(),
            });
        }
        let from = Tracker {
            catalog: tracker.catalog.clone(),
            resource: self.resource(),
            subresource: "",
            manager: String::new(),
            now: tracker.now,
        };
        let (other, object) = from.convert(&object_of(value)?, api_version)?;
        Some(Self {
            other: Some(other),
            resource: self.resource,
            value: object.to_value(),
        })
    }
}

fn object_of(value: &Value) -> Option<Object> {
    Object::from_map(value.as_object()?.clone()).ok()
}

fn text<'v>(map: &'v Value, key: &str) -> &'v str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A kind as Go prints it: `apps/v1, Kind=Deployment`, `/v1, Kind=Pod`.
fn shown_kind(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

/// A configuration as errors name it.
fn named(config: &Value) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let meta = |name| text(config.get("metadata").and_then(|meta| meta.get(name)));
    let kind = shown_kind(&text(config.get("apiVersion")), &text(config.get("kind")));
    format!("{}/{}; {kind}", meta("namespace"), meta("name"))
}

/// A configuration as `kubectl apply` remembers it.
fn last_applied_text(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(Value::Object(annotations)) = config
        .get_mut("metadata")
        .and_then(|meta| meta.get_mut("annotations"))
    {
        annotations.remove(LAST_APPLIED);
    }
    format!("{config}\n")
}

/// Whether two lists have the same entries, besides their order and times.
pub(super) fn are_equal_without_times(
    left: &[ManagedFieldsEntry],
    right: &[ManagedFieldsEntry],
) -> bool {
    let is_equal = |left: &ManagedFieldsEntry, right: &ManagedFieldsEntry| {
        left.manager == right.manager
            && left.operation == right.operation
            && left.api_version == right.api_version
            && left.subresource == right.subresource
            && left.fields_type == right.fields_type
            && left.fields_v1 == right.fields_v1
    };
    let count = |entry: &ManagedFieldsEntry, list: &[ManagedFieldsEntry]| {
        list.iter().filter(|other| is_equal(entry, other)).count()
    };
    left.len() == right.len()
        && left
            .iter()
            .all(|entry| count(entry, left) == count(entry, right))
}

impl Conflicts {
    pub(super) fn of(field_manager: FieldManager, fields: FieldSet) -> Self {
        Self(vec![(field_manager, fields)])
    }

    /// The managed fields of managers among these fields.
    pub(super) fn between<'a>(
        managers: impl Iterator<Item = &'a FieldManager>,
        fields: &FieldSet,
    ) -> Self {
        let shared = managers.map(|manager| (manager.clone(), manager.fields.intersection(fields)));
        Self(shared.filter(|(_, shared)| !shared.is_empty()).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn without(self, allowed: &FieldSet) -> Self {
        let left = self
            .0
            .into_iter()
            .map(|(field_manager, fields)| (field_manager, fields.difference(allowed)));
        Self(left.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// 409 that names every field and its owner.
    pub(super) fn into_error(mut self) -> ApiError {
        self.0
            .sort_by_cached_key(|(field_manager, _)| field_manager.spelling());
        let causes: Vec<Cause> = self
            .0
            .iter()
            .flat_map(|(field_manager, fields)| {
                let message = format!("conflict with {}", field_manager.shown());
                fields.paths().into_iter().map(move |field| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: message.clone(),
                    field,
                })
            })
            .collect();
        let message = match causes.as_slice() {
            [one] => format!(
                "Apply failed with 1 conflict: {}: {}",
                one.message, one.field
            ),
            many => {
                let group = |(field_manager, fields): &(FieldManager, FieldSet)| {
                    format!(
                        "conflicts with {}:\n- {}",
                        field_manager.shown(),
                        fields.paths().join("\n- ")
                    )
                };
                let groups: Vec<String> = self.0.iter().map(group).collect();
                format!(
                    "Apply failed with {} conflicts: {}",
                    many.len(),
                    groups.join("\n")
                )
            }
        };
        ApiError::ApplyConflict { message, causes }
    }
}
