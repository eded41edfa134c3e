//! Histories of the simulation: many seeds, each deterministic, all legal.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::{
    cluster::Wrap,
    scenario::{Passed, run},
};

/// How many histories a test run checks.
const HISTORIES: u64 = 1000;

/// Sets another number, for a long run.
const HISTORIES_VARIABLE: &str = "BELLEROPHON_STORE_HISTORIES";

/// Sets the first seed, to repeat or continue a run.
const SEED_VARIABLE: &str = "BELLEROPHON_STORE_SEED";

/// Seeds that are run twice.
const REPEATED: u64 = 20;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => text.parse().expect("the variable is a number"),
    }
}

#[test]
fn every_history_is_legal_and_heals() {
    let first = number(SEED_VARIABLE, 1);
    let count = number(HISTORIES_VARIABLE, HISTORIES);
    let next = AtomicU64::new(first);
    let totals = Mutex::new(Totals::default());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    match run(seed, Wrap::default()) {
                        Ok(passed) => totals.lock().unwrap().add(&passed),
                        Err(problem) => totals.lock().unwrap().fail(seed, problem),
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    eprintln!("{totals:?}");
    assert!(
        totals.failures.is_empty(),
        "{} of {count} histories failed; repeat one with {SEED_VARIABLE}=SEED {HISTORIES_VARIABLE}=1:\n{}",
        totals.failures.len(),
        totals.first_failures()
    );
    assert!(
        totals.acknowledged > count * 10,
        "the clients did almost nothing"
    );
}

#[test]
fn equal_seeds_take_equal_steps() {
    let first = number(SEED_VARIABLE, 1);
    for seed in first..first + REPEATED {
        let one = run(seed, Wrap::default()).map(|passed| passed.hash);
        let two = run(seed, Wrap::default()).map(|passed| passed.hash);
        assert_eq!(one, two, "seed {seed}");
    }
}

#[derive(Debug, Default)]
struct Totals {
    histories: u64,
    operations: usize,
    acknowledged: u64,
    reads: usize,
    events: usize,
    healed_ms_max: u64,
    faults: BTreeMap<&'static str, u64>,
    failures: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, passed: &Passed) {
        self.histories += 1;
        self.operations += passed.report.operations;
        self.acknowledged += passed.acknowledged as u64;
        self.reads += passed.report.reads;
        self.events += passed.report.events;
        self.healed_ms_max = self.healed_ms_max.max(passed.healed_ms);
        for fault in &passed.faults {
            *self.faults.entry(fault).or_default() += 1;
        }
    }

    fn fail(&mut self, seed: u64, problem: String) {
        self.failures.push((seed, problem));
    }

    fn first_failures(&self) -> String {
        let lines = self.failures.iter().take(5);
        let lines = lines.map(|(seed, problem)| format!("seed {seed}: {problem}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}
