//! Deleting an object: immediately, after a grace period, or when its finalizers are gone.
//! Mirrors `Store.Delete` and `BeforeDelete` of the generic registry.

use std::sync::Arc;

use bellerophon_apimachinery::{
    error::{ApiError, GroupResource},
    time::Time,
};
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::DeleteAnswer;
use bellerophon_storage::{Conflict, Expect, ObjectKey, Stored, Write};
use serde_json::{Map, Value, json};

use super::{ATTEMPTS_MAX, Effects, Written, after_write};
use crate::{
    admission::{self, Attributes},
    api::Api,
    conversion,
    registry::Resource,
};

/// The propagation to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Foreground,
    Background,
    Orphan,
}

/// Which version of the object the client means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) dry_run: bool,
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) preconditions: Preconditions,
    pub(crate) propagation: Option<Propagation>,
    /// How the effects of the deletion are handled.
    pub(crate) effects: Effects,
}

impl DeleteOptions {
    /// The options as JSON, without kind and version.
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        if let Some(seconds) = self.grace_period_seconds {
            map.insert("gracePeriodSeconds".into(), seconds.into());
        }
        let conditions = [
            ("uid", &self.preconditions.uid),
            ("resourceVersion", &self.preconditions.resource_version),
        ];
        let conditions: Map<String, Value> = conditions
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?.into())))
            .collect();
        if !conditions.is_empty() {
            map.insert("preconditions".into(), conditions.into());
        }
        if let Some(propagation) = self.propagation {
            let policy = match propagation {
                Propagation::Foreground => "Foreground",
                Propagation::Background => "Background",
                Propagation::Orphan => "Orphan",
            };
            map.insert("propagationPolicy".into(), policy.into());
        }
        if self.dry_run {
            map.insert("dryRun".into(), json!(["All"]));
        }
        Value::Object(map)
    }
}

/// The outcome of a delete.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object exists until its finalizers are removed and its grace period ends; this is its
    /// state.
    Waiting(Written),
    /// The object is deleted, and its last state is returned.
    Object(Written),
    /// The object is deleted; this is its uid.
    Gone(String),
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Deletes an object that a client names. Unlike [`delete`], it is subject to admission.
///
/// # Errors
/// A refusal by admission, no such object, or a precondition that does not hold.
pub(crate) async fn delete_requested(
    api: &Api,
    attributes: &Attributes<'_>,
    key: &ObjectKey,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    admission::validate_delete(attributes)?;
    delete_admitted(api, attributes.resource, key, options, Some(attributes)).await
}

/// Deletes an object, or sets its deletion timestamp while finalizers or a grace period remain.
///
/// # Errors
/// No such object, or a precondition that does not hold.
pub(crate) async fn delete(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    delete_admitted(api, resource, key, options, None).await
}

/// Deletes an object that a client deletes together with others, such as those of a collection.
///
/// # Errors
/// No such object, a precondition that does not hold, or a refusal by webhooks or policies.
pub(crate) async fn delete_in_collection(
    api: &Api,
    attributes: &Attributes<'_>,
    key: &ObjectKey,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    delete_admitted(api, attributes.resource, key, options, Some(attributes)).await
}

