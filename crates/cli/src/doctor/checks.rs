//! The checks of `bellerophon doctor`.

use std::{
    io,
    net::TcpListener,
    path::{self, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use bellerophon_process_runtime::{Tier, TierReport, check_limits, detect};
use kube::config::Kubeconfig;
use rustix::{
    fs::{Access, access, statvfs},
    process::{Resource, getrlimit},
};
use serde_json::Value;
use tokio::{net::TcpStream, process::Command, time::timeout};

use super::Check;
use crate::{error::CliError, process_nodes};

/// How long another program or server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The port of the webhooks of operators.
const WEBHOOK_PORT: u16 = 9443;

/// The oldest minor version of kubectl that is tested.
const KUBECTL_MINOR_MIN: u32 = 20;

/// A pod needs five open files, each connection and watch of a client one.
const OPEN_FILES_RECOMMENDED: u64 = 4096;

/// Log files of a container take up to 50 MiB.
const DISK_RECOMMENDED_BYTES: u64 = 1 << 30;
const DISK_MIN_BYTES: u64 = 16 << 20;

/// Runs all checks.
///
/// # Errors
/// The working directory does not exist.
pub(super) async fn run(kubeconfig: &Path) -> Result<Vec<Check>, CliError> {
    let data_dir = process_nodes::data_dir(kubeconfig).map_err(CliError::new)?;
    let kubeconfig = path::absolute(kubeconfig).map_err(CliError::new)?;
    let mut checks = process_runtime().await;
    checks.push(limits());
    checks.push(ports(WEBHOOK_PORT));
    checks.push(kubectl("kubectl").await);
    checks.push(kubeconfig_file(&kubeconfig).await);
    checks.push(open_files());
    checks.push(disk(&data_dir));
    Ok(checks)
}

/// What `up --runtime process` isolates pods with.
async fn process_runtime() -> Vec<Check> {
    const NAME: &str = "namespaces";
    if !cfg!(target_os = "linux") {
        let message = "--runtime process needs Linux; simulated nodes do not";
        return vec![Check::warn(NAME, message)];
    }
    let report = detect(Path::new("/proc/self/exe")).await;
    let mut checks = vec![namespaces(&report, process_nodes::is_tier_b_forced())];
    if report.tier == Tier::A {
        checks.push(veth(&report));
    }
    checks
}

fn namespaces(report: &TierReport, is_tier_b_forced: bool) -> Check {
    const NAME: &str = "namespaces";
    const TIER_B: &str = "tier B: pods share the network and files of this machine";
    match (&report.reason, is_tier_b_forced) {
        (Some(reason), _) => Check::warn(NAME, format!("{TIER_B}; {reason}")),
        (None, true) => {
            let variable = process_nodes::TIER_VARIABLE;
            let message = format!("{TIER_B}, because {variable}=B is set; unset it for tier A");
            Check::warn(NAME, message)
        }
        (None, false) => Check::ok(
            NAME,
            "tier A: each pod has its own network, mounts and process IDs",
        ),
    }
}

fn veth(report: &TierReport) -> Check {
    const NAME: &str = "veth";
    match &report.veth_error {
        None => Check::ok(NAME, "pods and Services may use the same ports"),
        Some(error) => Check::warn(
            NAME,
            format!(
                "a program that listens on all addresses conflicts with Services of the same port \
                 ({error}); load the kernel module with `sudo modprobe veth`"
            ),
        ),
    }
}

fn limits() -> Check {
    const NAME: &str = "limits";
    match check_limits() {
        Ok(()) => Check::ok(NAME, "limits of containers are enforced by cgroups"),
        Err(reason) => Check::warn(
            NAME,
            format!("limits of containers are not enforced: {reason}"),
        ),
    }
}

/// Whether servers can listen on loopback, and whether the port of webhooks is free.
fn ports(webhook_port: u16) -> Check {
    const NAME: &str = "ports";
    if let Err(error) = TcpListener::bind(("127.0.0.1", 0)) {
        let message = format!("no port of 127.0.0.1 can be used: {error}; `ip link set lo up`");
        return Check::fail(NAME, message);
    }
    match TcpListener::bind(("127.0.0.1", webhook_port)) {
        Ok(_) => Check::ok(NAME, "`up` uses free ports of 127.0.0.1"),
        Err(error) => Check::warn(
            NAME,
            format!(
                "port {webhook_port} of 127.0.0.1, which `run --webhooks` needs, cannot be used: \
                 {error}; stop the program that listens there"
            ),
        ),
    }
}

async fn kubectl(program: &str) -> Check {
    const NAME: &str = "kubectl";
    let version = kubectl_version(program).await;
    match version {
        Err(error) => Check::warn(
            NAME,
            format!("{error}; install it: https://kubernetes.io/docs/tasks/tools/"),
        ),
        Ok(KubectlVersion { text, minor }) if minor < KUBECTL_MINOR_MIN => Check::warn(
            NAME,
            format!("{text} is older than 1.{KUBECTL_MINOR_MIN}; install a newer one"),
        ),
        Ok(KubectlVersion { text, .. }) => Check::ok(NAME, text),
    }
}

struct KubectlVersion {
    text: String,
    minor: u32,
}

async fn kubectl_version(program: &str) -> Result<KubectlVersion, String> {
    let output = Command::new(program)
        .args(["version", "--client", "--output", "json"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match timeout(ANSWER_TIMEOUT, output).await {
        Err(_) => return Err(format!("{program} does not answer")),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{program} is not on the PATH"));
        }
        Ok(Err(error)) => return Err(format!("{program} cannot be run: {error}")),
        Ok(Ok(output)) => output,
    };
    parse_kubectl_version(&output.stdout)
        .ok_or_else(|| format!("`{program} version --client` prints no version"))
}

fn parse_kubectl_version(output: &[u8]) -> Option<KubectlVersion> {
    let versions: Value = serde_json::from_slice(output).ok()?;
    let version = &versions["clientVersion"];
    // Vendors add a plus sign to the minor version.
    let minor = version["minor"].as_str()?.trim_end_matches('+');
    Some(KubectlVersion {
        text: version["gitVersion"].as_str()?.to_owned(),
        minor: minor.parse().ok()?,
    })
}

async fn kubeconfig_file(path: &Path) -> Check {
    const NAME: &str = "kubeconfig";
    let shown = path.display();
    if path.exists() {
        let Some(server) = server_of(path) else {
            return Check::warn(
                NAME,
                format!("{shown} is not a kubeconfig, and `up` would replace it"),
            );
        };
        if is_reachable(&server).await {
            return Check::warn(
                NAME,
                format!(
                    "{shown} is that of a cluster that runs at {server}, and `up` would replace \
                     it; pass another --kubeconfig"
                ),
            );
        }
    }
    match check_writable(path) {
        Ok(()) => Check::ok(NAME, format!("`up` writes {shown}")),
        Err(error) => Check::fail(
            NAME,
            format!("{shown} cannot be written: {error}; pass another --kubeconfig"),
        ),
    }
}

/// Whether a file can be written, after the directories above it are created.
fn check_writable(path: &Path) -> io::Result<()> {
    let existing = existing_ancestor(path);
    if existing != path && !existing.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(existing, Access::WRITE_OK)?)
}

/// The URL of the server of the current context.
fn server_of(path: &Path) -> Option<String> {
    let kubeconfig = Kubeconfig::read_from(path).ok()?;
    let clusters = kubeconfig.clusters.into_iter();
    clusters.filter_map(|named| named.cluster?.server).next()
}

async fn is_reachable(server: &str) -> bool {
    let Ok(url) = server.parse::<http::Uri>() else {
        return false;
    };
    let Some(host) = url.host() else { return false };
    // The host of a URL has brackets around an IPv6 address.
    let host = host.trim_matches(['[', ']']);
    let connect = TcpStream::connect((host, url.port_u16().unwrap_or(443)));
    matches!(timeout(ANSWER_TIMEOUT, connect).await, Ok(Ok(_)))
}

/// The path itself, or the closest directory above it that exists.
fn existing_ancestor(path: &Path) -> PathBuf {
    let mut ancestors = path.ancestors();
    let existing = ancestors.find(|ancestor| ancestor.exists());
    existing.unwrap_or(Path::new("/")).to_owned()
}

fn open_files() -> Check {
    const NAME: &str = "open files";
    // `up --runtime process` raises the soft limit to this.
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < OPEN_FILES_RECOMMENDED => Check::warn(
            NAME,
            format!(
                "the limit of {limit} is reached with about {} pods; raise it with \
                 `ulimit -Hn {OPEN_FILES_RECOMMENDED}` as root, or LimitNOFILE of systemd",
                limit / FILES_PER_POD
            ),
        ),
        Some(limit) => Check::ok(NAME, format!("the limit is {limit}")),
        None => Check::ok(NAME, "there is no limit"),
    }
}

/// Open files of the node per pod.
const FILES_PER_POD: u64 = 5;

fn disk(data_dir: &Path) -> Check {
    const NAME: &str = "disk";
    let shown = data_dir.display();
    let free = match statvfs(existing_ancestor(data_dir)) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => {
            let error = io::Error::from(error);
            return Check::fail(NAME, format!("{shown} cannot be used: {error}"));
        }
    };
    let message = format!(
        "{} MiB are free for volumes and logs in {shown}",
        free >> 20
    );
    if free < DISK_MIN_BYTES {
        Check::fail(NAME, format!("{message}; free some"))
    } else if free < DISK_RECOMMENDED_BYTES {
        Check::warn(NAME, format!("{message}; a container logs up to 50 MiB"))
    } else {
        Check::ok(NAME, message)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::CheckStatus;
    use super::*;

    fn report(tier: Tier, reason: Option<&str>, veth_error: Option<&str>) -> TierReport {
        TierReport {
            tier,
            reason: reason.map(ToOwned::to_owned),
            veth_error: veth_error.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn reason_for_tier_b_is_printed() {
        let remedy = "enable them with `sudo sysctl -w user.max_user_namespaces=15000`";
        let cases = [
            (
                report(Tier::A, None, None),
                false,
                CheckStatus::Ok,
                "tier A",
            ),
            (
                report(Tier::A, None, None),
                true,
                CheckStatus::Warn,
                "BELLEROPHON_TIER=B",
            ),
            (
                report(Tier::B, Some(remedy), None),
                false,
                CheckStatus::Warn,
                remedy,
            ),
        ];
        for (report, is_tier_b_forced, status, expected) in cases {
            let check = namespaces(&report, is_tier_b_forced);
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.message.contains(expected), "{check:?}");
        }
    }

    #[test]
    fn missing_veth_names_the_kernel_module() {
        let check = veth(&report(
            Tier::A,
            None,
            Some("veth: Operation not supported"),
        ));
        assert_eq!(check.status, CheckStatus::Warn);
        assert!(check.message.contains("modprobe veth"), "{check:?}");
        assert!(
            check.message.contains("Operation not supported"),
            "{check:?}"
        );
        assert_eq!(veth(&report(Tier::A, None, None)).status, CheckStatus::Ok);
    }

    #[test]
    fn port_in_use_is_a_warning() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let check = ports(port);
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
        assert!(check.message.contains(&port.to_string()), "{check:?}");
        assert_eq!(ports(0).status, CheckStatus::Ok);
    }

    #[test]
    fn kubectl_version_is_parsed() {
        let output = br#"{"clientVersion": {"minor": "28+", "gitVersion": "v1.28.3-gke.1"}}"#;
        let version = parse_kubectl_version(output).expect("a version");
        assert_eq!(version.minor, 28);
        assert_eq!(version.text, "v1.28.3-gke.1");
        assert!(parse_kubectl_version(b"Client Version: v1.28.3").is_none());
    }

    #[tokio::test]
    async fn missing_kubectl_is_a_warning() {
        let check = kubectl("kubectl-that-does-not-exist").await;
        assert_eq!(check.status, CheckStatus::Warn);
        assert!(check.message.contains("is not on the PATH"), "{check:?}");
    }

    #[tokio::test]
    async fn kubeconfig_of_a_running_cluster_is_a_warning() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kubeconfig");
        let write = |address: SocketAddr| {
            let written = format!(
                "clusters: [{{name: a, cluster: {{server: 'https://{address}'}}}}]\n\
                 contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\ncurrent-context: a\n"
            );
            std::fs::write(&path, written).expect("a file");
        };
        write(address);
        let check = kubeconfig_file(&path).await;
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
        assert!(
            check
                .message
                .contains(&format!("runs at https://{address}")),
            "{check:?}"
        );
        // Bound and not listening, since a closed listener lives on in a child process that another
        // test has forked, until that process executes its program.
        let bound = tokio::net::TcpSocket::new_v4().expect("a socket");
        bound
            .bind("127.0.0.1:0".parse().expect("an address"))
            .expect("a free port");
        write(bound.local_addr().expect("an address"));
        let check = kubeconfig_file(&path).await;
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        std::fs::write(&path, "no kubeconfig").expect("a file");
        let check = kubeconfig_file(&path).await;
        assert_eq!(check.status, CheckStatus::Warn, "{check:?}");
    }

    #[tokio::test]
    async fn kubeconfig_that_cannot_be_written_is_a_failure() {
        // Permissions would not hold root back.
        let check = kubeconfig_file(Path::new("/dev/null/kubeconfig")).await;
        assert_eq!(check.status, CheckStatus::Fail, "{check:?}");
        assert!(check.message.contains("--kubeconfig"), "{check:?}");
    }
}
