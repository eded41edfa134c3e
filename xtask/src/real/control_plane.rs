//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.
//!
//! Input: their programs, an empty directory, and one for logs. Output: the kubeconfig of an administrator.
//!
//! Guarantees: all are stopped when the handle is dropped, in the reverse order of their start;
//! controller manager and scheduler are the users of a real cluster, with the permissions that
//! kube-apiserver grants these.

use std::{
    fs::{self, File},
    io::Read as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::build::Programs;
use crate::processes::{now, succeed};

/// How long the control plane may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// How long a process may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two looks at a state that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The users of tokens: file name, user, group.
const USERS: [(&str, &str, &str); 3] = [
    ("admin", "admin", "system:masters"),
    (
        "controller-manager",
        "system:kube-controller-manager",
        "system:authenticated",
    ),
    ("scheduler", "system:kube-scheduler", "system:authenticated"),
];

/// A running control plane.
pub(super) struct ControlPlane {
    /// In the order of their start.
    processes: Vec<Process>,
    directory: PathBuf,
    logs: PathBuf,
    url: String,
    etcd_version: String,
}

impl ControlPlane {
    /// Starts everything, and waits until the service account `default` exists.
    ///
    /// # Errors
    /// A process cannot be started, or is not ready in time.
    pub(super) fn start(
        programs: &Programs,
        directory: &Path,
        logs: &Path,
    ) -> Result<Self, String> {
        let etcd_port = free_port()?;
        let peer_port = free_port()?;
        let port = free_port()?;
        let mut control_plane = Self {
            processes: Vec::new(),
            directory: directory.to_owned(),
            logs: logs.to_owned(),
            url: format!("https://127.0.0.1:{port}"),
            etcd_version: etcd_version(programs)?,
        };
        let path = |name: &str| directory.join(name).display().to_string();
        let mut key = Command::new(programs.path("signingkey"));
        succeed(key.arg(path("sa.key")), "signingkey")?;
        control_plane.write_credentials()?;
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        control_plane.spawn(
            programs,
            "etcd",
            &[
                format!("--data-dir={}", path("etcd")),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
                "--unsafe-no-fsync=true".to_owned(),
            ],
        )?;
        control_plane.spawn(
            programs,
            "kube-apiserver",
            &[
                format!("--etcd-servers={etcd_url}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--cert-dir={}", path("certificates")),
                format!("--token-auth-file={}", path("tokens.csv")),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--allow-privileged=true".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", path("sa.key")),
                format!("--service-account-signing-key-file={}", path("sa.key")),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            ],
        )?;
        control_plane.wait_for("kube-apiserver", "get --raw /readyz")?;
        control_plane.spawn(
            programs,
            "kube-controller-manager",
            &[
                format!("--kubeconfig={}", path("controller-manager.yaml")),
                "--use-service-account-credentials=true".to_owned(),
                format!("--service-account-private-key-file={}", path("sa.key")),
                format!("--root-ca-file={}", path("certificates/apiserver.crt")),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={}", free_port()?),
                format!("--cert-dir={}", path("controller-manager")),
                "--leader-elect=false".to_owned(),
            ],
        )?;
        control_plane.spawn(
            programs,
            "kube-scheduler",
            &[
                format!("--kubeconfig={}", path("scheduler.yaml")),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={}", free_port()?),
                format!("--cert-dir={}", path("scheduler")),
                "--leader-elect=false".to_owned(),
            ],
        )?;
        let account = "get serviceaccount default --namespace default";
        control_plane.wait_for("kube-controller-manager", account)?;
        // Tests delete all objects of a cluster that has this annotation, and reject others.
        control_plane
            .kubectl("annotate namespace default testkit.bellerophon.io/disposable=true")?;
        Ok(control_plane)
    }

    /// The directory for files of this run.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of logs.
    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    /// The kubeconfig of the administrator.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.yaml")
    }

    /// The versions of kube-apiserver and etcd.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) fn versions(&self) -> Result<String, String> {
        let version = self.kubectl("get --raw /version")?;
        let version: serde_json::Value =
            serde_json::from_str(&version).map_err(|e| format!("/version: {e}"))?;
        let kubernetes = version["gitVersion"].as_str().unwrap_or("unknown");
        Ok(format!(
            "kube-apiserver, kube-controller-manager and kube-scheduler {kubernetes}, etcd {}",
            self.etcd_version
        ))
    }

    /// Runs kubectl as the administrator.
    ///
    /// # Errors
    /// It is missing, or fails.
    pub(super) fn kubectl(&self, line: &str) -> Result<String, String> {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(self.kubeconfig());
        succeed(kubectl.args(line.split(' ')), &format!("kubectl {line}"))
    }

    /// Repeats a command of kubectl until it succeeds.
    fn wait_for(&mut self, program: &str, line: &str) -> Result<(), String> {
        let begun = now();
        loop {
            let error = match self.kubectl(line) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if let Some(ended) = self.processes.iter_mut().find_map(Process::ended) {
                return Err(ended);
            }
            if begun.elapsed() > START_TIMEOUT {
                return Err(format!("{program} is not ready in time: {error}"));
            }
            pause(POLL_INTERVAL);
        }
    }

    /// Writes the tokens, and a kubeconfig for each.
    fn write_credentials(&self) -> Result<(), String> {
        let certificate = self.directory.join("certificates/apiserver.crt");
        let mut tokens = String::new();
        for (file, user, group) in USERS {
            let token = random_token()?;
            tokens.push_str(&format!("{token},{user},{file},\"{group}\"\n"));
            let text = kubeconfig(&self.url, &certificate, &token);
            write(&self.directory.join(format!("{file}.yaml")), &text)?;
        }
        write(&self.directory.join("tokens.csv"), &tokens)
    }

    fn spawn(
        &mut self,
        programs: &Programs,
        name: &'static str,
        arguments: &[String],
    ) -> Result<(), String> {
        let mut command = Command::new(programs.path(name));
        command.args(arguments);
        let process = Process::start(name, &mut command, &self.logs)?;
        self.processes.push(process);
        Ok(())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
    }
}

