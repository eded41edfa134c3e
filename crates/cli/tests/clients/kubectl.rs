//! A kubectl with its own server.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    client::{self, Client, ClientTest},
    running::{RunningServer, TIMEOUT},
};

/// An installed kubectl.
#[derive(Clone)]
struct Program {
    path: String,
    /// The minor version: 20 for 1.20.
    minor: u32,
}

impl Program {
    /// The program at a path; `None` if it cannot be run.
    fn find(path: &str) -> Option<Self> {
        let output = Command::new(path)
            .args(["version", "--client", "-o", "json"])
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        let version: Value = serde_json::from_slice(&output.stdout).ok()?;
        // Vendors add a plus sign to the minor version.
        let minor = version["clientVersion"]["minor"]
            .as_str()?
            .trim_end_matches('+')
            .parse()
            .ok()?;
        Some(Self {
            path: path.to_owned(),
            minor,
        })
    }

    /// The programs in KUBECTL, or the one on the PATH; an error for each one that cannot be run.
    fn all() -> Vec<Result<Self, String>> {
        let named = env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let find = |path| Self::find(path).ok_or_else(|| format!("{path} cannot be run"));
        named.split(':').map(find).collect()
    }
}

/// What a test runs against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setup {
    /// An API server without controllers.
    Server,
    /// A full cluster.
    Cluster,
    /// A cluster whose pods are local processes. The image `busybox` is the shell.
    Processes,
}

const PROCESSES: [&str; 8] = [
    "--runtime",
    "process",
    "--image",
    "busybox=/bin/sh",
    "--nodes",
    "1",
    "--operators",
    "none",
];

/// A test that runs with every kubectl, each with its own server.
pub(crate) struct KubectlTest {
    name: &'static str,
    setup: Setup,
    /// The oldest minor version of kubectl that has the commands.
    minor_min: u32,
    run: Box<dyn Fn(&Kubectl) + Send>,
}

impl KubectlTest {
    /// A test that is a function, and has its name.
    pub(crate) fn new<F: Fn(&Kubectl) + Send + 'static>(setup: Setup, run: F) -> Self {
        Self {
            name: client::name_of::<F>(),
            setup,
            minor_min: 0,
            run: Box::new(run),
        }
    }

    /// Needs a kubectl of 1.`minor` or newer.
    pub(crate) fn since(self, minor: u32) -> Self {
        Self {
            minor_min: minor,
            ..self
        }
    }

    fn check(&self, program: &Program) -> Result<(), String> {
        if program.minor >= self.minor_min {
            return Ok(());
        }
        let Program { minor, .. } = program;
        let minor_min = self.minor_min;
        Err(format!("kubectl 1.{minor} is older than 1.{minor_min}"))
    }

    fn run(&self, program: Program) {
        let options: &[&str] = match self.setup {
            Setup::Server => &["--cluster", "none"],
            Setup::Cluster => &[],
            Setup::Processes => &PROCESSES,
        };
        (self.run)(&Kubectl {
            program,
            server: RunningServer::start(options),
        });
    }
}

/// The tests with every program.
pub(crate) fn with_each_program(tests: fn() -> Vec<KubectlTest>) -> Vec<ClientTest> {
    let programs = Program::all().into_iter();
    programs
        .flat_map(|program| {
            tests()
                .into_iter()
                .map(move |test| with_program(test, program.clone()))
        })
        .collect()
}

fn with_program(test: KubectlTest, program: Result<Program, String>) -> ClientTest {
    let name = test.name;
    match program {
        Ok(program) => {
            let label = format!("kubectl 1.{}", program.minor);
            let is_supported = test.check(&program);
            Client::new(label, None, is_supported).test(name, move || test.run(program))
        }
        Err(reason) => {
            let require = Some("BELLEROPHON_REQUIRE_KUBECTL");
            Client::new("kubectl".to_owned(), require, Err(reason)).test(name, || {})
        }
    }
}

/// A kubectl with its own server.
pub(crate) struct Kubectl {
    program: Program,
    pub(crate) server: RunningServer,
}

