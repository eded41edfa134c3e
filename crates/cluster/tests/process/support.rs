//! Clusters with process nodes, and pods of tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bellerophon_apiserver::{ApiServer, InProcessDialer};
use bellerophon_cluster::{Cluster, Kubelets, ProcessNodes};
use bellerophon_process_runtime::images::ImageTable;
use bellerophon_process_runtime::{Runtime, RuntimeOptions, Tier, TierReport, detect};
use bellerophon_testkit::wait_until;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Event, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// The shim, and the image `helper`.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_process-node-helper");

/// A limit that is reached only if something waits forever.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The tiers that this system offers. BELLEROPHON_REQUIRE_TIER_A=1 makes it fail without tier A.
pub(crate) async fn tiers() -> Vec<Tier> {
    match detect(Path::new(HELPER)).await {
        TierReport { tier: Tier::A, .. } => vec![Tier::A, Tier::B],
        TierReport { reason, .. } => {
            let reason = reason.unwrap_or_default();
            assert!(
                std::env::var_os("BELLEROPHON_REQUIRE_TIER_A").is_none(),
                "tier A is required: {reason}"
            );
            eprintln!("tier A is not tested: {reason}");
            vec![Tier::B]
        }
    }
}

/// An API server, the controllers and one node that runs processes.
pub(crate) struct ProcessCluster {
    pub(crate) client: Client,
    pub(crate) cluster: Cluster,
    pub(crate) tier: Tier,
    server: ApiServer,
    data_dir: PathBuf,
    /// A directory that containers can write to, as `$DIR`.
    pub(crate) dir: tempfile::TempDir,
}

