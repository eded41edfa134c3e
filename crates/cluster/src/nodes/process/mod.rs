//! Process runtime: containers as local processes.
//!
//! In: pods of all nodes, the image table, the objects that pods refer to. Out: sandboxes, volumes,
//! processes and their status.
//! Guarantees: one sandbox per pod, which exists from the first start of a container until the pod
//! has terminated; every change of a status enqueues the pod.

mod downward_api; // fields of pods
mod env_file; // environment variables from files
mod environment; // environment variables
mod grpc; // gRPC probes
mod hooks; // postStart and preStop
mod http_get; // HTTP requests of probes and hooks
mod instance; // one run of a container
mod mounts; // mounts of containers
mod network; // Services, and connections between pods
mod pod; // sandbox and directory of a pod
mod probes; // startup, readiness and liveness
mod service_environment; // environment variables of services
mod stop_requests; // requests to stop a container
mod streams; // logs, exec, attach and port-forward
mod termination_message; // termination messages
mod tls; // TLS of probes and hooks
mod tokens; // service account tokens
mod volumes; // volumes of a pod

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::client::ReconcileClient;
use bellerophon::clock::Clock;
use bellerophon::controller::ControllerHandle;
use bellerophon::events::EventRecorder;
use bellerophon::informer::{InformerOptions, Lister};
use bellerophon::manager::Manager;
use bellerophon_process_runtime as process;
use bellerophon_process_runtime::images::ImageTable;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use tokio::time::Instant;

pub(crate) use self::instance::ProcessInstance;
use self::network::Network;
use self::pod::ProcessPod;
use super::runtime::{ContainerConfig, InstanceStatus, PodNode, Runtime};
use crate::component::Component;

/// Runs the pods of a cluster as local processes.
#[derive(Clone)]
pub struct ProcessNodes {
    /// The container runtime, which all nodes share.
    pub runtime: process::Runtime,
    /// Which programs images are.
    pub images: ImageTable,
}

impl fmt::Debug for ProcessNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessNodes")
            .field("capabilities", self.runtime.capabilities())
            .finish_non_exhaustive()
    }
}

/// The container runtime of nodes with local processes. Clones share it.
#[derive(Clone)]
pub(crate) struct ProcessRuntime(Arc<Shared>);

/// What all pods share.
struct Shared {
    runtime: process::Runtime,
    images: ImageTable,
    client: ReconcileClient,
    recorder: EventRecorder,
    clock: Clock,
    services: Lister<Service>,
    network: Arc<Network>,
    /// Enqueues pods; set after the controller was created.
    kubelet: OnceLock<ControllerHandle>,
    pods: Mutex<HashMap<ObjectKey, Arc<ProcessPod>>>,
}

impl ProcessRuntime {
    /// A runtime whose volumes follow config maps and secrets.
    pub(crate) fn new(
        mgr: &mut Manager,
        nodes: ProcessNodes,
        node_ips: Vec<IpAddr>,
        recorder: EventRecorder,
    ) -> Self {
        let network = Network::setup(mgr, nodes.runtime.clone(), node_ips);
        let runtime = Self(Arc::new(Shared {
            runtime: nodes.runtime,
            images: nodes.images,
            client: Component::Kubelet.client(mgr, "kubelet"),
            recorder,
            clock: mgr.clock(),
            services: mgr.lister::<Service>(),
            network,
            kubelet: OnceLock::new(),
            pods: Mutex::default(),
        }));
        let shared = Arc::downgrade(&runtime.0);
        let config_maps = mgr.informer::<ConfigMap>(InformerOptions::default());
        config_maps.add_key_handler(move |change| {
            if let Some(shared) = shared.upgrade() {
                shared.source_changed(change.key, volumes::refers_to_config_map);
            }
        });
        let shared = Arc::downgrade(&runtime.0);
        let secrets = mgr.informer::<Secret>(InformerOptions::default());
        secrets.add_key_handler(move |change| {
            if let Some(shared) = shared.upgrade() {
                shared.source_changed(change.key, volumes::refers_to_secret);
            }
        });
        runtime
    }

