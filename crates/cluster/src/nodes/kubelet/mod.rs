//! Kubelet: syncs the pods of all simulated nodes.
//!
//! In: pods that are bound to a simulated node, the time. Out: pod status, events, and the final
//! delete of terminating pods.
//! Guarantees: one work queue serves all pods; the state in memory can be recovered from the API; a
//! status is written only if it changed; a pod is removed from the API only after all its
//! containers have ended.

mod admission; // rejection of pods whose host ports are taken
mod backoff; // restart back-off of containers
mod conditions; // pod conditions
mod container; // one container of a pod
pub(super) mod ephemeral; // ephemeral containers
pub(super) mod events; // events of pods
mod pod_worker; // the sync of one pod
mod restart_policy; // restart policies and rules
pub(crate) mod server; // HTTP server: logs, exec, attach, port-forward
mod status; // pod status from container states
mod status_patch; // changed fields of a pod status
#[cfg(test)]
mod tests; // timelines of simulated pods

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::client::{Precondition, WriteOptions};
use bellerophon::controller::ControllerHandle;
use bellerophon::events::EventRecorder;
use bellerophon::prelude::*;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::ResourceExt;
use kube::api::Patch;

use self::admission::{Admission, Rejection};
pub(super) use self::container::termination_grace_period;
use self::events::PodEvent;
use self::pod_worker::PodWorker;
use self::status::{StatusInputs, generate_pod_status, is_terminal_phase};
use self::status_patch::{changed_fields, strategic_merge_patch};
use super::runtime::{HandlerError, PodNode, Runtime};
use super::simulated_node::{Power, SimulatedNode, SimulatedNodes};
use super::time::remaining;
use crate::api_errors::is_gone_or_conflict;
use crate::component::Component;
use crate::index;

/// The maximum number of pods reconciled concurrently. A reconcile sends at most two requests, one
/// after the other.
const WORKERS: usize = 16;

/// How long a pod waits for its RuntimeClass. Every attempt records an event.
const HANDLER_RETRY: Duration = Duration::from_secs(10);

/// Reconciles the pods of all simulated nodes.
pub(crate) struct Kubelet<R: Runtime> {
    nodes: Arc<SimulatedNodes>,
    runtime: R,
    recorder: EventRecorder,
    admission: Admission,
    /// At most one worker per pod in the informer cache.
    workers: Mutex<HashMap<ObjectKey, WorkerEntry<R::Instance>>>,
}

/// The worker of a pod, with the identity of the pod and of the boot it belongs to.
struct WorkerEntry<I> {
    uid: String,
    node: String,
    /// When the node booted on which the containers were started.
    node_booted_at: Timestamp,
    worker: PodWorker<I>,
}

/// What a sync of a pod leaves to do.
struct SyncOutcome {
    events: Vec<PodEvent>,
    /// The changed fields of the status.
    status: Option<PodStatus>,
    /// All containers have ended and none is restarted.
    terminated: bool,
    requeue_after: Option<Duration>,
}

impl<R: Runtime> Kubelet<R> {
    /// Adds the controller of all pods on simulated nodes.
    pub(crate) fn setup(
        mgr: &mut Manager,
        nodes: Arc<SimulatedNodes>,
        runtime: R,
        recorder: EventRecorder,
    ) -> ControllerHandle {
        let simulated_nodes = nodes.clone();
        let kubelet = Self {
            nodes,
            runtime,
            recorder,
            admission: Admission::default(),
            workers: Mutex::default(),
        };
        let pods = index::pods(mgr);
        mgr.controller::<Pod>()
            .informer(&pods)
            .predicate(Predicate::filter(move |pod| {
                node_name(pod).is_some_and(|node| simulated_nodes.contains(node))
            }))
            .name("kubelet")
            .concurrency(WORKERS)
            .with_options(Component::Kubelet.controller_options())
            .reconcile(kubelet)
    }

