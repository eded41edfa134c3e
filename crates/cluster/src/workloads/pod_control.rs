//! Creating and deleting the pods of an owner, with the events people know.
//!
//! In: pods. Out: requests and notes about their owner.
//! Holds: a namespace that is going away is no failure: nothing can be created there, and its content goes anyway.

use bellerophon::EventRecorder;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::hand::{Hand, Kind, Mould, is_namespace_terminating, reason};
use super::note::{normal, warning};

/// The hand of one owner on its pods.
pub(crate) struct PodControl<'a, O> {
    pub(crate) hand: Hand<'a>,
    pub(crate) owner: &'a O,
    pub(crate) recorder: &'a EventRecorder,
}

impl<O> Clone for PodControl<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for PodControl<'_, O> {}

impl<O: Kind> PodControl<'_, O> {
    /// Creates one pod of a form.
    pub(crate) async fn create(self, mould: &Mould) -> Result<(), kube::Error> {
        match self.hand.cast(mould).await {
            Ok(pod) => self.recorder.event(
                self.owner,
                normal(
                    "SuccessfulCreate",
                    format!("Created pod: {}", pod.name_any()),
                ),
            ),
            Err(error) if is_namespace_terminating(&error) => {}
            Err(error) => {
                self.recorder.event(
                    self.owner,
                    warning(
                        "FailedCreate",
                        format!("Error creating: {}", reason(&error)),
                    ),
                );
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes a pod; one that is gone already is fine.
    pub(crate) async fn delete(self, pod: &Pod) -> Result<(), kube::Error> {
        match self.hand.delete(pod, Default::default()).await {
            Ok(true) => self.recorder.event(
                self.owner,
                normal(
                    "SuccessfulDelete",
                    format!("Deleted pod: {}", pod.name_any()),
                ),
            ),
            Ok(false) => {}
            Err(error) => {
                self.recorder.event(
                    self.owner,
                    warning(
                        "FailedDelete",
                        format!("Error deleting: {}", reason(&error)),
                    ),
                );
                return Err(error);
            }
        }
        Ok(())
    }
}
