//! One call of a webhook.
//! In: a request and a webhook. Out: whether the request is admitted, and a patch; or why the
//! webhook could not be called. Mirrors `callAttrMutatingHook` and `callHook`.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::time::{Instant, timeout};

use super::{
    Invocation,
    patch::Patch,
    review::{self, Response as ReviewResponse},
    status,
};
use crate::{
    admission::dynamic::request::Request, admission_config::Webhook, api::Api, endpoints,
    webhook_client::WebhookClient, webhook_response,
};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

/// The code of failures other than a response with a code.
const UNAVAILABLE: u16 = 503;

/// How a call ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Allowed,
    /// The webhook patches the object.
    Patched(Patch),
    /// The webhook denies the request.
    Rejected(ApiError),
    /// The webhook could not be called, or did not answer as it must; subject to its failure
    /// policy.
    Failed {
        why: String,
        code: u16,
    },
    /// The response of the webhook cannot be applied, whatever its failure policy.
    Internal(ApiError),
}

/// A call that has ended.
pub(super) struct Reviewed {
    pub(super) outcome: Outcome,
}

/// Calls a webhook.
pub(super) async fn call(
    request: &Request<'_>,
    invocation: &Invocation<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    is_mutating: bool,
) -> Reviewed {
    let called = try_call(request, invocation, object, old, is_mutating).await;
    let outcome = called.unwrap_or_else(|failed| failed);
    Reviewed { outcome }
}

async fn try_call(
    request: &Request<'_>,
    invocation: &Invocation<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    is_mutating: bool,
) -> Result<Outcome, Outcome> {
    let webhook = &**invocation.webhook;
    let Some(version) = webhook.review_version else {
        let why = "could not create admission objects: webhook does not accept known \
             AdmissionReview versions (v1, v1beta1)";
        return Err(failed(why, 400));
    };
    let Some(client) = &webhook.client else {
        let why = "could not get REST client: the client configuration is not valid";
        return Err(failed(why, 500));
    };
    let uid = request.api.entropy.uid();
    let body = review::create(request, version, invocation.version, &uid, object, old);
    let remaining = request
        .attributes
        .deadline
        .saturating_duration_since(Instant::now());
    let limit = webhook.timeout.min(remaining);
    let response = post(request.api, client, webhook, limit, body).await?;
    if !response.status().is_success() {
        let (why, code) = webhook_response::describe(&response);
        return Err(failed(format!("failed to call webhook: {why}"), code));
    }
    let review = review::decode(&response, version)
        .map_err(|why| failed(format!("failed to call webhook: {why}"), UNAVAILABLE))?;
    let verified = review::verify(review, version, &uid, is_mutating).map_err(|why| {
        let why = format!("received invalid webhook response: {why}");
        failed(why, UNAVAILABLE)
    })?;
    settle(request, webhook, verified)
}

fn settle(
    request: &Request<'_>,
    webhook: &Webhook,
    response: ReviewResponse,
) -> Result<Outcome, Outcome> {
    let output = request.attributes.output;
    for (key, value) in response.audit_annotations {
        output.annotate(format!("{}/{key}", webhook.name), value);
    }
    output.warn(response.warnings);
    if !response.allowed {
        let error = status::denied(&webhook.name, response.result);
        return Ok(Outcome::Rejected(error));
    }
    if response.patch.is_empty() {
        return Ok(Outcome::Allowed);
    }
    match Patch::read(&response.patch) {
        Err(why) => {
            let why = format!("received undecodable patch in webhook response: {why}");
            Err(failed(why, UNAVAILABLE))
        }
        Ok(patch) if patch.is_empty() => Ok(Outcome::Allowed),
        Ok(_) if response.patch_type != "JSONPatch" => {
            let why = format!("unsupported patch type {:?}", response.patch_type);
            Err(failed(why, 400))
        }
        Ok(patch) => Ok(Outcome::Patched(patch)),
    }
}

fn failed(why: impl Into<String>, code: u16) -> Outcome {
    Outcome::Failed {
        why: why.into(),
        code,
    }
}

/// Sends a review. The parameter `timeout` is how long the server waits, in whole seconds.
async fn post(
    api: &Api,
    client: &WebhookClient,
    webhook: &Webhook,
    limit: Duration,
    body: Bytes,
) -> Result<Response<Bytes>, Outcome> {
    let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    let request = client.post(endpoints::webhook_address(api, client), Some(seconds), body);
    let url = request.url.clone();
    let sent = match api.webhook_transport() {
        Some(transport) => timeout(limit, transport.post(request)).await,
        None => Ok(Err("webhooks cannot be called by this server".to_owned())),
    };
    let why = match sent {
        Ok(Ok(response)) => return Ok(response),
        Ok(Err(why)) => why,
        Err(_) => format!("Post {url:?}: context deadline exceeded"),
    };
    tracing::debug!(webhook = webhook.name, %why, "webhook cannot be called");
    Err(failed(
        format!("failed to call webhook: {why}"),
        UNAVAILABLE,
    ))
}
