//! Kubelet: the pods of all simulated nodes, from their arrival to their end.
//!
//! In: pods that have a node, the time. Out: their status, events, and the last delete of those that are to go.
//! Holds: one queue serves all pods; what is in memory can be found again from the API; a status is written only if it
//! says something new; a pod leaves the API only when nothing of it runs.

mod backoff; // how long a failed container waits
mod life; // a pod on its node
mod notes; // what people are told
mod slot; // one container of a pod
mod status; // what is said of a pod
#[cfg(test)]
mod tests; // lives of pods, minute by minute

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::{
    Controller, EventRecorder, ObjectKey, Outcome, Predicate, ReconcileResult, Request, Trigger,
    WallClock,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};

use self::life::Life;
use self::notes::Told;
use self::status::Facts;
use super::heartbeat::left;
use super::machines::{Machine, Machines};
use super::runtime::Runtime;
use super::script;
use crate::api_errors::is_gone_or_conflict;
use crate::component::Component;
use crate::context::Context;

/// How many pods are looked after at once; each costs at most two requests at a time.
const WORKERS: usize = 16;

/// Looks after the pods of all machines.
pub(crate) struct Kubelet<R: Runtime> {
    machines: Arc<Machines>,
    runtime: R,
    client: Client,
    clock: WallClock,
    recorder: EventRecorder,
    /// At most one for each pod in the cache.
    pods: Mutex<HashMap<ObjectKey, Resident<R::Run>>>,
}

/// A pod that is looked after.
struct Resident<Run> {
    uid: String,
    node: String,
    /// The boot of the node its containers live on.
    booted: Timestamp,
    life: Life<Run>,
}

/// What is to be done about a pod.
struct Step {
    told: Vec<Told>,
    status: Option<PodStatus>,
    /// Nothing of it runs, nor will.
    over: bool,
    again: Option<Duration>,
}

impl<R: Runtime> Kubelet<R> {
    /// The controller of all pods on these machines.
    pub(crate) fn controller(
        ctx: &Context,
        machines: Arc<Machines>,
        runtime: R,
        recorder: EventRecorder,
    ) -> (Controller, Trigger) {
        let ours = machines.clone();
        let (client, clock, pods) = (ctx.client(Component::Kubelet), ctx.clock, Mutex::default());
        let kubelet = Arc::new(Self {
            machines,
            runtime,
            client,
            clock,
            recorder,
            pods,
        });
        let controller = Controller::of(&ctx.pods())
            .with_options(ctx.options("kubelet", WORKERS))
            .with_predicate(Predicate::concerns(move |pod: &Pod| {
                node_of(pod).is_some_and(|node| ours.contains(node))
            }))
            .reconcile_with(move |request| kubelet.clone().reconcile(request));
        let trigger = controller.trigger();
        (controller, trigger)
    }

    async fn reconcile(self: Arc<Self>, request: Request<Pod>) -> ReconcileResult {
        let Some(pod) = request.object.as_deref() else {
            self.forget(&request.key, None);
            return Ok(Outcome::Done);
        };
        let machine = node_of(pod)
            .and_then(|node| self.machines.get(node))
            .filter(Machine::is_heard);
        let Some(machine) = machine else {
            return Ok(Outcome::Done);
        };
        if status::is_final(
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref()),
        ) {
            return self.finish(&request, pod).await;
        }
        let step = self.step(&request.key, pod, &machine);
        if !step.told.is_empty() {
            let recorder = self.recorder.with_instance(machine.name.as_str());
            step.told
                .into_iter()
                .for_each(|told| recorder.event(pod, told));
        }
        if let Some(status) = step.status {
            self.write_status(&request, pod, &status).await?;
        }
        if step.over {
            return self.finish(&request, pod).await;
        }
        Ok(step.again.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Brings a pod to where it should be now, and says what the API does not know of it.
    fn step(&self, key: &ObjectKey, pod: &Pod, machine: &Machine) -> Step {
        let now = self.clock.now();
        let uid = pod.uid().unwrap_or_default();
        let mut residents = self.residents();
        let known = residents
            .get(key)
            .is_some_and(|known| known.uid == uid && known.booted == machine.booted);
        if !known {
            let life = Life::recover(&self.runtime, pod, machine.booted, now);
            residents.insert(
                key.clone(),
                Resident {
                    uid: uid.clone(),
                    node: machine.name.clone(),
                    booted: machine.booted,
                    life,
                },
            );
        }
        let resident = residents
            .get_mut(key)
            .expect("it was put there if it was not");
        let life = &mut resident.life;
        let mut advance = life.advance(&self.runtime, pod, now);
        if !known {
            advance.told.extend(
                script::mistakes(pod.metadata.annotations.as_ref())
                    .into_iter()
                    .map(notes::misunderstood),
            );
        }
        let facts = Facts {
            host_ip: machine.host_ip().to_string(),
            pod_ip: self.pod_ip(pod, machine, life.has_sandbox()),
            now,
        };
        let status = status::difference(pod, status::status(pod, life, &facts));
        Step {
            told: advance.told,
            status,
            over: life.is_over(),
            again: advance.again.map(|again| left(now, again)),
        }
    }

    fn pod_ip(&self, pod: &Pod, machine: &Machine, has_sandbox: bool) -> Option<String> {
        let said = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref());
        if pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true) {
            return Some(machine.host_ip().to_string());
        }
        if !has_sandbox && said.is_none() {
            return None;
        }
        self.machines
            .address(&machine.name, &pod.uid().unwrap_or_default(), said)
    }

    async fn write_status(
        &self,
        request: &Request<Pod>,
        pod: &Pod,
        status: &PodStatus,
    ) -> Result<(), kube::Error> {
        let body = status::patch(pod, status);
        match self
            .api(pod)
            .patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&body),
            )
            .await
        {
            Ok(written) => {
                request.writes().wrote(&written);
                Ok(())
            }
            Err(error) if is_gone_or_conflict(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Nothing of the pod runs: takes it out of the API if it is to go.
    async fn finish(&self, request: &Request<Pod>, pod: &Pod) -> ReconcileResult {
        self.forget(&request.key, pod.metadata.uid.as_deref());
        if pod.metadata.deletion_timestamp.is_none() {
            return Ok(Outcome::Done);
        }
        let only_this = Preconditions {
            uid: pod.uid(),
            resource_version: None,
        };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(only_this),
            ..DeleteParams::default()
        };
        match self.api(pod).delete(&pod.name_any(), &params).await {
            Err(error) if !is_gone_or_conflict(&error) => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }

    /// Lets go of a pod, or only if it is the one of that uid.
    fn forget(&self, key: &ObjectKey, uid: Option<&str>) {
        let mut residents = self.residents();
        if residents
            .get(key)
            .is_some_and(|resident| uid.is_none_or(|uid| uid == resident.uid))
            && let Some(gone) = residents.remove(key)
        {
            drop(residents);
            self.machines.release(&gone.node, &gone.uid);
        }
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(
            self.client.clone(),
            pod.metadata.namespace.as_deref().unwrap_or("default"),
        )
    }

    fn residents(&self) -> MutexGuard<'_, HashMap<ObjectKey, Resident<R::Run>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node a pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|name| !name.is_empty())
}
