//! One operator as a process: it prints its counts until it is stopped.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bellerophon::client::ReconcileClient;
use bellerophon::clock::{Clock, Rng};
use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon_hero::{Observer, Route, StoreMembers, sampler::Sampler};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::Failure;
use crate::counts::{Counters, Counts, counted_client};
use crate::kube_runtime_operator::{self, Context};

/// The operators to compare.
pub(crate) const IMPLEMENTATIONS: [&str; 2] = ["toolkit", "kube-runtime"];

/// Runs an operator with the current kubeconfig until SIGTERM.
pub(crate) async fn run(implementation: &str) -> Result<(), Failure> {
    let counters = Arc::new(Counters::default());
    let client = counted_client(counters.clone()).await?;
    let members = Arc::new(StoreMembers::new(Route::of_environment(&client)));
    match implementation {
        "toolkit" => {
            let mut mgr = Manager::new(client, ManagerOptions::default());
            let metrics = mgr.metrics().clone();
            bellerophon_hero::setup(&mut mgr, members);
            tokio::select! {
                ended = mgr.run() => ended?,
                () = counters.print_at_intervals(|| reconciles(&metrics.encode())) => {}
            }
        }
        "kube-runtime" => {
            let context = Arc::new(Context {
                client: ReconcileClient::new(client.clone(), "hero"),
                observer: Observer {
                    members,
                    rng: Rng::from_os(),
                    sampler: Sampler::default(),
                },
                clock: Clock::system(),
                reconciles: 0.into(),
            });
            let reconciles = || context.reconciles.load(Relaxed);
            tokio::select! {
                () = kube_runtime_operator::run(client, context.clone()) => {}
                () = counters.print_at_intervals(reconciles) => {}
            }
        }
        other => return Err(format!("unknown operator {other:?}").into()),
    }
    Ok(())
}

/// The number of reconciles in the metrics of a Manager.
fn reconciles(metrics: &str) -> u64 {
    metrics
        .lines()
        .filter(|line| {
            line.starts_with("controller_runtime_reconcile_total{")
                && line.contains("controller=\"hero\"")
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// What one process used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) counts: Counts,
    pub(crate) cpu_ms: u64,
    pub(crate) peak_kib: u64,
}

impl Usage {
    /// Adds what another process of the same operator used.
    pub(crate) fn add(&mut self, other: Self) {
        self.counts.add(other.counts);
        self.cpu_ms += other.cpu_ms;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
    }
}

/// An operator that runs as a child process.
pub(crate) struct OperatorProcess {
    child: Child,
    counts: watch::Receiver<Counts>,
}

impl OperatorProcess {
    pub(crate) fn start(
        implementation: &str,
        kubeconfig: &std::path::Path,
    ) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["operator", implementation])
            .env("KUBECONFIG", kubeconfig)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the operator has no output")?;
        let (sender, counts) = watch::channel(Counts::default());
        // It ends with the output of the process.
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(counts) = serde_json::from_str(&line) {
                    sender.send_replace(counts);
                }
            }
        });
        Ok(Self { child, counts })
    }

    /// Kills the process with SIGKILL and returns what it used.
    pub(crate) async fn kill(mut self) -> Result<Usage, Failure> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("the operator ended by itself: {status}").into());
        }
        let pid = self.child.id().ok_or("the operator has ended")?;
        let usage = Usage {
            counts: *self.counts.borrow(),
            cpu_ms: cpu_ms(pid)?,
            peak_kib: peak_kib(pid)?,
        };
        self.child.kill().await?;
        Ok(usage)
    }
}

/// User and system time of a process. The kernel counts in 10 ms.
fn cpu_ms(pid: u32) -> Result<u64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may have spaces.
    let fields = stat.rsplit(") ").next().ok_or("no fields")?;
    let times = fields.split(' ').skip(11).take(2);
    let ticks = times.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(ticks * 10)
}

fn peak_kib(pid: u32) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let size = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(size.ok_or("no VmHWM")?.parse()?)
}
