//! Dynamic admission: webhooks and policies that are configured as objects.
//! In: a request that built-in plugins have admitted. Out: the object with the mutations of
//! policies and webhooks, or a denial.
//!
//! Guarantees: mutating policies run before mutating webhooks, validating policies before
//! validating webhooks; the configurations themselves are exempt; a request that nothing is
//! configured for is not encoded.

mod evaluation; // expressions, with cost budgets
mod matching; // which configurations a request concerns
mod policy; // ValidatingAdmissionPolicy and MutatingAdmissionPolicy
mod request; // the request as configurations see it
mod webhook; // MutatingAdmissionWebhook and ValidatingAdmissionWebhook

pub(crate) use request::Operation;

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;

use self::request::Request;
use super::Attributes;
use crate::{admission_config::Configured, api::Api};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

/// The target of a request, besides its attributes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) operation: Operation,
    /// `options` of the AdmissionReview, if they are not those of the query.
    pub(crate) options: Option<&'a Value>,
    pub(crate) dry_run: bool,
}

/// Which mutations have run, and which run again. Mirrors `ReinvocationContext`.
#[derive(Debug, Default)]
pub(super) struct Reinvocation {
    /// Whether this is the second round.
    is_reinvoked: bool,
    /// Whether there must be a second round.
    is_needed: bool,
    policies: Invoked,
    webhooks: Invoked,
}

/// The mutations of one plugin.
#[derive(Debug, Default)]
struct Invoked {
    /// The object as the plugin left it in the first round.
    last_output: Option<Object>,
    /// Those that have run since the last change, and want to see later ones.
    previously: HashSet<String>,
    /// Those that run again.
    again: HashSet<String>,
}

impl Invoked {
    /// Something has changed: what has run before runs again.
    fn require(&mut self) {
        self.again.extend(self.previously.drain());
    }

    /// The plugin begins its part of a round.
    fn begin(&mut self, is_reinvoked: bool, object: Option<&Object>) {
        if is_reinvoked && self.last_output.as_ref() != object {
            self.require();
        }
    }

    /// The plugin has ended its part of a round.
    fn end(&mut self, object: Option<&Object>) {
        self.last_output = object.cloned();
    }

    fn skips(&self, is_reinvoked: bool, key: &str) -> bool {
        is_reinvoked && !self.again.contains(key)
    }
}

impl Reinvocation {
    /// Begins the second round; `false` if there is none.
    pub(super) fn begin_again(&mut self) -> bool {
        let again = self.is_needed && !self.is_reinvoked;
        self.is_reinvoked = again;
        again
    }
}

/// The configurations that may mutate a request; `None` if there are none.
pub(super) fn mutating(api: &Api, attributes: &Attributes<'_>) -> Option<Arc<Configured>> {
    if is_exempt(attributes) {
        return None;
    }
    let configured = api.admission_config.current()?;
    configured.mutates().then_some(configured)
}

/// Runs mutating policies and webhooks once.
///
/// # Errors
/// A denial, or the failure of a policy or webhook that must not fail.
pub(super) async fn mutate(
    api: &Api,
    attributes: &Attributes<'_>,
    target: Target<'_>,
    configured: &Configured,
    mut object: Option<&mut Object>,
    old: Option<&Object>,
    reinvocation: &mut Reinvocation,
) -> Result<(), ApiError> {
    let request = Request::new(api, attributes, target, object.as_deref(), old);
    if api.runs_admission_plugin("MutatingAdmissionPolicy") {
        policy::mutate(
            &request,
            configured,
            object.as_deref_mut(),
            old,
            reinvocation,
        )
        .await?;
    }
    if api.runs_admission_plugin("MutatingAdmissionWebhook") {
        webhook::mutate(&request, configured, object, old, reinvocation).await?;
    }
    Ok(())
}

/// Runs validating policies and webhooks.
///
/// # Errors
/// A denial, or the failure of a policy or webhook that must not fail.
pub(super) async fn validate(
    api: &Api,
    attributes: &Attributes<'_>,
    target: Target<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if is_exempt(attributes) {
        return Ok(());
    }
    let Some(configured) = api.admission_config.current().filter(|c| c.validates()) else {
        return Ok(());
    };
    let request = Request::new(api, attributes, target, object, old);
    if api.runs_admission_plugin("ValidatingAdmissionPolicy") {
        policy::validate(&request, &configured, object, old).await?;
    }
    if api.runs_admission_plugin("ValidatingAdmissionWebhook") {
        webhook::validate(&request, &configured, object, old).await?;
    }
    Ok(())
}

/// Admission configurations are exempt, so that an invalid one can be repaired. Mirrors
/// `IsExemptAdmissionConfigurationResource`.
fn is_exempt(attributes: &Attributes<'_>) -> bool {
    attributes.resource.group == "admissionregistration.k8s.io"
}
