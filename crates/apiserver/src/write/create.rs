//! Creating an object.

use super::{Effects, Updated, Written, meta, put_of};
use crate::{
    api::Api,
    auth,
    error::ApiError,
    kinds::Generation,
    object::Object,
    registry::Resource,
    store::{Expect, ObjectKey, Refused, Write},
    verbs::Call,
};

/// Names are made this often before a generated one is reported as taken.
const NAME_ATTEMPTS: usize = 8;

/// The part of a generated name that the client gives is cut to this length.
const NAME_PREFIX_MAX: usize = 58;

/// The length of the random part of a generated name.
const NAME_SUFFIX_LEN: usize = 5;

impl Api {
    /// Stores a new object.
    ///
    /// # Errors
    /// The object is not valid, or the name is taken.
    pub(crate) async fn create(
        &self,
        resource: &Resource,
        object: Object,
        dry_run: bool,
        asker: Option<&Call>,
    ) -> Result<Updated, ApiError> {
        let generated = object.meta.name.is_empty() && !object.meta.generate_name.is_empty();
        let mut attempts = if generated { NAME_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            match self
                .create_once(resource, object.clone(), dry_run, asker)
                .await
            {
                Err(ApiError::AlreadyExists { .. }) if attempts > 0 => {}
                outcome => return outcome,
            }
        }
    }

    async fn create_once(
        &self,
        resource: &Resource,
        mut object: Object,
        dry_run: bool,
        asker: Option<&Call>,
    ) -> Result<Updated, ApiError> {
        if let Some(custom) = resource.custom() {
            custom.may_create(resource, &object.meta.name)?;
        }
        self.name_new(resource, &mut object);
        resource.to_inner(&mut object);
        let claim = self.claim(resource, &mut object, None)?;
        (resource.strategy.prepare_create)(&mut object);
        (resource.strategy.stamp)(&mut object, None, self.clock.now());
        resource.complete(&mut object);
        let mut wrong = Vec::new();
        meta::validate_new(resource, &object.meta, &mut wrong);
        (resource.strategy.validate)(&object, &mut wrong);
        (resource.strategy.validate_create)(&object, &mut wrong);
        let mut warnings = resource.validate_schema(&object, None, &mut wrong);
        ApiError::from_fields(resource.group_kind(), &object.meta.name, wrong)?;
        warnings.extend((resource.strategy.warnings)(&object, None));
        if let Some(call) = asker {
            // Mirrors withAuthorization: an update or patch that creates is authorized again,
            // behind validation and before validating admission.
            if call.names_object() {
                auth::check(&call.creation().by(&call.user), self)?;
            }
            warnings.extend(self.confirm(call, &object, None).await?);
        }
        if !object.meta.resource_version.is_empty() {
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
        if let Some(holder) = self.store.get(&resource.shelf, &key) {
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
            shelf: resource.shelf.clone(),
            key: key.clone(),
            expect: Expect::Absent,
            put: Some(put_of(resource, &object)),
        };
        match self.store.commit(write).await {
            Ok(stored) => {
                claim.keep();
                self.after_write(resource, None, Some(&object), Effects::Immediate)
                    .await;
                Ok(Updated {
                    written: Written::Stored(stored),
                    created: true,
                    warnings,
                })
            }
            Err(Refused::Changed(holder)) => Err(taken(holder.map(|h| resource.read(&h)).as_ref())),
            Err(Refused::Unavailable(why)) => Err(ApiError::Internal(why)),
        }
    }

    /// Fills in what the server alone decides.
    fn name_new(&self, resource: &Resource, object: &mut Object) {
        let meta = &mut object.meta;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.self_link.clear();
        meta.creation_timestamp = Some(self.clock.now());
        meta.uid = self.entropy.uid();
        if meta.name.is_empty() && !meta.generate_name.is_empty() {
            let cut = meta
                .generate_name
                .char_indices()
                .nth(NAME_PREFIX_MAX)
                .map_or(meta.generate_name.len(), |(i, _)| i);
            meta.name = format!(
                "{}{}",
                &meta.generate_name[..cut],
                self.entropy.suffix(NAME_SUFFIX_LEN)
            );
        }
        if !resource.namespaced {
            meta.namespace.clear();
        }
        if resource.strategy.generation != Generation::None {
            meta.generation = 1;
        }
    }
}
