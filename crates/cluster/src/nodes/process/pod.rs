//! A pod of the process runtime: its sandbox, directory and containers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bellerophon::ObjectKey;
use bellerophon_process_runtime::{Container, Sandbox, SandboxConfig, SandboxNetwork, Tier};
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{self, Pod};
use tokio::sync::{Notify, OnceCell};
use tokio::task::{AbortHandle, JoinHandle};
use tracing::warn;

use super::super::kubelet::{ephemeral, events};
use super::super::runtime::PodNode;
use super::network::{
    Attachment, HostsInputs, Network, container_ports, has_host_network, resolv_conf,
    write_in_place,
};
use super::tokens::Tokens;
use super::{Shared, mounts, volumes};

/// A pod on its node.
pub(super) struct ProcessPod {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) node: PodNode,
    /// Its volumes and logs.
    pub(super) dir: PathBuf,
    /// What its volumes are made from has changed.
    pub(super) changed: Arc<Notify>,
    pub(super) tokens: Tokens,
    /// The pod of the last sync. Informers do not keep all fields of its spec.
    latest: Mutex<Arc<Pod>>,
    /// The pod with all fields, of which the spec is immutable where it matters here.
    complete: OnceCell<Arc<Pod>>,
    sandbox: Mutex<SandboxSlot>,
    /// Held while a sandbox is created.
    creating_sandbox: tokio::sync::Mutex<()>,
    volumes: OnceCell<()>,
    /// Updates the volumes.
    volume_task: Mutex<Option<AbortHandle>>,
    containers: Mutex<BTreeMap<String, ContainerRecord>>,
}

/// The sandbox of a pod.
#[derive(Default)]
struct SandboxSlot {
    current: Option<Sandbox>,
    /// Stops the previous sandbox, whose node lost its power.
    stopping: Option<JoinHandle<()>>,
}

/// The runs of a container.
#[derive(Clone, Default)]
pub(super) struct ContainerRecord {
    /// The number of restarts before the current or last run; its log has this name.
    pub(super) attempt: i32,
    /// The running container.
    pub(super) container: Weak<Container>,
}

impl Drop for ProcessPod {
    fn drop(&mut self) {
        if let Some(task) = self.lock_volume_task().take() {
            task.abort();
        }
    }
}

impl ProcessPod {
    pub(super) fn new(
        key: ObjectKey,
        uid: String,
        node: PodNode,
        dir: PathBuf,
        pod: Arc<Pod>,
    ) -> Self {
        Self {
            key,
            uid,
            node,
            dir,
            changed: Arc::default(),
            tokens: Tokens::default(),
            latest: Mutex::new(pod),
            complete: OnceCell::new(),
            sandbox: Mutex::default(),
            creating_sandbox: tokio::sync::Mutex::default(),
            volumes: OnceCell::new(),
            volume_task: Mutex::default(),
            containers: Mutex::default(),
        }
    }

    /// A container, init container or ephemeral container of the pod, which was read.
    pub(super) fn container(&self, complete: &Pod, name: &str) -> Option<v1::Container> {
        let spec = complete.spec.as_ref()?;
        let init_containers = spec.init_containers.iter().flatten();
        let mut containers = spec.containers.iter().chain(init_containers);
        let found = containers.find(|container| container.name == name);
        found.cloned().or_else(|| {
            self.ephemeral_container(name)
                .map(|it| ephemeral::container(&it))
        })
    }

    /// An ephemeral container. They are added to running pods, and informers keep all of their
    /// fields.
    pub(super) fn ephemeral_container(&self, name: &str) -> Option<v1::EphemeralContainer> {
        let latest = self.latest();
        let containers = latest.spec.as_ref()?.ephemeral_containers.as_ref()?;
        containers.iter().find(|it| it.name == name).cloned()
    }

    /// The pod of the last sync.
    pub(super) fn latest(&self) -> Arc<Pod> {
        self.lock_latest().clone()
    }

    /// The pod with all fields of its spec, if it was read.
    pub(super) fn spec(&self) -> Option<&Arc<Pod>> {
        self.complete.get()
    }

    pub(super) fn update(&self, pod: &Arc<Pod>) {
        let previous = std::mem::replace(&mut *self.lock_latest(), pod.clone());
        // The downward API has labels and annotations.
        if previous.metadata.labels != pod.metadata.labels
            || previous.metadata.annotations != pod.metadata.annotations
        {
            self.changed.notify_one();
        }
    }

