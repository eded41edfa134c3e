//! Tests of this repository on a control plane of Kubernetes.
//!
//! Input: suites, each a test program of cargo. Output: the result of each of their tests.
//!
//! The tests are those that run on the embedded API server. With the kubeconfig in their environment
//! they use the given control plane, in real time and one at a time.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use super::control_plane::ControlPlane;
use crate::processes::{self, now};

/// The variable with the kubeconfig, which the testkit reads.
const KUBECONFIG: &str = "BELLEROPHON_TEST_KUBECONFIG";

/// A test program.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    test: &'static str,
    /// Parts of the names of tests that take minutes: those of each run beside the others.
    pub(super) alone: &'static [&'static str],
    /// Parts of the names of tests that are not run, and why.
    pub(super) skipped: &'static [(&'static str, &'static str)],
}

/// A run of tests of a suite.
pub(super) struct Run {
    pub(super) suite: &'static Suite,
    /// The part of the names of the tests; `None` for the others of the suite.
    alone: Option<&'static str>,
}

impl Run {
    /// Whether it is a test that takes minutes.
    pub(super) fn is_alone(&self) -> bool {
        self.alone.is_some()
    }
}

/// The runs of a suite.
pub(super) fn runs(suite: &'static Suite) -> impl Iterator<Item = Run> {
    let alone = suite.alone.iter().map(|name| Some(*name));
    alone.chain([None]).map(move |alone| Run { suite, alone })
}

/// Each failover waits until the lease of the leader has expired, after 75 seconds.
const CONVERGENCE: &[&str] = &["standby_replica_completes", "converges_under_every_fault"];

const OWN_SERVER: &str = "it starts an API server of its own";
const IN_MEMORY: &str = "it needs no API server";

/// The tests of the toolkit that are not run, and why.
const TOOLKIT_SKIPPED: &[(&str, &str)] = &[
    (
        "determinism::",
        "two runs have equal requests at equal times",
    ),
    (
        "random_histories_with_faults",
        "300 histories in virtual time",
    ),
    (
        "leader_rotates_the_authority",
        "it advances time to the end of certificates",
    ),
    ("client::retries", OWN_SERVER),
    (
        "http_410_on_watch_start",
        "its server is a function that has compacted every requested version",
    ),
    ("two_replicas_that_start", OWN_SERVER),
    ("pods_of_the_operator_start", OWN_SERVER),
    ("panics_deadlines_and_failures", OWN_SERVER),
    ("dry_run_has_no_side_effect", OWN_SERVER),
    ("webhook::conversion::", IN_MEMORY),
    ("webhook::declaration::", IN_MEMORY),
    ("webhook::recorded::", IN_MEMORY),
    ("webhook::reviews::", IN_MEMORY),
];

/// The suites.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "fruit-tests",
        package: "bellerophon-fruit",
        test: "fruit",
        alone: &[],
        skipped: &[],
    },
    Suite {
        name: "icecream-tests",
        package: "bellerophon-icecream",
        test: "icecream",
        alone: CONVERGENCE,
        skipped: &[],
    },
    Suite {
        name: "simple-tests",
        package: "bellerophon-simple",
        test: "simple",
        alone: CONVERGENCE,
        skipped: &[],
    },
    Suite {
        name: "secsynch-tests",
        package: "bellerophon-secsynch",
        test: "secsynch",
        alone: CONVERGENCE,
        skipped: &[],
    },
    Suite {
        name: "reboot-tests",
        package: "bellerophon-reboot",
        test: "reboot",
        alone: &[
            "forged_stage_does_not_reboot",
            "lost_node_keeps_its_slot",
            "nodes_reboot_one_at_a_time",
            "agent_started_without_an_api_server",
            "two_active_controllers",
            "timed_out_drain",
            "forged_end_does_not",
        ],
        skipped: &[
            ("random_faults", "hours of virtual time"),
            (
                "converges_after_a_crash",
                "a rollout of more than a minute for each write",
            ),
        ],
    },
    Suite {
        name: "toolkit-tests",
        package: "bellerophon",
        test: "toolkit",
        alone: &[
            "regressions::",
            "controller::results::",
            "controller::options::",
            "controller::workers::",
            "manager::",
            "read_your_writes::",
            "fairness::",
        ],
        skipped: TOOLKIT_SKIPPED,
    },
    Suite {
        name: "hero-tests",
        package: "bellerophon-hero",
        test: "hero",
        alone: &[
            "backup_of_a_deleted_pod",
            "operator_uses_exactly",
            "scheduled_backups",
            "alerts_and_dashboard",
        ],
        skipped: &[
            (
                "convergence::",
                "9 scenarios under four faults and with crashes: an installation with a server that \
                 is unreachable for 20 seconds after each write takes more than ten minutes",
            ),
            ("histories::", IN_MEMORY),
            ("scenarios::", IN_MEMORY),
            ("every_alert_has_a_runbook", IN_MEMORY),
            ("dashboard_is_json", IN_MEMORY),
        ],
    },
];

