//! Pod control: creates and deletes the pods of an owner and records the upstream events.
//!
//! Input: pods. Output: requests, and events regarding the owner.
//! Rules: a create that fails because the namespace is terminating is no error, as upstream.

use bellerophon::client::{Template, WriteError};
use bellerophon::events::EventRecorder;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::api_writer::{ApiWriter, StaticKind};
use super::events::{normal_event, warning_event};
use crate::api_errors::{is_namespace_terminating, status_message};

/// Creates and deletes pods of one owner. Mirrors RealPodControl.
pub(crate) struct PodControl<'a, O> {
    pub(crate) writer: ApiWriter<'a>,
    pub(crate) owner: &'a O,
    pub(crate) recorder: &'a EventRecorder,
}

impl<O> Clone for PodControl<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for PodControl<'_, O> {}

impl<O: StaticKind> PodControl<'_, O> {
    /// Creates a pod from a template.
    pub(crate) async fn create(self, template: &Template<Pod>) -> Result<(), WriteError> {
        match self.writer.create_from_template(template).await {
            Ok(pod) => self.recorder.event(
                self.owner,
                normal_event(
                    "SuccessfulCreate",
                    format!("Created pod: {}", name_of(pod.metadata())),
                ),
            ),
            // Mirrors manageReplicas: in a terminating namespace every create fails, and a retry
            // cannot succeed.
            Err(error) if is_namespace_terminating(&error) => {}
            Err(error) => {
                self.recorder.event(
                    self.owner,
                    warning_event(
                        "FailedCreate",
                        format!("Error creating: {}", status_message(&error)),
                    ),
                );
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes a pod. A pod that is gone is no error.
    pub(crate) async fn delete(self, pod: &Pod) -> Result<(), WriteError> {
        match self.writer.delete(pod, None).await {
            Ok(true) => self.recorder.event(
                self.owner,
                normal_event(
                    "SuccessfulDelete",
                    format!("Deleted pod: {}", pod.name_any()),
                ),
            ),
            Ok(false) => {}
            Err(error) => {
                self.recorder.event(
                    self.owner,
                    warning_event(
                        "FailedDelete",
                        format!("Error deleting: {}", status_message(&error)),
                    ),
                );
                return Err(error);
            }
        }
        Ok(())
    }
}

fn name_of(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}
