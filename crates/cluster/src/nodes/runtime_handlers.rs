//! Runtime handlers: nodes that run pods as local processes, and simulate others.
//!
//! In: the RuntimeClass of a pod, the label of its node, the default of the cluster. Out: the
//! container runtime of the pod.
//! Guarantees: a pod has the same runtime as long as it exists; it is chosen before the first sync.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::client::{ReconcileClient, WriteError};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::ObjectMeta;

use super::kubelet::events::PodEvent;
use super::kubelet::server::{
    BoxedIo, ContainerStreams, LogOptions, LogStream, PodRef, Process, StreamError, StreamOptions,
    Usage,
};
use super::process::{ProcessInstance, ProcessRuntime};
use super::runtime::{ContainerConfig, HandlerError, InstanceStatus, PodNode, Runtime};
use super::simulated_runtime::{SimulatedInstance, SimulatedRuntime};
use super::simulated_streams::SimulatedStreams;

/// The label of a Node with the handler of pods without a RuntimeClass.
pub(crate) const RUNTIME_LABEL: &str = "bellerophon.io/runtime";

/// A runtime handler, as in `status.runtimeHandlers` of a Node and `handler` of a RuntimeClass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Containers are local processes.
    Process,
    /// Containers are timers.
    Simulated,
}

impl Handler {
    pub(crate) const ALL: [Self; 2] = [Self::Process, Self::Simulated];

    /// The name of the handler, of its RuntimeClass, and the value of the label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Simulated => "simulated",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|handler| handler.name() == name)
    }

    /// The handler of pods that name none.
    fn of_labels(labels: Option<&BTreeMap<String, String>>) -> Option<Self> {
        Self::parse(labels?.get(RUNTIME_LABEL)?)
    }

    fn runtime_class(self) -> RuntimeClass {
        RuntimeClass {
            metadata: ObjectMeta {
                name: Some(self.name().to_owned()),
                ..ObjectMeta::default()
            },
            handler: self.name().to_owned(),
            ..RuntimeClass::default()
        }
    }
}

