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
use crate::processes::now;

/// The variable with the kubeconfig, which the testkit reads.
const KUBECONFIG: &str = "BELLEROPHON_TEST_KUBECONFIG";

/// A test program.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    test: &'static str,
    /// Only tests whose names begin with one of these; empty for all.
    only: &'static [&'static str],
    /// Parts of the names of tests that are not run, and why.
    pub(super) skipped: &'static [(&'static str, &'static str)],
}

const VIRTUAL_TIME: &str = "hours of virtual time";
const FAILOVERS: &str = "each failover waits for a lease of 75 seconds, one per write";
const EVERY_FAULT: &str = "each fault lasts 20 seconds per write, in a new cluster each";

/// The suites.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "fruit-tests",
        package: "bellerophon-fruit",
        test: "fruit",
        only: &[],
        skipped: &[],
    },
    Suite {
        name: "icecream-tests",
        package: "bellerophon-icecream",
        test: "icecream",
        only: &[],
        skipped: &[
            ("converges_under_every_fault", EVERY_FAULT),
            ("standby_replica_completes", FAILOVERS),
        ],
    },
    Suite {
        name: "simple-tests",
        package: "bellerophon-simple",
        test: "simple",
        only: &[],
        skipped: &[
            ("converges_under_every_fault", EVERY_FAULT),
            ("standby_replica_completes", FAILOVERS),
        ],
    },
    Suite {
        name: "secsynch-tests",
        package: "bellerophon-secsynch",
        test: "secsynch",
        only: &[],
        skipped: &[
            ("converges_under_every_fault", EVERY_FAULT),
            ("standby_replica_completes", FAILOVERS),
        ],
    },
    Suite {
        name: "reboot-tests",
        package: "bellerophon-reboot",
        test: "reboot",
        only: &[],
        skipped: &[
            ("random_faults", VIRTUAL_TIME),
            ("converges_after_a_crash", "a rollout of minutes per write"),
            ("agent_started_without_an_api_server", VIRTUAL_TIME),
            ("lost_node_keeps_its_slot", VIRTUAL_TIME),
            ("forged_stage_does_not_reboot", "a drain of ten minutes"),
            (
                "nodes_reboot_one_at_a_time",
                "reboots of more than two minutes",
            ),
        ],
    },
    Suite {
        name: "toolkit-tests",
        package: "bellerophon",
        test: "toolkit",
        only: &[
            "client::",
            "custom_resource::",
            "dynamic::",
            "informer::caches::",
            "manager::namespaces::",
            "trace::",
        ],
        skipped: &[],
    },
    Suite {
        name: "hero-tests",
        package: "bellerophon-hero",
        test: "hero",
        only: &["api::"],
        skipped: &[],
    },
];

/// The results of a suite.
pub(super) struct SuiteResult {
    pub(super) suite: &'static Suite,
    /// Whether each test passed.
    pub(super) tests: BTreeMap<String, bool>,
    pub(super) seconds: f64,
}

/// Runs a suite.
///
/// # Errors
/// It cannot be built or started. Failures of tests are results.
pub(super) fn run(
    root: &Path,
    control_plane: &ControlPlane,
    suite: &'static Suite,
) -> Result<SuiteResult, String> {
    eprintln!(
        "==> cargo test --package {} --test {}",
        suite.package, suite.test
    );
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--package", suite.package]);
        cargo.args(["--test", suite.test]).current_dir(root);
        cargo
    };
    let built = cargo().arg("--no-run").status();
    let built = built.map_err(|e| format!("cannot start cargo: {e}"))?;
    if !built.success() {
        return Err(format!("{} does not build, see above", suite.package));
    }
    let begun = now();
    let mut cargo = cargo();
    cargo.args(["--", "--test-threads=1"]).args(suite.only);
    for (skipped, _) in suite.skipped {
        cargo.args(["--skip", skipped]);
    }
    let mut process = cargo
        .env(KUBECONFIG, control_plane.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    let stdout = process.stdout.take().ok_or("stdout is not piped")?;
    let mut tests = BTreeMap::new();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        eprintln!("    {line}");
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
