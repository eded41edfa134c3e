//! Finalizer: something outside of the cluster must be cleaned up before an object is removed.
//!
//! In: an object and the name of a finalizer. Out: whether to apply or to clean up.
//! Guarantees: nothing is created outside before the finalizer is stored; the finalizer is removed
//! only after the clean-up succeeded; both patches fail if another client changed the object.

use bellerophon_kinds::Kind;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::client::{ReconcileClient, WriteError};
use crate::controller::{Action, Error};

/// The event of an object with a finalizer: apply or cleanup.
///
/// ```
/// use bellerophon::finalizer::Event;
/// use bellerophon::prelude::*;
///
/// async fn sync_bucket(name: &str, event: Event) -> Result<Action, Error> {
///     match event {
///         Event::Apply => println!("create the bucket {name} unless it exists"),
///         Event::Cleanup => println!("delete the bucket {name} if it exists"),
///     }
///     Ok(Action::await_change())
/// }
/// ```
///
/// [`ReconcileClient::finalizer`] calls such a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bring the outside to what the spec describes.
    Apply,
    /// The object is terminating: remove what was created outside.
    Cleanup,
}

/// The next step, given whether the object is terminating and whether it has the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Add,
    Call(Event),
    /// Other finalizers hold the object; ours was removed.
    Nothing,
}

fn plan(is_terminating: bool, has_finalizer: bool) -> Plan {
    match (is_terminating, has_finalizer) {
        (false, false) => Plan::Add,
        (false, true) => Plan::Call(Event::Apply),
        (true, true) => Plan::Call(Event::Cleanup),
        (true, false) => Plan::Nothing,
    }
}

impl ReconcileClient {
    /// Reconciles an object under a finalizer of this name, such as `example.org/bucket`.
    ///
    /// A new object gets the finalizer first; that change enqueues it again for [`Event::Apply`].
    /// When it is deleted, `work` is called with [`Event::Cleanup`] until it returns
    /// [`Action::await_change`], and then the finalizer is removed.
    ///
    /// ```
    /// use bellerophon::{finalizer, prelude::*};
    /// use k8s_openapi::api::core::v1::ConfigMap;
    ///
    /// async fn reconcile(req: Request<ConfigMap>) -> Result<Action, Error> {
    ///     let Some(map) = req.object() else { return Ok(Action::await_change()) };
    ///     let work = async |event| {
    ///         match event {
    ///             finalizer::Event::Apply => println!("create the bucket of {}", req.key()),
    ///             finalizer::Event::Cleanup => println!("remove the bucket of {}", req.key()),
    ///         }
    ///         Ok(Action::await_change())
    ///     };
    ///     req.client().finalizer(map, "example.org/bucket", work).await
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of the work, or the finalizer cannot be written.
    pub async fn finalizer<K: Kind>(
        &self,
        object: &K,
        name: &str,
        work: impl AsyncFnOnce(Event) -> Result<Action, Error>,
    ) -> Result<Action, Error> {
        let finalizers = object.finalizers();
        let has_finalizer = finalizers.iter().any(|finalizer| finalizer == name);
        match plan(object.meta().deletion_timestamp.is_some(), has_finalizer) {
            Plan::Nothing => Ok(Action::await_change()),
            Plan::Call(Event::Apply) => work(Event::Apply).await,
            Plan::Call(Event::Cleanup) => {
                let action = work(Event::Cleanup).await?;
                // The clean-up is not complete: it returned a requeue.
                if action != Action::await_change() {
                    return Ok(action);
                }
                let others: Vec<_> = finalizers
                    .iter()
                    .filter(|finalizer| *finalizer != name)
                    .collect();
                self.set_finalizers(object, &json!(others)).await?;
                Ok(Action::await_change())
            }
            Plan::Add => {
                let all: Vec<_> = finalizers
                    .iter()
                    .map(String::as_str)
                    .chain([name])
                    .collect();
                // Nothing is created outside in this reconcile. The event of this patch enqueues
                // the object, and the cache then shows the finalizer.
                self.set_finalizers(object, &json!(all)).await?;
                Ok(Action::await_change())
            }
        }
    }

    async fn set_finalizers<K: Kind>(
        &self,
        object: &K,
        finalizers: &Value,
    ) -> Result<(), WriteError> {
        // The server refuses if the object was changed since it was read, or is another one.
        let patch = json!({
            "metadata": {
                "uid": object.uid(),
                "resourceVersion": object.resource_version(),
                "finalizers": finalizers,
            }
        });
        match self.patch_finalizers(object, K::codec(), &patch).await {
            // The object is gone, and with it the finalizer.
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_created_before_and_nothing_left_after() {
        for (is_terminating, has_finalizer, expected) in [
            (false, false, Plan::Add),
            (false, true, Plan::Call(Event::Apply)),
            (true, true, Plan::Call(Event::Cleanup)),
            (true, false, Plan::Nothing),
        ] {
            let planned = plan(is_terminating, has_finalizer);
            assert_eq!(
                planned, expected,
                "terminating {is_terminating}, {has_finalizer}"
            );
        }
    }
}
