//! Changing an object: whole, by patch, or a subresource of it.
//! Mirrors `Store.Update` of the generic registry.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
};
use bellerophon_codec::object::{Object, ObjectMeta};
use bellerophon_storage::{Conflict, Expect, ObjectKey, Write};

use super::{
    ATTEMPTS_MAX, Effects, Written, after_write, create::create_admitted, generation_grows, meta,
    quota,
};
use crate::{
    admission::{self, Attributes},
    api::Api,
    conversion,
    http::query::parse_revision,
    managed_fields::{self, ConflictResolution},
    registry::Resource,
};

/// Which part of an object a write may change, and how it is checked.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    /// Takes from the old object what this write may not change.
    pub(crate) prepare: fn(&Resource, &mut Object, &Object),
    /// Validates the change; returns warnings about tolerated errors.
    pub(crate) validate: fn(&Resource, &Object, &Object, &mut Vec<FieldError>) -> Vec<String>,
    /// Whether a missing object is made.
    pub(crate) may_create: bool,
    /// Whether the generation may grow.
    pub(crate) counts: bool,
    /// How the effects of the change are handled.
    pub(crate) effects: Effects,
    /// What to do with fields that others manage in other versions.
    pub(crate) conflict_resolution: ConflictResolution,
}

impl Change {
    /// The object itself.
    pub(crate) fn whole(resource: &Resource) -> Self {
        Self {
            prepare: |resource, new, old| (resource.strategy.prepare_update)(new, old),
            validate: |resource, new, old, errs| {
                (resource.strategy.validate)(new, errs);
                (resource.strategy.validate_update)(new, old, errs);
                resource.validate_schema(new, Some(old), errs)
            },
            may_create: resource.strategy.create_on_update,
            counts: true,
            effects: Effects::Immediate,
            conflict_resolution: ConflictResolution::Force,
        }
    }

    /// A change by the server itself of an object that is known to be valid.
    pub(crate) fn server_side() -> Self {
        Self {
            prepare: |_, _, _| {},
            validate: |_, _, _, _| Vec::new(),
            may_create: false,
            counts: false,
            effects: Effects::Immediate,
            conflict_resolution: ConflictResolution::Force,
        }
    }

    /// The status alone.
    pub(crate) fn status() -> Self {
        Self {
            prepare: |resource, new, old| (resource.strategy.prepare_status)(new, old),
            validate: |resource, new, old, errs| {
                (resource.strategy.validate_status)(new, old, errs);
                resource.validate_status_schema(new, old, errs)
            },
            may_create: false,
            counts: false,
            effects: Effects::Immediate,
            conflict_resolution: ConflictResolution::Force,
        }
    }
}

/// The outcome of an update.
#[derive(Debug)]
pub(crate) struct Updated {
    /// The object.
    pub(crate) written: Written,
    /// Whether it did not exist before.
    pub(crate) created: bool,
    /// For the client.
    pub(crate) warnings: Vec<String>,
}

/// Changes an object. `edit` makes the new object from the current one (`None` when there is none)
/// and runs again after a conflict when the new object names no version. Requests of clients go
/// through admission; writes of the server itself have no `attributes`.
///
/// # Errors
/// The error of `edit`, a stale version, an object that is not valid.
pub(crate) async fn update(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    change: Change,
    dry_run: bool,
    attributes: Option<&Attributes<'_>>,
    mut edit: impl FnMut(Option<&Object>) -> Result<Object, ApiError> + Send,
) -> Result<Updated, ApiError> {
    for attempt in 1..=ATTEMPTS_MAX {
        let Some(existing) = api.store.get(&resource.collection, key) else {
            let mut object = edit(None)?;
            if let Some(attributes) = attributes.filter(|_| change.may_create) {
                admission::mutate(api, attributes, &mut object, None, dry_run).await?;
            }
            return create_by_update(api, resource, key, change, object, dry_run, attributes).await;
        };
        let presented = conversion::present(api, resource, existing.clone()).await?;
        let mut old = resource.read(&presented);
        let mut new = edit(Some(&old))?;
        settle_managers(api, resource, change.conflict_resolution, &old, &mut new).await?;
        if let Some(attributes) = attributes {
            admission::mutate(api, attributes, &mut new, Some(&old), dry_run).await?;
        }
        resource.to_inner(&mut old);
        resource.to_inner(&mut new);
        check_version(resource, &new, &old)?;
        // Before validating admission, which sees the version that is replaced, also if the client
        // named none.
        new.meta
            .resource_version
            .clone_from(&old.meta.resource_version);
        meta::keep_server_fields(&mut new, &old);
        let claim = if change.counts {
            Some(api.claim(resource, &mut new, Some(&old))?)
        } else {
            None
        };
        (change.prepare)(resource, &mut new, &old);
        (resource.strategy.stamp)(&mut new, Some(&old), api.clock.now());
        if change.counts && generation_grows(resource.strategy.generation, &new, &old) {
            new.meta.generation = old.meta.generation + 1;
        }
        let mut errs = Vec::new();
        meta::validate_change(&new.meta, &old.meta, &mut errs);
        // kube-apiserver checks metadata twice, and its list of causes shows it.
        errs.extend(errs.clone());
        let mut warnings = (change.validate)(resource, &new, &old, &mut errs);
        ApiError::from_fields(resource.group_kind(), &new.meta.name, errs)?;
        warnings.extend((resource.strategy.warnings)(&new, Some(&old)));
        if let Some(attributes) = attributes {
            let old = Some(&old);
            warnings.extend(admission::validate(api, attributes, &new, old, dry_run).await?);
            quota::charge(api, attributes, &new, old, dry_run).await?;
        }
        let goes = is_released(resource, &new, &old);
        let put = conversion::put(api, resource, &new).await?;
        if existing.encoded.holds(&put.draft) && !goes {
            return Ok(Updated {
                written: Written::Stored(presented),
                created: false,
                warnings,
            });
        }
        if dry_run {
            resource.to_outer(&mut new);
            return Ok(Updated {
                written: Written::Unstored(Box::new(new)),
                created: false,
                warnings,
            });
        }
        let write = Write {
            collection: resource.collection.clone(),
            key: key.clone(),
            expect: Expect::Version(existing.revision),
            put: (!goes).then_some(put),
        };
        match api.store.commit(write).await {
            Ok(_) if goes => {
                if let Some(claim) = claim {
                    claim.keep();
                }
                after_write(api, resource, Some(&old), None, change.effects).await;
                resource.to_outer(&mut new);
                return Ok(Updated {
                    written: Written::Unstored(Box::new(new)),
                    created: false,
                    warnings,
                });
            }
            Ok(stored) => {
                if let Some(claim) = claim {
                    claim.keep();
                }
                after_write(api, resource, Some(&old), Some(&new), change.effects).await;
                let stored = conversion::present(api, resource, stored).await?;
                return Ok(Updated {
                    written: Written::Stored(stored),
                    created: false,
                    warnings,
                });
            }
            Err(Conflict { .. }) => {
                tracing::debug!(resource = %resource.plural, %key, attempt, "write conflict, retrying");
            }
        }
    }
    Err(ApiError::modified(resource.group_resource(), key.name()))
}

