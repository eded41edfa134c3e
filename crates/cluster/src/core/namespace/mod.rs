//! Namespace controller: deletes the content of terminating namespaces, then finalizes them.
//!
//! Input: namespaces. Output: deletions of their content, pods first; conditions while content
//! remains.
//! Guarantees: a namespace is finalized only when live lists showed no object of any resource in
//! it.

mod plan; // conditions and next step
mod resources_deleter; // deletes the content of one namespace

use std::sync::Arc;
use std::time::Duration;

use bellerophon::{
    Backoff, Controller, ControllerOptions, Failure, Outcome, Predicate, RateLimit,
    ReconcileResult, Request, WallClock,
};
use k8s_openapi::api::core::v1::{Namespace, NamespaceSpec};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use self::plan::{DeletionResult, NextStep};
use self::resources_deleter::NamespacedResourcesDeleter;
use crate::api_errors::is_not_found;
use crate::component::Component;
use crate::context::{Context, Loop};

/// Namespaces reconciled concurrently, as upstream.
const WORKERS: usize = 10;

/// Maximum back-off, as upstream.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The finalizer in `spec.finalizers` that this controller removes.
const FINALIZER: &str = "kubernetes";

struct NamespaceReconciler {
    client: Client,
    clock: WallClock,
}

/// The controller, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let reconciler = Arc::new(NamespaceReconciler {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
    });
    let backoff = Some(Backoff {
        delay_max: BACKOFF_MAX,
        ..Backoff::default()
    });
    let rate_limit = RateLimit {
        backoff,
        ..RateLimit::default()
    };
    Controller::of(&ctx.informer::<Namespace>())
        // Mirrors enqueueNamespace: only terminating namespaces are enqueued.
        .with_predicate(Predicate::concerns(|namespace: &Namespace| {
            namespace.metadata.deletion_timestamp.is_some()
        }))
        .with_options(ControllerOptions {
            rate_limit,
            ..ctx.options("namespace-controller", WORKERS)
        })
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
}

impl NamespaceReconciler {
    /// Mirrors namespacedResourcesDeleter.Delete.
    async fn reconcile(self: Arc<Self>, request: Request<Namespace>) -> ReconcileResult {
        let Some(namespace) = &request.object else {
            return Ok(Outcome::Done);
        };
        let Some(deletion_timestamp) = namespace
            .metadata
            .deletion_timestamp
            .as_ref()
            .filter(|_| has_finalizer(namespace))
        else {
            return Ok(Outcome::Done);
        };
        let deleter = NamespacedResourcesDeleter {
            client: &self.client,
            namespace: request.key.name(),
        };
        let result = deleter.delete_all_content().await;
        self.update_conditions(&request, namespace, &result).await?;
        let terminating_for =
            Duration::try_from(self.clock.now().duration_since(deletion_timestamp.0))
                .unwrap_or_default();
        match result.next_step(terminating_for) {
            NextStep::RequeueAfter(delay) => Ok(Outcome::RequeueAfter(delay)),
            NextStep::Retry => {
                let errors = result
                    .discovery_error
                    .into_iter()
                    .chain(result.failures)
                    .collect::<Vec<_>>()
                    .join(", ");
                Err(Failure::retry(errors))
            }
            NextStep::Finalize => self.finalize(&request).await,
        }
    }

    /// Patches the conditions if they changed.
    async fn update_conditions(
        &self,
        request: &Request<Namespace>,
        namespace: &Namespace,
        result: &DeletionResult,
    ) -> Result<(), kube::Error> {
        let old = namespace
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let Some(conditions) = result.conditions(old, self.clock.now()) else {
            return Ok(());
        };
        let patch = json!({
            "metadata": { "uid": namespace.uid() },
            "status": { "conditions": conditions },
        });
        match self
            .api()
            .patch_status(
                request.key.name(),
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
        {
            Ok(patched) => request.writes().wrote(&patched),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes the finalizer `kubernetes` from the live namespace; others are kept. Mirrors
    /// finalizeNamespace.
    async fn finalize(&self, request: &Request<Namespace>) -> ReconcileResult {
        let Some(mut namespace) = self.api().get_opt(request.key.name()).await? else {
            return Ok(Outcome::Done);
        };
        // The live namespace may have been finalized or recreated since.
        if namespace.metadata.deletion_timestamp.is_none() || !has_finalizer(&namespace) {
            return Ok(Outcome::Done);
        }
        if let Some(NamespaceSpec {
            finalizers: Some(finalizers),
        }) = &mut namespace.spec
        {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let result: Result<Namespace, _> = self
            .api()
            .replace_subresource(
                "finalize",
                request.key.name(),
                &PostParams::default(),
                &namespace,
            )
            .await;
        match result {
            Ok(_) => Ok(Outcome::Done),
            Err(error) if is_not_found(&error) => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    fn api(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
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
