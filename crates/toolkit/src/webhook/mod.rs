//! Webhooks: what validates, changes and converts objects before the API server stores them.
//!
//! ```no_run
//! use bellerophon::prelude::*;
//! use bellerophon::webhook::{FailurePolicy, FieldError, Rejection, Review};
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::ResourceExt;
//!
//! fn default(_review: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
//!     map.labels_mut().entry("team".into()).or_insert_with(|| "none".into());
//!     Ok(())
//! }
//!
//! fn check(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
//!     if map.labels().get("team").is_some_and(|team| team.is_empty()) {
//!         let error = FieldError::invalid("metadata.labels[team]", "", "must have a name");
//!         return Err(Rejection::invalid([error]));
//!     }
//!     if review.old_object().is_some_and(|old| old.labels().get("team") != map.labels().get("team")) {
//!         review.warn("the ConfigMap changes its team");
//!     }
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ManagerError> {
//!     let mut mgr = Manager::try_default().await?;
//!     mgr.webhook::<ConfigMap>()
//!         .mutate(FailurePolicy::Fail, default)
//!         .validate(FailurePolicy::Fail, check);
//!     mgr.run().await
//! }
//! ```
//!
//! That is all: the Manager makes the certificates, serves HTTPS on port 9443 and registers the
//! webhooks. In a cluster, [`WebhookOptions::endpoint`] names the Service; outside of one, the API
//! server calls the loopback address.
//!
//! - [`WebhookBuilder`]: the three verbs `validate`, `mutate` and `convert`, and which requests they
//!   are for. The [failure policy](FailurePolicy) is an argument; a handler with
//!   [side effects](SideEffects) states what it does on a dry run.
//! - [`Review`]: who does what; [`Rejection`]: a denial, field errors, or a failure.
//! - A mutation never drops what its type does not know: the patch is the difference between the
//!   typed object before and after the mutation, made in the object as the API server sent it.
//! - A panic, a failure and a missed deadline are errors of the call, to which the failure policy
//!   applies.
//!
//! Many checks need no webhook: validation rules in the schema of a custom resource, and admission
//! policies, are CEL expressions that the API server evaluates itself.
//!
//! This module needs the cargo feature `webhooks`.

mod admission; // AdmissionReview
mod builder; // declares webhooks
mod certificates; // of the server
mod conversion; // ConversionReview
mod declaration; // what is registered
mod handler; // what validates and mutates
mod options; // settings
mod patch; // what a mutation changed
mod registration; // webhook configurations and the rotation of the authority
mod rejection; // denials and failures
mod review; // what a handler knows of a request
mod run; // what a Manager starts
mod server; // HTTPS
mod service; // from a request to a webhook
mod status; // metav1.Status

pub use builder::WebhookBuilder;
pub use conversion::CONVERSION_DATA;
pub use handler::{Mutator, OnDryRun, SideEffects, Validator};
pub use options::{Certificates, Endpoint, FailurePolicy, Registration, WebhookOptions};
pub use rejection::{FieldError, Rejection};
pub use review::{Operation, Review};
pub use service::WebhookService;

pub(crate) use run::{LeadingWebhooks, WebhookError, WebhookServer, Webhooks};
