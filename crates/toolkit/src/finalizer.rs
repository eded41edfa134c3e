//! Finalizer: something outside must be cleaned up before an object goes.
//!
//! In: an object and the name of a finalizer. Out: whether to apply or to clean up.
//! Holds: nothing outside is made before the finalizer is stored; the finalizer goes only after the clean-up succeeded;
//! both patches fail if somebody else changed the list meanwhile.

use std::fmt::Debug;
use std::future::Future;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{Failure, ObjectKey, Outcome, ReconcileResult, Writes};

/// What an object with a finalizer needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is to be as its spec says.
    Apply,
    /// It is being deleted: undo what was made outside.
    CleanUp,
}

/// What is to be done, given whether the object is being deleted and whether the finalizer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Add,
    Do(Step),
    /// Somebody else's finalizers hold it; ours is gone.
    Nothing,
}

fn plan(deleting: bool, ours: bool) -> Plan {
    match (deleting, ours) {
        (false, false) => Plan::Add,
        (false, true) => Plan::Do(Step::Apply),
        (true, true) => Plan::Do(Step::CleanUp),
        (true, false) => Plan::Nothing,
    }
}

impl<D> Writes<D> {
    /// Reconciles an object under a finalizer of this name, such as `example.org/bucket`.
    ///
    /// A new object gets the finalizer first; its own change brings it back for [`Step::Apply`]. When it is deleted,
    /// [`Step::CleanUp`] is called until it succeeds, and then the finalizer goes.
    ///
    /// # Errors
    /// What the work says, or the finalizer cannot be written.
    pub async fn finalizer<K, F>(
        &self,
        api: &Api<K>,
        object: &K,
        name: &str,
        work: impl FnOnce(Step) -> F,
    ) -> ReconcileResult
    where
        K: Resource<DynamicType = D> + Clone + Debug + DeserializeOwned,
        F: Future<Output = ReconcileResult>,
    {
        let place = object
            .finalizers()
            .iter()
            .position(|finalizer| finalizer == name);
        match plan(object.meta().deletion_timestamp.is_some(), place.is_some()) {
            Plan::Nothing => Ok(Outcome::Done),
            Plan::Do(Step::Apply) => work(Step::Apply).await,
            Plan::Do(Step::CleanUp) => {
                let outcome = work(Step::CleanUp).await?;
                if outcome != Outcome::Done {
                    return Ok(outcome);
                }
                let rest: Vec<_> = object
                    .finalizers()
                    .iter()
                    .filter(|finalizer| *finalizer != name)
                    .collect();
                self.set_finalizers(api, object, &json!(rest)).await?;
                Ok(Outcome::Done)
            }
            Plan::Add => {
                let all: Vec<_> = object
                    .finalizers()
                    .iter()
                    .map(String::as_str)
                    .chain([name])
                    .collect();
                self.set_finalizers(api, object, &json!(all)).await?;
                Ok(Outcome::Done)
            }
        }
    }

    async fn set_finalizers<K>(
        &self,
        api: &Api<K>,
        object: &K,
        finalizers: &serde_json::Value,
    ) -> Result<(), Failure>
    where
        K: Resource<DynamicType = D> + Clone + Debug + DeserializeOwned,
    {
        // The version makes the server refuse if anybody changed the object since it was read; the uid, if it is another one.
        let patch = json!({ "metadata": { "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers } });
        let params = PatchParams {
            field_manager: Some(self.controller().into()),
            ..PatchParams::default()
        };
        let key = ObjectKey::of(object);
        match api.patch(key.name(), &params, &Patch::Merge(&patch)).await {
            Ok(answer) => {
                match answer.meta().deletion_timestamp.is_some() && answer.finalizers().is_empty() {
                    // The last finalizer of a deleted object: the answer is its last version.
                    true => self.deleted::<K>(key),
                    false => self.wrote(&answer),
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(self.failed::<K>("set the finalizers of", key, error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_before_and_nothing_left_after() {
        for (deleting, ours, expected) in [
            (false, false, Plan::Add),
            (false, true, Plan::Do(Step::Apply)),
            (true, true, Plan::Do(Step::CleanUp)),
            (true, false, Plan::Nothing),
        ] {
            assert_eq!(
                plan(deleting, ours),
                expected,
                "deleting {deleting}, ours {ours}"
            );
        }
    }
}
