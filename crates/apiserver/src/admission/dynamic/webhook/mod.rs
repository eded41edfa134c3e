//! The plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook.
//! In: a request and the webhooks that it may concern. Out: the patched object, or a denial.
//!
//! Guarantees: mutating webhooks are called one after the other, validating ones concurrently; a
//! webhook that fails is handled by its failure policy; nothing waits longer than the timeout of a
//! webhook or the rest of the request's time.
//! Mirrors `mutatingDispatcher` and `validatingDispatcher`.

mod call; // one call
mod patch; // patches of responses
mod review; // AdmissionReview
mod status; // responses that are no AdmissionReview

pub(super) use patch::decode as decode_mutated;

use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use self::call::{Outcome, Reviewed, call};
use super::{
    Reinvocation,
    evaluation::{Inputs, subject},
    matching::{Conditions, check_conditions, matched},
    request::Request,
};
use crate::{
    admission_config::Configured, admission_config::Webhook, admission_config::WebhookCall,
};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::admission::CheckedResource;

/// A webhook that a request concerns.
struct Invocation<'a> {
    webhook: &'a Arc<Webhook>,
    /// Its place among all webhooks of its kind.
    place: usize,
    /// The version of the resource that it is called with.
    version: usize,
}

/// Whether a webhook is called, and with which version. Mirrors `ShouldCallHook`.
async fn invocation<'a>(
    request: &Request<'_>,
    place: usize,
    webhook: &'a Arc<Webhook>,
    object: Option<&Object>,
    old: Option<&Object>,
    kind: &'static str,
) -> Result<Option<Invocation<'a>>, ApiError> {
    let targets = request.rule_targets(object.or(old));
    let Some(version) = matched(request, &webhook.criteria, &targets, object, old)? else {
        return Ok(None);
    };
    let converted = request.prepare([object, old], version).await;
    converted.map_err(|error| {
        let status = error.to_status();
        ApiError::Internal(status["message"].as_str().unwrap_or_default().to_owned())
    })?;
    if !webhook.conditions.is_empty() {
        let inputs = inputs(request, version, object, old);
        let metrics = &request.api.admission_config.metrics;
        let operation = request.operation().name();
        match check_conditions(&webhook.conditions, &inputs) {
            Conditions::Met => {}
            Conditions::Unmet => {
                metrics.excluded(&webhook.name, "webhook", kind, operation, false);
                return Ok(None);
            }
            Conditions::Failed(why) => {
                metrics.excluded(&webhook.name, "webhook", kind, operation, true);
                if webhook.fails_open {
                    return Ok(None);
                }
                let name = request.name(object.or(old));
                return Err(request.attributes.forbidden(name, why));
            }
        }
    }
    Ok(Some(Invocation {
        webhook,
        place,
        version,
    }))
}