    /// Reads the pod with all fields of its spec.
    pub(super) async fn complete(&self, shared: &Shared) -> Result<Arc<Pod>, String> {
        let read = || async {
            let pod = shared.client.get::<Pod>(&self.key).await;
            let pod = pod.map_err(|error| error.to_string())?;
            pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&self.uid))
                .ok_or_else(|| "the pod was deleted".to_owned())
        };
        self.complete.get_or_try_init(read).await.cloned()
    }

    /// The sandbox; creates it if it does not exist or has ended.
    pub(super) async fn sandbox(&self, shared: &Shared) -> Result<Sandbox, String> {
        let _creating = self.creating_sandbox.lock().await;
        if let Some(sandbox) = self.created_sandbox() {
            return Ok(sandbox);
        }
        let stopping = self.lock_sandbox().stopping.take();
        if let Some(stopping) = stopping {
            // An error is a panic of the task, which was reported.
            let _ = stopping.await;
        }
        let ip = self
            .node
            .pod_ip
            .as_deref()
            .and_then(|ip| ip.parse().ok())
            .ok_or("the node has no free pod IP address")?;
        let pod = self.complete(shared).await?;
        let network = match has_host_network(&pod) {
            true => SandboxNetwork::Host {
                ports: container_ports(&pod),
            },
            false => SandboxNetwork::Pod,
        };
        let config = SandboxConfig {
            id: self.uid.clone(),
            hostname: self.hostname(),
            ip,
            network,
        };
        let hostname = config.hostname.clone();
        let sandbox = shared.runtime.create_sandbox(config).await;
        let sandbox = sandbox.map_err(|error| error.to_string())?;
        if shared.runtime.tier() == Tier::A {
            mounts::mount_memory(self, &pod, &sandbox).await?;
        }
        let hosts = HostsInputs::new(&pod, sandbox.listen_ip(), hostname);
        let attachment = Attachment {
            pod: &pod,
            node_ip: self.node.host_ip.parse().ok(),
            sandbox: sandbox.clone(),
            hosts,
            hosts_path: self.hosts_path(),
        };
        for port in shared.network.attach(&self.uid, attachment).await {
            let recorder = shared.recorder.with_instance(self.node.name.as_str());
            recorder.event(pod.as_ref(), events::host_port_taken(port));
        }
        self.lock_sandbox().current = Some(sandbox.clone());
        Ok(sandbox)
    }

    /// The sandbox, if it was created and has not ended.
    pub(super) fn created_sandbox(&self) -> Option<Sandbox> {
        let current = self.lock_sandbox().current.clone()?;
        let has_ended = current.ended().now_or_never().is_some();
        (!has_ended).then_some(current)
    }

    /// Kills all processes, as a power loss does. The next sandbox is created after that.
    pub(super) fn power_off(&self) {
        let mut slot = self.lock_sandbox();
        let Some(sandbox) = slot.current.take() else {
            return;
        };
        let key = self.key.clone();
        slot.stopping = Some(tokio::spawn(async move { stop(&key, &sandbox).await }));
    }

    fn hostname(&self) -> String {
        let latest = self.latest();
        if has_host_network(&latest) {
            return self.node.name.clone();
        }
        let hostname = latest.spec.as_ref().and_then(|spec| spec.hostname.clone());
        // The limit of the kernel; mirrors truncatePodHostnameIfNeeded.
        let mut hostname = hostname.unwrap_or_else(|| self.key.name().to_owned());
        hostname.truncate(63);
        hostname.trim_end_matches(['-', '.']).to_owned()
    }

    /// Sets up the volumes, which follow their sources from then on.
    pub(super) async fn set_up_volumes(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
    ) -> Result<(), volumes::VolumeError> {
        let set_up = || async {
            let renewal = volumes::set_up(shared, self).await?;
            let follow = volumes::follow(Arc::downgrade(shared), Arc::downgrade(self), renewal);
            let task = tokio::spawn(follow).abort_handle();
            *self.lock_volume_task() = Some(task);
            Ok(())
        };
        self.volumes.get_or_try_init(set_up).await.copied()
    }

    /// Where the pod runs, with the address on which its programs listen.
    pub(super) fn listening_node(&self) -> PodNode {
        let sandbox = self.created_sandbox();
        let listen_ip = sandbox.map(|sandbox| sandbox.listen_ip().to_string());
        let mut node = self.node.clone();
        node.pod_ip = listen_ip.or(node.pod_ip);
        node
    }

    /// The hosts file.
    fn hosts_path(&self) -> PathBuf {
        self.dir.join("etc-hosts")
    }

    /// The files of `/etc` that a container has unless it mounts its own, with their paths. In tier
    /// B, only the hosts file, whose path is in the environment.
    pub(super) fn etc_files(
        &self,
        pod: &Pod,
        tier: Tier,
    ) -> io::Result<Vec<(PathBuf, &'static str)>> {
        let mut files = vec![(self.hosts_path(), "/etc/hosts")];
        if tier == Tier::B {
            return Ok(files);
        }
        let namespace = self.key.namespace().unwrap_or_default();
        let resolv_conf = pod
            .spec
            .as_ref()
            .and_then(|spec| resolv_conf(namespace, spec));
        if let Some(text) = resolv_conf {
            let path = self.dir.join("resolv.conf");
            write_in_place(&path, &text)?;
            files.push((path, "/etc/resolv.conf"));
        }
        Ok(files)
    }

    /// The directory of a volume.
    pub(super) fn volume_dir(&self, volume: &str) -> PathBuf {
        self.dir.join("volumes").join(volume)
    }

    /// The log of a run of a container.
    pub(super) fn log_path(&self, container: &str, attempt: i32) -> PathBuf {
        self.log_dir(container).join(format!("{attempt}.log"))
    }

    fn log_dir(&self, container: &str) -> PathBuf {
        self.dir.join("logs").join(container)
    }

    /// Records a run of a container. Only the logs of this and the previous run stay.
    pub(super) async fn add_run(&self, container: &str, attempt: i32) {
        let record = ContainerRecord {
            attempt,
            container: Weak::new(),
        };
        let previous = self.lock_containers().insert(container.to_owned(), record);
        if previous.is_some() {
            let dir = self.log_dir(container);
            let removed = tokio::task::spawn_blocking(move || remove_logs(&dir, attempt - 1)).await;
            if let Ok(Err(error)) = removed {
                warn!(pod = %self.key, container, %error, "old logs were not removed");
            }
        }
    }

    pub(super) fn set_running(&self, name: &str, container: &Arc<Container>) {
        if let Some(record) = self.lock_containers().get_mut(name) {
            record.container = Arc::downgrade(container);
        }
    }

    /// The runs of a container; `None` if it was not started.
    pub(super) fn record(&self, container: &str) -> Option<ContainerRecord> {
        self.lock_containers().get(container).cloned()
    }

    /// Stops the sandbox and removes volumes. Logs stay.
    pub(super) async fn terminate(&self, network: &Network) {
        if let Some(task) = self.lock_volume_task().take() {
            task.abort();
        }
        network.detach(&self.uid).await;
        let sandbox = self.lock_sandbox().current.take();
        if let Some(sandbox) = sandbox {
            stop(&self.key, &sandbox).await;
        }
        self.remove_dir(self.dir.join("volumes")).await;
    }

    /// Stops the sandbox and removes volumes and logs.
    pub(super) async fn remove(&self, network: &Network) {
        self.terminate(network).await;
        self.remove_dir(self.dir.clone()).await;
    }

    async fn remove_dir(&self, dir: PathBuf) {
        let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(dir)).await;
        match removed {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                warn!(pod = %self.key, %error, "directory of the pod was not removed");
            }
            _ => {}
        }
    }

    fn lock_latest(&self) -> MutexGuard<'_, Arc<Pod>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sandbox(&self) -> MutexGuard<'_, SandboxSlot> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_volume_task(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.volume_task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_containers(&self) -> MutexGuard<'_, BTreeMap<String, ContainerRecord>> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

async fn stop(pod: &ObjectKey, sandbox: &Sandbox) {
    if let Err(error) = sandbox.stop().await {
        warn!(%pod, %error, "pod sandbox was not stopped");
    }
}

/// Removes the logs of runs before the oldest one that is kept, with their rotated files.
fn remove_logs(dir: &Path, oldest_kept: i32) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let attempt = name.to_string_lossy();
        let attempt = attempt.split('.').next().unwrap_or_default();
        if attempt
            .parse()
            .is_ok_and(|attempt: i32| attempt < oldest_kept)
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
