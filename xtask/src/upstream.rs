//! `cargo xtask upstream`: the conformance tests of Kubernetes, on simulated nodes those that need no
//! containers, and on nodes with local processes all of them.
//!
//! Inputs: Go, the network for its modules, and optionally an image table or a kubeconfig. Outputs: a
//! summary, a report per runtime in `target/upstream`, and `docs/conformance-upstream.md`.
//!
//! The suite is not part of the repository. Skipped tests and their reasons are in
//! `crates/conformance/upstream/tests.json`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{
    processes,
    upstream_page::Page,
    upstream_report::{Report, Tests},
};

type Result<T> = std::result::Result<T, String>;

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The server to test. Default: a new `bellerophon up`.
    kubeconfig: Option<PathBuf>,
    /// The kubectl for tests of kubectl.
    kubectl: Option<PathBuf>,
    /// Only tests that match this expression.
    focus: Option<String>,
    /// Not tests that match this expression, in addition to the list.
    skip: Option<String>,
    /// The image table of nodes that run pods as local processes. Default: pods are simulated.
    images: Option<PathBuf>,
    /// The number of concurrent tests.
    processes: Option<String>,
    /// Use these reports of simulated nodes instead of running the suite. A test that is in several
    /// has the result of the last one.
    reports: Vec<PathBuf>,
    /// The same for local processes.
    process_reports: Vec<PathBuf>,
    /// Write the page of results, which has both runtimes.
    write_docs: bool,
}

impl Options {
    /// Parses the options.
    ///
    /// # Errors
    /// An unknown option, or a missing value.
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let mut value = || {
                rest.next()
                    .cloned()
                    .ok_or_else(|| format!("{name} needs a value"))
            };
            match name.as_str() {
                "--kubeconfig" => options.kubeconfig = Some(value()?.into()),
                "--kubectl" => options.kubectl = Some(value()?.into()),
                "--focus" => options.focus = Some(value()?),
                "--skip" => options.skip = Some(value()?),
                "--images" => options.images = Some(value()?.into()),
                "--procs" => options.processes = Some(value()?),
                "--report" => options.reports.push(value()?.into()),
                "--process-report" => options.process_reports.push(value()?.into()),
                "--write-docs" => options.write_docs = true,
                other => {
                    let known = "--kubeconfig FILE, --kubectl FILE, --focus EXPRESSION, \
                                 --skip EXPRESSION, --images FILE, --procs N, --report FILE, \
                                 --process-report FILE and --write-docs";
                    return Err(format!("upstream takes {known}, got {other:?}"));
                }
            }
        }
        if options.images.is_some() && options.kubeconfig.is_some() {
            return Err("--images and --kubeconfig exclude each other".to_owned());
        }
        let has_reports = !options.reports.is_empty() && !options.process_reports.is_empty();
        if options.write_docs && !has_reports {
            let needed = "--write-docs needs --report and --process-report: the page has both \
                          runtimes; run the suite first, without and with --images";
            return Err(needed.to_owned());
        }
        Ok(options)
    }
}

/// Builds the suite, runs it and prints the results.
///
/// # Errors
/// The suite cannot be built or run, or a test failed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tests = Tests::read(&root.join("crates/conformance/upstream/tests.json"))?;
    let mut reports = Vec::new();
    for paths in [&options.reports, &options.process_reports] {
        if !paths.is_empty() {
            reports.push(Report::read_all(paths)?);
        }
    }
    if reports.is_empty() {
        reports.push(Report::read(&build_and_run(root, options, &tests)?)?);
    }
    for report in &reports {
        eprintln!("{}", report.summary());
    }
    if let [simulated, processes] = reports.as_slice()
        && options.write_docs
    {
        let path = root.join("docs/conformance-upstream.md");
        let page = Page {
            tests: &tests,
            simulated,
            processes,
        };
        fs::write(&path, page.to_string())
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    if reports
        .iter()
        .any(|report| report.failed().next().is_some())
    {
        Err("upstream: tests failed, see above".to_owned())
    } else {
        Ok(())
    }
}

