//! Namespace controller: deletes the content of terminating namespaces, then finalizes them.
//!
//! Input: namespaces. Output: deletions of their content, pods first; conditions while content
//! remains.
//! Guarantees: a namespace is finalized only when live lists showed no object of any resource in
//! it.

mod plan; // conditions and next step
mod resources_deleter; // deletes the content of one namespace

use std::time::Duration;

use bellerophon::controller::ControllerOptions;
use bellerophon::prelude::*;
use bellerophon::queue::{Backoff, RateLimit};
use k8s_openapi::api::core::v1::{Namespace, NamespaceSpec};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::json;

use self::plan::{DeletionResult, NextStep};
use self::resources_deleter::NamespacedResourcesDeleter;
use crate::component::Component;

/// Namespaces reconciled concurrently, as upstream.
const WORKERS: usize = 10;

/// Maximum back-off, as upstream.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The finalizer in `spec.finalizers` that this controller removes.
const FINALIZER: &str = "kubernetes";

struct NamespaceReconciler {
    /// Lists and deletes objects of resources known at run time.
    client: kube::Client,
}

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    let name = "namespace-controller";
    let client = Component::ControllerManager.kube_client(mgr, name);
    let backoff = Backoff {
        delay_max: BACKOFF_MAX,
        ..Backoff::default()
    };
    let rate_limit = RateLimit {
        backoff: Some(backoff),
        ..RateLimit::default()
    };
    let is_terminating = |namespace: &Namespace| namespace.metadata.deletion_timestamp.is_some();
    mgr.controller::<Namespace>()
        .predicate(Predicate::filter(is_terminating))
        .name(name)
        .concurrency(WORKERS)
        .with_options(ControllerOptions {
            rate_limit: Some(rate_limit),
            ..ControllerOptions::default()
        })
        .reconcile(NamespaceReconciler { client });
}

impl Reconciler<Namespace> for NamespaceReconciler {
    /// Mirrors namespacedResourcesDeleter.Delete.
    async fn reconcile(&self, req: Request<Namespace>) -> Result<Action, Error> {
        let Some(namespace) = req.object().filter(|namespace| has_finalizer(namespace)) else {
            return Ok(Action::await_change());
        };
        let Some(deletion_timestamp) = &namespace.metadata.deletion_timestamp else {
            return Ok(Action::await_change());
        };
        let deleter = NamespacedResourcesDeleter {
            client: &self.client,
            reads: req.client(),
            namespace: req.key().name(),
        };
        // The conditions are written before the next step is decided: they show the user why a
        // namespace stays in Terminating.
        let result = deleter.delete_all_content().await;
        update_conditions(&req, namespace, &result).await?;
        let terminating_for = req.now().duration_since(deletion_timestamp.0);
        let terminating_for = Duration::try_from(terminating_for).unwrap_or_default();
        match result.next_step(terminating_for) {
            NextStep::RequeueAfter(delay) => Ok(Action::requeue_after(delay)),
            NextStep::Retry => {
                let errors = result.discovery_error.into_iter().chain(result.failures);
                Err(Error::retry(errors.collect::<Vec<_>>().join(", ")))
            }
            NextStep::Finalize => finalize(&req).await,
        }
    }
}

/// Patches the conditions if they changed.
async fn update_conditions(
    req: &Request<Namespace>,
    namespace: &Namespace,
    result: &DeletionResult,
) -> Result<(), Error> {
    let old = namespace
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let Some(conditions) = result.conditions(old, req.now()) else {
        return Ok(());
    };
    let patch = json!({
        "metadata": { "uid": namespace.uid() },
        "status": { "conditions": conditions },
    });
    let status = req.client().subresource("status");
    match status.patch(namespace, &Patch::Merge(&patch)).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Removes the finalizer `kubernetes` from the live namespace; others are kept. Mirrors
/// finalizeNamespace.
async fn finalize(req: &Request<Namespace>) -> Result<Action, Error> {
    let Some(live) = req.client().get::<Namespace>(req.key()).await? else {
        return Ok(Action::await_change());
    };
    // The cached namespace may be a deleted one, and the live one a new namespace of that name.
    if live.metadata.deletion_timestamp.is_none() || !has_finalizer(&live) {
        return Ok(Action::await_change());
    }
    let mut namespace = Namespace::clone(&live);
    if let Some(NamespaceSpec {
        finalizers: Some(finalizers),
    }) = &mut namespace.spec
    {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    match req
        .client()
        .subresource("finalize")
        .update_object(&namespace)
        .await
    {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Action::await_change()),
    }
}

/// Whether the namespace has the finalizer `kubernetes`.
fn has_finalizer(namespace: &Namespace) -> bool {
    let finalizers = namespace
        .spec
        .as_ref()
        .and_then(|spec| spec.finalizers.as_deref())
        .unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}