    /// Starts and stops containers as the pod requires, and compares the resulting status with the
    /// API. Mirrors `SyncPod` and `SyncTerminatingPod`.
    fn sync_pod(
        &self,
        key: &ObjectKey,
        pod: &Arc<Pod>,
        node: &SimulatedNode,
        now: Timestamp,
    ) -> SyncOutcome {
        if self.runtime.has_pod_network(pod) {
            let pod_node = PodNode {
                name: node.name.clone(),
                host_ip: node.host_ip().to_string(),
                pod_ip: self.pod_ip(pod, node, true),
            };
            self.runtime.update_pod(pod, &pod_node);
        }
        let uid = pod.uid().unwrap_or_default();
        // The node was powered off and on before its pods were synced.
        let is_lost = self
            .lock_workers()
            .get(key)
            .is_some_and(|entry| entry.uid == uid && entry.node_booted_at != node.booted_at);
        if is_lost {
            self.power_off(key);
        }
        let mut workers = self.lock_workers();
        let is_known = workers
            .get(key)
            // A recreated pod has another uid; a rebooted node lost its containers.
            .is_some_and(|entry| entry.uid == uid && entry.node_booted_at == node.booted_at);
        if !is_known {
            let entry = WorkerEntry {
                uid,
                node: node.name.clone(),
                node_booted_at: node.booted_at,
                worker: PodWorker::recover(&self.runtime, pod, node.booted_at, now),
            };
            workers.insert(key.clone(), entry);
        }
        let entry = workers
            .get_mut(key)
            .expect("the entry was inserted if it was missing");
        let worker = &mut entry.worker;
        worker.backoff_max = node.backoff_max();
        let mut result = worker.sync(&self.runtime, pod, now);
        if !is_known {
            result.events.extend(self.runtime.validate(pod));
        }
        let inputs = StatusInputs {
            host_ip: node.host_ip().to_string(),
            pod_ip: self.pod_ip(pod, node, worker.has_sandbox()),
            now,
            scheme: self.runtime.scheme(pod),
            runs_ephemeral_containers: self.runtime.runs_ephemeral_containers(pod),
        };
        SyncOutcome {
            events: result.events,
            status: changed_fields(pod, generate_pod_status(pod, worker, &inputs)),
            terminated: worker.is_terminated(),
            requeue_after: result.next_sync.map(|at| remaining(now, at)),
        }
    }

