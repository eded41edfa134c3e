//! Actions: writes the result of a scheduling cycle to the API server.
//!
//! In: a pod with its schedule result. Out: a binding; or the `PodScheduled` condition, the
//! nominated node, an event and the eviction of preemption victims.
//! Guarantees: a failed binding is undone in the cache and retried; a condition is written only if
//! it changed.

use std::sync::Arc;

use bellerophon::client::{ReconcileClient, WriteError};
use bellerophon::clock::Clock;
use bellerophon::events::{Event, EventRecorder, EventType};
use bellerophon::informer::Lister;
use bellerophon::queue::Causes;
use bellerophon::trace::{Trace, TraceEvent};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::pod_info::{PendingPod, PodInfo, SCHEDULER_NAME};
use super::scheduling_cycle::{FitError, Preemption, ScheduleResult};
use super::state::SharedState;
use crate::api_errors::is_gone_or_conflict;
use crate::evict::Eviction;

/// Binds pods, reports unschedulable pods and evicts preemption victims.
pub(crate) struct Actions {
    pub(crate) client: ReconcileClient,
    pub(crate) clock: Clock,
    pub(crate) recorder: EventRecorder,
    pub(crate) pods: Lister<Pod>,
    pub(crate) state: Arc<SharedState>,
    pub(crate) trace: Trace,
}

impl Actions {
    /// Writes the result of a scheduling cycle.
    pub(crate) async fn run(&self, pending: Arc<PendingPod>, result: ScheduleResult) {
        let started = Instant::now();
        self.trace.record(|| TraceEvent::Started {
            controller: SCHEDULER_NAME.into(),
            key: pending.info.key.clone(),
            causes: Causes::default(),
            attempt: 1,
            waited: None,
        });
        let succeeded = match result {
            ScheduleResult::Scheduled { node } => self.bind(&pending, &node).await,
            ScheduleResult::Unschedulable(error) => {
                self.handle_scheduling_failure(&pending, &error).await
            }
        };
        self.trace.record(|| TraceEvent::Finished {
            controller: SCHEDULER_NAME.into(),
            key: pending.info.key.clone(),
            result: if succeeded { "success" } else { "error" },
            took: started.elapsed(),
            requeue_after: None,
            error: None,
        });
    }

    /// Creates the binding; returns whether it was created. Mirrors `DefaultBinder.Bind`.
    async fn bind(&self, pending: &PendingPod, node: &str) -> bool {
        let info = &pending.info;
        let metadata = json!({
            "name": info.key.name(), "namespace": info.key.namespace(), "uid": info.uid,
        });
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        // The uid in the binding makes the API server reject another pod of that name.
        let bindings = self.client.subresource("binding");
        match bindings.create(&identity(info), &binding).await {
            Ok(()) => {
                self.trace.record(|| TraceEvent::SubresourceWritten {
                    controller: SCHEDULER_NAME.into(),
                    reconciling: info.key.clone(),
                    kind: "Pod".into(),
                    key: info.key.clone(),
                    subresource: format!("binding to {node}"),
                });
                let message = format!("Successfully assigned {} to {node}", info.key);
                self.record_event(info, EventType::Normal, "Scheduled", "Binding", message);
                true
            }
            Err(error) => {
                // A conflict or a missing pod needs no event: the informer delivers the change.
                if !is_gone_or_conflict(&error) {
                    tracing::warn!(pod = %info.key, node, %error, "binding failed, retrying");
                    self.record_event(
                        info,
                        EventType::Warning,
                        "FailedScheduling",
                        "Scheduling",
                        error.source.to_string(),
                    );
                }
                self.state
                    .update(|state| state.forget_assumed_pod(&info.uid, Instant::now()));
                false
            }
        }
    }

    /// Reports that a pod is unschedulable and evicts its preemption victims; returns whether the
    /// status was written. Mirrors `handleSchedulingFailure`.
    async fn handle_scheduling_failure(&self, pending: &PendingPod, error: &FitError) -> bool {
        let info = &pending.info;
        self.record_event(
            info,
            EventType::Warning,
            "FailedScheduling",
            "Scheduling",
            error.message.clone(),
        );
        let written = self.update_pod_status(info, error).await;
        if let Err(error) = &written {
            tracing::warn!(pod = %info.key, %error, "cannot update the PodScheduled condition");
        }
        if let Some(preemption) = &error.preemption {
            self.evict_victims(info, preemption).await;
        }
        written.is_ok()
    }

