//! One member as a process.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bellerophon_store::TlsFiles;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// A start or a stop. Tests share two processors with other programs.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);

/// How a member is started.
#[derive(Clone, Debug)]
pub(crate) struct MemberSetup {
    pub(crate) data: PathBuf,
    pub(crate) tls: TlsFiles,
    pub(crate) admin_token: PathBuf,
    pub(crate) client_token: PathBuf,
    /// The addresses of the first start, for later ones.
    pub(crate) addresses: Option<Addresses>,
    pub(crate) extra: Vec<String>,
}

/// Where a member listens.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) health: SocketAddr,
}

/// A running member. It is killed when it is dropped.
pub(crate) struct MemberProcess {
    child: Child,
    pub(crate) addresses: Addresses,
}

impl MemberSetup {
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon-store-member"));
        command
            .arg("--data")
            .arg(&self.data)
            .arg("--tls-cert")
            .arg(&self.tls.certificate)
            .arg("--tls-key")
            .arg(&self.tls.key)
            .arg("--tls-ca")
            .arg(&self.tls.ca)
            .arg("--admin-token-file")
            .arg(&self.admin_token)
            .arg("--client-token-file")
            .arg(&self.client_token)
            .args(&self.extra);
        if let Some(addresses) = self.addresses {
            command
                .args(["--client-listen", &addresses.client.to_string()])
                .args(["--peer-listen", &addresses.peer.to_string()])
                .args(["--health-listen", &addresses.health.to_string()]);
        }
        command
    }

    /// Starts the member and waits until it listens.
    pub(crate) async fn start(&mut self) -> MemberProcess {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PROCESS_TIMEOUT, lines.next_line()).await;
        let line = line.expect("the member starts in time").unwrap();
        let line = line.expect("the member prints its addresses");
        let addresses: Addresses = serde_json::from_str(&line).unwrap();
        self.addresses = Some(addresses);
        MemberProcess { child, addresses }
    }

    /// Starts the member and expects that it ends.
    pub(crate) async fn start_refused(&self) -> (ExitStatus, String) {
        let output = self.command().kill_on_drop(true).output();
        let output = timeout(PROCESS_TIMEOUT, output).await;
        let output = output.expect("the member ends in time").unwrap();
        (
            output.status,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }
}

impl MemberProcess {
    /// `kill -9`.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM, and the exit status.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().expect("the member runs");
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = timeout(PROCESS_TIMEOUT, self.child.wait()).await;
        ended.expect("the member ends in time").unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("the member runs")
    }
}
