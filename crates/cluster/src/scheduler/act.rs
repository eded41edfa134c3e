//! Acts: what the server is told of a decision.
//!
//! In: a pod and where it goes, or why it goes nowhere. Out: a binding; or a condition, an event and evictions.
//! Holds: a binding the server refuses is taken back and tried again; a condition is written only if it says something new.

use std::sync::Arc;

use bellerophon::{EventRecorder, EventType, Lister, Note, TraceBus, TraceEvent, WallClock};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

use super::cycle::{Decision, Preemption, Refused};
use super::notice::Board;
use super::pod_info::{Pending, PodInfo, SCHEDULER};
use crate::api_errors::is_gone_or_conflict;
use crate::evict::Eviction;

/// Tells the server what was decided.
pub(crate) struct Act {
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) recorder: EventRecorder,
    pub(crate) pods: Lister<Pod>,
    pub(crate) board: Arc<Board>,
    pub(crate) trace: TraceBus,
}

impl Act {
    /// Sees a decision through.
    pub(crate) async fn perform(&self, pending: Arc<Pending>, decision: Decision) {
        let began = Instant::now();
        let done = match decision {
            Decision::Bind { node } => self.bind(&pending, &node).await,
            Decision::Refuse(refused) => self.refuse(&pending, &refused).await,
        };
        self.trace.record(|| TraceEvent::Ended {
            controller: SCHEDULER.into(),
            key: pending.info.key.clone(),
            result: if done { "success" } else { "error" },
            took: began.elapsed(),
        });
    }

    /// Says whether the server took it.
    async fn bind(&self, pending: &Pending, node: &str) -> bool {
        let info = &pending.info;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": info.key.name(), "namespace": info.key.namespace(), "uid": info.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let params = PostParams::default();
        let bound = self
            .api(info)
            .create_subresource::<_, IgnoredAny>("binding", info.key.name(), &params, &binding)
            .await;
        match bound {
            Ok(_) => {
                self.trace.record(|| TraceEvent::Called {
                    controller: SCHEDULER.into(),
                    reconciling: info.key.clone(),
                    kind: "Pod".into(),
                    key: info.key.clone(),
                    what: format!("binding to {node}"),
                });
                let note = format!("Successfully assigned {} to {node}", info.key);
                self.tell(info, EventType::Normal, "Scheduled", "Binding", note);
                true
            }
            Err(error) => {
                if !is_gone_or_conflict(&error) {
                    tracing::warn!(pod = %info.key, node, %error, "cannot bind a pod, tried again soon");
                    self.tell(
                        info,
                        EventType::Warning,
                        "FailedScheduling",
                        "Scheduling",
                        error.to_string(),
                    );
                }
                self.board
                    .change(|state| state.take_back(&info.uid, Instant::now()));
                false
            }
        }
    }

    /// Says whether the server took all of it.
    async fn refuse(&self, pending: &Pending, refused: &Refused) -> bool {
        let info = &pending.info;
        self.tell(
            info,
            EventType::Warning,
            "FailedScheduling",
            "Scheduling",
            refused.message.clone(),
        );
        let said = self.say_why(info, refused).await;
        if let Err(error) = &said {
            tracing::warn!(pod = %info.key, %error, "cannot write why a pod has no node");
        }
        if let Some(preemption) = &refused.preemption {
            self.end_victims(info, preemption).await;
        }
        said.is_ok()
    }

    /// Writes the condition, and the node the pod waits for.
    async fn say_why(&self, info: &PodInfo, refused: &Refused) -> Result<(), kube::Error> {
        let Some(pod) = self.current(info) else {
            return Ok(());
        };
        let status = pod.status.as_ref();
        let known = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|c| c.type_ == "PodScheduled");
        let since = known
            .filter(|known| known.status == "False")
            .and_then(|known| known.last_transition_time.clone());
        let wanted = PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("Unschedulable".into()),
            message: Some(refused.message.clone()),
            observed_generation: pod.metadata.generation,
            last_transition_time: Some(since.unwrap_or(Time(self.clock.now()))),
            last_probe_time: None,
        };
        let nominated = refused
            .preemption
            .as_ref()
            .map(|preemption| preemption.node.as_str());
        let waits_for = status
            .and_then(|status| status.nominated_node_name.as_deref())
            .filter(|name| !name.is_empty());
        let keeps = nominated.is_none() && refused.keeps_nomination() || nominated == waits_for;
        if keeps
            && known.is_some_and(|known| {
                known.status == "False"
                    && known.message == wanted.message
                    && known.reason == wanted.reason
            })
        {
            return Ok(());
        }
        let mut body =
            json!({ "metadata": { "uid": info.uid }, "status": { "conditions": [wanted] } });
        if !keeps {
            body["status"]["nominatedNodeName"] = json!(nominated);
        }
        match self
            .api(info)
            .patch_status(
                info.key.name(),
                &PatchParams::default(),
                &Patch::Strategic(&body),
            )
            .await
        {
            Ok(written) => {
                self.trace.record(|| TraceEvent::Wrote {
                    controller: SCHEDULER.into(),
                    reconciling: info.key.clone(),
                    kind: "Pod".into(),
                    key: info.key.clone(),
                    resource_version: written.resource_version(),
                });
                Ok(())
            }
            Err(error) if is_gone_or_conflict(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn end_victims(&self, info: &PodInfo, preemption: &Preemption) {
        let text = format!("{SCHEDULER}: preempting to accommodate a higher priority pod");
        let eviction = Eviction {
            disruption: Some(("PreemptionByScheduler", text)),
            ..Eviction::default()
        };
        for victim in &preemption.victims {
            let Some(pod) = self
                .current(victim)
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            else {
                continue;
            };
            if let Err(error) = eviction.apply(&self.client, self.clock, &pod).await {
                tracing::warn!(pod = %victim.key, %error, "cannot end a pod to make room");
                continue;
            }
            let note = format!("Preempted by pod {} on node {}", info.uid, preemption.node);
            self.tell(victim, EventType::Normal, "Preempted", "Preempting", note);
        }
    }

    fn tell(&self, info: &PodInfo, type_: EventType, reason: &str, action: &str, note: String) {
        if let Some(pod) = self.current(info) {
            self.recorder.event(
                &*pod,
                Note {
                    type_,
                    reason: reason.into(),
                    action: action.into(),
                    note,
                },
            );
        }
    }

    /// The pod as it is cached, if it is still that one.
    fn current(&self, info: &PodInfo) -> Option<Arc<Pod>> {
        self.pods
            .get(&info.key)
            .filter(|pod| pod.uid().as_deref() == Some(&info.uid))
    }

    fn api(&self, info: &PodInfo) -> Api<Pod> {
        Api::namespaced(self.client.clone(), info.namespace())
    }
}