/// The report of a run, by the runtime of its nodes.
fn report_name(options: &Options) -> &'static str {
    match &options.images {
        None => "report.json",
        Some(_) => "process-report.json",
    }
}

/// Builds everything and runs the tests. Returns the path of the report.
fn build_and_run(root: &Path, options: &Options, tests: &Tests) -> Result<PathBuf> {
    let directory = root.join("target/upstream");
    fs::create_dir_all(&directory)
        .map_err(|e| format!("cannot create {}: {e}", directory.display()))?;
    build_suite(root, &directory)?;
    let server = match &options.kubeconfig {
        Some(_) => None,
        None => Some(Server::start(root, &directory, options.images.as_deref())?),
    };
    let kubeconfig = options
        .kubeconfig
        .clone()
        .unwrap_or_else(|| directory.join("kubeconfig"));
    run_suite(&directory, &kubeconfig, options, tests)?;
    drop(server);
    Ok(directory.join(report_name(options)))
}

/// Builds the suite and ginkgo from Go modules.
fn build_suite(root: &Path, directory: &Path) -> Result<()> {
    let sources = root.join("crates/conformance/upstream");
    let output = |name: &str| directory.join(name).display().to_string();
    let steps = [
        vec![
            "test".to_owned(),
            "-c".to_owned(),
            "-vet=off".to_owned(),
            "-ldflags=-s -w".to_owned(),
            "-o".to_owned(),
            output("conformance.test"),
            ".".to_owned(),
        ],
        vec![
            "build".to_owned(),
            "-o".to_owned(),
            output("ginkgo"),
            "github.com/onsi/ginkgo/v2/ginkgo".to_owned(),
        ],
    ];
    for arguments in steps {
        eprintln!("==> go {}", arguments.join(" "));
        let status = Command::new("go")
            .args(&arguments)
            .current_dir(&sources)
            .status()
            .map_err(|e| format!("cannot start go: {e}"))?;
        if !status.success() {
            return Err(format!("go {} failed", arguments[0]));
        }
    }
    Ok(())
}

/// With local processes, the tests that need containers are run.
fn skip(options: &Options, tests: &Tests) -> String {
    let listed = match options.images {
        None => tests.skip(),
        Some(_) => tests.skip_with_processes(),
    };
    let skipped = [Some(listed), options.skip.clone()];
    let skipped = skipped.into_iter().flatten().filter(|it| !it.is_empty());
    skipped.collect::<Vec<_>>().join("|")
}

/// With local processes, all tests of all SIGs are run.
fn focus(options: &Options, tests: &Tests) -> String {
    let focus = options.focus.clone();
    focus.unwrap_or_else(|| match options.images {
        None => tests.focus(),
        Some(_) => "sig-".to_owned(),
    })
}

fn run_suite(directory: &Path, kubeconfig: &Path, options: &Options, tests: &Tests) -> Result<()> {
    let focus = focus(options, tests);
    let mut ginkgo = Command::new(directory.join("ginkgo"));
    ginkgo
        .current_dir(directory)
        .args(["-p", "--no-color", "--keep-going", "--timeout=2h"])
        .arg(format!("--json-report={}", report_name(options)))
        .arg(format!(
            "-procs={}",
            options.processes.as_deref().unwrap_or("4")
        ))
        .arg(format!("--focus=({focus}).*\\[Conformance\\]"))
        .arg(format!("--skip={}", skip(options, tests)))
        .args([
            "./conformance.test",
            "--",
            "--provider=skeleton",
            "--num-nodes=2",
            "--allowed-not-ready-nodes=-1",
            "--disable-log-dump",
        ])
        .args(["--dump-logs-on-failure=false", "--minStartupPods=0"])
        .arg(format!("--kubeconfig={}", kubeconfig.display()));
    if let Some(kubectl) = &options.kubectl {
        ginkgo.arg(format!("--kubectl-path={}", kubectl.display()));
    }
    // The report has the failures. Without a report, the suite could not run at all.
    ginkgo
        .status()
        .map(drop)
        .map_err(|e| format!("cannot start ginkgo: {e}"))
}