    fn pod_ip(&self, pod: &Pod, node: &SimulatedNode, has_sandbox: bool) -> Option<String> {
        let status_ip = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref());
        // Pods on the host network have the IP of the node.
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
        if host_network == Some(true) {
            return Some(node.host_ip().to_string());
        }
        if !has_sandbox && status_ip.is_none() {
            return None;
        }
        let uid = pod.uid().unwrap_or_default();
        self.nodes.allocate_pod_ip(&node.name, &uid, status_ip)
    }

    /// Records that a pod cannot run, and tries again later.
    fn handler_failed(
        &self,
        pod: &Pod,
        node: &SimulatedNode,
        error: HandlerError,
    ) -> Result<Action, Error> {
        match error {
            HandlerError::Api(error) => Err(error.into()),
            HandlerError::UnknownRuntimeClass(_) => {
                let recorder = self.recorder.with_instance(node.name.as_str());
                recorder.event(pod, events::failed_sandbox(error.to_string()));
                Ok(Action::requeue_after(HANDLER_RETRY).reason("the RuntimeClass does not exist"))
            }
        }
    }

    /// Fails a pod that was not admitted. Mirrors `rejectPod`.
    async fn reject_pod(
        &self,
        req: &Request<Pod>,
        pod: &Pod,
        node: &SimulatedNode,
        rejection: Rejection,
    ) -> Result<Action, Error> {
        let recorder = self.recorder.with_instance(node.name.as_str());
        recorder.event(pod, rejection.event);
        self.write_status(req, pod, rejection.status).await?;
        Ok(Action::await_change())
    }

    async fn write_status(
        &self,
        req: &Request<Pod>,
        pod: &Pod,
        status: PodStatus,
    ) -> Result<(), Error> {
        let body = strategic_merge_patch(pod, status)?;
        let statuses = req.client().subresource("status");
        match statuses.patch(pod, &Patch::Strategic(&body)).await {
            Err(error) if !is_gone_or_conflict(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Drops the worker of a pod without running containers, and deletes the pod from the API if it
    /// is terminating. Mirrors `SyncTerminatedPod` and the status manager's final delete.
    async fn finish_pod(&self, req: &Request<Pod>, pod: &Pod) -> Result<Action, Error> {
        self.remove_worker(req.key(), pod.metadata.uid.as_deref());
        self.admission
            .release(req.key(), pod.metadata.uid.as_deref());
        self.runtime.terminate_pod(req.key());
        if pod.metadata.deletion_timestamp.is_none() {
            return Ok(Action::await_change());
        }
        // A new pod of the same name must not be deleted.
        let options = WriteOptions {
            precondition: Some(Precondition::Uid),
            grace_period_seconds: Some(0),
            ..WriteOptions::default()
        };
        match req.client().with_options(options).delete(pod).await {
            Err(error) if !is_gone_or_conflict(&error) => Err(error.into()),
            _ => Ok(Action::await_change()),
        }
    }

    /// Drops the worker of a pod, whose containers are lost. The pod keeps its IP.
    fn power_off(&self, key: &ObjectKey) {
        let worker = self.lock_workers().remove(key);
        drop(worker);
        self.runtime.power_off(key);
    }

    /// Drops the worker of a pod and releases its IP; with a uid, only if it is the pod's.
    fn remove_worker(&self, key: &ObjectKey, uid: Option<&str>) {
        let mut workers = self.lock_workers();
        if workers
            .get(key)
            .is_some_and(|entry| uid.is_none_or(|uid| uid == entry.uid))
            && let Some(removed) = workers.remove(key)
        {
            // The locks of workers and nodes are never held together.
            drop(workers);
            self.nodes.release_pod_ip(&removed.node, &removed.uid);
        }
    }

    fn lock_workers(&self) -> MutexGuard<'_, HashMap<ObjectKey, WorkerEntry<R::Instance>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Runtime> Reconciler<Pod> for Kubelet<R> {
    async fn reconcile(&self, req: Request<Pod>) -> Result<Action, Error> {
        let Some(pod) = req.arc() else {
            self.remove_worker(req.key(), None);
            self.admission.release(req.key(), None);
            self.runtime.remove_pod(req.key());
            return Ok(Action::await_change());
        };
        let node = node_name(pod).and_then(|name| self.nodes.get(name));
        if node.as_ref().is_some_and(|node| node.power != Power::On) {
            self.power_off(req.key());
        }
        // The pods of an unreachable node are enqueued again when it boots or reconnects.
        let Some(node) = node.filter(SimulatedNode::is_reachable) else {
            return Ok(Action::await_change());
        };
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        // A terminal phase is final: no container is started again.
        if is_terminal_phase(phase) {
            return self.finish_pod(&req, pod).await;
        }
        if let Err(rejection) = self.admission.admit(req.key(), pod, &node.name, req.now()) {
            return self.reject_pod(&req, pod, &node, *rejection).await;
        }
        if let Err(error) = self.runtime.select_handler(pod, &node.name).await {
            return self.handler_failed(pod, &node, error);
        }
        let outcome = self.sync_pod(req.key(), pod, &node, req.now());
        if !outcome.events.is_empty() {
            let recorder = self.recorder.with_instance(node.name.as_str());
            for event in outcome.events {
                recorder.event(pod.as_ref(), event);
            }
        }
        if let Some(status) = outcome.status {
            // Mirrors the status manager: the final status is written before the pod is deleted, so
            // that controllers see the exit codes.
            self.write_status(&req, pod, status).await?;
        }
        if outcome.terminated {
            return self.finish_pod(&req, pod).await;
        }
        Ok(match outcome.requeue_after {
            Some(delay) => Action::requeue_after(delay).reason("the next sync of the pod is due"),
            None => Action::await_change(),
        })
    }
}

/// The node a pod is bound to.
pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|name| !name.is_empty())
}
