//! Webhooks as they are called: the webhooks of all configurations, in the order of the names of
//! the configurations. Mirrors `mutatingWebhookConfigurationManager`.

use std::{collections::HashMap, time::Duration};

use serde_json::Value;

use super::{conditions::MatchConditions, matching::Criteria};
use crate::webhook_client::WebhookClient;
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::admission::Compiler;

/// The version of `AdmissionReview` that a webhook is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReviewVersion {
    V1,
    V1Beta1,
}

/// A webhook.
#[derive(Debug)]
pub(crate) struct Webhook {
    /// Unique among all webhooks: names repeat in other configurations.
    pub(crate) uid: String,
    pub(crate) configuration: String,
    pub(crate) name: String,
    pub(crate) criteria: Criteria,
    pub(crate) conditions: MatchConditions,
    /// Whether requests are admitted if the webhook cannot be called.
    pub(crate) fails_open: bool,
    pub(crate) timeout: Duration,
    /// `None` if the webhook accepts no version that the server has.
    pub(crate) review_version: Option<ReviewVersion>,
    /// `None` if the client configuration is not valid.
    pub(crate) client: Option<WebhookClient>,
    /// Whether a mutating webhook is called again after other changes of the object.
    pub(crate) is_reinvocable: bool,
}

/// The webhooks of one configuration.
pub(super) fn webhooks_of(configuration: &Object) -> Vec<Webhook> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let webhooks = configuration.body.list("webhooks").iter();
    webhooks
        .map(|webhook| {
            let name = webhook.text("name");
            let number = seen.entry(name).or_default();
            let uid = format!("{}/{name}/{number}", configuration.meta.name);
            *number += 1;
            webhook_of(&configuration.meta.name, uid, webhook)
        })
        .collect()
}

fn webhook_of(configuration: &str, uid: String, webhook: &Value) -> Webhook {
    const DEFAULT_SECONDS: i64 = 10;
    let seconds = webhook.int("timeoutSeconds").unwrap_or(DEFAULT_SECONDS);
    let mut versions = webhook.texts("admissionReviewVersions");
    Webhook {
        uid,
        configuration: configuration.to_owned(),
        name: webhook.text("name").to_owned(),
        criteria: Criteria::of_webhook(webhook),
        conditions: MatchConditions::of(
            webhook.list("matchConditions"),
            false,
            &Compiler::default(),
        ),
        fails_open: webhook.text("failurePolicy") == "Ignore",
        timeout: Duration::from_secs(seconds.unsigned_abs()),
        review_version: versions.find_map(|version| match version {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1Beta1),
            _ => None,
        }),
        client: WebhookClient::of(webhook.field("clientConfig")),
        is_reinvocable: webhook.text("reinvocationPolicy") == "IfNeeded",
    }
}