async fn delete_admitted(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    options: &DeleteOptions,
    attributes: Option<&Attributes<'_>>,
) -> Result<Deleted, ApiError> {
    let attributes = attributes.filter(|_| admission::watches_deletions(api));
    let mut marked = None;
    for attempt in 1..=ATTEMPTS_MAX {
        let existing = api.store.get(&resource.collection, key);
        if let Some(last) = marked.take_if(|last| !is_same(resource, existing.as_ref(), last)) {
            // Mirrors Store.Delete: a delete that lost a race after it marked the object, such as
            // with a kubelet, has succeeded.
            let old = resource.read(&last);
            return Ok(answer(resource, Written::Stored(last), &old));
        }
        let Some(existing) = existing else {
            return Err(ApiError::NotFound {
                resource: resource.group_resource(),
                name: key.name().into(),
            });
        };
        if attempt > 1 {
            tracing::debug!(resource = %resource.plural, %key, attempt, "delete conflict, retrying");
        }
        let presented = conversion::present(api, resource, existing.clone()).await?;
        let old = resource.read(&presented);
        check_preconditions(resource, &old, &options.preconditions)?;
        if let Some(attributes) = attributes {
            let given = options.to_value();
            admission::admit_delete(api, attributes, &old, &given, options.dry_run).await?;
        }
        match plan(api, resource, &old, options) {
            Plan::Nothing => return Ok(Deleted::Waiting(Written::Stored(presented))),
            Plan::Mark(new) => {
                if let Some(outcome) =
                    mark(api, resource, key, &existing, &old, new, options).await?
                {
                    return Ok(outcome);
                }
            }
            Plan::MarkAndRemove(new) if !options.dry_run => {
                // Watchers see the object terminating first, then gone.
                if let Some(Deleted::Waiting(Written::Stored(last))) =
                    mark(api, resource, key, &existing, &old, new, options).await?
                {
                    let terminating = resource.read(&last);
                    let removed = remove(api, resource, key, &last, &terminating, options).await?;
                    if let Some(outcome) = removed {
                        return Ok(outcome);
                    }
                    marked = Some(last);
                }
            }
            Plan::MarkAndRemove(new) => {
                return Ok(answer(resource, Written::Unstored(new), &old));
            }
            Plan::Remove => {
                if let Some(outcome) = remove(api, resource, key, &existing, &old, options).await? {
                    return Ok(outcome);
                }
            }
        }
    }
    Err(ApiError::modified(resource.group_resource(), key.name()))
}

/// Whether the stored object is still the one that was marked.
fn is_same(resource: &Resource, existing: Option<&Arc<Stored>>, marked: &Arc<Stored>) -> bool {
    let uid = |stored: &Arc<Stored>| resource.read(stored).meta.uid.clone();
    existing.is_some_and(|existing| uid(existing) == uid(marked))
}

fn plan(api: &Api, resource: &Resource, old: &Object, options: &DeleteOptions) -> Plan {
    let mut new = old.clone();
    let now = api.clock.now();
    let graceful = match (resource.strategy.grace_period)(old, options.grace_period_seconds) {
        Some(_) if old.meta.deletion_timestamp.is_some() => {
            match (
                old.meta.deletion_grace_period_seconds,
                options.grace_period_seconds,
            ) {
                // Only a shorter period than the one under way counts.
                (Some(under_way), Some(requested)) if requested.max(0) < under_way => {
                    let shorter = requested.max(0) - under_way;
                    new.meta.deletion_timestamp =
                        old.meta.deletion_timestamp.map(|t| t.plus_seconds(shorter));
                    new.meta.deletion_grace_period_seconds = Some(requested.max(0));
                    Some(requested.max(0))
                }
                _ => return Plan::Nothing,
            }
        }
        Some(seconds) => {
            new.meta.deletion_timestamp = Some(now.plus_seconds(seconds));
            new.meta.deletion_grace_period_seconds = Some(seconds);
            if new.meta.generation > 0 {
                new.meta.generation += 1;
            }
            Some(seconds)
        }
        None => None,
    };
    set_finalizers(resource, &mut new, options.propagation);
    if old.meta.deletion_timestamp.is_none() {
        (resource.strategy.deletion.begin)(&mut new, now);
    }
    let held = !new.meta.finalizers.is_empty() || (resource.strategy.deletion.held)(&new);
    match graceful {
        Some(0) if !held => Plan::MarkAndRemove(Box::new(new)),
        Some(_) => Plan::Mark(Box::new(new)),
        None if held => {
            mark_deleting(resource, &mut new, now);
            if new == *old {
                Plan::Nothing
            } else {
                Plan::Mark(Box::new(new))
            }
        }
        None => Plan::Remove,
    }
}

