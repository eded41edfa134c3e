//! Controller: watches kinds, enqueues keys, and has workers reconcile them.
//!
//! In: shared informers. Out: calls of a reconciler.
//! Guarantees: one key is never with two workers; every change that passes its predicate leads to a
//! reconcile that begins after it; a failing, slow or panicking object delays no other; a key is
//! not reconciled on a cache older than the controller's own writes.

mod action; // the result of a reconcile
mod builder; // the builder of a controller
mod controllers; // the controllers of a Manager
mod enqueue; // from changes to keys
mod options; // settings
mod owners; // from a child to its owner
mod predicate; // which changes count
mod request; // the request of a reconciler
mod worker; // from keys to reconciles

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use action::{Action, Error};
pub use builder::{ContextBuilder, ControllerBuilder};
pub(crate) use controllers::Controllers;
pub use options::ControllerOptions;
pub use predicate::Predicate;
pub use request::{Reconciler, Request};
use worker::Worker;

use crate::ObjectKey;
pub use crate::error::BoxError;
use crate::gate::Core;
use crate::informer::{HandlerRegistration, SyncError};
use crate::queue::{Cause, CauseEvent, Priority};

/// Why a controller could not start.
///
/// ```
/// use bellerophon::controller::ControllerError;
/// use bellerophon::manager::ManagerError;
///
/// /// Whether another start may succeed without a change of the configuration.
/// fn is_temporary(error: &ManagerError) -> bool {
///     matches!(error, ManagerError::Controller(ControllerError::SyncTimeout { .. }))
/// }
/// # let limit = std::time::Duration::from_secs(120);
/// # let error = ControllerError::SyncTimeout { controller: "pod".into(), limit };
/// # assert!(is_temporary(&error.into()));
/// ```
#[derive(Debug, Error)]
pub enum ControllerError {
    /// A cache cannot be synced.
    #[error("controller {controller} cannot start: {source}")]
    Sync {
        /// The controller.
        controller: Arc<str>,
        /// Which cache, and why.
        source: SyncError,
    },
    /// A cache took too long.
    #[error("controller {controller} cannot start: its caches were not synced within {limit:?}")]
    SyncTimeout {
        /// The controller.
        controller: Arc<str>,
        /// The limit.
        limit: Duration,
    },
}

/// A controller that is ready to run. Dropping it removes its handlers from the informers.
pub(crate) struct Controller {
    core: Arc<Core>,
    kind: Arc<str>,
    registrations: Vec<HandlerRegistration>,
    /// Cancelled once changes are to be enqueued.
    begun: CancellationToken,
    worker: Arc<Worker>,
    /// Taken when it runs. A stream is not `Sync`.
    streams: Mutex<Vec<BoxStream<'static, ObjectKey>>>,
    concurrency: usize,
    cache_sync_timeout: Duration,
}

impl Controller {
    fn handle(&self) -> ControllerHandle {
        ControllerHandle {
            core: self.core.clone(),
            kind: self.kind.clone(),
        }
    }

    /// Enqueues changes from now on, and waits until every object of the initial lists is in the
    /// caches and in the queue.
    async fn wait_for_cache_sync(&self) -> Result<(), ControllerError> {
        // Handlers begin only now: until then their queues merge changes per object.
        self.begun.cancel();
        let all = async {
            for registration in &self.registrations {
                registration.wait_for_cache_sync().await?;
            }
            Ok(())
        };
        let controller = self.core.name.clone();
        match timeout(self.cache_sync_timeout, all).await {
            Ok(synced) => synced.map_err(|source| ControllerError::Sync { controller, source }),
            Err(_) => Err(ControllerError::SyncTimeout {
                controller,
                limit: self.cache_sync_timeout,
            }),
        }
    }

    /// Waits for the caches, then reconciles until `stop`. Running reconciles end by themselves
    /// before this returns; dropping the future aborts them, and the tracker knows when they ended.
    pub(crate) async fn run(
        self,
        stop: CancellationToken,
        tracker: &TaskTracker,
    ) -> Result<(), ControllerError> {
        match stop.run_until_cancelled(self.wait_for_cache_sync()).await {
            None => return Ok(()),
            Some(synced) => synced?,
        }
        // The workers start after the sync, as in controller-runtime: a reconcile on a partial
        // cache would delete what it does not see.
        let mut tasks = JoinSet::new();
        for _ in 0..self.concurrency {
            let worker = self.worker.clone().run(stop.clone());
            tasks.spawn(tracker.track_future(worker));
        }
        let streams =
            std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for mut stream in streams {
            let handle = self.handle();
            let stop = stop.clone();
            let forward = async move {
                while let Some(Some(key)) = stop.run_until_cancelled(stream.next()).await {
                    handle.enqueue(key, "event of a stream");
                }
            };
            tasks.spawn(tracker.track_future(forward));
        }
        while let Some(ended) = tasks.join_next().await {
            // A worker catches panics of reconcilers; any other is a defect of the toolkit, and
            // hiding it would stop the work silently.
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.registrations
            .iter()
            .for_each(HandlerRegistration::remove);
        self.core.queue.shut_down();
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// A handle to a controller of a Manager.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// fn setup(mgr: &mut Manager) {
///     let maps = mgr
///         .controller::<ConfigMap>()
///         .reconcile(async |_req: Request<ConfigMap>| Ok(Action::await_change()));
///     maps.enqueue(ObjectKey::namespaced("team-a", "settings"), "requested at start");
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ControllerHandle {
    core: Arc<Core>,
    kind: Arc<str>,
}

impl ControllerHandle {
    /// The name of the controller.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Enqueues an object for a reason outside of the cluster: a timer, a webhook, another system.
    /// Never blocks, never fails. Several calls before the reconcile lead to one.
    pub fn enqueue(&self, key: ObjectKey, reason: impl Into<Arc<str>>) {
        let cause = Cause {
            kind: self.kind.clone(),
            key: key.clone(),
            resource_version: None,
            event: CauseEvent::Generic,
            reason: Some(reason.into()),
            at: Instant::now(),
        };
        self.core.enqueue(key, Priority::Normal, cause);
    }
}
