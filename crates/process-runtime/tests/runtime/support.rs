//! Runtimes, pods and containers of tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bellerophon_process_runtime::{
    Container, ContainerConfig, Error, ExecConfig, Limits, Runtime, RuntimeOptions, Sandbox,
    SandboxConfig, SandboxNetwork, Streams, Tier, TierReport,
};
use tokio::io::AsyncReadExt;

/// The shim, and the program of containers.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_process-runtime-helper");

/// A limit that is reached only if something waits forever.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A runtime with its directory.
pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    pub(crate) dir: tempfile::TempDir,
    pods: u8,
}

/// A pod with its directory.
pub(crate) struct Pod {
    pub(crate) sandbox: Sandbox,
    pub(crate) dir: PathBuf,
    containers: std::sync::atomic::AtomicU32,
}

/// The tiers that this system offers. BELLEROPHON_REQUIRE_TIER_A=1 makes it fail without tier A.
pub(crate) async fn tiers() -> Vec<Tier> {
    match bellerophon_process_runtime::detect(Path::new(HELPER)).await {
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

pub(crate) fn options(dir: &Path, tier: Tier) -> RuntimeOptions {
    RuntimeOptions {
        shim: HELPER.into(),
        force_tier_b: tier == Tier::B,
        ..RuntimeOptions::new(dir.join("data"))
    }
}

impl Node {
    pub(crate) async fn start(tier: Tier) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::start(options(dir.path(), tier)).await.unwrap();
        assert_eq!(runtime.tier(), tier);
        Self::with_runtime(runtime, dir)
    }

    /// A node of tier A; `None` where that is not available.
    pub(crate) async fn start_in_tier_a() -> Option<Self> {
        if tiers().await.contains(&Tier::A) {
            Some(Self::start(Tier::A).await)
        } else {
            None
        }
    }

    pub(crate) fn with_runtime(runtime: Runtime, dir: tempfile::TempDir) -> Self {
        Self {
            runtime,
            dir,
            pods: 0,
        }
    }

    pub(crate) async fn pod(&mut self) -> Pod {
        self.pods += 1;
        let name = format!("pod-{}", self.pods);
        let ip = match self.runtime.tier() {
            Tier::A => [10, 1, 0, self.pods].into(),
            Tier::B => self.runtime.allocate_ip(),
        };
        let config = SandboxConfig {
            id: name.clone(),
            hostname: name.clone(),
            ip,
            network: SandboxNetwork::Pod,
        };
        let sandbox = self.runtime.create_sandbox(config).await.unwrap();
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        Pod {
            sandbox,
            dir,
            containers: 0.into(),
        }
    }
}

/// A container with that program, or a shell script if there is only one argument.
pub(crate) fn container(pod: &Pod, argv: &[&str]) -> ContainerConfig {
    let argv = match argv {
        [script] => vec!["sh", "-c", script],
        argv => argv.to_vec(),
    };
    let number = pod
        .containers
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    ContainerConfig {
        name: "main".to_owned(),
        argv: argv.into_iter().map(str::to_owned).collect(),
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
        working_dir: None,
        user: None,
        streams: Streams::default(),
        mounts: Vec::new(),
        log_path: pod.dir.join(format!("{number}.log")),
        read_only_root: false,
        limits: Limits::default(),
        target: None,
    }
}

impl Pod {
    /// Starts a program, or a shell script.
    pub(crate) async fn start(&self, argv: &[&str]) -> Container {
        self.try_start(argv).await.unwrap()
    }

    pub(crate) async fn try_start(&self, argv: &[&str]) -> Result<Container, Error> {
        self.sandbox.start_container(container(self, argv)).await
    }

    /// Runs a container to its end; returns its exit code and output.
    pub(crate) async fn run(&self, config: ContainerConfig) -> (i32, String) {
        let log_path = config.log_path.clone();
        let container = self.sandbox.start_container(config).await.unwrap();
        let exit = within(container.wait()).await;
        (exit.exit_code, output(&log_path))
    }
}

/// Waits for a future that does not take long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .expect("it ends long before the timeout")
}

/// The texts in a log file.
pub(crate) fn output(log_path: &Path) -> String {
    let text = std::fs::read_to_string(log_path).unwrap();
    let texts = text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap());
    texts.map(|text| format!("{text}\n")).collect()
}

/// Waits until a container has written a text.
pub(crate) async fn wait_for_output(container: &Container, log_path: &Path, text: &str) {
    use bellerophon_process_runtime::logs::{LogReader, ReadOptions};
    let options = ReadOptions {
        follow: Some(container.log_updates()),
        ..ReadOptions::default()
    };
    let mut reader = LogReader::open(log_path, options).unwrap();
    let mut found = String::new();
    while !found.contains(text) {
        let chunk = within(reader.next_chunk()).await.unwrap();
        let chunk = chunk.unwrap_or_else(|| panic!("{text:?} is not in {found:?}"));
        found.push_str(&String::from_utf8_lossy(&chunk));
    }
}

/// Runs a command in a container; returns its exit code and stdout.
pub(crate) async fn exec(container: &Container, argv: &[&str]) -> (i32, String) {
    let config = ExecConfig {
        argv: argv.iter().map(ToString::to_string).collect(),
        streams: Streams::default(),
    };
    let mut process = container.exec(config).await.unwrap();
    let mut stdout = String::new();
    let mut stream = process.stdout.take().unwrap();
    within(stream.read_to_string(&mut stdout)).await.unwrap();
    (within(process.wait()).await, stdout)
}

/// The number of processes with a marker of that node.
pub(crate) fn marked_processes(data_dir: &Path) -> usize {
    let marker = format!("BELLEROPHON_NODE={}", data_dir.display());
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok())
        .filter(|environ| {
            environ
                .split(|byte| *byte == 0)
                .any(|var| var == marker.as_bytes())
        })
        .count()
}
