//! The comparison: both operators, in the same scenario, under every fault.
//!
//! In: the program `bellerophon`, beside this one. Out: tables of what each operator did and used.
//! Guarantees: every run has its own API server, nodes and store; the operators differ only in the
//! runtime that calls `observe`, `plan` and `apply`.

use std::path::Path;
use std::process::Stdio;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::Failure;
use crate::operator_process::{IMPLEMENTATIONS, OperatorProcess, Usage};
use crate::proxy::Proxy;
use crate::runs::{FAULTS, Fault, Run};
use crate::{report, scenario};

/// The image of the store: the program itself.
const IMAGE: &str = "bellerophon/store";

/// Runs everything, prints the report and writes it to a file.
pub(crate) async fn run(file: Option<&str>) -> Result<(), Failure> {
    let program = std::env::current_exe()?.with_file_name("bellerophon");
    let mut runs = Vec::new();
    for fault in &FAULTS {
        for implementation in IMPLEMENTATIONS {
            let run = run_once(&program, implementation, fault).await?;
            report::print_error(&report::progress(&run));
            runs.push(run);
        }
    }
    report::publish(&runs, file)
}

async fn run_once(
    program: &Path,
    implementation: &'static str,
    fault: &Fault,
) -> Result<Run, Failure> {
    let directory = tempfile::tempdir()?;
    let cluster = Cluster::start(program, directory.path()).await?;
    let address = cluster.server.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start(address, fault.network).await?;
    let kubeconfig = directory.path().join("proxied");
    let text = std::fs::read_to_string(&cluster.kubeconfig)?;
    let proxied = format!("https://{}", proxy.address);
    std::fs::write(&kubeconfig, text.replace(&cluster.server, &proxied))?;

    let client = cluster.client().await?;
    bellerophon_operator::define(&client, &[bellerophon_hero::OPERATOR]).await?;
    let mut usage = Usage::default();
    let mut operator = OperatorProcess::start(implementation, &kubeconfig)?;
    let scenario = scenario::run(&client, IMAGE);
    tokio::pin!(scenario);
    let durations = loop {
        let kill = async {
            match fault.kill_interval {
                Some(interval) => sleep(interval).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            durations = &mut scenario => break durations,
            () = kill => {
                usage.add(operator.kill().await?);
                operator = OperatorProcess::start(implementation, &kubeconfig)?;
            }
        }
    };
    usage.add(operator.kill().await?);
    cluster.stop().await?;
    Ok(Run {
        implementation,
        fault: fault.name,
        durations: durations.map_err(|error| error.to_string()),
        usage,
    })
}

/// A running `bellerophon up` without operators.
struct Cluster {
    child: Child,
    server: String,
    kubeconfig: std::path::PathBuf,
}

impl Cluster {
    async fn start(program: &Path, directory: &Path) -> Result<Self, Failure> {
        let kubeconfig = directory.join("kubeconfig");
        let mut child = Command::new(program)
            .args(["up", "--runtime", "process", "--operators", "none"])
            .args(["--output", "json", "--kubeconfig"])
            .arg(&kubeconfig)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the cluster has no output")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let ready: serde_json::Value = serde_json::from_str(&line.ok_or("the cluster ended")?)?;
        let server = ready["server"].as_str().ok_or("no address")?.to_owned();
        Ok(Self {
            child,
            server,
            kubeconfig,
        })
    }

    async fn client(&self) -> Result<Client, Failure> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(Client::try_from(config)?)
    }

    /// Ends the cluster with its pods.
    async fn stop(mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        Ok(())
    }
}