impl ProcessCluster {
    pub(crate) async fn start(tier: Tier) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = RuntimeOptions {
            shim: HELPER.into(),
            force_tier_b: tier == Tier::B,
            ..RuntimeOptions::new(dir.path().join("data"))
        };
        let runtime = Runtime::start(options).await.unwrap();
        let mut images = ImageTable::new(Path::new(HELPER));
        images.add_flag("sh=/bin/sh").unwrap();
        images.add_flag(&format!("helper={HELPER}")).unwrap();
        let kubelets = Kubelets::default();
        let dialed = kubelets.clone();
        let server = ApiServer::builder()
            .dialer(InProcessDialer::new(move |address| dialed.connect(address)))
            .start()
            .await
            .unwrap();
        let client = server.client();
        let mut cluster = Cluster::builder(client.clone())
            .nodes(1)
            .process_nodes(ProcessNodes { runtime, images })
            .kubelets(kubelets)
            .start();
        cluster.ready().await.unwrap();
        let started = Self {
            client,
            cluster,
            tier,
            server,
            data_dir: dir.path().join("data").canonicalize().unwrap(),
            dir,
        };
        started.create_default_service_account().await;
        started
    }

    /// The service account controller creates it as well, at some time.
    async fn create_default_service_account(&self) {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        });
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client.clone(), "default");
        let params = PatchParams::apply("test").force();
        accounts
            .patch("default", &params, &Patch::Apply(account))
            .await
            .unwrap();
    }

    /// Stops everything; no process may be left.
    pub(crate) async fn stop(self) {
        self.cluster.stop().await.unwrap();
        self.server.shutdown().await;
        let ended = async {
            while !marked_processes(&self.data_dir).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::time::timeout(TIMEOUT, ended).await;
        let left = marked_processes(&self.data_dir);
        assert!(ended.is_ok(), "processes are left: {left:?}");
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a pod with these fields of its spec. Its containers have `$DIR`.
    pub(crate) async fn create(&self, name: &str, mut spec: Value) -> Pod {
        spec["automountServiceAccountToken"] = json!(false);
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                let variable = json!({"name": "DIR", "value": self.dir.path()});
                match container["env"].as_array_mut() {
                    Some(env) => env.push(variable),
                    None => container["env"] = json!([variable]),
                }
            }
        }
        let labels = json!({"app": name});
        let pod = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    /// Waits until a pod meets a condition.
    pub(crate) async fn until(
        &self,
        name: &str,
        expected: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> Pod {
        let last = std::sync::Mutex::new(None);
        let pods = self.pods();
        let waiting = wait_until(&pods, expected, |pods| {
            let pod = pods.iter().find(|pod| pod.name_any() == name);
            *last.lock().unwrap() = pod.and_then(|pod| pod.status.clone());
            pod.is_some_and(&condition)
        });
        let Ok(pods) = tokio::time::timeout(TIMEOUT, waiting).await else {
            let tier = self.tier;
            let status = last.lock().unwrap().clone();
            panic!("{tier:?} {name}: {expected}, but it is {status:#?}");
        };
        pods.into_iter().find(|pod| pod.name_any() == name).unwrap()
    }

    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, &format!("the phase is {phase}"), |pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some(phase)
        })
        .await
    }

    pub(crate) async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "it is ready", |pod| has_condition(pod, "Ready"))
            .await
    }

    pub(crate) async fn until_deleted(&self, name: &str) {
        let pods = self.pods();
        let waiting = wait_until(&pods, "the pod is deleted", |pods| {
            !pods.iter().any(|pod| pod.name_any() == name)
        });
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(waited.is_ok(), "{:?} {name} is not deleted", self.tier);
    }

    /// Waits until an event of that reason has a message that contains the text.
    pub(crate) async fn until_event(&self, name: &str, reason: &str, text: &str) -> Event {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let matches = |event: &Event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|it| it.contains(text))
        };
        let waiting = wait_until(&events, "an event is recorded", |events| {
            events.iter().any(matches)
        });
        let Ok(events) = tokio::time::timeout(TIMEOUT, waiting).await else {
            let events = events.list(&Default::default()).await.unwrap();
            let messages: Vec<_> = events.iter().map(|it| (&it.reason, &it.message)).collect();
            panic!(
                "{:?} {name}: no event {reason} {text:?} in {messages:#?}",
                self.tier
            );
        };
        events.into_iter().find(matches).unwrap()
    }

    pub(crate) async fn delete(&self, name: &str, grace_seconds: u32) {
        let params = DeleteParams::default().grace_period(grace_seconds);
        self.pods().delete(name, &params).await.unwrap();
    }

    /// The lines that a run of a container has printed, with their time stamps.
    pub(crate) fn log(&self, pod: &Pod, container: &str, run: u32) -> Vec<(Timestamp, String)> {
        let path = self.log_dir(pod, container).join(format!("{run}.log"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let mut fields = line.splitn(4, ' ');
            let time = fields.next().unwrap().parse().unwrap();
            (time, fields.nth(2).unwrap_or_default().to_owned())
        });
        lines.collect()
    }

    /// Waits until a run of a container has printed that many lines, and returns them.
    pub(crate) async fn until_logged(
        &self,
        pod: &Pod,
        container: &str,
        run: u32,
        count: usize,
    ) -> Vec<String> {
        let lines = || -> Vec<String> {
            let lines = self.log(pod, container, run).into_iter();
            lines.map(|(_, line)| line).collect()
        };
        let expected = format!("{container} has logged {count} lines");
        self.until_true(&expected, || lines().len() >= count).await;
        lines()
    }

    /// The directory of a pod on its node.
    pub(crate) fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.data_dir.join("pods").join(pod.uid().unwrap())
    }

    pub(crate) fn log_dir(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_dir(pod).join("logs").join(container)
    }

    /// Waits for a condition of which no object has a change.
    pub(crate) async fn until_true(&self, expected: &str, condition: impl Fn() -> bool) {
        let met = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        let met = tokio::time::timeout(TIMEOUT, met).await;
        assert!(met.is_ok(), "{:?}: {expected}", self.tier);
    }

    /// The lines of a file in `$DIR`.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The command lines of the processes of a pod, without those of shims.
    pub(crate) fn processes(&self, pod: &Pod) -> Vec<String> {
        let processes = self.processes_with_ids(pod);
        processes.map(|(_, command)| command).collect()
    }

    /// The ID of a process of a pod whose command line contains the text.
    pub(crate) fn process_id(&self, pod: &Pod, text: &str) -> Option<String> {
        let mut processes = self.processes_with_ids(pod);
        let found = processes.find(|(_, command)| command.contains(text));
        found.map(|(pid, _)| pid)
    }

    fn processes_with_ids(&self, pod: &Pod) -> impl Iterator<Item = (String, String)> {
        let marker = format!("{}/{}", self.data_dir.display(), pod.uid().unwrap());
        let processes = with_variable("BELLEROPHON_POD", &marker).into_iter();
        processes.filter(|(_, command)| !command.contains("process-runtime-shim"))
    }

    /// Kills the shims of all pods.
    pub(crate) fn kill_shims(&self) {
        let marker = self.data_dir.display().to_string();
        for (pid, command) in with_variable("BELLEROPHON_NODE", &marker) {
            if command.contains("process-runtime-shim") {
                let killed = std::process::Command::new("kill")
                    .args(["-9", &pid])
                    .status();
                assert!(killed.unwrap().success());
            }
        }
    }

    /// Waits until no process of a pod is left.
    pub(crate) async fn until_no_process(&self, pod: &Pod) {
        self.until_true("no process of the pod is left", || {
            self.processes(pod).is_empty()
        })
        .await;
    }
}