impl Kubectl {
    /// Whether it is 1.`minor` or newer.
    pub(crate) fn is_from(&self, minor: u32) -> bool {
        self.program.minor >= minor
    }

    /// `kubectl LINE`, with arguments separated by spaces, in the directory of the samples.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = self.program();
        command
            .args(["--kubeconfig", self.server.kubeconfig()])
            .args(line.split(' '));
        command
    }

    /// `kubectl` without arguments, in the directory of the samples: a plugin comes before flags.
    pub(crate) fn program(&self) -> Command {
        let mut command = Command::new(&self.program.path);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples"))
            .env("HOME", self.server.directory.path());
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("kubectl starts")
    }

    /// The output of a command that succeeds.
    pub(crate) fn run(&self, line: &str) -> String {
        stdout_of(line, &self.output(line))
    }

    /// Repeats a command until it prints the expected text; older versions of `kubectl wait` cannot
    /// wait for everything.
    pub(crate) fn wait_until(&self, line: &str, expected: &str) {
        let start = Instant::now();
        loop {
            let printed = self.run(line);
            if printed == expected {
                return;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "kubectl {line} prints {printed:?}, not {expected:?}"
            );
        }
    }

    /// The stderr of a command that fails.
    pub(crate) fn run_failing(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(
            !output.status.success(),
            "kubectl {line} succeeds: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned()
    }

    /// Runs commands and compares their output.
    pub(crate) fn check(&self, cases: &[(&str, &str)]) {
        for (line, expected) in cases {
            assert_eq!(self.run(line), *expected, "kubectl {line}");
        }
    }

    /// Runs commands and compares the start of their output, since newer versions print more.
    pub(crate) fn check_prefixes(&self, cases: &[(&str, &str)]) {
        for (line, expected) in cases {
            let printed = self.run(line);
            assert!(printed.starts_with(expected), "kubectl {line}\n{printed}");
        }
    }

    /// The differences that `kubectl diff` finds; empty for none.
    pub(crate) fn diff(&self, line: &str) -> String {
        let output = self
            .command(line)
            .env("KUBECTL_EXTERNAL_DIFF", "diff -u -N")
            .output()
            .expect("kubectl starts");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected = if stdout.is_empty() { 0 } else { 1 };
        assert_eq!(
            output.status.code(),
            Some(expected),
            "kubectl {line}\n{stdout}{stderr}"
        );
        stdout.into_owned()
    }

    /// Runs `kubectl edit` with an editor that replaces one text by another.
    pub(crate) fn edit(&self, line: &str, from: &str, to: &str) -> String {
        let script = self.write(
            "editor.sh",
            &format!("#!/bin/sh\nsed -i 's|{from}|{to}|' \"$1\"\n"),
        );
        let output = self
            .command(line)
            .env("KUBE_EDITOR", format!("sh {script}"))
            .output()
            .expect("kubectl starts");
        stdout_of(line, &output)
    }

    /// The rows of a table, with columns separated by single spaces.
    pub(crate) fn table(&self, line: &str) -> Vec<String> {
        self.run(line)
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    pub(crate) fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(line)).expect("JSON")
    }

    /// Writes a file for kubectl to read and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let file = self.server.directory.path().join(name);
        fs::write(&file, text).expect("a file");
        file.display().to_string()
    }

    /// Writes the status of the object at a path, as a controller does.
    pub(crate) fn write_status(&self, path: &str, status: Value) {
        let mut object = self.json(&format!("get --raw {path}"));
        object["status"] = status;
        let file = self.write("status.json", &object.to_string());
        self.run(&format!("replace --raw {path}/status -f {file}"));
    }
}

/// The stdout of a command that succeeded.
fn stdout_of(line: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {line}\n{stdout}{stderr}");
    stdout.trim_end().to_owned()
}

/// Checks that a text contains all parts, one after the other. White space is normalized.
pub(crate) fn assert_in_order(text: &str, parts: &[&str]) {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = words.as_str();
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            panic!("{part:?} is missing or out of order in\n{text}")
        };
        rest = after;
    }
}
