//! Container runtime interface: how a kubelet starts, stops and observes containers.
//!
//! In: requests to start and stop containers. Out: the status of every container instance.
//! Guarantees: a runtime never restarts a container; restart policy and back-off belong to the
//! kubelet.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::client::WriteError;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use thiserror::Error;

use super::kubelet::events::PodEvent;

/// The type of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerType {
    /// An init container that must complete before the next container starts.
    Init,
    /// An init container with `restartPolicy: Always`: it must start before the next container
    /// and keeps running.
    Sidecar,
    /// A container of `spec.containers`.
    App,
    /// A container of `spec.ephemeralContainers`, which was added to a running pod.
    Ephemeral,
}

/// What to run: one start of one container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerConfig<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) container_type: ContainerType,
    /// The number of restarts before this start, as in the CRI's `ContainerMetadata.attempt`.
    pub(crate) attempt: i32,
    /// The number of earlier starts and instances of this container that failed.
    pub(crate) failures: i32,
}

/// The state of a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InstanceState {
    /// The image is pulled or the container is created.
    Creating,
    /// The container cannot be started. The instance has ended.
    StartFailed {
        at: Timestamp,
        reason: &'static str,
        message: String,
    },
    /// Running; `started` and `ready` are the results of its startup and readiness probes.
    Running {
        since: Timestamp,
        started: bool,
        ready: bool,
    },
    /// Running with a failed liveness or startup probe. It runs until it is stopped.
    Unhealthy {
        since: Timestamp,
        probe: ProbeType,
        /// The output of the probe.
        message: String,
    },
    /// The instance has ended.
    Exited(Exit),
}

/// The probes that restart a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeType {
    Liveness,
    Startup,
}

/// How a container instance ended; the fields of `v1.ContainerStateTerminated`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// `None` if it was stopped before it was running.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Timestamp,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    /// The termination message.
    pub(crate) message: Option<String>,
}

/// The status of a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceStatus {
    pub(crate) state: InstanceState,
    /// When the state changes next without a request; `None` if it does not, or if the runtime
    /// triggers the kubelet itself.
    pub(crate) next_change: Option<Timestamp>,
}

/// Why a pod has no runtime handler.
#[derive(Debug, Error)]
pub(crate) enum HandlerError {
    /// The RuntimeClass of the pod was deleted.
    #[error("Failed to create pod sandbox: runtimeclass.node.k8s.io {0:?} not found")]
    UnknownRuntimeClass(String),
    /// The RuntimeClass could not be read.
    #[error(transparent)]
    Api(#[from] WriteError),
}

/// Where a pod runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodNode {
    pub(crate) name: String,
    pub(crate) host_ip: String,
    /// The IP address of the pod; `None` if the pod CIDR of the node is exhausted.
    pub(crate) pod_ip: Option<String>,
}

/// A container runtime. The methods correspond to the calls of the Container Runtime Interface
/// (CRI), and return immediately; progress is observed with [`Runtime::status`].
///
/// The simulated runtime derives the status from the pod's annotations and the time. A runtime of
/// local processes keeps a child process in its `Instance`, and enqueues the pod through the
/// kubelet's trigger when the child exits.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// A container instance; every restart of a container is a new one. Dropping it kills the
    /// container without a status, as a power loss does.
    type Instance: Send + 'static;

    /// Chooses how the pod runs, before its first sync.
    ///
    /// # Errors
    /// It cannot be chosen now. The pod is not synced.
    fn select_handler(
        &self,
        _pod: &Pod,
        _node: &str,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        ready(Ok(()))
    }

    /// The scheme of container and image IDs.
    fn scheme(&self, pod: &Pod) -> &'static str;

    /// Whether the pod has a network: its IP address is allocated before the first container
    /// starts.
    fn has_pod_network(&self, _pod: &Pod) -> bool {
        false
    }

    /// Whether ephemeral containers of the pod are started.
    fn runs_ephemeral_containers(&self, _pod: &Pod) -> bool {
        false
    }

    /// Events about fields and annotations of the pod that the runtime cannot use.
    fn validate(&self, _pod: &Pod) -> Vec<PodEvent> {
        Vec::new()
    }

    /// Observes a pod, before each of its syncs.
    fn update_pod(&self, _pod: &Arc<Pod>, _node: &PodNode) {}

    /// Removes the sandbox of a pod whose containers have ended (`StopPodSandbox`). Its logs stay.
    fn terminate_pod(&self, _key: &ObjectKey) {}

    /// The node of the pod lost its power: kills what runs of the pod. Its directory stays.
    fn power_off(&self, _key: &ObjectKey) {}

    /// Removes what is left of a pod that is not in the API any more (`RemovePodSandbox`).
    fn remove_pod(&self, _key: &ObjectKey) {}

    /// Starts a container (`CreateContainer` and `StartContainer`).
    fn start(&self, config: &ContainerConfig<'_>, now: Timestamp) -> Self::Instance;

    /// Finds the container that an earlier kubelet process started at `started_at`; `None` if it
    /// is not running any more.
    fn find(&self, config: &ContainerConfig<'_>, started_at: Timestamp) -> Option<Self::Instance>;

    /// Runs the preStop hook of a container whose [`stop`](Self::stop) follows, at the latest after
    /// the grace period.
    fn pre_stop(&self, _instance: &mut Self::Instance, _now: Timestamp, _grace_period: Duration) {}

    /// Stops a container (`StopContainer`): kills it if it has not exited after the grace period.
    /// A second call can only shorten the grace period.
    fn stop(&self, instance: &mut Self::Instance, now: Timestamp, grace_period: Duration);

    /// The status of a container (`ContainerStatus`).
    fn status(
        &self,
        config: &ContainerConfig<'_>,
        instance: &Self::Instance,
        now: Timestamp,
    ) -> InstanceStatus;
}
