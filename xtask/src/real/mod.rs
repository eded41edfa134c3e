//! `cargo xtask real`: operators and toolkit on a control plane of Kubernetes.
//!
//! Steps: build etcd, kube-apiserver, kube-controller-manager and kube-scheduler from Go modules into
//! target/real; start them on loopback; add simulated nodes; run each operator as `bellerophon run`
//! with the service account of its manifests; run the tests of operators and toolkit. The results are
//! a part of docs/real-cluster.md. With `--record-reviews`, only AdmissionReviews are recorded.
//!
//! Guarantee: all processes are stopped at the end, also after a failure.

mod build; // programs from Go modules
mod control_plane; // etcd, kube-apiserver, kube-controller-manager, kube-scheduler
mod operators; // `bellerophon run` with the accounts of the manifests
mod report; // the generated part of the page
mod reviews; // AdmissionReviews of kube-apiserver
mod suites; // tests of this repository

use std::{
    env, fs,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::processes::binary;
use control_plane::ControlPlane;
use operators::Scenario;
use report::Report;
use suites::{Run, Suite, SuiteResult};

/// The maximum number of control planes. Their parts mostly wait, for leases and drains.
const CONTROL_PLANES_MAX: usize = 5;

/// The options of the task.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only the parts with these names; empty for all.
    only: Vec<String>,
    /// Whether the page is written.
    write_docs: bool,
    /// Whether AdmissionReviews are recorded, and nothing else is run.
    record_reviews: bool,
}

impl Options {
    /// Parses the arguments of the task.
    ///
    /// # Errors
    /// An unknown argument.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--write-docs" => options.write_docs = true,
                "--record-reviews" => options.record_reviews = true,
                name if is_part(name) => options.only.push(name.to_owned()),
                other => {
                    let parts: Vec<&str> = parts().collect();
                    let parts = parts.join(", ");
                    return Err(format!(
                        "real takes --write-docs, --record-reviews and {parts}; got {other:?}"
                    ));
                }
            }
        }
        if options.record_reviews && arguments.len() > 1 {
            return Err("--record-reviews takes no other argument".to_owned());
        }
        if options.write_docs && !options.only.is_empty() {
            return Err("--write-docs needs the results of all parts: name none".to_owned());
        }
        Ok(options)
    }

    fn selects(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// The names of the parts: the scenarios of operators, and the suites.
fn parts() -> impl Iterator<Item = &'static str> {
    let scenarios = operators::SCENARIOS.iter().map(|scenario| scenario.name);
    scenarios.chain(suites::SUITES.iter().map(|suite| suite.name))
}

fn is_part(name: &str) -> bool {
    parts().any(|part| part == name)
}

/// Runs everything and prints the results.
///
/// # Errors
/// A program cannot be built or started, or a scenario or a test failed.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let programs = build::build(root)?;
    let directory = env::temp_dir().join(format!("bellerophon-real-{}", std::process::id()));
    create(&directory)?;
    let result = match options.record_reviews {
        true => reviews::record(root, &programs, &directory).map(|()| None),
        false => on_control_planes(root, options, &programs, &directory).map(Some),
    };
    if let Err(error) = fs::remove_dir_all(&directory) {
        eprintln!("xtask: cannot remove {}: {error}", directory.display());
    }
    let Some(report) = result? else {
        return Ok(());
    };
    eprintln!("{}", report.summary());
    if options.write_docs {
        crate::generated_part::write(root, report::PAGE, report::COMMAND, &report.text())?;
    }
    match report.has_failures() {
        true => Err("real: failures, see above; logs are in target/real/logs".to_owned()),
        false => Ok(()),
    }
}

/// Runs the selected parts on several control planes at a time.
fn on_control_planes(
    root: &Path,
    options: &Options,
    programs: &build::Programs,
    directory: &Path,
) -> Result<Report, String> {
    let binary = binary(root)?;
    let scenarios: Vec<&Scenario> = operators::SCENARIOS
        .iter()
        .filter(|scenario| options.selects(scenario.name))
        .collect();
    let suites: Vec<&'static Suite> = suites::SUITES
        .iter()
        .filter(|suite| options.selects(suite.name))
        .collect();
    for suite in &suites {
        suites::build(root, suite)?;
    }
    // What takes longest is first.
    let mut runs: Vec<Run> = suites
        .iter()
        .flat_map(|suite| suites::runs(suite))
        .collect();
    runs.sort_by_key(|run| !run.is_alone());
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    let start = |name: &str| -> Result<ControlPlane, String> {
        let directory = directory.join(name);
        let logs = programs.logs().join(name);
        create(&directory)?;
        create(&logs)?;
        let control_plane = ControlPlane::start(programs, &directory, &logs)?;
        lock(&report).versions = control_plane.versions()?;
        Ok(control_plane)
    };
    // Objects of tests, such as a policy that selects all nodes, change what an operator does: the
    // scenarios have a control plane of their own.
    let work_on_scenarios = || -> Result<(), String> {
        let control_plane = start("operators")?;
        let results = operators::run(root, &control_plane, &binary, &scenarios)?;
        lock(&report).scenarios = results;
        Ok(())
    };
    // Takes runs until none is left.
    let work_on_runs = |number: usize| -> Result<(), String> {
        let mut control_plane = None;
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let control_plane = match &control_plane {
                Some(control_plane) => control_plane,
                None => control_plane.insert(start(&number.to_string())?),
            };
            let result = suites::run(root, control_plane, run)?;
            lock(&report).add(result);
        }
        Ok(())
    };
    let work = |number: usize| {
        if number == 1 && !scenarios.is_empty() {
            work_on_scenarios()?;
        }
        work_on_runs(number)
    };
    let parts = runs.len() + usize::from(!scenarios.is_empty());
    thread::scope(|scope| {
        let numbers = 1..=parts.min(CONTROL_PLANES_MAX);
        let threads: Vec<_> = numbers
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err("a part panicked, see above".to_owned()))
        })
    })?;
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    let position = |result: &SuiteResult| suites.iter().position(|it| it.name == result.suite.name);
    report.suites.sort_by_key(position);
    Ok(report)
}

/// A lock whose other holders may have panicked: each of them only adds results.
fn lock(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(directory: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot create {}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().copied().map(str::to_owned).collect();
        Options::parse(&arguments)
    }

    #[test]
    fn parts_are_selected_by_name() {
        let all = parse(&[]).expect("valid options");
        assert!(all.selects("icecream"));
        let one = parse(&["icecream"]).expect("valid options");
        assert!(one.selects("icecream"));
        assert!(!one.selects("secsynch"));
    }

    #[test]
    fn invalid_options_are_errors() {
        for (arguments, expected) in [
            (&["--fast"][..], "got \"--fast\""),
            (&["--record-reviews", "icecream"], "takes no other argument"),
            (
                &["--write-docs", "icecream"],
                "needs the results of all parts",
            ),
        ] {
            let error = parse(arguments).expect_err("an error");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn page_has_a_generated_part() {
        let page = fs::read_to_string(crate::root().join(report::PAGE)).expect("the page");
        assert!(crate::generated_part::replace(&page, report::COMMAND, "").is_some());
    }
}