    /// Sets the controller that syncs the pods.
    pub(crate) fn set_kubelet(&self, kubelet: ControllerHandle) {
        // It is set once, when the controller is created.
        let _ = self.0.kubelet.set(kubelet);
    }
}

impl Shared {
    fn lock_pods(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<ProcessPod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, key: &ObjectKey) -> Option<Arc<ProcessPod>> {
        self.lock_pods().get(key).cloned()
    }

    /// Syncs a pod whose status has changed.
    fn enqueue(&self, key: &ObjectKey, reason: &'static str) {
        if let Some(kubelet) = self.kubelet.get() {
            kubelet.enqueue(key.clone(), reason);
        }
    }

    /// The directory of a pod.
    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.runtime.data_dir().join("pods").join(uid)
    }

    /// Updates the volumes of the pods that refer to a config map or secret.
    fn source_changed(&self, key: &ObjectKey, refers_to: fn(&Pod, &str) -> bool) {
        for pod in self.lock_pods().values() {
            let is_source = pod.key.namespace() == key.namespace()
                && pod.spec().is_none_or(|spec| refers_to(spec, key.name()));
            if is_source {
                pod.changed.notify_one();
            }
        }
    }
}

impl Runtime for ProcessRuntime {
    type Instance = ProcessInstance;

    fn scheme(&self, _: &Pod) -> &'static str {
        "process"
    }

    fn has_pod_network(&self, _: &Pod) -> bool {
        true
    }

    fn runs_ephemeral_containers(&self, _: &Pod) -> bool {
        true
    }

    fn update_pod(&self, pod: &Arc<Pod>, node: &PodNode) {
        let key = ObjectKey::from_object(pod.as_ref());
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known = self.0.pod(&key);
        if let Some(known) = known.filter(|known| known.uid == uid) {
            known.update(pod);
            return;
        }
        // A pod of the same name was deleted and created again.
        self.remove_pod(&key);
        let dir = self.0.pod_dir(&uid);
        let created = ProcessPod::new(key.clone(), uid, node.clone(), dir, pod.clone());
        self.0.lock_pods().insert(key, Arc::new(created));
    }

    fn terminate_pod(&self, key: &ObjectKey) {
        if let Some(pod) = self.0.pod(key) {
            let network = self.0.network.clone();
            tokio::spawn(async move { pod.terminate(&network).await });
        }
    }

    fn power_off(&self, key: &ObjectKey) {
        if let Some(pod) = self.0.pod(key) {
            pod.power_off();
        }
    }

    fn remove_pod(&self, key: &ObjectKey) {
        let removed = self.0.lock_pods().remove(key);
        if let Some(pod) = removed {
            let network = self.0.network.clone();
            tokio::spawn(async move { pod.remove(&network).await });
        }
    }

    fn start(&self, config: &ContainerConfig<'_>, _now: Timestamp) -> ProcessInstance {
        let key = ObjectKey::from_object(config.pod);
        let pod = self.0.pod(&key).expect("a pod is observed before its sync");
        let name = config.container.name.clone();
        ProcessInstance::start(self.0.clone(), pod, name, config.attempt)
    }

    fn find(&self, _: &ContainerConfig<'_>, _: Timestamp) -> Option<ProcessInstance> {
        // No process outlives the node that started it.
        None
    }

    fn pre_stop(&self, instance: &mut ProcessInstance, _now: Timestamp, grace_period: Duration) {
        instance.pre_stop(Instant::now() + grace_period);
    }

    fn stop(&self, instance: &mut ProcessInstance, _now: Timestamp, grace_period: Duration) {
        instance.stop(Instant::now() + grace_period);
    }

    fn status(
        &self,
        _: &ContainerConfig<'_>,
        instance: &ProcessInstance,
        _now: Timestamp,
    ) -> InstanceStatus {
        InstanceStatus {
            state: instance.state(),
            next_change: None,
        }
    }
}
