//! A server under attack, its accounts and its memory.

use std::{fs, io::Read as _, process::Command, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Client, Endpoint},
    running::RunningServer,
};

/// How long the server may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);

const MIB: u64 = 1 << 20;

/// A server, and a client of its administrator.
pub(crate) struct Target {
    server: RunningServer,
    pub(crate) endpoint: Endpoint,
    pub(crate) admin: Client,
}

impl Target {
    pub(crate) async fn start() -> Self {
        let server = RunningServer::start(&["--cluster", "none"]);
        // A kubeconfig outside of the test's directory could be that of another cluster.
        let directory = fs::canonicalize(server.directory.path()).expect("a directory");
        let kubeconfig = fs::canonicalize(server.kubeconfig()).expect("a file");
        assert!(kubeconfig.starts_with(directory), "{kubeconfig:?}");
        let endpoint = Endpoint::from_kubeconfig(server.kubeconfig());
        let admin = endpoint.client(&endpoint.token).await;
        Self {
            server,
            endpoint,
            admin,
        }
    }

    /// The token of a new service account in `default` with these RBAC rules in this namespace.
    pub(crate) async fn account(&self, name: &str, rules: &[Value]) -> String {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let metadata = json!({"metadata": {"name": name}});
        self.admin.create(accounts, &metadata).await;
        if !rules.is_empty() {
            let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
            let role = json!({"metadata": {"name": name}, "rules": rules});
            self.admin.create(&format!("{rbac}/roles"), &role).await;
            let binding = json!({
                "metadata": {"name": name},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": name,
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            });
            self.admin
                .create(&format!("{rbac}/rolebindings"), &binding)
                .await;
        }
        let request = json!({"spec": {}});
        let path = format!("{accounts}/{name}/token");
        let token = self.admin.create(&path, &request).await;
        token["status"]["token"].as_str().expect("a token").into()
    }

    /// A client of a new service account.
    pub(crate) async fn client_of(&self, name: &str, rules: &[Value]) -> Client {
        let token = self.account(name, rules).await;
        self.endpoint.client(&token).await
    }

    /// Starts to measure the memory of the server.
    pub(crate) fn measure_memory(&self) -> MemoryGrowth {
        MemoryGrowth::start(self.server.process.id())
    }

    /// Checks that the server answers new connections, has not panicked, and exits on SIGTERM.
    pub(crate) async fn assert_well(mut self) {
        let client = self.endpoint.client(&self.endpoint.token).await;
        let namespace = client.get("/api/v1/namespaces/default").await;
        namespace
            .assert_status(200)
            .assert_within(Duration::from_secs(5));
        if !cfg!(unix) {
            return;
        }
        let kill = Command::new("kill")
            .args(["-s", "TERM", &self.server.process.id().to_string()])
            .status()
            .expect("kill starts");
        assert!(kill.success());
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.server.process.try_wait().expect("a child") {
                break status;
            }
            assert!(started.elapsed() < EXIT_TIMEOUT, "SIGTERM has no effect");
            sleep(Duration::from_millis(10)).await;
        };
        let mut log = String::new();
        let mut stderr = self.server.process.stderr.take().expect("stderr is piped");
        stderr.read_to_string(&mut log).expect("UTF-8");
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// How much the resident memory of a process grows.
pub(crate) struct MemoryGrowth {
    pid: u32,
    /// `None` where the system does not report it.
    start_bytes: Option<u64>,
}

impl MemoryGrowth {
    fn start(pid: u32) -> Self {
        // Resets the peak (VmHWM) to the current value (VmRSS), see proc_pid_clear_refs(5).
        let reset = fs::write(format!("/proc/{pid}/clear_refs"), "5");
        let start_bytes = reset.ok().and_then(|()| peak_bytes(pid));
        if start_bytes.is_none() {
            eprintln!("skipped: memory is measured on Linux only");
        }
        Self { pid, start_bytes }
    }

    /// Checks the peak since the start.
    #[track_caller]
    pub(crate) fn assert_below_mib(&self, max: u64) {
        let Some(start) = self.start_bytes else {
            return;
        };
        let peak = peak_bytes(self.pid).expect("the process runs");
        let growth = peak.saturating_sub(start) / MIB;
        eprintln!("memory grew by {growth} MiB");
        assert!(growth < max, "memory grew by {growth} MiB");
    }
}

/// The peak of the resident memory.
fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}
