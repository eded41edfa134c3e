//! Reconcile: what a controller's author writes.
//!
//! In: a key, the object as cached, and why. Out: an outcome.
//! Holds: the object is what the cache has when the reconcile begins, never what an event carried.

use std::future::Future;
use std::sync::Arc;

use kube::Resource;
use kube::core::ApiResource;
use tokio_util::sync::CancellationToken;

use super::core::{Core, kind_name};
use super::outcome::ReconcileResult;
use crate::{Causes, ObjectKey};

/// One call for one key.
#[derive(Debug)]
pub struct Request<K> {
    /// Which object. No other worker has it meanwhile.
    pub key: ObjectKey,
    /// The object as the cache has it now; `None` if it is gone.
    pub object: Option<Arc<K>>,
    /// Why. For people and traces: decide on state, not on this.
    pub causes: Causes,
    /// 1 for the first try, one more after each failure in a row.
    pub attempt: u32,
    /// Cancelled when the controller is to stop. Long work should look at it.
    pub stop: CancellationToken,
    pub(super) writes: Writes,
}

impl<K> Request<K> {
    /// Where writes are noted, so that the next reconcile of this key sees them.
    pub fn writes(&self) -> &Writes {
        &self.writes
    }
}

/// Writes, and notes what was written. The key is not reconciled again on a cache that does not show it yet.
///
/// As [`Request::writes`] gives it, it writes every type that knows its kind. A kind known only at run time is said once:
///
/// ```no_run
/// # use bellerophon::{Request, WriteError};
/// # use kube::{api::Api, core::{ApiResource, DynamicObject}};
/// # async fn example(request: Request<DynamicObject>, api: Api<DynamicObject>, kind: ApiResource) -> Result<(), WriteError> {
/// if let Some(object) = &request.object {
///     request.writes().of_kind(kind).delete(&api, &**object).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Writes<D = ()> {
    pub(super) core: Arc<Core>,
    pub(super) reconciling: ObjectKey,
    pub(crate) kind: D,
}

impl<D> Writes<D> {
    /// The same for objects of a kind known at run time: `DynamicObject`, `PartialObjectMeta<DynamicObject>`.
    pub fn of_kind(&self, kind: ApiResource) -> Writes<ApiResource> {
        Writes {
            core: self.core.clone(),
            reconciling: self.reconciling.clone(),
            kind,
        }
    }

    /// The controller's name, which is also the field manager of its writes.
    pub fn controller(&self) -> &str {
        &self.core.name
    }

    /// An object was created or changed, and this is what the server answered with.
    pub fn wrote<W: Resource<DynamicType = D>>(&self, answer: &W) {
        let version = answer.meta().resource_version.clone().unwrap_or_default();
        self.core.wrote(
            &self.reconciling,
            self.kind_name::<W>(),
            ObjectKey::of(answer),
            Some(version),
        );
    }

    /// An object was deleted at once: nothing holds it back any more.
    pub fn deleted<W: Resource<DynamicType = D>>(&self, key: ObjectKey) {
        self.core
            .wrote(&self.reconciling, self.kind_name::<W>(), key, None);
    }

    fn kind_name<W: Resource<DynamicType = D>>(&self) -> Arc<str> {
        kind_name(&ApiResource::erase::<W>(&self.kind))
    }
}

/// Brings one object to the state it should be in. Implemented by every async function or closure from a [`Request`].
///
/// Calls for different keys may run at once; calls for one key never do. A call may come for any reason or none, and
/// must do nothing if nothing is to be done.
pub trait Reconcile<K>: Send + Sync + 'static {
    /// Reads, plans, applies.
    fn reconcile(&self, request: Request<K>) -> impl Future<Output = ReconcileResult> + Send;
}

impl<K, F, Fut> Reconcile<K> for F
where
    F: Fn(Request<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ReconcileResult> + Send,
{
    fn reconcile(&self, request: Request<K>) -> impl Future<Output = ReconcileResult> + Send {
        self(request)
    }
}
