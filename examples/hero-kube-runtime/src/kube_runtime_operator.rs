//! The operator on kube-runtime.
//!
//! In: a client. Out: stores as their Bellerophons describe them.
//! It differs from the one on the toolkit in what kube-runtime does not have: reconciles are not
//! gated by the operator's own writes, a status update enqueues its own object, there are no
//! events and no metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::clock::Clock;
use bellerophon_hero::plan::{PROGRESS_INTERVAL, plan};
use bellerophon_hero::{Applier, ApplyError, Bellerophon, Observer, Step, names};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::watcher;
use thiserror::Error;
use tracing::{info, warn};

/// The delay of the next observation after a mutation, as in the operator on the toolkit.
const NEXT_STEP: Duration = Duration::from_millis(10);

/// The number of concurrent reconciles, as in the operator on the toolkit.
const CONCURRENCY: u16 = 2;

/// What reconciles share.
pub(crate) struct Context {
    pub(crate) client: ReconcileClient,
    pub(crate) observer: Observer,
    pub(crate) clock: Clock,
    pub(crate) reconciles: AtomicU64,
}

/// Why a reconcile failed.
#[derive(Debug, Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Observe(#[from] WriteError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Runs the controller until SIGTERM.
pub(crate) async fn run(client: Client, context: Arc<Context>) {
    let labels = || watcher::Config::default().labels(names::HERO_LABEL);
    let heroes = Api::<Bellerophon>::all(client.clone());
    let pods = Api::<Pod>::all(client.clone());
    let claims = Api::<PersistentVolumeClaim>::all(client);
    Controller::new(heroes, watcher::Config::default())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .owns(pods, labels())
        .watches(claims, labels(), hero_of)
        .shutdown_on_signal()
        .run(reconcile, error_policy, context)
        .for_each(|result| async move {
            if let Err(error) = result {
                warn!(%error, "reconcile failed");
            }
        })
        .await;
}

async fn reconcile(
    hero: Arc<Bellerophon>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    context.reconciles.fetch_add(1, Relaxed);
    let key = ObjectKey::from_object(&*hero);
    let observation = context
        .observer
        .observe(&context.client, &key, context.clock.now())
        .await?;
    let Some((observed, objects)) = observation else {
        return Ok(Action::await_change());
    };
    let step = plan(&observed);
    let applier = Applier {
        client: &context.client,
        members: &*context.observer.members,
        observed: &observed,
        objects: &objects,
    };
    applier.apply(&step).await?;
    Ok(Action::requeue(match step {
        Step::Wait { after, .. } => after,
        step => {
            info!(hero = %key, ?step, "applied a step");
            NEXT_STEP
        }
    }))
}

/// kube-runtime leaves the delay after an error to its user, without the number of attempts.
fn error_policy(
    _hero: Arc<Bellerophon>,
    _error: &ReconcileError,
    _context: Arc<Context>,
) -> Action {
    Action::requeue(PROGRESS_INTERVAL)
}

/// The Bellerophon of a claim, which has no owner.
fn hero_of(claim: PersistentVolumeClaim) -> Option<ObjectRef<Bellerophon>> {
    let hero = claim.labels().get(names::HERO_LABEL)?;
    Some(ObjectRef::new(hero).within(&claim.namespace()?))
}
