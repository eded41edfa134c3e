//! Creating an object.
//! Mirrors `Store.Create` of the generic registry.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Generation;
use bellerophon_storage::{Conflict, Expect, ObjectKey, Write};

use super::{Effects, Updated, Written, after_write, meta, quota};
use crate::{
    admission::{self, Attributes},
    api::Api,
    auth, conversion,
    registry::Resource,
};

/// Names are made this often before a generated one is reported as taken.
const NAME_ATTEMPTS: usize = 8;

/// The part of a generated name that the client gives is cut to this length.
const NAME_PREFIX_MAX: usize = 58;

/// The length of the random part of a generated name.
const NAME_SUFFIX_LEN: usize = 5;

/// Creates an object. What a client creates is subject to admission; what the server creates has no
/// `attributes`.
///
/// # Errors
/// A refusal by admission, an object that is not valid, or a name that is taken.
pub(crate) async fn create(
    api: &Api,
    resource: &Resource,
    mut object: Object,
    dry_run: bool,
    attributes: Option<&Attributes<'_>>,
) -> Result<Updated, ApiError> {
    if let Some(attributes) = attributes {
        admission::mutate(api, attributes, &mut object, None, dry_run).await?;
    }
    create_admitted(api, resource, object, dry_run, attributes).await
}

/// Stores an object of a new cluster unchanged.
///
/// # Errors
/// The object exists already.
pub(crate) async fn store_as_is(
    api: &Api,
    resource: &Resource,
    object: &Object,
) -> Result<(), Conflict> {
    let write = Write {
        collection: resource.collection.clone(),
        key: ObjectKey::new(&object.meta.namespace, &object.meta.name),
        expect: Expect::Absent,
        put: Some(resource.put(object)),
    };
    api.store.commit(write).await.map(drop)
}

/// Stores a new object that has passed mutating admission.
///
/// # Errors
/// The object is not valid, or the name is taken.
pub(super) async fn create_admitted(
    api: &Api,
    resource: &Resource,
    object: Object,
    dry_run: bool,
    attributes: Option<&Attributes<'_>>,
) -> Result<Updated, ApiError> {
    let generated = object.meta.name.is_empty() && !object.meta.generate_name.is_empty();
    let mut attempts = if generated { NAME_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match create_once(api, resource, object.clone(), dry_run, attributes).await {
            Err(ApiError::AlreadyExists { .. }) if attempts > 0 => {
                tracing::debug!(resource = %resource.plural, attempts, "generated name is taken, retrying");
            }
            outcome => return outcome,
        }
    }
}

async fn create_once(
    api: &Api,
    resource: &Resource,
    mut object: Object,
    dry_run: bool,
    attributes: Option<&Attributes<'_>>,
) -> Result<Updated, ApiError> {
    if let Some(custom) = resource.custom() {
        custom.may_create(resource, &object.meta.name)?;
    }
    name_new(api, resource, &mut object);
    resource.to_inner(&mut object);
    let claim = api.claim(resource, &mut object, None)?;
    (resource.strategy.prepare_create)(&mut object);
    (resource.strategy.stamp)(&mut object, None, api.clock.now());
    resource.complete(&mut object);
    let mut errors = Vec::new();
    meta::validate_new(resource, &object.meta, &mut errors);
    (resource.strategy.validate)(&object, &mut errors);
    (resource.strategy.validate_create)(&object, &mut errors);
    let mut warnings = resource.validate_schema(&object, None, &mut errors);
    ApiError::from_fields(resource.group_kind(), &object.meta.name, errors)?;
    warnings.extend((resource.strategy.warnings)(&object, None));
    if let Some(attributes) = attributes {
        // Mirrors withAuthorization: an update or patch that creates is authorized again,
        // behind validation and before validating admission.
        if let Some(creation) = attributes.creation() {
            auth::check(&auth::Attributes::of(&creation, attributes.user), api)?;
        }
        warnings.extend(admission::validate(api, attributes, &object, None, dry_run).await?);
        quota::charge(api, attributes, &object, None, dry_run).await?;
    }
    // Mirrors etcd3's store.Create, which a dry run does not reach.
    if !dry_run && !object.meta.resource_version.is_empty() {
        return Err(ApiError::Unnamed(
            "resourceVersion should not be set on objects to be created".into(),
        ));
    }
    let key = ObjectKey::new(&object.meta.namespace, &object.meta.name);
    let taken = |holder: Option<&Object>| ApiError::AlreadyExists {
        resource: resource.group_resource(),
        name: key.name().to_owned(),
        deleting: holder.is_some_and(|h| h.meta.deletion_timestamp.is_some()),
    };
    if let Some(holder) = api.store.get(&resource.collection, &key) {
        return Err(taken(Some(&resource.read(&holder))));
    }
    if dry_run {
        resource.to_outer(&mut object);
        return Ok(Updated {
            written: Written::Unstored(Box::new(object)),
            created: true,
            warnings,
        });
    }
    let write = Write {
        collection: resource.collection.clone(),
        key: key.clone(),
        expect: Expect::Absent,
        put: Some(conversion::put(api, resource, &object).await?),
    };
    match api.store.commit(write).await {
        Ok(stored) => {
            claim.keep();
            after_write(api, resource, None, Some(&object), Effects::Immediate).await;
            let stored = conversion::present(api, resource, stored).await?;
            Ok(Updated {
                written: Written::Stored(stored),
                created: true,
                warnings,
            })
        }
        Err(Conflict { current: holder }) => Err(taken(holder.map(|h| resource.read(&h)).as_ref())),
    }
}

/// Fills in what the server alone decides.
fn name_new(api: &Api, resource: &Resource, object: &mut Object) {
    let meta = &mut object.meta;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.self_link.clear();
    meta.creation_timestamp = Some(api.clock.now());
    meta.uid = api.entropy.uid();
    if meta.name.is_empty() && !meta.generate_name.is_empty() {
        let cut = meta
            .generate_name
            .char_indices()
            .nth(NAME_PREFIX_MAX)
            .map_or(meta.generate_name.len(), |(i, _)| i);
        meta.name = format!(
            "{}{}",
            &meta.generate_name[..cut],
            api.entropy.suffix(NAME_SUFFIX_LEN)
        );
    }
    if !resource.namespaced {
        meta.namespace.clear();
    }
    if resource.strategy.generation != Generation::None {
        meta.generation = 1;
    }
}
