//! The validating webhook: checks the consent of source and destinations at admission.
//!
//! Inputs: the SecSynch, the metadata of its source, the namespaces. Output: the answer that the
//! controller would report in the conditions of the status.
//!
//! Guarantees: the same function decides here and in the controller, so that nothing is disclosed
//! of a Secret that does not consent; an update that does not change the spec is admitted.

use bellerophon::{
    prelude::*,
    webhook::{FailurePolicy, FieldError, Rejection, Review, Validator},
};
use bellerophon_operator::Switches;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::core::PartialObjectMeta;

use crate::{
    SecSynch,
    destinations::Destination,
    reconciler::{FeatureSwitches, Unavailable, assess, missing_consent},
};

/// Declares the webhook. The controller checks the same, so that nothing relies on it: if it is
/// down, SecSynches are admitted.
pub(crate) fn declare(mgr: &mut Manager, switches: &Switches) {
    let validator = ConsentValidator {
        secrets: crate::secrets(mgr).lister(),
        namespaces: mgr.lister(),
        features: crate::features(switches),
    };
    mgr.webhook::<SecSynch>()
        .validate(FailurePolicy::Ignore, validator);
}

struct ConsentValidator {
    secrets: Lister<PartialObjectMeta<Secret>>,
    namespaces: Lister<Namespace>,
    features: FeatureSwitches,
}

impl Validator<SecSynch> for ConsentValidator {
    async fn validate(&self, review: &Review<SecSynch>, synch: &SecSynch) -> Result<(), Rejection> {
        // A finalizer that the controller removes must not depend on consent.
        if review
            .old_object()
            .is_some_and(|old| old.spec == synch.spec)
        {
            return Ok(());
        }
        let spec = &synch.spec;
        if let Some(field) = spec.invalid_field() {
            let value = match field {
                "secretName" => &spec.secret_name,
                _ => &spec.source_namespace,
            };
            let path = format!("spec.{field}");
            let error = FieldError::invalid(path, value, "must be a valid name");
            return Err(Rejection::invalid([error]));
        }
        let source = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        let source = self.secrets.get(&source);
        let source = source
            .as_ref()
            .map(|source| &source.metadata)
            .filter(|source| source.deletion_timestamp.is_none());
        let destinations = assess(synch, source, &self.namespaces.list(), self.features);
        let destinations = match destinations {
            Ok(destinations) => destinations,
            // The Secret may be created later.
            Err(missing @ Unavailable::SourceMissing) => {
                review.warn(missing.message());
                return Ok(());
            }
            Err(unavailable) => return Err(Rejection::denied(unavailable.message())),
        };
        let with = |wanted: Destination| {
            let names = destinations.iter();
            names.filter_map(move |(name, destination)| {
                (*destination == wanted).then_some(name.as_str())
            })
        };
        let not_accepted: Vec<&str> = with(Destination::NotAccepted).collect();
        match missing_consent(synch, &not_accepted) {
            // Nothing at all would be copied.
            Some(message) if with(Destination::Allowed).next().is_none() => {
                Err(Rejection::denied(message))
            }
            Some(message) => {
                review.warn(message);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