/// The variables of match conditions.
fn inputs(
    request: &Request<'_>,
    version: usize,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Inputs {
    let attributes = request.attributes;
    Inputs {
        object: request.json(object, version),
        old_object: request.json(old, version),
        request: Value::Object(request.to_value(version, object.or(old))),
        namespace: Value::Null,
        params: Value::Null,
        authorizer: subject(request.api, attributes.user),
        request_resource: CheckedResource {
            group: attributes.resource.group.clone(),
            resource: attributes.resource.plural.clone(),
            subresource: attributes.subresource.to_owned(),
            namespace: attributes.namespace.to_owned(),
            name: attributes.name.to_owned(),
        },
    }
}

/// Calls the mutating webhooks that a request concerns.
///
/// # Errors
/// A denial, or the failure of a webhook that must not fail.
pub(super) async fn mutate(
    request: &Request<'_>,
    configured: &Configured,
    mut object: Option<&mut Object>,
    old: Option<&Object>,
    reinvocation: &mut Reinvocation,
) -> Result<(), ApiError> {
    let is_reinvoked = reinvocation.is_reinvoked;
    let round = u8::from(is_reinvoked);
    reinvocation.webhooks.begin(is_reinvoked, object.as_deref());
    let plural = &request.attributes.resource.plural;
    for (place, webhook) in configured.mutating_webhooks.of(plural) {
        let invocation = invocation(request, place, webhook, object.as_deref(), old, "admit");
        let Some(invocation) = invocation.await? else {
            continue;
        };
        if reinvocation.webhooks.skips(is_reinvoked, &webhook.uid) {
            continue;
        }
        let started = Instant::now();
        let reviewed = call(request, &invocation, object.as_deref(), old, true).await;
        let mut changed = false;
        let mut outcome = reviewed.outcome;
        if let Outcome::Patched(patch) = &outcome {
            match patch::apply(
                request,
                webhook,
                patch,
                invocation.version,
                object.as_deref(),
            )
            .await
            {
                Ok(patched) => {
                    let value = annotation(&PatchAnnotation {
                        configuration: &webhook.configuration,
                        webhook: &webhook.name,
                        patch: &patch.source,
                        patch_type: "JSONPatch",
                    });
                    let key = format!("patch.webhook.admission.k8s.io/round_{round}_index_{place}");
                    request.attributes.output.annotate_request(key, value);
                    if let Some(object) = object.as_deref_mut() {
                        changed = *object != patched;
                        *object = patched;
                    }
                    outcome = Outcome::Allowed;
                }
                Err(error) => outcome = Outcome::Internal(error),
            }
        }
        annotate_mutation(request, &invocation, round, changed);
        observe(request, webhook, "admit", started, &outcome);
        if changed {
            reinvocation.webhooks.require();
            reinvocation.is_needed = true;
        }
        if webhook.is_reinvocable {
            reinvocation.webhooks.previously.insert(webhook.uid.clone());
        }
        let key =
            format!("failed-open.mutation.webhook.admission.k8s.io/round_{round}_index_{place}");
        settle(request, webhook, outcome, key)?;
    }
    reinvocation.webhooks.end(object.as_deref());
    Ok(())
}

/// Calls the validating webhooks that a request concerns.
///
/// # Errors
/// The denial of the first webhook in their order, or its failure.
pub(super) async fn validate(
    request: &Request<'_>,
    configured: &Configured,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let plural = &request.attributes.resource.plural;
    let mut invocations = Vec::new();
    for (place, webhook) in configured.validating_webhooks.of(plural) {
        let invocation = invocation(request, place, webhook, object, old, "validating");
        invocations.extend(invocation.await?);
    }
    if invocations.is_empty() {
        return Ok(());
    }
    let calls = invocations.iter().map(|invocation| async {
        let started = Instant::now();
        let Reviewed { outcome } = call(request, invocation, object, old, false).await;
        observe(request, invocation.webhook, "validating", started, &outcome);
        outcome
    });
    let outcomes = join_all(calls).await;
    let mut first = Ok(());
    for (index, (invocation, outcome)) in invocations.iter().zip(outcomes).enumerate() {
        let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
        first = first.and(settle(request, invocation.webhook, outcome, key));
    }
    first
}

/// Applies the outcome of a call to the request.
fn settle(
    request: &Request<'_>,
    webhook: &Webhook,
    outcome: Outcome,
    failed_open: String,
) -> Result<(), ApiError> {
    match outcome {
        Outcome::Allowed | Outcome::Patched(_) => Ok(()),
        Outcome::Rejected(error) | Outcome::Internal(error) => Err(error),
        Outcome::Failed { why, .. } if webhook.fails_open => {
            tracing::warn!(webhook = webhook.name, %why, "failed calling webhook, failing open");
            let output = request.attributes.output;
            output.annotate(failed_open, webhook.name.clone());
            Ok(())
        }
        Outcome::Failed { why, .. } => {
            let name = &webhook.name;
            tracing::warn!(webhook = name, %why, "failed calling webhook, failing closed");
            Err(ApiError::Internal(format!(
                "failed calling webhook {name:?}: {why}"
            )))
        }
    }
}

/// Mirrors `MutationAuditAnnotation`, whose fields have this order.
#[derive(Serialize)]
struct MutationAnnotation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

/// Mirrors `PatchAuditAnnotation`, whose fields have this order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchAnnotation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a Value,
    patch_type: &'static str,
}

fn annotation(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and values are JSON")
}

fn annotate_mutation(request: &Request<'_>, invocation: &Invocation<'_>, round: u8, mutated: bool) {
    let Invocation { webhook, place, .. } = invocation;
    let value = annotation(&MutationAnnotation {
        configuration: &webhook.configuration,
        webhook: &webhook.name,
        mutated,
    });
    let key = format!("mutation.webhook.admission.k8s.io/round_{round}_index_{place}");
    request.attributes.output.annotate(key, value);
}

fn observe(
    request: &Request<'_>,
    webhook: &Webhook,
    kind: &'static str,
    started: Instant,
    outcome: &Outcome,
) {
    let (code, rejected, error_type) = match outcome {
        Outcome::Allowed | Outcome::Patched(_) => (200, false, "no_error"),
        Outcome::Rejected(error) => (error.code(), true, "no_error"),
        Outcome::Failed { code, .. } => (*code, !webhook.fails_open, "calling_webhook_error"),
        Outcome::Internal(_) => (0, true, "apiserver_internal_error"),
    };
    request.api.admission_config.metrics.called(&WebhookCall {
        name: &webhook.name,
        kind,
        operation: request.operation().name(),
        duration: started.elapsed(),
        code,
        rejected,
        error_type,
        failed_open: webhook.fails_open && matches!(outcome, Outcome::Failed { .. }),
    });
}
