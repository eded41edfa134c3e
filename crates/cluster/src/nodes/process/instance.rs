//! One run of a container: create, postStart, probes, preStop, exit.
//!
//! In: the container's spec, a stop request. Out: the state of the instance.
//! Guarantees: every change of the state enqueues the pod; dropping the instance kills the
//! container.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon_process_runtime::expansion::expand;
use bellerophon_process_runtime::images::Image;
use bellerophon_process_runtime::{
    Container, ContainerConfig, ContainerExit, Error, Limits, Mount, Sandbox, StartError, Streams,
    TargetContainer, Tier, User,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, ConfigMap, Pod, Secret, Service};
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::super::kubelet::events::{self, PodEvent};
use super::super::kubelet::termination_grace_period;
use super::super::runtime::{Exit, InstanceState, ProbeType};
use super::environment::{EnvironmentInputs, environment, references};
use super::hooks::{self, HookOutcome};
use super::http_get::PodDialer;
use super::network::{has_host_network, write_in_place};
use super::pod::ProcessPod;
use super::probes::{self, Outcome, ProbeTarget};
use super::service_environment::service_environment;
use super::stop_requests::{StopRequest, StopRequests};
use super::termination_message::{message_mount, termination_message};
use super::{Shared, mounts};
use crate::quantity;

const SIGTERM: i32 = 15;
/// The exit code of a container that was stopped before it was running.
const SIGKILL_EXIT_CODE: i32 = 137;
/// Mirrors `minimumGracePeriodInSeconds`.
const MINIMUM_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The delays between attempts to set up volumes.
const MOUNT_RETRY_FIRST: Duration = Duration::from_millis(500);
const MOUNT_RETRY_MAX: Duration = Duration::from_secs(122);

/// When a container of tier B is checked for listeners on all addresses: after its start, and after a
/// slow one. Not earlier, because a check reads the environment of all processes of this machine.
const LISTENER_CHECKS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(25)];

/// Where programs expect their service account.
const SERVICE_ACCOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A container instance.
pub(crate) struct ProcessInstance {
    state: Arc<Mutex<InstanceState>>,
    stop: StopRequests,
    task: AbortHandle,
}

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProcessInstance {
    pub(super) fn start(
        shared: Arc<Shared>,
        pod: Arc<ProcessPod>,
        name: String,
        attempt: i32,
    ) -> Self {
        let state = Arc::new(Mutex::new(InstanceState::Creating));
        let stop = StopRequests::default();
        let run = Run {
            shared,
            pod,
            name,
            attempt,
            state: state.clone(),
            stop: stop.clone(),
        };
        let task = tokio::spawn(run.run()).abort_handle();
        Self { state, stop, task }
    }

    pub(super) fn state(&self) -> InstanceState {
        lock(&self.state).clone()
    }

    /// Runs its preStop hook. [`stop`](Self::stop) follows.
    pub(super) fn pre_stop(&self, deadline: Instant) {
        self.stop.add(StopRequest {
            deadline,
            terminate: false,
        });
    }

    /// Stops it until the deadline. A later deadline than that of an earlier call has no effect.
    pub(super) fn stop(&self, deadline: Instant) {
        self.stop.add(StopRequest {
            deadline,
            terminate: true,
        });
    }
}

fn lock(state: &Mutex<InstanceState>) -> std::sync::MutexGuard<'_, InstanceState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task of an instance.
struct Run {
    shared: Arc<Shared>,
    pod: Arc<ProcessPod>,
    name: String,
    /// The number of restarts before this run.
    attempt: i32,
    state: Arc<Mutex<InstanceState>>,
    stop: StopRequests,
}

/// A started container.
struct Started {
    spec: v1::Container,
    sandbox: Sandbox,
    container: Arc<Container>,
    log_path: PathBuf,
    /// The file of the termination message on the node.
    message_path: PathBuf,
}

