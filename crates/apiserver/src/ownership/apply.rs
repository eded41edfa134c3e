//! Server-side apply: a configuration is laid over the object, and what its manager gave up goes.
//! In: the object as it is and a configuration. Out: the object as it will be, with its owners, or the conflicts.
//! Holds: a field that somebody else owns changes only by force; a field goes only if its manager applied it last time and nobody else
//! owns it.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use serde_json::{Map, Value};

use super::{
    FieldSet, Filter, Node, Operation, Owner,
    collect::{collect, remove, with_named},
    compare::{compare, same},
    merge::merge,
    read_owners,
    track::{Differences, Tracker, empty, root},
    validate::validate,
    write_owners,
};
use crate::{
    error::{ApiError, Cause},
    object::{Object, ObjectMeta},
    registry::Resource,
};

/// Books fields of objects that nobody tracked before the first apply.
const BEFORE_FIRST: &str = "before-first-apply";

/// Where `kubectl apply` without a server's help keeps what it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What an object is called and what the server writes: nobody owns it.
static UNOWNED: LazyLock<FieldSet> = LazyLock::new(|| {
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
pub(super) struct Conflicts(Vec<(Owner, FieldSet)>);

/// The value, in the version of the resource, and its owners after an apply.
struct Applied {
    value: Value,
    owners: Vec<Owner>,
}

impl Tracker<'_> {
    /// Applies a configuration to an object, or makes a new one of it.
    ///
    /// # Errors
    /// A configuration of another kind or of the wrong form; conflicts with other managers, unless `force` is set.
    pub(crate) fn apply(
        &self,
        old: Option<&Object>,
        config: &Map<String, Value>,
        force: bool,
    ) -> Result<Object, ApiError> {
        self.check_kind(config)?;
        let live = match old {
            Some(old) => Object {
                meta: ObjectMeta {
                    managed_fields: Vec::new(),
                    ..old.meta.clone()
                },
                ..old.clone()
            },
            None => empty(self.resource),
        };
        let entries = old
            .map(|old| old.meta.managed_fields.as_slice())
            .unwrap_or_default();
        let mut owners = read_owners(entries).unwrap_or_default();
        if owners.is_empty() {
            self.book(
                &mut owners,
                self.owner(BEFORE_FIRST, Operation::Update),
                &empty(self.resource),
                &live,
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
        let config = Value::Object(config.clone());
        validate(root(self.resource), &config).map_err(|why| {
            ApiError::Unnamed(format!(
                "failed to create typed patch object ({}): {why}",
                named(&config)
            ))
        })?;
        let applied = match self.merge_config(&live, &config, owners.clone(), force) {
            Err(conflicts) if self.manager == "kubectl" => {
                let conflicts = conflicts.without(&self.last_applied(&live));
                if conflicts.is_empty() {
                    self.merge_config(&live, &config, owners, true)
                } else {
                    Err(conflicts)
                }
            }
            outcome => outcome,
        };
        let applied = applied.map_err(|conflicts| conflicts.into_error())?;
        self.finish(old, &live, &config, applied)
    }

    fn check_kind(&self, config: &Map<String, Value>) -> Result<(), ApiError> {
        let (api_version, kind) = (text(config, "apiVersion"), text(config, "kind"));
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
        live: &Object,
        config: &Value,
        mut owners: Vec<Owner>,
        force: bool,
    ) -> Result<Applied, Conflicts> {
        let node = root(self.resource);
        let live_value = live.to_value();
        let mut owner = self.owner(&self.manager, Operation::Apply);
        owner.fields = Filter::of(self.resource, self.part).keep(collect(node, config));
        let last = owners
            .iter()
            .position(|other| other.is(&owner))
            .map(|at| owners.remove(at));
        owner.time = last.as_ref().and_then(|last| last.time);

        let merged = merge(node, &live_value, config);
        let value = match last.filter(|last| gives_up(last, &owner)) {
            Some(last) => self.prune(merged, &owners, &owner, &last),
            None => merged,
        };
        self.take_over(&mut owners, live, &value, force)?;
        if !same(&live_value, &value) {
            owner.time = Some(self.now);
        }
        owner.fields = owner.fields.difference(&UNOWNED);
        if !owner.fields.is_empty() {
            owners.push(owner);
        }
        Ok(Applied { value, owners })
    }

    /// Takes what changed from all other owners.
    fn take_over(
        &self,
        owners: &mut Vec<Owner>,
        live: &Object,
        value: &Value,
        force: bool,
    ) -> Result<(), Conflicts> {
        let Some(new) = object_of(value) else {
            return Ok(());
        };
        let mut differences = Differences::new(self, live, &new);
        let mut conflicts = Conflicts::default();
        owners.retain_mut(|other| {
            let Some(changed) = differences.at(&other.api_version) else {
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

    /// Takes out what the manager applied last time and not now, unless somebody else owns it.
    fn prune(&self, merged: Value, owners: &[Owner], owner: &Owner, last: &Owner) -> Value {
        let Some(merged) = self.view(&merged, &last.api_version) else {
            return merged;
        };
        let node = merged.node();
        let last_fields = with_named(node, &last.fields);
        let mut pruned = remove(node, &merged.value, &last_fields);

        let mut owned: BTreeMap<(bool, &str), Vec<FieldSet>> = BTreeMap::new();
        for other in owners.iter().chain([owner]) {
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

    /// Puts back what was pruned and somebody owns, in the version its fields are named in.
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

    /// The fields that `kubectl apply` set by itself and that are still as it left them.
    fn last_applied(&self, live: &Object) -> FieldSet {
        let node = root(self.resource);
        let config = live
            .meta
            .annotations
            .get(LAST_APPLIED)
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        let Some(config) = config.filter(|config| {
            config.get("apiVersion").and_then(Value::as_str) == Some(&live.api_version)
        }) else {
            return FieldSet::default();
        };
        if validate(node, &config).is_err() {
            return FieldSet::default();
        }
        let difference = compare(node, &config, &live.to_value());
        collect(node, &config)
            .difference(&difference.modified)
            .difference(&difference.added)
            .difference(&difference.removed)
    }

    fn finish(
        &self,
        old: Option<&Object>,
        live: &Object,
        config: &Value,
        applied: Applied,
    ) -> Result<Object, ApiError> {
        let Applied { value, owners } = applied;
        let mut object = if same(&live.to_value(), &value) {
            live.clone()
        } else {
            let refuse = |why| {
                ApiError::Unnamed(format!(
                    "failed to convert new object ({}) to proper version: {why}",
                    named(config)
                ))
            };
            self.resource.decode_value(value).map_err(refuse)?.object
        };
        if self.manager == "kubectl"
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
        // Times move only together with something else.
        let unchanged = |old: &Object| {
            object == *live
                && without_times(&old.meta.managed_fields)
                    == without_times(&write_owners(owners.clone()))
        };
        object.meta.managed_fields = match old {
            Some(old) if unchanged(old) => old.meta.managed_fields.clone(),
            _ => write_owners(owners),
        };
        Ok(object)
    }
}

/// Whether a manager applied something last time that it does not apply now. Most give up nothing, and nothing is taken out then.
fn gives_up(last: &Owner, now: &Owner) -> bool {
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
            part: "",
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

fn text<'v>(map: &'v Map<String, Value>, key: &str) -> &'v str {
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

pub(super) fn without_times(entries: &[Value]) -> Vec<Value> {
    let strip = |entry: &Value| {
        let mut entry = entry.clone();
        if let Value::Object(map) = &mut entry {
            map.remove("time");
        }
        entry
    };
    let mut entries: Vec<Value> = entries.iter().map(strip).collect();
    entries.sort_by_cached_key(Value::to_string);
    entries
}

impl Conflicts {
    pub(super) fn of(owner: Owner, fields: FieldSet) -> Self {
        Self(vec![(owner, fields)])
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn without(self, allowed: &FieldSet) -> Self {
        let left = self
            .0
            .into_iter()
            .map(|(owner, fields)| (owner, fields.difference(allowed)));
        Self(left.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// 409 that names every field and its owner.
    pub(super) fn into_error(mut self) -> ApiError {
        self.0.sort_by_cached_key(|(owner, _)| owner.spelling());
        let causes: Vec<Cause> = self
            .0
            .iter()
            .flat_map(|(owner, fields)| {
                let message = format!("conflict with {}", owner.shown());
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
                let group = |(owner, fields): &(Owner, FieldSet)| {
                    format!(
                        "conflicts with {}:\n- {}",
                        owner.shown(),
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