/// A process with a log file, which is stopped on drop.
pub(super) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process, and writes its output to `NAME.log` in a directory.
    ///
    /// # Errors
    /// The program is missing, or the log cannot be written.
    pub(super) fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self, String> {
        let log = logs.join(format!("{name}.log"));
        let failed = |e| format!("cannot write {}: {e}", log.display());
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("cannot start {name}: {e}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Waits for a line of the output that begins with a text, and returns the rest of it.
    ///
    /// # Errors
    /// The process ended, or does not print it in time.
    pub(super) fn wait_for_line(&mut self, begin: &str) -> Result<String, String> {
        let begun = now();
        loop {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            // The last line may not be complete.
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            if let Some(rest) = complete.lines().find_map(|line| line.strip_prefix(begin)) {
                return Ok(rest.to_owned());
            }
            if let Some(ended) = self.ended() {
                return Err(ended);
            }
            if begun.elapsed() > START_TIMEOUT {
                return Err(format!("{} does not print {begin:?} in time", self.name));
            }
            pause(POLL_INTERVAL);
        }
    }

    /// Why the process does not run any more; `None` while it runs.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        Some(format!(
            "{} ends with {status}: {}",
            self.name,
            last.join(" | ")
        ))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        // It may have ended already.
        drop(succeed(
            Command::new("kill").args(["-s", "TERM", &id]),
            "kill",
        ));
        let begun = now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < STOP_TIMEOUT {
            pause(POLL_INTERVAL);
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits in real time: the state of another process cannot be awaited.
#[expect(
    clippy::disallowed_methods,
    reason = "the state of another process cannot be awaited"
)]
pub(super) fn pause(time: Duration) {
    thread::sleep(time);
}

fn etcd_version(programs: &Programs) -> Result<String, String> {
    let mut etcd = Command::new(programs.path("etcd"));
    let text = succeed(etcd.arg("--version"), "etcd --version")?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(version.unwrap_or("of an unknown version").to_owned())
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
    let address = listener.map_err(|e| format!("no free port on 127.0.0.1: {e}"))?;
    Ok(address.port())
}

/// 128 random bits.
fn random_token() -> Result<String, String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| format!("cannot read /dev/urandom: {e}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn kubeconfig(url: &str, certificate: &Path, token: &str) -> String {
    let certificate = certificate.display();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: real\n\
         clusters:\n- name: real\n  cluster:\n    server: {url}\n    \
         certificate-authority: {certificate}\n\
         users:\n- name: user\n  user:\n    token: {token}\n\
         contexts:\n- name: real\n  context:\n    cluster: real\n    user: user\n    \
         namespace: default\n"
    )
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_is_yaml_with_server_and_token() {
        let text = kubeconfig("https://127.0.0.1:1", Path::new("/c.crt"), "secret");
        let value: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(
            value["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:1"
        );
        assert_eq!(value["users"][0]["user"]["token"], "secret");
        assert_eq!(value["contexts"][0]["context"]["cluster"], "real");
    }
}
