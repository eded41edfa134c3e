//! `cargo xtask upstream`: Kubernetes' own conformance tests, those that need no container, against a server.
//! In: Go, the network for its modules, and a kubeconfig or nothing. Out: how many passed, which did not, and `docs/conformance-upstream.md`.
//! Holds: nothing of the suite is kept in this repository; what is left out, and why, is in `crates/conformance/upstream/tests.json`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::upstream_report::{Report, Tests};

type Result<T> = std::result::Result<T, String>;

/// What the command line may say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Ask this server; without it a `bellerophon up` is started.
    kubeconfig: Option<PathBuf>,
    /// The kubectl that tests of kubectl run.
    kubectl: Option<PathBuf>,
    /// Only tests that match this expression.
    focus: Option<String>,
    /// How many tests run at once.
    processes: Option<String>,
    /// Run nothing: tell of the run that left this report.
    report: Option<PathBuf>,
    /// Write the page of results anew.
    write_docs: bool,
}

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// An option that is not known, or lacks its value.
    pub fn read(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let mut value = || {
                rest.next()
                    .cloned()
                    .ok_or_else(|| format!("{name} wants a value"))
            };
            match name.as_str() {
                "--kubeconfig" => options.kubeconfig = Some(value()?.into()),
                "--kubectl" => options.kubectl = Some(value()?.into()),
                "--focus" => options.focus = Some(value()?),
                "--procs" => options.processes = Some(value()?),
                "--report" => options.report = Some(value()?.into()),
                "--write-docs" => options.write_docs = true,
                other => {
                    let known = "--kubeconfig FILE, --kubectl FILE, --focus EXPRESSION, --procs N, --report FILE and --write-docs";
                    return Err(format!("upstream takes {known}, got {other:?}"));
                }
            }
        }
        if options.write_docs && options.focus.is_some() {
            return Err(
                "the page tells of all tests: --write-docs and --focus do not go together"
                    .to_owned(),
            );
        }
        Ok(options)
    }
}

/// Builds the suite, runs it and tells what came out.
///
/// # Errors
/// What is missing, or the tests that did not pass.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tests = Tests::read(&root.join("crates/conformance/upstream/tests.json"))?;
    let report = match &options.report {
        Some(report) => report.clone(),
        None => run_anew(root, options, &tests)?,
    };
    let report = Report::read(&report)?;
    eprintln!("{}", report.summary());
    if options.write_docs {
        let page = root.join("docs/conformance-upstream.md");
        fs::write(&page, report.page(&tests))
            .map_err(|e| format!("cannot write {}: {e}", page.display()))?;
    }
    if report.failed().next().is_some() {
        Err("upstream: not every test passed, see above".to_owned())
    } else {
        Ok(())
    }
}

/// Builds everything, runs the tests and tells where their report is.
fn run_anew(root: &Path, options: &Options, tests: &Tests) -> Result<PathBuf> {
    let folder = root.join("target/upstream");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    build_suite(root, &folder)?;
    let server = match &options.kubeconfig {
        Some(_) => None,
        None => Some(Server::start(root, &folder)?),
    };
    let kubeconfig = options
        .kubeconfig
        .clone()
        .unwrap_or_else(|| folder.join("kubeconfig"));
    run_suite(&folder, &kubeconfig, options, tests)?;
    drop(server);
    Ok(folder.join("report.json"))
}

/// The suite and its runner, from Go modules.
fn build_suite(root: &Path, folder: &Path) -> Result<()> {
    let sources = root.join("crates/conformance/upstream");
    let output = |name: &str| folder.join(name).display().to_string();
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

fn run_suite(folder: &Path, kubeconfig: &Path, options: &Options, tests: &Tests) -> Result<()> {
    let focus = options.focus.clone().unwrap_or_else(|| tests.chosen());
    let mut ginkgo = Command::new(folder.join("ginkgo"));
    ginkgo
        .current_dir(folder)
        .args([
            "-p",
            "--no-color",
            "--keep-going",
            "--timeout=2h",
            "--json-report=report.json",
        ])
        .arg(format!(
            "-procs={}",
            options.processes.as_deref().unwrap_or("4")
        ))
        .arg(format!("--focus=({focus}).*\\[Conformance\\]"))
        .arg(format!("--skip={}", tests.left_out()))
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
    // Whether tests failed is in the report; only a suite that could not run at all leaves none.
    ginkgo
        .status()
        .map(drop)
        .map_err(|e| format!("cannot start ginkgo: {e}"))
}

/// A server that ends with the task.
struct Server(Child);

impl Server {
    fn start(root: &Path, folder: &Path) -> Result<Self> {
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--package", "bellerophon-cli"])
            .current_dir(root)
            .status();
        if !cargo
            .map_err(|e| format!("cannot start cargo: {e}"))?
            .success()
        {
            return Err("the server does not build".to_owned());
        }
        let mut process = Command::new(root.join("target/debug/bellerophon"))
            .args([
                "up",
                "--cluster",
                "full",
                "--nodes",
                "2",
                "--output",
                "json",
                "--kubeconfig",
            ])
            .arg(folder.join("kubeconfig"))
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
            Err("the server ended before it was ready".to_owned())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Options> {
        Options::read(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn options_are_read_and_misuse_is_told() {
        let all = read(&["--kubeconfig", "k", "--focus", "Watchers", "--procs", "2"])
            .expect("good options");
        assert_eq!(
            (
                all.kubeconfig,
                all.focus.as_deref(),
                all.processes.as_deref()
            ),
            (Some("k".into()), Some("Watchers"), Some("2"))
        );
        for (words, why) in [
            (&["--focus"][..], "wants a value"),
            (&["--fast"], "got \"--fast\""),
            (&["--write-docs", "--focus", "x"], "do not go together"),
        ] {
            assert!(read(words).expect_err("misuse").contains(why), "{words:?}");
        }
    }
}
