//! Admission of pods by the kubelet: a pod is rejected if its host ports are taken.
//!
//! In: pods that are bound to a node without the scheduler, or before it knew of another pod. Out:
//! the rejection, as status and event.
//! Guarantees: of two pods with the same host port on a node, one is admitted, until the kubelet
//! has finished it; an admitted pod is not rejected later.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bellerophon::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::events::{self, PodEvent};
use crate::host_ports::{HostPort, host_ports};

/// The predicate of `generalFilter` that fails, and why.
const REASON: &str = "NodePorts";
const MESSAGE: &str = "Predicate NodePorts failed: \
                       node(s) didn't have free ports for the requested pod ports";

/// The host ports of admitted pods.
#[derive(Default)]
pub(super) struct Admission {
    /// Admitted pods with host ports that the kubelet has not finished.
    admitted: Mutex<HashMap<ObjectKey, AdmittedPod>>,
}

struct AdmittedPod {
    uid: String,
    node: String,
    host_ports: Vec<HostPort>,
}

/// A pod that is not run.
pub(super) struct Rejection {
    pub(super) event: PodEvent,
    /// The changed fields of the status.
    pub(super) status: PodStatus,
}

impl Admission {
    /// Admits a pod, or rejects it. Mirrors `canAdmitPod` and `rejectPod`.
    pub(super) fn admit(
        &self,
        key: &ObjectKey,
        pod: &Pod,
        node: &str,
        now: Timestamp,
    ) -> Result<(), Box<Rejection>> {
        let ports = pod.spec.as_ref().map(host_ports).unwrap_or_default();
        if ports.is_empty() {
            return Ok(());
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut admitted = self.lock();
        if admitted.get(key).is_some_and(|known| known.uid == uid) {
            return Ok(());
        }
        // An earlier kubelet has admitted pods that have started.
        let status = pod.status.as_ref();
        let has_started = status.is_some_and(|status| status.start_time.is_some());
        let is_taken = |port: &HostPort| {
            let others = admitted.values().filter(|other| other.node == node);
            let mut used = others.flat_map(|other| &other.host_ports);
            used.any(|used| used.conflicts(port))
        };
        if !has_started && ports.iter().any(is_taken) {
            return Err(Box::new(rejection(pod, now)));
        }
        let pod = AdmittedPod {
            uid,
            node: node.to_owned(),
            host_ports: ports,
        };
        admitted.insert(key.clone(), pod);
        Ok(())
    }

    /// Releases the host ports of a pod; with a uid, only if it is the pod's.
    pub(super) fn release(&self, key: &ObjectKey, uid: Option<&str>) {
        let mut admitted = self.lock();
        if admitted
            .get(key)
            .is_some_and(|known| uid.is_none_or(|uid| uid == known.uid))
        {
            admitted.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, AdmittedPod>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rejection(pod: &Pod, now: Timestamp) -> Rejection {
    Rejection {
        event: events::rejected(REASON, MESSAGE),
        status: PodStatus {
            phase: Some("Failed".to_owned()),
            reason: Some(REASON.to_owned()),
            message: Some(format!("Pod was rejected: {MESSAGE}")),
            start_time: Some(Time(now)),
            observed_generation: pod.metadata.generation,
            ..PodStatus::default()
        },
    }
}