impl Run {
    async fn run(self) {
        let created = tokio::select! {
            created = self.create() => created,
            () = self.stop.requested() => Err(InstanceState::Exited(Exit {
                started_at: None,
                finished_at: self.now(),
                exit_code: SIGKILL_EXIT_CODE,
                reason: "ContainerStatusUnknown".to_owned(),
                message: None,
            })),
        };
        let started = match created {
            Ok(started) => started,
            Err(state) => return self.set_state(state),
        };
        let exit = self.supervise(&started).await;
        let exit = Exit {
            started_at: Some(exit.started_at),
            finished_at: exit.finished_at,
            exit_code: exit.exit_code,
            reason: exit.reason().to_owned(),
            message: termination_message(
                &started.spec,
                &started.message_path,
                &started.log_path,
                &exit,
            )
            .await,
        };
        self.set_state(InstanceState::Exited(exit));
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn set_state(&self, state: InstanceState) {
        *lock(&self.state) = state;
        self.shared
            .enqueue(&self.pod.key, "the state of a container changed");
    }

    /// Changes the results of probes of the running container.
    fn set_health(&self, change: impl FnOnce(&mut bool, &mut bool)) {
        {
            let mut state = lock(&self.state);
            if let InstanceState::Running { started, ready, .. } = &mut *state {
                change(started, ready);
            }
        }
        self.shared
            .enqueue(&self.pod.key, "the result of a probe changed");
    }

    fn record(&self, event: PodEvent) {
        let node = self.pod.node.name.as_str();
        let recorder = self.shared.recorder.with_instance(node);
        recorder.event(self.pod.latest().as_ref(), event);
    }

    fn start_failed(&self, reason: &'static str, message: impl ToString) -> InstanceState {
        InstanceState::StartFailed {
            at: self.now(),
            reason,
            message: message.to_string(),
        }
    }

    /// Starts the container. The error is the state of the instance.
    async fn create(&self) -> Result<Started, InstanceState> {
        let failed = |reason| move |message: String| self.start_failed(reason, message);
        let complete = self.pod.complete(&self.shared).await;
        let complete = complete.map_err(failed("CreateContainerError"))?;
        let spec = self.pod.container(&complete, &self.name);
        let spec = &spec.ok_or_else(|| {
            self.start_failed("CreateContainerError", "the container is not in the pod")
        })?;
        let target = self.target();
        let target = target.map_err(failed("CreateContainerError"))?;
        let sandbox = self.pod.sandbox(&self.shared).await;
        let sandbox = sandbox.map_err(failed("CreatePodSandboxError"))?;
        self.set_up_volumes().await;
        let image = spec.image.as_deref().unwrap_or_default();
        let image = self.shared.images.find(image);
        let image = image.map_err(|error| self.start_failed("ErrImagePull", error))?;
        let env = self.environment(&complete, spec, image).await;
        let env = env.map_err(failed("CreateContainerConfigError"))?;
        let mounts = mounts::mounts(&self.shared, &self.pod, spec, &env).await;
        let mounts = mounts.map_err(failed("CreateContainerConfigError"))?;
        let attempt = self.attempt;
        self.pod.add_run(&self.name, attempt).await;
        let message_path = self
            .pod
            .dir
            .join("termination-log")
            .join(format!("{}-{attempt}", self.name));
        let mut started = ContainerConfig {
            name: self.name.clone(),
            argv: argv(spec, image, &env),
            env: env.into_iter().collect(),
            working_dir: spec
                .working_dir
                .as_ref()
                .or(image.working_dir.as_ref())
                .map(PathBuf::from),
            user: user(&complete, spec),
            streams: Streams {
                stdin: spec.stdin == Some(true),
                stdin_once: spec.stdin_once == Some(true),
                tty: spec.tty == Some(true),
            },
            mounts,
            log_path: self.pod.log_path(&self.name, attempt),
            read_only_root: is_root_read_only(spec),
            limits: limits(spec),
            target,
        };
        let files = self.pod.etc_files(&complete, self.shared.runtime.tier());
        let files = files.map_err(|error| self.start_failed("CreateContainerError", error))?;
        add_etc_files(&mut started.mounts, files);
        started.mounts.push(
            message_mount(spec, &message_path)
                .map_err(|error| self.start_failed("CreateContainerError", error))?,
        );
        let log_path = started.log_path.clone();
        let container = match sandbox.start_container(started).await {
            Ok(container) => Arc::new(container),
            Err(Error::Start(error)) => return Err(InstanceState::Exited(self.start_error(error))),
            Err(error) => return Err(self.start_failed("RunContainerError", error)),
        };
        self.pod.set_running(&self.name, &container);
        Ok(Started {
            spec: spec.clone(),
            sandbox,
            container,
            log_path,
            message_path,
        })
    }

    /// The container whose processes an ephemeral container sees (`targetContainerName`).
    fn target(&self) -> Result<Option<TargetContainer>, String> {
        let ephemeral = self.pod.ephemeral_container(&self.name);
        let name = ephemeral.and_then(|container| container.target_container_name);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let record = self.pod.record(&name);
        let running = record.and_then(|record| record.container.upgrade());
        // Mirrors the error of the kubelet for a target without an ID.
        let running = running.ok_or_else(|| format!("unable to find target container {name}"))?;
        Ok(Some(running.target()))
    }

    fn start_error(&self, error: StartError) -> Exit {
        let now = self.now();
        Exit {
            started_at: Some(now),
            finished_at: now,
            exit_code: StartError::EXIT_CODE,
            reason: StartError::REASON.to_owned(),
            message: Some(error.message),
        }
    }

    /// Sets up the volumes; tries again until it succeeds.
    async fn set_up_volumes(&self) {
        let mut delay = MOUNT_RETRY_FIRST;
        while let Err(error) = self.pod.set_up_volumes(&self.shared).await {
            self.record(events::failed_mount(error.to_string()));
            // A source that was missing may be created before; an error is the timeout.
            let _ = timeout(delay, self.pod.changed.notified()).await;
            delay = (delay * 2).min(MOUNT_RETRY_MAX);
        }
    }

    async fn environment(
        &self,
        complete: &Pod,
        spec: &v1::Container,
        image: &Image,
    ) -> Result<BTreeMap<String, String>, String> {
        let namespace = self.pod.key.namespace();
        let (config_map_names, secret_names) = references(spec);
        let mut config_maps = BTreeMap::new();
        for name in config_map_names {
            let key = ObjectKey::new(namespace, name);
            let found = self.shared.client.get::<ConfigMap>(&key).await;
            if let Some(found) = found.map_err(|error| error.to_string())? {
                config_maps.insert(name.to_owned(), found);
            }
        }
        let mut secrets = BTreeMap::new();
        for name in secret_names {
            let key = ObjectKey::new(namespace, name);
            let found = self.shared.client.get::<Secret>(&key).await;
            if let Some(found) = found.map_err(|error| error.to_string())? {
                secrets.insert(name.to_owned(), found);
            }
        }
        let latest = self.pod.latest();
        let node = self.pod.listening_node();
        let mut env = environment(&EnvironmentInputs {
            pod: &latest,
            node: &node,
            container: spec,
            services: self.service_environment(complete).await,
            config_maps,
            secrets,
            empty_dirs: mounts::empty_dirs(&self.pod, complete, self.shared.runtime.tier()),
        })?;
        let mut add = |name: &str, value: &str| {
            env.entry(name.to_owned())
                .or_insert_with(|| value.to_owned());
        };
        for (name, value) in &image.env {
            add(name, value);
        }
        if self.shared.runtime.tier() == Tier::B {
            // A program must bind to the address of its pod.
            if let Some(ip) = &node.pod_ip {
                add("POD_IP", ip);
                add("HOST", ip);
            }
            // It does not find its service account at the path where it expects it.
            let kubeconfig = self.write_kubeconfig(spec);
            let kubeconfig = kubeconfig.map_err(|error| error.to_string())?;
            if let Some(path) = kubeconfig {
                add("KUBECONFIG", &path.to_string_lossy());
            }
        }
        Ok(env)
    }

    async fn service_environment(&self, complete: &Pod) -> BTreeMap<String, String> {
        let network = &self.shared.network;
        // Programs on the host cannot connect to ClusterIPs.
        let is_on_host = self.shared.runtime.tier() == Tier::B || has_host_network(complete);
        if is_on_host {
            // A Service may have been created immediately before.
            network.sync().await;
        }
        let address = |service: &Service, port: u16| {
            let key = ObjectKey::from_object(service);
            network.loopback_address(&key, port).filter(|_| is_on_host)
        };
        service_environment(complete, &self.shared.services.list(), &address)
    }

    /// Writes a kubeconfig with the service account of the pod; `None` if the container has none.
    fn write_kubeconfig(&self, spec: &v1::Container) -> std::io::Result<Option<PathBuf>> {
        let mut mounts = spec.volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| mount.mount_path == SERVICE_ACCOUNT_PATH);
        let server = self.shared.network.api_server();
        let Some((mount, server)) = mount.zip(server) else {
            return Ok(None);
        };
        let path = self.pod.dir.join("kubeconfig");
        let volume = self.pod.volume_dir(&mount.name);
        let namespace = self.pod.key.namespace().unwrap_or_default();
        write_in_place(&path, &kubeconfig(server, &volume, namespace))?;
        Ok(Some(path))
    }

