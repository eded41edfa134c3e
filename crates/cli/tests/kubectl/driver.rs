//! A kubectl with a server of its own.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tokio::time::Instant;

use crate::running::{RunningServer, TIMEOUT};

/// A kubectl at hand.
struct Program {
    path: String,
    /// 20 for 1.20.
    minor: u32,
}

impl Program {
    /// `None` when it does not run.
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

    /// All that are named, or the one on the PATH.
    fn all() -> Vec<Self> {
        let named = env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let found: Vec<Option<Self>> = named.split(':').map(Self::find).collect();
        let required = env::var("BELLEROPHON_REQUIRE_KUBECTL").is_ok_and(|value| value == "1");
        assert!(
            !required || found.iter().all(Option::is_some),
            "one of {named} does not run, and BELLEROPHON_REQUIRE_KUBECTL=1 asks for it"
        );
        found.into_iter().flatten().collect()
    }
}

/// kubectl with a server of its own.
pub(crate) struct Kubectl {
    program: Program,
    pub(crate) server: RunningServer,
}

impl Kubectl {
    /// Runs a test with every kubectl at hand and a bare server, where nothing happens unasked.
    pub(crate) fn each(test: impl Fn(&Self)) {
        Self::each_from(0, test);
    }

    /// The same for those that are 1.`minor` or newer.
    pub(crate) fn each_from(minor: u32, test: impl Fn(&Self)) {
        Self::with_programs(minor, &["--cluster", "none"], test);
    }

    /// Runs a test with every kubectl at hand and a whole cluster.
    pub(crate) fn each_in_cluster(test: impl Fn(&Self)) {
        Self::with_programs(0, &[], test);
    }

    fn with_programs(minor: u32, options: &[&str], test: impl Fn(&Self)) {
        let programs: Vec<Program> = Program::all()
            .into_iter()
            .filter(|program| program.minor >= minor)
            .collect();
        if programs.is_empty() {
            eprintln!(
                "skipped: there is no kubectl from 1.{minor} on; install it or name it in KUBECTL"
            );
        }
        for program in programs {
            eprintln!("with kubectl 1.{}", program.minor);
            test(&Self {
                program,
                server: RunningServer::start(options),
            });
        }
    }

    /// Whether it is 1.`minor` or newer.
    pub(crate) fn is_from(&self, minor: u32) -> bool {
        self.program.minor >= minor
    }

    /// `kubectl LINE`, where words are parted by spaces; files are those of the samples.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program.path);
        command
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples"))
            .env("HOME", self.server.directory.path())
            .args(["--kubeconfig", self.server.kubeconfig()])
            .args(line.split(' '));
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("kubectl starts")
    }

    /// What it prints when it succeeds.
    pub(crate) fn run(&self, line: &str) -> String {
        finished(line, &self.output(line))
    }

    /// Runs it again and again until it prints what is wanted; older ones cannot wait for everything.
    pub(crate) fn until(&self, line: &str, wanted: &str) {
        let began = Instant::now();
        while self.run(line) != wanted {
            assert!(
                began.elapsed() < TIMEOUT,
                "kubectl {line} never prints {wanted:?} but {:?}",
                self.run(line)
            );
        }
    }

    /// What it complains when it fails.
    pub(crate) fn refused(&self, line: &str) -> String {
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

    /// Runs it and holds what it prints against what it must print.
    pub(crate) fn check(&self, cases: &[(&str, &str)]) {
        for (line, wanted) in cases {
            assert_eq!(self.run(line), *wanted, "kubectl {line}");
        }
    }

    /// Runs it and holds the beginning of what it prints against what it must print; newer ones say more.
    pub(crate) fn check_starts(&self, cases: &[(&str, &str)]) {
        for (line, wanted) in cases {
            let printed = self.run(line);
            assert!(printed.starts_with(wanted), "kubectl {line}\n{printed}");
        }
    }

    /// The differences that `kubectl diff` finds; empty for none.
    pub(crate) fn diff(&self, line: &str) -> String {
        let output = self
            .command(line)
            .env("KUBECTL_EXTERNAL_DIFF", "diff -u -N")
            .output()
            .expect("kubectl starts");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let expected = if out.is_empty() { 0 } else { 1 };
        assert_eq!(
            output.status.code(),
            Some(expected),
            "kubectl {line}\n{out}{err}"
        );
        out.into_owned()
    }

    /// Edits with a program that replaces one text by another.
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
        finished(line, &output)
    }

    /// The table it prints, words parted by single spaces.
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
        fs::write(&file, text).expect("written");
        file.display().to_string()
    }

    /// Writes what a controller would have written: a status, by the address of the object.
    pub(crate) fn write_status(&self, path: &str, status: Value) {
        let mut object = self.json(&format!("get --raw {path}"));
        object["status"] = status;
        let file = self.write("status.json", &object.to_string());
        self.run(&format!("replace --raw {path}/status -f {file}"));
    }
}

fn finished(line: &str, output: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "kubectl {line}\n{out}{err}");
    out.trim_end().to_owned()
}

/// Every part stands in the text, one after the other.
pub(crate) fn assert_in_order(text: &str, parts: &[&str]) {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = words.as_str();
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            panic!("{part:?} is not in its place in\n{text}")
        };
        rest = after;
    }
}
