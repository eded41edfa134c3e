//! A worker process: runs one target until its time is over.
//!
//! Inputs: a target, a seed and a duration. Outputs: findings as files, and a [`Report`] on stdout.
//!
//! Guarantee: the input that is running is in a file, so that the supervisor finds it after an
//! abort, a stack overflow or an endless loop.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    time::Duration,
};

use bellerophon_fuzz::{
    Cost, Failure, Limits, Mutator, PeakMemory, Target, execute, record_panics, seeds,
};
use tokio::time::Instant;

use crate::artifact::Artifacts;

/// The longest time that is spent on making one finding smaller.
const MINIMIZE_TIME_MAX: Duration = Duration::from_secs(10);

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) executions: u64,
    pub(crate) outcomes: usize,
    pub(crate) findings: usize,
    /// The highest time and memory of an input.
    pub(crate) cost_max: Cost,
}

/// What a worker is to do.
pub(crate) struct Assignment {
    pub(crate) target: &'static Target,
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    pub(crate) artifacts: Artifacts,
    pub(crate) memory: PeakMemory,
}

struct Worker {
    assignment: Assignment,
    mutator: Mutator,
    /// The running input, for the supervisor.
    current: File,
    /// The failures that were reported already.
    failures: Vec<Failure>,
    outcomes: HashSet<bellerophon_fuzz::Outcome>,
    report: Report,
}

/// Runs the seeds, and then mutated inputs until the time is over.
pub(crate) fn run(assignment: Assignment) -> io::Result<Report> {
    record_panics();
    let start = Instant::now();
    let duration = assignment.duration;
    let seeds = seeds(assignment.target.name)?;
    let mut worker = Worker {
        mutator: Mutator::new(
            seeds.clone(),
            assignment.target.input_max_bytes,
            assignment.seed,
        ),
        current: File::create(assignment.artifacts.current())?,
        failures: Vec::new(),
        outcomes: HashSet::new(),
        report: Report::default(),
        assignment,
    };
    // The first input starts the embedded server, which is not part of its cost.
    worker.execute(&seeds[0])?;
    worker.report = Report::default();
    worker.failures.clear();
    for seed in &seeds {
        worker.execute(seed)?;
    }
    while start.elapsed() < duration {
        let input = worker.mutator.next_input();
        if worker.execute(&input)? {
            worker.mutator.keep(input);
        }
    }
    worker.report.outcomes = worker.outcomes.len();
    Ok(worker.report)
}

impl Worker {
    /// Runs one input. Returns whether its outcome is new.
    fn execute(&mut self, input: &[u8]) -> io::Result<bool> {
        self.current.write_all_at(input, 0)?;
        self.current.set_len(input.len() as u64)?;
        let execution = execute(
            self.assignment.target,
            input,
            &Limits::OPTIMIZED,
            Some(self.assignment.memory),
        );
        let report = &mut self.report;
        report.executions += 1;
        report.cost_max.time = report.cost_max.time.max(execution.cost.time);
        report.cost_max.memory_bytes = report
            .cost_max
            .memory_bytes
            .max(execution.cost.memory_bytes);
        match execution.result {
            Ok(outcome) => Ok(self.outcomes.insert(outcome)),
            Err(failure) => {
                self.found(input, failure)?;
                Ok(false)
            }
        }
    }

    fn found(&mut self, input: &[u8], failure: Failure) -> io::Result<()> {
        if self.failures.iter().any(|known| known.is_same(&failure)) {
            return Ok(());
        }
        let input = self.minimize(input, &failure);
        self.report.findings += 1;
        let path = self
            .assignment
            .artifacts
            .write(&input, self.report.findings)?;
        let name = self.assignment.target.name;
        let length = input.len();
        eprintln!("{name}: {failure}\n    {} ({length} bytes)", path.display());
        self.failures.push(failure);
        Ok(())
    }

    /// Removes parts of an input, larger ones first, as long as it fails in the same way.
    fn minimize(&self, input: &[u8], failure: &Failure) -> Vec<u8> {
        let start = Instant::now();
        let mut smallest = input.to_vec();
        let mut part = smallest.len() / 2;
        while part > 0 {
            let mut at = 0;
            while at < smallest.len() {
                if start.elapsed() > MINIMIZE_TIME_MAX {
                    return smallest;
                }
                let mut smaller = smallest.clone();
                smaller.drain(at..(at + part).min(smallest.len()));
                if self.fails(&smaller, failure) {
                    smallest = smaller;
                } else {
                    at += part;
                }
            }
            part /= 2;
        }
        smallest
    }

    fn fails(&self, input: &[u8], failure: &Failure) -> bool {
        let execution = execute(
            self.assignment.target,
            input,
            &Limits::OPTIMIZED,
            Some(self.assignment.memory),
        );
        execution.result.is_err_and(|found| found.is_same(failure))
    }
}

impl Report {
    /// Writes the report for the supervisor.
    pub(crate) fn write(&self) -> io::Result<()> {
        let line = format!(
            "{} {} {} {} {}\n",
            self.executions,
            self.outcomes,
            self.findings,
            self.cost_max.time.as_micros(),
            self.cost_max.memory_bytes
        );
        io::stdout().write_all(line.as_bytes())
    }

    /// Parses what [`Report::write`] wrote.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Self {
            executions: next()?,
            outcomes: usize::try_from(next()?).ok()?,
            findings: usize::try_from(next()?).ok()?,
            cost_max: Cost {
                time: Duration::from_micros(next()?),
                memory_bytes: usize::try_from(next()?).ok()?,
            },
        })
    }

    /// The sum of two workers of one target.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            executions: self.executions + other.executions,
            outcomes: self.outcomes.max(other.outcomes),
            findings: self.findings + other.findings,
            cost_max: Cost {
                time: self.cost_max.time.max(other.cost_max.time),
                memory_bytes: self.cost_max.memory_bytes.max(other.cost_max.memory_bytes),
            },
        }
    }
}

/// Runs one file, and prints what it took.
pub(crate) fn replay(target: &Target, file: &Path, memory: PeakMemory) -> io::Result<bool> {
    record_panics();
    let input = fs::read(file)?;
    for seed in seeds(target.name)?.iter().take(1) {
        // As in a worker, the embedded server is started before.
        execute(target, seed, &Limits::OPTIMIZED, None);
    }
    let execution = execute(target, &input, &Limits::OPTIMIZED, Some(memory));
    let cost = execution.cost;
    let result = match &execution.result {
        Ok(_) => "within the limits".to_owned(),
        Err(failure) => failure.to_string(),
    };
    eprintln!(
        "{}: {result}; {:.1?}, {} KiB",
        target.name,
        cost.time,
        cost.memory_bytes >> 10
    );
    Ok(execution.result.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_reports_parse_to_themselves() {
        let report = Report {
            executions: 1,
            outcomes: 2,
            findings: 3,
            cost_max: Cost {
                time: Duration::from_micros(4),
                memory_bytes: 5,
            },
        };
        assert_eq!(Report::parse("1 2 3 4 5\n"), Some(report));
        assert_eq!(Report::parse("1 2 3\n"), None);
    }
}