    /// Runs hooks and probes until the container has ended.
    async fn supervise(&self, started: &Started) -> ContainerExit {
        let container = &started.container;
        let started_at = Instant::now();
        let lifecycle = started.spec.lifecycle.as_ref();
        if let Some(handler) = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) {
            let has_failed = tokio::select! {
                result = self.run_hook("PostStartHook", handler, started) => result.is_err(),
                exit = container.wait() => return exit,
                () = self.stop.requested() => return self.stop(started).await,
            };
            if has_failed {
                return self.kill_after_post_start(started).await;
            }
        }
        let is_startup_probed = started.spec.startup_probe.is_some();
        let is_readiness_probed = started.spec.readiness_probe.is_some();
        let bellerophon_process_runtime::ContainerState::Running { since } = container.state()
        else {
            return container.wait().await;
        };
        self.set_state(InstanceState::Running {
            since,
            started: !is_startup_probed,
            ready: !is_startup_probed && !is_readiness_probed,
        });
        let run = async {
            tokio::select! {
                exit = container.wait() => exit,
                () = self.stop.requested() => self.stop(started).await,
            }
        };
        tokio::select! {
            exit = run => exit,
            () = self.probe(started, since, started_at) => container.wait().await,
            () = self.report_wildcard_listeners(container) => container.wait().await,
        }
    }

    /// Without namespaces, records programs that listen on all addresses. Never ends.
    async fn report_wildcard_listeners(&self, container: &Arc<Container>) {
        // The ports of a pod on the host network are those of this machine.
        let has_own_network = !has_host_network(&self.pod.latest());
        let is_shared = self.shared.runtime.tier() == Tier::B && has_own_network;
        let mut reported = BTreeSet::new();
        for delay in LISTENER_CHECKS.into_iter().filter(|_| is_shared) {
            tokio::time::sleep(delay).await;
            let checked = container.clone();
            let listeners = tokio::task::spawn_blocking(move || checked.wildcard_listeners());
            // What cannot be read is not reported.
            let Ok(Ok(ports)) = listeners.await else {
                continue;
            };
            let node = self.pod.listening_node();
            let pod_ip = node.pod_ip.as_deref().unwrap_or_default();
            for port in ports.into_iter().filter(|port| reported.insert(*port)) {
                self.record(events::wildcard_listener(&self.name, port, pod_ip));
            }
        }
        std::future::pending().await
    }

    fn dialer<'a>(&'a self, started: &'a Started) -> PodDialer<'a> {
        PodDialer {
            runtime: &self.shared.runtime,
            sandbox: &started.sandbox,
        }
    }

    /// Runs a lifecycle hook and records its failure.
    async fn run_hook(
        &self,
        hook: &'static str,
        handler: &v1::LifecycleHandler,
        started: &Started,
    ) -> Result<(), HookFailed> {
        let dialer = self.dialer(started);
        match hooks::run(handler, &started.spec, &started.container, dialer).await {
            Ok(HookOutcome::Done) => Ok(()),
            Ok(HookOutcome::HttpFallback(authority)) => {
                self.record(events::hook_http_fallback(&authority));
                Ok(())
            }
            Err(error) => {
                let pod = &self.pod.key;
                info!(%pod, container = self.name, hook, error, "lifecycle hook failed");
                self.record(events::hook_failed(hook));
                Err(HookFailed)
            }
        }
    }

    /// Kills a container whose postStart hook failed. Mirrors `startContainer`.
    async fn kill_after_post_start(&self, started: &Started) -> ContainerExit {
        self.record(events::killing_after_post_start());
        let grace_period = termination_grace_period(&self.pod.latest());
        self.stop.add(StopRequest {
            deadline: Instant::now() + grace_period,
            terminate: true,
        });
        self.stop(started).await
    }

    /// Probes the container. Never ends, because a container without probes may run forever.
    async fn probe(&self, started: &Started, since: Timestamp, started_at: Instant) {
        let spec = &started.spec;
        let target = ProbeTarget {
            spec,
            container: &started.container,
            dialer: self.dialer(started),
            started_at,
        };
        let unhealthy = |probe: ProbeType, message: &str| {
            self.set_state(InstanceState::Unhealthy {
                since,
                probe,
                message: message.to_owned(),
            });
        };
        let report = |probe: &'static str| {
            move |outcome: &Outcome| match outcome {
                Outcome::Success => {}
                Outcome::Warning(output) => self.record(events::probe_warning(probe, output)),
                Outcome::Failure(output) => self.record(events::probe_failed(probe, output)),
                Outcome::Error(error) => self.record(events::probe_errored(probe, error)),
            }
        };
        if let Some(probe) = &spec.startup_probe {
            let mut has_started = false;
            let changed = |result: Result<(), &str>| {
                match result {
                    Ok(()) => {
                        has_started = true;
                        let is_ready = spec.readiness_probe.is_none();
                        self.set_health(|started, ready| {
                            *started = true;
                            *ready = is_ready;
                        });
                    }
                    Err(output) => unhealthy(ProbeType::Startup, output),
                }
                false
            };
            let startup = probes::run(probe, &target, None, report("Startup"), changed);
            self.until_stopped(startup).await;
            if !has_started {
                return std::future::pending().await;
            }
        }
        let readiness = async {
            let Some(probe) = &spec.readiness_probe else {
                return;
            };
            let changed = |result: Result<(), &str>| {
                if let Err(output) = result {
                    self.record(events::probe_failed("Readiness", output));
                }
                self.set_health(|_, ready| *ready = result.is_ok());
                true
            };
            probes::run(probe, &target, Some(false), report("Readiness"), changed).await;
        };
        let liveness = async {
            let Some(probe) = &spec.liveness_probe else {
                return;
            };
            let changed = |result: Result<(), &str>| match result {
                Ok(()) => true,
                Err(output) => {
                    unhealthy(ProbeType::Liveness, output);
                    false
                }
            };
            let liveness = probes::run(probe, &target, Some(true), report("Liveness"), changed);
            self.until_stopped(liveness).await;
        };
        tokio::join!(readiness, liveness);
        std::future::pending().await
    }

    /// Runs a probe until the container is stopped. Only readiness is probed after that.
    async fn until_stopped(&self, probe: impl Future<Output = ()>) {
        tokio::select! {
            () = probe => {}
            () = self.stop.requested() => {}
        }
    }

    /// Stops the container: preStop, SIGTERM, SIGKILL. Mirrors `killContainer`.
    async fn stop(&self, started: &Started) -> ContainerExit {
        let container = &started.container;
        let lifecycle = started.spec.lifecycle.as_ref();
        let pre_stop = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let Some(handler) = pre_stop.filter(|_| self.stop.has_time_left()) {
            tokio::select! {
                // The failure was recorded, and does not matter otherwise.
                _ = self.run_hook("PreStopHook", handler, started) => {}
                exit = container.wait() => return exit,
                () = self.stop.grace_period_ended(None) => {
                    let pod = &self.pod.key;
                    info!(%pod, container = self.name, "preStop hook exceeded the grace period");
                }
            }
        }
        tokio::select! {
            () = self.stop.may_terminate() => {}
            exit = container.wait() => return exit,
        }
        let minimum = Instant::now() + MINIMUM_GRACE_PERIOD;
        container.signal(SIGTERM).await;
        tokio::select! {
            exit = container.wait() => exit,
            () = self.stop.grace_period_ended(Some(minimum)) => {
                container.kill().await;
                container.wait().await
            }
        }
    }
}

