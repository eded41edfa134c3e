//! Pod disruption by the control plane: sets the `DisruptionTarget` condition, then deletes the
//! pod.
//!
//! Used by taint eviction, pod garbage collection and preemption.
//! Guarantees: both requests carry the uid of the pod that was read, so a new pod of the same name
//! is never affected. A pod that is gone is no error.

use bellerophon::client::{Precondition, ReconcileClient, WriteError, WriteOptions};
use bellerophon::clock::Clock;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Patch;
use serde_json::{Value, json};

use crate::api_errors::is_gone_or_conflict;

/// Condition type of a pod that is terminated because of a disruption.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// How a pod is disrupted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Reason and message of the `DisruptionTarget` condition; `None` sets no condition.
    pub(crate) disruption: Option<(&'static str, String)>,
    /// Sets the phase to `Failed` before the delete, for a pod that no kubelet will terminate.
    pub(crate) mark_failed: bool,
    /// Deletes with a grace period of 0 seconds.
    pub(crate) force: bool,
}

impl Eviction {
    /// Patches the status if necessary, then deletes the pod.
    ///
    /// # Errors
    /// The API server rejected one of the requests for a reason other than the pod being gone.
    pub(crate) async fn apply(
        &self,
        client: &ReconcileClient,
        clock: Clock,
        pod: &Pod,
    ) -> Result<(), WriteError> {
        if let Some(status) = self.status(pod, clock) {
            let body = json!({ "metadata": { "uid": pod.metadata.uid }, "status": status });
            match client
                .subresource("status")
                .patch(pod, &Patch::Strategic(&body))
                .await
            {
                Ok(_) => {}
                Err(error) if is_gone_or_conflict(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let options = WriteOptions {
            precondition: Some(Precondition::Uid),
            grace_period_seconds: self.force.then_some(0),
            ..WriteOptions::default()
        };
        match client.with_options(options).delete(pod).await {
            Err(error) if !is_gone_or_conflict(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The status patch; `None` if the status has the phase and the condition already.
    fn status(&self, pod: &Pod, clock: Clock) -> Option<Value> {
        let current = pod.status.as_ref();
        let phase = current.and_then(|status| status.phase.as_deref());
        let mark_failed = self.mark_failed && !matches!(phase, Some("Succeeded" | "Failed"));
        let has_condition = |reason: &str| {
            let conditions = current.and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|c| {
                c.type_ == DISRUPTION_TARGET
                    && c.status == "True"
                    && c.reason.as_deref() == Some(reason)
            })
        };
        let disruption = self
            .disruption
            .as_ref()
            .filter(|(reason, _)| !has_condition(reason));
        if !mark_failed && disruption.is_none() {
            return None;
        }
        let mut status = json!({});
        if mark_failed {
            status["phase"] = json!("Failed");
        }
        if let Some((reason, message)) = disruption {
            status["conditions"] = json!([
                {
                    "type": DISRUPTION_TARGET,
                    "status": "True",
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": Time(clock.now()),
                    "observedGeneration": pod.metadata.generation,
                },
            ]);
            // The condition is appended to those the pod has.
            let others = current
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten()
                .map(|c| &*c.type_);
            let order = others
                .filter(|type_| *type_ != DISRUPTION_TARGET)
                .chain([DISRUPTION_TARGET]);
            status["$setElementOrder/conditions"] =
                order.map(|type_| json!({ "type": type_ })).collect();
        }
        Some(status)
    }
}