fn marked_processes(data_dir: &Path) -> Vec<(String, String)> {
    with_variable("BELLEROPHON_NODE", &data_dir.display().to_string())
}

/// The IDs and command lines of processes with that variable in their environment.
fn with_variable(name: &str, value: &str) -> Vec<(String, String)> {
    let variable = format!("{name}={value}");
    let entries = std::fs::read_dir("/proc").unwrap();
    let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let marked = dirs.filter(|dir| {
        let environ = std::fs::read(dir.join("environ")).unwrap_or_default();
        environ
            .split(|byte| *byte == 0)
            .any(|it| it == variable.as_bytes())
    });
    let describe = |dir: PathBuf| {
        let command = std::fs::read(dir.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let pid = dir.file_name().unwrap().to_string_lossy().into_owned();
        (pid, command)
    };
    marked.map(describe).collect()
}

/// A container that runs a shell script, with other fields.
pub(crate) fn sh(name: &str, script: &str, fields: Value) -> Value {
    let mut container = json!({
        "name": name,
        "image": "sh",
        "command": ["sh", "-c", script],
    });
    for (field, value) in fields.as_object().into_iter().flatten() {
        container[field] = value.clone();
    }
    container
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|it| it.type_ == type_)?;
    Some(&condition.status)
}

pub(crate) fn has_condition(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_) == Some("True")
}

/// The status of a container or init container.
pub(crate) fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    let mut all = status.container_statuses.iter().flatten().chain(init);
    all.find(|container| container.name == name)
}

pub(crate) fn state(pod: &Pod, name: &str) -> ContainerState {
    let status = container(pod, name);
    status.and_then(|it| it.state.clone()).unwrap_or_default()
}

pub(crate) fn restarts(pod: &Pod, name: &str) -> i32 {
    container(pod, name).map_or(0, |status| status.restart_count)
}

/// The reason why a container waits or has ended.
pub(crate) fn reason(pod: &Pod, name: &str) -> Option<String> {
    let state = state(pod, name);
    let waiting = state.waiting.and_then(|waiting| waiting.reason);
    waiting.or(state.terminated.and_then(|terminated| terminated.reason))
}

/// The exit code and message of a container that has ended.
pub(crate) fn terminated(pod: &Pod, name: &str) -> (i32, String) {
    let terminated = state(pod, name).terminated.unwrap();
    (terminated.exit_code, terminated.message.unwrap_or_default())
}