/// A lifecycle hook failed, which was recorded.
struct HookFailed;

/// `readOnlyRootFilesystem`.
fn is_root_read_only(spec: &v1::Container) -> bool {
    let context = spec.security_context.as_ref();
    context.and_then(|context| context.read_only_root_filesystem) == Some(true)
}

/// The program and its arguments. Mirrors `ExpandContainerCommandAndArgs`.
fn argv(spec: &v1::Container, image: &Image, env: &BTreeMap<String, String>) -> Vec<String> {
    let expand_all = |list: &Option<Vec<String>>| -> Vec<String> {
        let list = list.iter().flatten();
        list.map(|text| expand(text, |name| env.get(name)))
            .collect()
    };
    image.argv(&expand_all(&spec.command), &expand_all(&spec.args))
}

fn user(pod: &Pod, spec: &v1::Container) -> Option<User> {
    let of_container = spec.security_context.as_ref();
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let uid = of_container
        .and_then(|context| context.run_as_user)
        .or(of_pod.and_then(|context| context.run_as_user))?;
    let gid = of_container
        .and_then(|context| context.run_as_group)
        .or(of_pod.and_then(|context| context.run_as_group))
        .unwrap_or_default();
    Some(User {
        uid: u32::try_from(uid).ok()?,
        gid: u32::try_from(gid).ok()?,
    })
}

