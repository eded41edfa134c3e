//! The supervisor: one worker process for each target, several at a time.
//!
//! Inputs: targets, a seed, a duration. Outputs: a table of what ran, and the number of findings.
//!
//! A process per worker makes aborts, stack overflows, endless loops and exhausted memory findings
//! as well, and the peak of allocated memory that of one input. A worker that ends in such a way is
//! started again with another seed, for the rest of its time.

use std::{
    env, fs, io,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bellerophon_fuzz::Target;
use tokio::{
    process::{Child, Command},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{artifact::Artifacts, worker::Report};

/// No input runs longer; the limits of time that are linear in the input are shorter.
const HANG: Duration = Duration::from_secs(120);

/// No worker has more memory, in bytes.
const RESIDENT_MAX_BYTES: u64 = 3 << 30;

/// After this many workers of a target that ended early, the target is given up.
const RESTARTS_MAX: u64 = 10;

/// How often a worker is checked.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// What is to run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) targets: Vec<&'static Target>,
    pub(crate) seed: u64,
    /// For each target.
    pub(crate) duration: Duration,
    /// How many workers run at a time.
    pub(crate) jobs: usize,
    /// Where findings are written.
    pub(crate) directory: std::path::PathBuf,
}

/// Runs all targets, and returns the number of findings.
pub(crate) async fn run(plan: Plan) -> io::Result<usize> {
    let slots = Arc::new(Semaphore::new(plan.jobs));
    let mut workers = JoinSet::new();
    for target in plan.targets.clone() {
        let slots = slots.clone();
        let plan = plan.clone();
        workers.spawn(async move {
            let _slot = slots.acquire().await.expect("the semaphore is not closed");
            let report = supervise(&plan, target).await;
            (target, report)
        });
    }
    let mut total = Report::default();
    while let Some(finished) = workers.join_next().await {
        let (target, report) = finished.map_err(io::Error::other)?;
        let report = report?;
        eprintln!("{}", line(target.name, &report));
        total = total.and(report);
    }
    eprintln!("{}", line("total", &total));
    Ok(total.findings)
}

fn line(name: &str, report: &Report) -> String {
    format!(
        "{name:<22} {:>10} inputs {:>5} outcomes {:>3} findings, at most {:>8.1?} and {:>4} MiB",
        report.executions,
        report.outcomes,
        report.findings,
        report.cost_max.time,
        report.cost_max.memory_bytes >> 20
    )
}

/// Runs a target for its whole duration, with a new worker after each one that ended early.
async fn supervise(plan: &Plan, target: &'static Target) -> io::Result<Report> {
    let start = Instant::now();
    let mut report = Report::default();
    for seed in plan.seed..=plan.seed.saturating_add(RESTARTS_MAX) {
        let left = plan.duration.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        let artifacts = Artifacts::new(&plan.directory, target.name, seed)?;
        let part = work(target, seed, left, &artifacts).await?;
        report = report.and(part);
        artifacts.remove_current()?;
    }
    Ok(report)
}

/// Runs one worker.
async fn work(
    target: &Target,
    seed: u64,
    duration: Duration,
    artifacts: &Artifacts,
) -> io::Result<Report> {
    let mut child = Command::new(env::current_exe()?)
        .arg("--worker")
        .args(["--target", target.name])
        .args(["--seed", &seed.to_string()])
        .args(["--milliseconds", &duration.as_millis().to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let reason = match watch(&mut child, artifacts).await? {
        End::Exited(status) if status.success() => {
            let output = child.wait_with_output().await?;
            let line = String::from_utf8_lossy(&output.stdout);
            return Report::parse(&line)
                .ok_or_else(|| io::Error::other(format!("a worker reported {line:?}")));
        }
        End::Exited(status) => format!("ended the process: {status}"),
        End::Hung => format!("ran for more than {} s", HANG.as_secs()),
        End::Large => format!("had more than {} MiB", RESIDENT_MAX_BYTES >> 20),
    };
    let path = artifacts.write_current()?;
    eprintln!("{}: {reason}\n    {}", target.name, path.display());
    Ok(Report {
        findings: 1,
        ..Report::default()
    })
}

/// Why a worker ended.
enum End {
    Exited(ExitStatus),
    Hung,
    Large,
}

/// Waits until a worker exits, or kills it.
async fn watch(child: &mut Child, artifacts: &Artifacts) -> io::Result<End> {
    // A worker writes each input to this file before it runs it.
    let modified = || fs::metadata(artifacts.current()).and_then(|file| file.modified());
    let mut started = None;
    let mut checks = 0;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(End::Exited(status?)),
            () = sleep(CHECK_EVERY) => {}
        }
        let status = child.id().and_then(ProcessStatus::read);
        let modified = modified().ok();
        if modified != started {
            started = modified;
            checks = 0;
        } else if status.is_none_or(|status| !status.is_stopped) {
            checks += 1;
        }
        let is_hung = CHECK_EVERY * checks > HANG;
        let is_large = status.is_some_and(|status| status.resident_bytes > RESIDENT_MAX_BYTES);
        if is_hung || is_large {
            child.kill().await?;
            return Ok(if is_hung { End::Hung } else { End::Large });
        }
    }
}

/// The status of a process, where the system reports it.
#[derive(Clone, Copy)]
struct ProcessStatus {
    resident_bytes: u64,
    /// Whether a signal stopped it, which takes no time of the input.
    is_stopped: bool,
}

impl ProcessStatus {
    fn read(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let value = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)
        };
        let resident_kilobytes: u64 = value("VmRSS:")?.parse().ok()?;
        Some(Self {
            resident_bytes: resident_kilobytes << 10,
            is_stopped: value("State:")? == "T",
        })
    }
}