/// Takes what a write changes from managers that manage fields in other versions, where a webhook
/// converts between them. Mirrors the updater of structured-merge-diff.
///
/// # Errors
/// 409 for an apply that changes such a field without force; 500 with the error of the webhook.
async fn settle_managers(
    api: &Api,
    resource: &Resource,
    conflict_resolution: ConflictResolution,
    old: &Object,
    new: &mut Object,
) -> Result<(), ApiError> {
    let versions = managed_fields::unsettled_versions(resource, &new.meta.managed_fields);
    let catalog = api.registry.catalog();
    for version in versions {
        let Some((_, name)) = version.split_once('/') else {
            continue;
        };
        let Some(other) = catalog.find(&resource.group, name, &resource.plural) else {
            continue;
        };
        let before = conversion::to_version(api, resource, old, &version).await?;
        let after = conversion::to_version(api, resource, new, &version).await?;
        if let (Some(before), Some(after)) = (before, after) {
            let entries = &mut new.meta.managed_fields;
            managed_fields::settle_version(&other, &before, &after, conflict_resolution, entries)?;
        }
    }
    Ok(())
}

async fn create_by_update(
    api: &Api,
    resource: &Resource,
    key: &ObjectKey,
    change: Change,
    mut object: Object,
    dry_run: bool,
    attributes: Option<&Attributes<'_>>,
) -> Result<Updated, ApiError> {
    if !change.may_create {
        return Err(ApiError::NotFound {
            resource: resource.group_resource(),
            name: key.name().into(),
        });
    }
    if !object.meta.uid.is_empty() {
        return Err(uid_conflict(resource, &object.meta, ""));
    }
    sent_version(&object)?;
    object.meta.resource_version.clear();
    create_admitted(api, resource, object, dry_run, attributes).await
}

/// The resource version that a client sent with its object.
fn sent_version(object: &Object) -> Result<Option<u64>, ApiError> {
    let text = &object.meta.resource_version;
    parse_revision(text).map_err(|_| {
        ApiError::Unnamed(format!(
            "strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

/// 409 for an object of another uid than the one meant, with the messages of kube-apiserver's
/// storage.
pub(crate) fn uid_conflict(resource: &Resource, wanted: &ObjectMeta, found: &str) -> ApiError {
    let place = [&resource.plural, &wanted.namespace, &wanted.name]
        .into_iter()
        .filter(|s| !s.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join("/");
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {}, UID in object meta: {found}",
        wanted.uid
    );
    ApiError::Conflict {
        what: resource.group_resource(),
        name: wanted.name.clone(),
        why,
    }
}

/// Whether the resource version of the new object, if it has one, is that of the current one.
fn check_version(resource: &Resource, new: &Object, old: &Object) -> Result<(), ApiError> {
    let name = &old.meta.name;
    match sent_version(new)? {
        None | Some(0) if resource.strategy.unconditional_update => Ok(()),
        None | Some(0) => {
            let kind = GroupKind::new(resource.group.as_str(), resource.plural.as_str());
            let errs = FieldError::invalid(
                "metadata.resourceVersion",
                0i64,
                "must be specified for an update",
            );
            Err(ApiError::Invalid {
                kind,
                name: name.clone(),
                errors: vec![errs],
            })
        }
        Some(_) if new.meta.resource_version == old.meta.resource_version => Ok(()),
        Some(_) => Err(ApiError::modified(resource.group_resource(), name)),
    }
}

/// Whether a terminating object is removed after this change: it has no finalizers and no grace
/// period left.
fn is_released(resource: &Resource, new: &Object, old: &Object) -> bool {
    new.meta.finalizers.is_empty()
        && old.meta.deletion_timestamp.is_some()
        && old
            .meta
            .deletion_grace_period_seconds
            .is_none_or(|s| s == 0)
        && !(resource.strategy.deletion.held)(new)
}