/// A `bellerophon up` process, killed on drop.
struct Server(Child);

impl Server {
    fn start(root: &Path, directory: &Path, images: Option<&Path>) -> Result<Self> {
        let cargo = processes::cargo()
            .args(["build", "--package", "bellerophon-cli"])
            .current_dir(root)
            .status();
        if !cargo
            .map_err(|e| format!("cannot start cargo: {e}"))?
            .success()
        {
            return Err("the server does not build".to_owned());
        }
        let mut up = Command::new(crate::target_directory(root).join("debug/bellerophon"));
        if let Some(images) = images {
            up.args(["up", "--runtime", "process", "--images"])
                .arg(images);
        } else {
            up.arg("up");
        }
        let mut process = up
            .args([
                "--cluster",
                "full",
                "--nodes",
                "2",
                "--output",
                "json",
                "--kubeconfig",
            ])
            .arg(directory.join("kubeconfig"))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the server: {e}"))?;
        let stdout = process.stdout.take().ok_or("the server has no output")?;
        let server = Self(process);
        let ready = BufReader::new(stdout)
            .lines()
            .map_while(std::result::Result::ok)
            .any(|line| line.contains(r#""event":"ready""#));
        if ready {
            Ok(server)
        } else {
            Err("the server exited before it was ready".to_owned())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options> {
        let arguments: Vec<String> = arguments.iter().copied().map(str::to_owned).collect();
        Options::parse(&arguments)
    }

    #[test]
    fn options_are_parsed() {
        let options = parse(&["--kubeconfig", "k", "--focus", "Watchers", "--procs", "2"])
            .expect("valid options");
        assert_eq!(options.kubeconfig, Some("k".into()));
        assert_eq!(options.focus.as_deref(), Some("Watchers"));
        assert_eq!(options.processes.as_deref(), Some("2"));
    }

    #[test]
    fn tests_that_need_containers_run_with_local_processes() {
        let lists = r#"{"chosen": ["Secrets"], "left_out": [{"reason": "r", "tests": ["Probing"]}],
            "left_out_of_processes": [{"reason": "r", "tests": ["Serial"]}]}"#;
        let name = format!("upstream-tests-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, lists).expect("a file");
        let tests = Tests::read(&path).expect("valid lists");
        drop(fs::remove_file(path));
        let skipped = |arguments: &[&str]| {
            let options = parse(arguments).expect("valid options");
            skip(&options, &tests)
        };
        assert_eq!(skipped(&[]), "Probing");
        assert_eq!(skipped(&["--skip", "udp"]), "Probing|udp");
        assert_eq!(skipped(&["--skip", "udp", "--images", "i"]), "Serial|udp");
        let focused = |arguments: &[&str]| {
            let options = parse(arguments).expect("valid options");
            focus(&options, &tests)
        };
        assert_eq!(focused(&[]), "Secrets");
        assert_eq!(focused(&["--images", "i"]), "sig-");
        assert_eq!(focused(&["--images", "i", "--focus", "x"]), "x");
    }

    #[test]
    fn invalid_options_are_errors() {
        for (arguments, expected) in [
            (&["--focus"][..], "needs a value"),
            (&["--fast"], "got \"--fast\""),
            (
                &["--images", "i", "--kubeconfig", "k"],
                "exclude each other",
            ),
            (&["--write-docs"], "run the suite first"),
            (&["--write-docs", "--report", "r"], "run the suite first"),
        ] {
            let error = parse(arguments).expect_err("an error");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