async fn mark(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    existing: &Arc<Stored>,
    old: &Object,
    new: Box<Object>,
    options: &DeleteOptions,
) -> Result<Option<Deleted>, ApiError> {
    if options.dry_run {
        return Ok(Some(Deleted::Waiting(Written::Unstored(new))));
    }
    let write = Write {
        collection: resource.collection.clone(),
        key: key.clone(),
        expect: Expect::Version(existing.revision),
        put: Some(conversion::put(api, resource, &new).await?),
    };
    match api.store.commit(write).await {
        Ok(stored) => {
            after_write(api, resource, Some(old), Some(&new), options.effects).await;
            let stored = conversion::present(api, resource, stored).await?;
            Ok(Some(Deleted::Waiting(Written::Stored(stored))))
        }
        Err(Conflict { .. }) => Ok(None),
    }
}

async fn remove(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    existing: &Arc<Stored>,
    old: &Object,
    options: &DeleteOptions,
) -> Result<Option<Deleted>, ApiError> {
    if options.dry_run {
        return Ok(Some(answer(
            resource,
            Written::Stored(existing.clone()),
            old,
        )));
    }
    let write = Write {
        collection: resource.collection.clone(),
        key: key.clone(),
        expect: Expect::Version(existing.revision),
        put: None,
    };
    match api.store.commit(write).await {
        Ok(last) => {
            after_write(api, resource, Some(old), None, options.effects).await;
            Ok(Some(answer(resource, Written::Stored(last), old)))
        }
        Err(Conflict { .. }) => Ok(None),
    }
}

/// The effect of a delete on an object.
enum Plan {
    /// Nothing: it is terminating already.
    Nothing,
    /// Marks it and leaves it.
    Mark(Box<Object>),
    /// Marks it and removes it immediately.
    MarkAndRemove(Box<Object>),
    /// Removes it.
    Remove,
}

fn answer(resource: &Resource, last: Written, old: &Object) -> Deleted {
    match resource.strategy.delete_answer {
        DeleteAnswer::Object => Deleted::Object(last),
        DeleteAnswer::Status => Deleted::Gone(old.meta.uid.clone()),
    }
}

/// Whether the object is the one that a client means.
///
/// # Errors
/// 409 with what differs.
pub(crate) fn check_preconditions(
    resource: &Resource,
    object: &Object,
    wanted: &Preconditions,
) -> Result<(), ApiError> {
    let conflict = |why: String| {
        let what = GroupResource::new(resource.group.as_str(), resource.kind.as_str());
        Err(ApiError::Conflict {
            what,
            name: object.meta.name.clone(),
            why,
        })
    };
    if let Some(uid) = wanted.uid.as_ref().filter(|uid| **uid != object.meta.uid) {
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            object.meta.uid
        ));
    }
    if let Some(version) = wanted
        .resource_version
        .as_ref()
        .filter(|v| **v != object.meta.resource_version)
    {
        return conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            object.meta.resource_version
        ));
    }
    Ok(())
}

/// Adds or takes away the finalizers that garbage collection answers to.
fn set_finalizers(resource: &Resource, object: &mut Object, propagation: Option<Propagation>) {
    let has = |name: &str| object.meta.finalizers.iter().any(|f| f == name);
    let wanted = match propagation {
        Some(Propagation::Orphan) => Some(ORPHAN),
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Background) => None,
        None if has(ORPHAN) => Some(ORPHAN),
        None if has(FOREGROUND) => Some(FOREGROUND),
        None if resource.strategy.orphans => Some(ORPHAN),
        None => None,
    };
    if wanted.is_some_and(has) && !(has(ORPHAN) && has(FOREGROUND)) {
        return;
    }
    object
        .meta
        .finalizers
        .retain(|f| f != ORPHAN && f != FOREGROUND);
    object.meta.finalizers.extend(wanted.map(str::to_owned));
}

/// Sets the deletion timestamp of an object without a grace period that has finalizers.
fn mark_deleting(resource: &Resource, object: &mut Object, now: Time) {
    let meta = &mut object.meta;
    let first = meta.deletion_timestamp.is_none();
    if meta.deletion_timestamp.is_none_or(|t| t > now) {
        meta.deletion_timestamp = Some(now);
    }
    if resource.strategy.deletion.time_only {
        return;
    }
    if first && meta.generation > 0 {
        meta.generation += 1;
    }
    meta.deletion_grace_period_seconds = Some(0);
}