/// Creates the RuntimeClasses of the handlers. An existing one of that name is not changed.
pub(crate) async fn create_runtime_classes(client: &ReconcileClient) -> Result<(), WriteError> {
    for handler in Handler::ALL {
        match client.create(&handler.runtime_class()).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Which handler each pod has. Clones share it.
#[derive(Clone, Default)]
struct Selected(Arc<Mutex<HashMap<ObjectKey, SelectedHandler>>>);

struct SelectedHandler {
    /// A pod that is created again may have another handler.
    uid: String,
    handler: Handler,
}

impl Selected {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, SelectedHandler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler of a pod that was synced; `None` for others.
    fn get(&self, key: &ObjectKey, uid: &str) -> Option<Handler> {
        let selected = self.lock();
        let entry = selected.get(key).filter(|entry| entry.uid == uid);
        entry.map(|entry| entry.handler)
    }

    fn insert(&self, key: ObjectKey, uid: String, handler: Handler) {
        self.lock().insert(key, SelectedHandler { uid, handler });
    }
}

/// The container runtimes of nodes with both handlers. Clones share them.
#[derive(Clone)]
pub(crate) struct RuntimeHandlers {
    process: ProcessRuntime,
    simulated: SimulatedRuntime,
    /// Reads RuntimeClasses and Nodes as the user of the kubelets.
    client: ReconcileClient,
    selected: Selected,
}

/// A container instance of one of the runtimes.
pub(crate) enum HandlerInstance {
    Process(ProcessInstance),
    Simulated(SimulatedInstance),
}

impl RuntimeHandlers {
    pub(crate) fn new(process: ProcessRuntime, client: ReconcileClient) -> Self {
        Self {
            process,
            simulated: SimulatedRuntime,
            client,
            selected: Selected::default(),
        }
    }

    /// The streams of the containers of all pods.
    pub(crate) fn streams(&self, simulated: SimulatedStreams) -> HandlerStreams {
        HandlerStreams {
            process: self.process.clone(),
            simulated,
            selected: self.selected.clone(),
        }
    }

    fn handler(&self, pod: &Pod) -> Handler {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let selected = self.selected.get(&ObjectKey::from_object(pod), uid);
        selected.unwrap_or(Handler::Process)
    }

    /// The handler that the RuntimeClass of a pod names. Another name is that of no runtime here,
    /// and is ignored, so that pods of other clusters run.
    async fn handler_of_class(&self, class: &str) -> Result<Option<Handler>, HandlerError> {
        let key = ObjectKey::cluster(class);
        let found = self.client.get::<RuntimeClass>(&key).await?;
        let found = found.ok_or_else(|| HandlerError::UnknownRuntimeClass(class.to_owned()))?;
        Ok(Handler::parse(&found.handler))
    }

    /// The handler that the label of a node names. Read from the API: pods that are created after
    /// the node was labelled have the new one.
    async fn handler_of_node(&self, node: &str) -> Result<Option<Handler>, HandlerError> {
        let key = ObjectKey::cluster(node);
        let node = self.client.get::<Node>(&key).await?;
        Ok(node.and_then(|node| Handler::of_labels(node.metadata.labels.as_ref())))
    }
}

impl Runtime for RuntimeHandlers {
    type Instance = HandlerInstance;

    async fn select_handler(&self, pod: &Pod, node: &str) -> Result<(), HandlerError> {
        let key = ObjectKey::from_object(pod);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if self.selected.get(&key, uid).is_some() {
            return Ok(());
        }
        let spec = pod.spec.as_ref();
        let class = spec.and_then(|spec| spec.runtime_class_name.as_deref());
        let is_terminating = pod.metadata.deletion_timestamp.is_some();
        let of_class = match class {
            Some(class) => match self.handler_of_class(class).await {
                // Nothing of it runs, and it must not wait for the class to be deleted itself.
                Err(HandlerError::UnknownRuntimeClass(_)) if is_terminating => None,
                found => found?,
            },
            None => None,
        };
        let handler = match of_class {
            Some(handler) => Some(handler),
            None => self.handler_of_node(node).await?,
        };
        let handler = handler.unwrap_or(Handler::Process);
        self.selected.insert(key, uid.to_owned(), handler);
        Ok(())
    }

    fn scheme(&self, pod: &Pod) -> &'static str {
        match self.handler(pod) {
            Handler::Process => self.process.scheme(pod),
            Handler::Simulated => self.simulated.scheme(pod),
        }
    }

    fn has_pod_network(&self, pod: &Pod) -> bool {
        match self.handler(pod) {
            Handler::Process => self.process.has_pod_network(pod),
            Handler::Simulated => self.simulated.has_pod_network(pod),
        }
    }

    fn runs_ephemeral_containers(&self, pod: &Pod) -> bool {
        match self.handler(pod) {
            Handler::Process => self.process.runs_ephemeral_containers(pod),
            Handler::Simulated => self.simulated.runs_ephemeral_containers(pod),
        }
    }

    fn validate(&self, pod: &Pod) -> Vec<PodEvent> {
        match self.handler(pod) {
            Handler::Process => self.process.validate(pod),
            Handler::Simulated => self.simulated.validate(pod),
        }
    }

    fn update_pod(&self, pod: &Arc<Pod>, node: &PodNode) {
        match self.handler(pod) {
            Handler::Process => self.process.update_pod(pod, node),
            Handler::Simulated => self.simulated.update_pod(pod, node),
        }
    }

    // Only the process runtime keeps something of a pod besides its instances.

    fn terminate_pod(&self, key: &ObjectKey) {
        self.process.terminate_pod(key);
    }

    fn power_off(&self, key: &ObjectKey) {
        self.process.power_off(key);
    }

    fn remove_pod(&self, key: &ObjectKey) {
        self.selected.lock().remove(key);
        self.process.remove_pod(key);
    }

    fn start(&self, config: &ContainerConfig<'_>, now: Timestamp) -> HandlerInstance {
        match self.handler(config.pod) {
            Handler::Process => HandlerInstance::Process(self.process.start(config, now)),
            Handler::Simulated => HandlerInstance::Simulated(self.simulated.start(config, now)),
        }
    }

    fn find(&self, config: &ContainerConfig<'_>, started_at: Timestamp) -> Option<HandlerInstance> {
        Some(match self.handler(config.pod) {
            Handler::Process => HandlerInstance::Process(self.process.find(config, started_at)?),
            Handler::Simulated => {
                HandlerInstance::Simulated(self.simulated.find(config, started_at)?)
            }
        })
    }

    fn pre_stop(&self, instance: &mut HandlerInstance, now: Timestamp, grace_period: Duration) {
        match instance {
            HandlerInstance::Process(it) => self.process.pre_stop(it, now, grace_period),
            HandlerInstance::Simulated(it) => self.simulated.pre_stop(it, now, grace_period),
        }
    }

    fn stop(&self, instance: &mut HandlerInstance, now: Timestamp, grace_period: Duration) {
        match instance {
            HandlerInstance::Process(it) => self.process.stop(it, now, grace_period),
            HandlerInstance::Simulated(it) => self.simulated.stop(it, now, grace_period),
        }
    }

    fn status(
        &self,
        config: &ContainerConfig<'_>,
        instance: &HandlerInstance,
        now: Timestamp,
    ) -> InstanceStatus {
        match instance {
            HandlerInstance::Process(it) => self.process.status(config, it, now),
            HandlerInstance::Simulated(it) => self.simulated.status(config, it, now),
        }
    }
}

/// The streams of containers of both runtimes.
pub(crate) struct HandlerStreams {
    process: ProcessRuntime,
    simulated: SimulatedStreams,
    selected: Selected,
}

impl HandlerStreams {
    fn of(&self, pod: &PodRef) -> &dyn ContainerStreams {
        let key = ObjectKey::namespaced(&pod.namespace, &pod.name);
        match self.selected.get(&key, &pod.uid) {
            Some(Handler::Simulated) => &self.simulated,
            // Of a pod that was not synced, the process runtime reports that it does not run.
            Some(Handler::Process) | None => &self.process,
        }
    }
}

impl ContainerStreams for HandlerStreams {
    fn logs(
        &self,
        pod: &PodRef,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<LogStream, StreamError>> {
        self.of(pod).logs(pod, container, options)
    }

    fn exec(
        &self,
        pod: &PodRef,
        container: &str,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        self.of(pod).exec(pod, container, command, streams)
    }

    fn attach(
        &self,
        pod: &PodRef,
        container: &str,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        self.of(pod).attach(pod, container, streams)
    }

    fn port_forward(&self, pod: &PodRef) -> Result<(), StreamError> {
        self.of(pod).port_forward(pod)
    }

    fn dial(&self, pod: &PodRef, port: u16) -> BoxFuture<'_, Result<BoxedIo, StreamError>> {
        self.of(pod).dial(pod, port)
    }

    fn usage(&self, pod: &PodRef, container: &str) -> BoxFuture<'_, Option<Usage>> {
        self.of(pod).usage(pod, container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_a_node_names_the_handler() {
        let cases = [
            (Some("process"), Some(Handler::Process)),
            (Some("simulated"), Some(Handler::Simulated)),
            (Some("runc"), None),
            (None, None),
        ];
        for (value, expected) in cases {
            let labels = value.map(|value| (RUNTIME_LABEL.to_owned(), value.to_owned()));
            let labels = labels.into_iter().collect();
            assert_eq!(Handler::of_labels(Some(&labels)), expected, "{value:?}");
        }
    }

    #[test]
    fn recreated_pod_has_no_handler_yet() {
        let selected = Selected::default();
        let key = ObjectKey::namespaced("default", "web");
        selected.insert(key.clone(), "1".to_owned(), Handler::Simulated);
        assert_eq!(selected.get(&key, "1"), Some(Handler::Simulated));
        assert_eq!(selected.get(&key, "2"), None);
    }
}
