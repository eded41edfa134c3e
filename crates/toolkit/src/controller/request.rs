//! Request and Reconciler: what the author of a controller writes.
//!
//! In: a key, the object as cached, and the causes. Out: an [`Action`] or an [`Error`].
//! Guarantees: the object is what the cache has when the reconcile begins, never what an event had.

use std::future::Future;
use std::sync::Arc;

use bellerophon_kinds::{Kind, Object, downcast};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::action::{Action, Error};
use crate::ObjectKey;
use crate::client::ReconcileClient;
use crate::clock::Clock;
use crate::events::EventRecorder;
use crate::leader::Term;
use crate::queue::Causes;

/// One reconcile of one object.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// async fn reconcile(req: Request<ConfigMap>) -> Result<Action, Error> {
///     let Some(map) = req.object() else {
///         println!("{} was deleted", req.key());
///         return Ok(Action::await_change());
///     };
///     println!("{:?}, attempt {}, because {}", map.data, req.attempt(), req.causes());
///     Ok(Action::await_change())
/// }
/// ```
#[derive(Debug)]
pub struct Request<K> {
    object: Option<Arc<K>>,
    parts: RequestParts,
}

/// A request without the type of its object.
#[derive(Debug)]
pub(crate) struct RequestParts {
    pub(super) key: ObjectKey,
    pub(super) causes: Causes,
    pub(super) attempt: u32,
    pub(super) client: ReconcileClient,
    pub(super) recorder: EventRecorder,
    pub(super) clock: Clock,
    pub(super) term: Option<Term>,
    pub(super) stop: CancellationToken,
}

impl<K> Request<K> {
    /// The key of the object. No other worker has it at the same time.
    pub fn key(&self) -> &ObjectKey {
        &self.parts.key
    }

    /// The object as the cache has it; `None` if it is deleted.
    pub fn object(&self) -> Option<&K> {
        self.object.as_deref()
    }

    /// The same, shared.
    pub fn arc(&self) -> Option<&Arc<K>> {
        self.object.as_ref()
    }

    /// Reads and writes. The object is reconciled again only once the caches show these writes.
    pub fn client(&self) -> &ReconcileClient {
        &self.parts.client
    }

    /// Records events, as this controller.
    pub fn recorder(&self) -> &EventRecorder {
        &self.parts.recorder
    }

    /// Why the object is reconciled. For people and traces: decide on state, not on causes.
    pub fn causes(&self) -> &Causes {
        &self.parts.causes
    }

    /// 1 for the first attempt, one more after each failure with back-off in a row.
    pub fn attempt(&self) -> u32 {
        self.parts.attempt
    }

    /// The current time, for what is written into objects.
    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    /// The term of this leader; `None` without leader election. Its number lets an external store
    /// reject late writes of an earlier leader.
    pub fn term(&self) -> Option<&Term> {
        self.parts.term.as_ref()
    }

    /// Cancelled when the controller stops. Long work should observe it.
    pub fn cancellation_token(&self) -> &CancellationToken {
        &self.parts.stop
    }
}

/// Brings one object to its desired state. Implemented by every async function or closure from a
/// [`Request`]; a struct that holds listers and the like implements it with an `async fn`.
///
/// Calls for different keys may run concurrently; calls for one key never do. A call may come for
/// any reason or none, and must change nothing if nothing is to be changed.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
///
/// struct PodCounter {
///     pods: Lister<Pod>,
/// }
///
/// impl Reconciler<ConfigMap> for PodCounter {
///     async fn reconcile(&self, req: Request<ConfigMap>) -> Result<Action, Error> {
///         println!("{}: {} pods", req.key(), self.pods.len());
///         Ok(Action::await_change())
///     }
/// }
///
/// fn setup(mgr: &mut Manager) {
///     let counter = PodCounter { pods: mgr.lister() };
///     mgr.controller::<ConfigMap>().reconcile(counter);
/// }
/// ```
pub trait Reconciler<K: Kind>: Send + Sync + 'static {
    /// Reads, plans, applies.
    fn reconcile(&self, req: Request<K>) -> impl Future<Output = Result<Action, Error>> + Send;
}

impl<K, F, Fut> Reconciler<K> for F
where
    K: Kind,
    F: Fn(Request<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, Error>> + Send,
{
    fn reconcile(&self, req: Request<K>) -> impl Future<Output = Result<Action, Error>> + Send {
        self(req)
    }
}

/// A reconciler without its type: one boxed future per reconcile.
pub(super) type ReconcileFn = Box<
    dyn Fn(RequestParts, Option<Object>) -> BoxFuture<'static, Result<Action, Error>> + Send + Sync,
>;

/// Erases the type of a reconciler.
pub(super) fn erase<K: Kind>(reconciler: impl Reconciler<K>) -> ReconcileFn {
    // Shared with each future, which must be `static` to run in a boxed form.
    let reconciler = Arc::new(reconciler);
    Box::new(move |parts, object| {
        let reconciler = reconciler.clone();
        let request = Request {
            object: object.map(downcast),
            parts,
        };
        Box::pin(async move { reconciler.reconcile(request).await })
    })
}