fn limits(spec: &v1::Container) -> Limits {
    let limits = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref());
    let limit = |name: &str| limits.and_then(|limits| limits.get(name));
    let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    Limits {
        memory_bytes: limit("memory").map(quantity::value).and_then(positive),
        cpu_millis: limit("cpu").map(quantity::milli_value).and_then(positive),
        pids: None,
    }
}

/// Adds files at paths where the container has no mount.
fn add_etc_files(mounts: &mut Vec<Mount>, files: Vec<(PathBuf, &'static str)>) {
    for (source, target) in files {
        if mounts.iter().all(|mount| mount.target != Path::new(target)) {
            mounts.push(Mount {
                name: target.trim_start_matches("/etc/").replace('.', "-"),
                source,
                target: target.into(),
                sub_path: None,
                read_only: false,
                create_sub_path: false,
            });
        }
    }
}

/// A kubeconfig in JSON, which is YAML.
fn kubeconfig(server: SocketAddr, service_account: &Path, namespace: &str) -> String {
    let cluster = json!({
        "server": format!("https://{server}"),
        "certificate-authority": service_account.join("ca.crt"),
    });
    let user = json!({"tokenFile": service_account.join("token")});
    let context = json!({"cluster": "cluster", "user": "pod", "namespace": namespace});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "pod", "user": user}],
        "contexts": [{"name": "pod", "context": context}],
        "current-context": "pod",
    });
    config.to_string()
}
