//! Namespace lifecycle: a namespace that is deleted goes when everything in it is gone.
//!
//! In: namespaces. Out: deletions of their content, kind by kind, pods first; conditions while something is stuck.
//! Holds: the namespace is let go only when the server showed every kind to be empty in it.

mod content; // what is in a namespace
mod plan; // what is said of it, and what follows

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

use self::content::Content;
use self::plan::{Findings, Step};
use super::answer::is_not_found;
use crate::component::Component;
use crate::context::{Context, Loop};

/// How many namespaces go at once, as upstream.
const WORKERS: usize = 10;

/// The longest time between two tries, as upstream.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The finalizer of the spec that is ours.
const FINALIZER: &str = "kubernetes";

struct Namespaces {
    client: Client,
    clock: WallClock,
}

/// The loop, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let namespaces = Arc::new(Namespaces {
        client: ctx.client(Component::ControllerManager),
        clock: ctx.clock,
    });
    let backoff = Some(Backoff {
        delay_max: RETRY_MAX,
        ..Backoff::default()
    });
    let rate_limit = RateLimit {
        backoff,
        ..RateLimit::default()
    };
    Controller::of(&ctx.informer::<Namespace>())
        .with_predicate(Predicate::concerns(|namespace: &Namespace| {
            namespace.metadata.deletion_timestamp.is_some()
        }))
        .with_options(ControllerOptions {
            rate_limit,
            ..ctx.options("namespace-controller", WORKERS)
        })
        .reconcile_with(move |request| namespaces.clone().reconcile(request))
        .into()
}

impl Namespaces {
    async fn reconcile(self: Arc<Self>, request: Request<Namespace>) -> ReconcileResult {
        let Some(known) = &request.object else {
            return Ok(Outcome::Done);
        };
        let Some(deleted) = known
            .metadata
            .deletion_timestamp
            .as_ref()
            .filter(|_| is_held(known))
        else {
            return Ok(Outcome::Done);
        };
        let findings = Content {
            client: &self.client,
            namespace: request.key.name(),
        }
        .empty()
        .await;
        self.tell(&request, known, &findings).await?;
        let going_for =
            Duration::try_from(self.clock.now().duration_since(deleted.0)).unwrap_or_default();
        match findings.step(going_for) {
            Step::LookAgain(after) => Ok(Outcome::RequeueAfter(after)),
            Step::Retry => {
                let why = findings
                    .undiscovered
                    .into_iter()
                    .chain(findings.failures)
                    .collect::<Vec<_>>()
                    .join(", ");
                Err(Failure::retry(why))
            }
            Step::Finalize => self.finalize(&request).await,
        }
    }

    /// Writes the conditions, if they changed.
    async fn tell(
        &self,
        request: &Request<Namespace>,
        known: &Namespace,
        findings: &Findings,
    ) -> Result<(), kube::Error> {
        let old = known
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let Some(conditions) = findings.conditions(old, self.clock.now()) else {
            return Ok(());
        };
        let status =
            json!({ "metadata": { "uid": known.uid() }, "status": { "conditions": conditions } });
        match self
            .api()
            .patch_status(
                request.key.name(),
                &PatchParams::default(),
                &Patch::Merge(&status),
            )
            .await
        {
            Ok(answer) => request.writes().wrote(&answer),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes our finalizer off the namespace as it is now; what else holds it stays.
    async fn finalize(&self, request: &Request<Namespace>) -> ReconcileResult {
        let Some(mut namespace) = self.api().get_opt(request.key.name()).await? else {
            return Ok(Outcome::Done);
        };
        if namespace.metadata.deletion_timestamp.is_none() || !is_held(&namespace) {
            return Ok(Outcome::Done);
        }
        if let Some(NamespaceSpec {
            finalizers: Some(finalizers),
        }) = &mut namespace.spec
        {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let answer: Result<Namespace, _> = self
            .api()
            .replace_subresource(
                "finalize",
                request.key.name(),
                &PostParams::default(),
                &namespace,
            )
            .await;
        match answer {
            Ok(_) => Ok(Outcome::Done),
            Err(error) if is_not_found(&error) => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    fn api(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
    }
}

/// Whether our finalizer holds the namespace.
fn is_held(namespace: &Namespace) -> bool {
    let finalizers = namespace
        .spec
        .as_ref()
        .and_then(|spec| spec.finalizers.as_deref())
        .unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == FINALIZER)
}