    /// Writes the `PodScheduled` condition and `nominatedNodeName` if they changed.
    async fn update_pod_status(&self, info: &PodInfo, error: &FitError) -> Result<(), WriteError> {
        let Some(pod) = self.cached_pod(info) else {
            return Ok(());
        };
        let status = pod.status.as_ref();
        let current = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|c| c.type_ == "PodScheduled");
        // Mirrors UpdatePodCondition: the transition time is that of the status, not of the
        // message.
        let last_transition = current
            .filter(|current| current.status == "False")
            .and_then(|current| current.last_transition_time.clone());
        let desired = PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("Unschedulable".into()),
            message: Some(error.message.clone()),
            observed_generation: pod.metadata.generation,
            last_transition_time: Some(last_transition.unwrap_or(Time(self.clock.now()))),
            last_probe_time: None,
        };
        let nominated_node = error
            .preemption
            .as_ref()
            .map(|preemption| preemption.node.as_str());
        let current_nominated_node = status
            .and_then(|status| status.nominated_node_name.as_deref())
            .filter(|name| !name.is_empty());
        // While the victims terminate, the pod stays nominated although nothing is preempted now.
        let nomination_is_current = nominated_node == current_nominated_node
            || nominated_node.is_none() && error.keeps_nomination();
        let condition_is_current = current.is_some_and(|current| {
            current.status == "False"
                && current.message == desired.message
                && current.reason == desired.reason
        });
        if nomination_is_current && condition_is_current {
            return Ok(());
        }
        let mut body =
            json!({ "metadata": { "uid": info.uid }, "status": { "conditions": [desired] } });
        if !nomination_is_current {
            body["status"]["nominatedNodeName"] = json!(nominated_node);
        }
        let statuses = self.client.subresource("status");
        match statuses.patch(&*pod, &Patch::Strategic(&body)).await {
            Ok(written) => {
                self.trace.record(|| TraceEvent::Wrote {
                    controller: SCHEDULER_NAME.into(),
                    reconciling: info.key.clone(),
                    kind: "Pod".into(),
                    key: info.key.clone(),
                    resource_version: written.metadata().resource_version.clone(),
                });
                Ok(())
            }
            Err(error) if is_gone_or_conflict(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the victims with a `DisruptionTarget` condition. Mirrors `prepareCandidate`.
    async fn evict_victims(&self, info: &PodInfo, preemption: &Preemption) {
        let message = format!("{SCHEDULER_NAME}: preempting to accommodate a higher priority pod");
        let eviction = Eviction {
            disruption: Some(("PreemptionByScheduler", message)),
            ..Eviction::default()
        };
        for victim in &preemption.victims {
            // A victim may have been deleted since the scheduling cycle.
            let Some(pod) = self
                .cached_pod(victim)
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            else {
                continue;
            };
            if let Err(error) = eviction.apply(&self.client, self.clock, &pod).await {
                tracing::warn!(pod = %victim.key, %error, "cannot preempt a pod");
                continue;
            }
            let message = format!("Preempted by pod {} on node {}", info.uid, preemption.node);
            self.record_event(
                victim,
                EventType::Normal,
                "Preempted",
                "Preempting",
                message,
            );
        }
    }

    fn record_event(
        &self,
        info: &PodInfo,
        type_: EventType,
        reason: &str,
        action: &str,
        message: String,
    ) {
        if let Some(pod) = self.cached_pod(info) {
            let event = Event {
                type_,
                reason: reason.into(),
                action: action.into(),
                note: message,
            };
            self.recorder.event(&*pod, event);
        }
    }

    /// The pod from the informer cache, if it has the same uid.
    fn cached_pod(&self, info: &PodInfo) -> Option<Arc<Pod>> {
        self.pods
            .get(&info.key)
            .filter(|pod| pod.uid().as_deref() == Some(&info.uid))
    }
}

/// Name, namespace and uid of a pod, as the object of a request. The cache may no longer have the
/// pod.
fn identity(info: &PodInfo) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(info.key.name().to_owned()),
            namespace: info.key.namespace().map(str::to_owned),
            uid: Some(info.uid.clone()),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    }
}
