//! Fuzzing with a stable compiler: `cargo xtask fuzz`.
//!
//! Runs every target from its seeds, without coverage: inputs with a new outcome are mutated
//! further. Exit codes: 0 no findings, 1 findings or an error, 2 usage error.

mod artifact; // files of running inputs and findings
mod supervisor; // a process per target
mod worker; // the inputs of one target

use std::{io, path::PathBuf, process::ExitCode, thread, time::Duration};

use bellerophon_fuzz::{PeakMemory, TARGETS, Target};
use clap::Parser;
use peak_alloc::PeakAlloc;
use rand::{TryRng as _, rngs::SysRng};

use crate::{artifact::Artifacts, supervisor::Plan, worker::Assignment};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MEMORY: PeakMemory = PeakMemory {
    start: || {
        ALLOCATOR.reset_peak_usage();
        ALLOCATOR.current_usage()
    },
    peak: || ALLOCATOR.peak_usage(),
};

/// Runs the fuzz targets with mutated inputs and reports panics, and inputs that take too much time
/// or memory.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask fuzz")]
struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 10, conflicts_with = "minutes")]
    seconds: u64,
    /// Minutes for each target.
    #[arg(long)]
    minutes: Option<u64>,
    /// A target, which may be repeated; default: all targets.
    #[arg(long = "target")]
    targets: Vec<String>,
    /// The seed of the mutations; default: a new one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// How many targets run at a time; default: the number of processors.
    #[arg(long)]
    jobs: Option<usize>,
    /// Runs one target with this file only.
    #[arg(long, requires = "targets")]
    input: Option<PathBuf>,
    /// Lists the targets.
    #[arg(long)]
    list: bool,
    /// Runs one target in this process.
    #[arg(long, hide = true)]
    worker: bool,
    #[arg(long, hide = true, default_value_t = 0)]
    milliseconds: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(findings) => {
            eprintln!("{findings} findings");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of findings.
fn run(options: &Options) -> io::Result<usize> {
    if options.list {
        for target in TARGETS {
            eprintln!("{}", target.name);
        }
        return Ok(0);
    }
    let targets = targets(&options.targets)?;
    if let Some(file) = &options.input {
        let mut findings = 0;
        for target in targets {
            findings += usize::from(!worker::replay(target, file, MEMORY)?);
        }
        return Ok(findings);
    }
    let seed = match options.seed {
        Some(seed) => seed,
        // 32 bits are easier to type.
        None => u64::from(SysRng.try_next_u32().map_err(io::Error::other)?),
    };
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    if options.worker {
        let report = worker::run(Assignment {
            target: targets[0],
            seed,
            duration: Duration::from_millis(options.milliseconds),
            artifacts: Artifacts::new(&directory, targets[0].name, seed)?,
            memory: MEMORY,
        })?;
        report.write()?;
        return Ok(0);
    }
    eprintln!("--seed {seed}");
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let plan = Plan {
        targets,
        seed,
        duration: Duration::from_secs(options.minutes.map_or(options.seconds, |m| m * 60)),
        jobs: options.jobs.unwrap_or_else(processors),
        directory,
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(supervisor::run(plan))
}

/// The targets with these names, or all targets.
fn targets(names: &[String]) -> io::Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find = |name: &String| {
        let unknown = || io::Error::other(format!("unknown target {name}; --list lists them"));
        Target::find(name).ok_or_else(unknown)
    };
    names.iter().map(find).collect()
}
