//! `cargo xtask real`: operators and toolkit on a control plane of Kubernetes.
//!
//! Steps: build etcd, kube-apiserver, kube-controller-manager and kube-scheduler from Go modules into
//! target/real; start them on loopback; add simulated nodes; run each operator as `bellerophon run`
//! with the service account of its manifests; run the tests of operators and toolkit. The results are
//! a part of docs/real-cluster.md.
//!
//! Guarantee: all processes are stopped at the end, also after a failure.

mod build; // programs from Go modules
mod control_plane; // etcd, kube-apiserver, kube-controller-manager, kube-scheduler
mod operators; // `bellerophon run` with the accounts of the manifests
mod report; // the generated part of the page
mod suites; // tests of this repository

use std::{env, fs, path::Path};

use crate::processes::binary;
use control_plane::ControlPlane;
use operators::Scenario;
use report::Report;

/// The options of the task.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only the parts with these names; empty for all.
    only: Vec<String>,
    /// Whether the page is written.
    write_docs: bool,
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
                name if is_part(name) => options.only.push(name.to_owned()),
                other => {
                    let parts: Vec<&str> = parts().collect();
                    let parts = parts.join(", ");
                    return Err(format!(
                        "real takes --write-docs and {parts}; got {other:?}"
                    ));
                }
            }
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
    let binary = binary(root)?;
    let directory = env::temp_dir().join(format!("bellerophon-real-{}", std::process::id()));
    let failed = |error| format!("cannot create {}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    let result = on_control_plane(root, options, &programs, &binary, &directory);
    if let Err(error) = fs::remove_dir_all(&directory) {
        eprintln!("xtask: cannot remove {}: {error}", directory.display());
    }
    let report = result?;
    eprintln!("{}", report.summary());
    if options.write_docs {
        crate::generated_part::write(root, report::PAGE, report::COMMAND, &report.text())?;
    }
    match report.has_failures() {
        true => Err("real: failures, see above; logs are in target/real/logs".to_owned()),
        false => Ok(()),
    }
}

fn on_control_plane(
    root: &Path,
    options: &Options,
    programs: &build::Programs,
    binary: &Path,
    directory: &Path,
) -> Result<Report, String> {
    let control_plane = ControlPlane::start(programs, directory)?;
    let mut report = Report::new(control_plane.versions()?);
    let selected: Vec<&Scenario> = operators::SCENARIOS
        .iter()
        .filter(|scenario| options.selects(scenario.name))
        .collect();
    if !selected.is_empty() {
        report.scenarios = operators::run(root, &control_plane, binary, &selected)?;
    }
    for suite in suites::SUITES {
        if options.selects(suite.name) {
            report
                .suites
                .push(suites::run(root, &control_plane, suite)?);
        }
    }
    Ok(report)
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
