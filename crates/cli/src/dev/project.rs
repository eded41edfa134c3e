//! The project of the working directory: its language, how it is built and run.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    task::JoinHandle,
};

use super::process::ProcessGroup;
use crate::error::CliError;

/// Where builds without a directory of their own put the program.
const PROGRAM: &str = ".bellerophon/operator";

/// A project that `bellerophon dev` runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Project {
    root: PathBuf,
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Go,
    Python,
}

/// The files that identify the language of a project.
const MARKERS: [(&str, Language); 3] = [
    ("Cargo.toml", Language::Rust),
    ("go.mod", Language::Go),
    ("operator.py", Language::Python),
];

impl Project {
    /// The project of a directory.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn find(root: &Path) -> Result<Self, CliError> {
        let mut markers = MARKERS.into_iter();
        match markers.find(|(file, _)| root.join(file).is_file()) {
            Some((_, language)) => Ok(Self {
                root: root.to_owned(),
                language,
            }),
            None => Err(CliError::Usage(format!(
                "{} has no Cargo.toml, go.mod or operator.py",
                root.display()
            ))
            .with_hint("create a project with `bellerophon new NAME`, and run `dev` in it")),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether its program prints its manifests, CRDs and permissions included.
    pub(super) fn has_manifests(&self) -> bool {
        self.language == Language::Rust
    }

    /// Whether its program serves webhooks with a certificate that it is given.
    pub(super) fn is_given_certificate(&self) -> bool {
        matches!(self.language, Language::Go | Language::Python)
    }

    /// Starts a build.
    ///
    /// # Errors
    /// The compiler cannot be started.
    pub(super) fn build(&self) -> Result<Build, CliError> {
        let mut command = match self.language {
            Language::Rust => {
                let mut cargo = Command::new("cargo");
                // Diagnostics go to stderr as text, artifacts to stdout as JSON.
                cargo.args(["build", "--message-format=json-render-diagnostics"]);
                cargo.stdout(Stdio::piped());
                cargo
            }
            Language::Go => {
                let mut shell = Command::new("sh");
                let build = format!("go build -o {PROGRAM} .");
                let script = match self.root.join("go.sum").exists() {
                    true => build,
                    false => format!("go mod tidy && {build}"),
                };
                shell.args(["-c", &script]);
                shell
            }
            Language::Python => Command::new("true"),
        };
        command.current_dir(&self.root);
        let what = command
            .as_std()
            .get_program()
            .to_string_lossy()
            .into_owned();
        let process = ProcessGroup::start(&mut command).map_err(|error| {
            CliError::context(&format!("cannot run {what}"))(error)
                .with_hint("install it, or add it to the PATH")
        })?;
        Ok(Build(tokio::spawn(finish(process, self.clone()))))
    }

    /// The command that runs the operator, which serves webhooks at an address if there is one.
    pub(super) fn run(&self, program: &Path, webhooks: Option<SocketAddr>) -> Command {
        let mut command = match self.language {
            Language::Rust | Language::Go => Command::new(program),
            Language::Python => {
                let own = self.root.join(".venv/bin/kopf");
                let kopf = match own.is_file() {
                    true => own,
                    false => PathBuf::from("kopf"),
                };
                let mut command = Command::new(kopf);
                command.args(["run", "--all-namespaces", "--standalone", "operator.py"]);
                command
            }
        };
        if self.language == Language::Rust {
            command.args(["run", "--trace"]);
            command.args(webhooks.map(|address| format!("--webhooks=https://{address}")));
        }
        command.current_dir(&self.root);
        command
    }
}

/// A build under way.
#[derive(Debug)]
pub(super) struct Build(JoinHandle<io::Result<Option<PathBuf>>>);

impl Build {
    /// Waits for its end: the program, or `None` if the build failed. Cancel safe.
    ///
    /// # Errors
    /// The output cannot be read.
    pub(super) async fn finish(&mut self) -> io::Result<Option<PathBuf>> {
        (&mut self.0)
            .await
            .unwrap_or_else(|error| Err(error.into()))
    }

    /// Ends the build, and all processes of it.
    pub(super) async fn cancel(self) {
        self.0.abort();
        // Aborted, or it ended before.
        let _result = self.0.await;
    }
}

/// Reads the messages of the compiler, and waits for its end.
async fn finish(mut process: ProcessGroup, project: Project) -> io::Result<Option<PathBuf>> {
    let mut program = None;
    if let Some(stdout) = process.stdout() {
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            program = executable(&line).or(program);
        }
    }
    let status = process.wait().await?;
    Ok(match project.language {
        _ if !status.success() => None,
        Language::Rust => program,
        Language::Go | Language::Python => Some(project.root.join(PROGRAM)),
    })
}

/// The program of a message of `cargo build --message-format=json`.
fn executable(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_program = message["reason"] == "compiler-artifact";
    let path = message["executable"].as_str().filter(|_| is_program)?;
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_is_that_of_the_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        assert!(matches!(Project::find(root), Err(CliError::Usage(_))));
        for (file, language) in MARKERS.into_iter().rev() {
            std::fs::write(root.join(file), "").expect("written");
            assert_eq!(Project::find(root).expect("a project").language, language);
        }
    }

    #[test]
    fn program_is_read_from_the_messages_of_cargo() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"]},"executable":"/t/hero"}"#;
        assert_eq!(executable(line), Some("/t/hero".into()));
        for line in [
            r#"{"reason":"compiler-artifact","executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "text",
        ] {
            assert_eq!(executable(line), None, "{line}");
        }
    }
}