/// The results of a suite.
pub(super) struct SuiteResult {
    pub(super) suite: &'static Suite,
    /// Whether each test passed.
    pub(super) tests: BTreeMap<String, bool>,
    pub(super) seconds: f64,
}

/// Builds a suite.
///
/// # Errors
/// It cannot be built.
pub(super) fn build(root: &Path, suite: &Suite) -> Result<(), String> {
    let built = cargo(root, suite).arg("--no-run").status();
    let built = built.map_err(|e| format!("cannot start cargo: {e}"))?;
    match built.success() {
        true => Ok(()),
        false => Err(format!("{} does not build, see above", suite.package)),
    }
}

fn cargo(root: &Path, suite: &Suite) -> Command {
    let mut cargo = processes::cargo();
    // All packages, for the features of `cargo test --workspace`: nothing is built twice.
    cargo.args(["test", "--workspace", "--test", suite.test]);
    cargo.current_dir(root);
    cargo
}

/// Runs tests of a suite that was built.
///
/// # Errors
/// It cannot be started. Failures of tests are results.
pub(super) fn run(
    root: &Path,
    control_plane: &ControlPlane,
    run: &Run,
) -> Result<SuiteResult, String> {
    let suite = run.suite;
    let name = run.alone.unwrap_or(suite.name);
    eprintln!("==> {name}");
    let begun = now();
    let mut cargo = cargo(root, suite);
    cargo.args(["--quiet", "--", "--format=pretty", "--test-threads=1"]);
    let skipped = suite.skipped.iter().map(|(test, _)| *test);
    let others = match run.alone {
        Some(_) => &[],
        None => suite.alone,
    };
    for test in skipped.chain(others.iter().copied()) {
        cargo.args(["--skip", test]);
    }
    cargo.args(run.alone);
    let mut process = cargo
        .env(KUBECONFIG, control_plane.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    let stdout = process.stdout.take().ok_or("stdout is not piped")?;
    let mut tests = BTreeMap::new();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        eprintln!("{name}: {line}");
        tests.extend(parse(&line));
    }
    // The results are those of the tests.
    drop(process.wait());
    if tests.is_empty() {
        return Err(format!("{} has no results, see above", suite.package));
    }
    Ok(SuiteResult {
        suite,
        tests,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// The name of a test, and whether it passed; `None` for other lines.
fn parse(line: &str) -> Option<(String, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match result {
        "ok" => Some((name.to_owned(), true)),
        "FAILED" => Some((name.to_owned(), false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libtest_are_results() {
        let result = |name: &str, passed| Some((name.to_owned(), passed));
        assert_eq!(
            parse("test api::it_works ... ok"),
            result("api::it_works", true)
        );
        assert_eq!(parse("test it_works ... FAILED"), result("it_works", false));
        for line in [
            "test it_works ... ignored, needs a tool",
            "test result: ok. 3 passed; 0 failed",
            "running 3 tests",
            "",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
