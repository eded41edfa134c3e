//! Processes of tasks, and the program `bellerophon`.
//!
//! Guarantees: every wait has a timeout, and no process outlives its handle.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// Longer than a first build of the toolkit takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The maximum number of unread lines; the process waits beyond it.
const UNREAD_LINES_MAX: usize = 1024;

/// The time.
#[expect(
    clippy::disallowed_methods,
    reason = "real processes are timed; no test pauses this clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Cargo without the variables that `cargo run` sets for this program. Build scripts that depend on
/// them, as that of ring does, would compile half of the workspace again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The program, which is built if it does not exist.
pub(crate) fn binary(root: &Path) -> Result<PathBuf, String> {
    let mut command = cargo();
    command
        .args(["build", "--quiet", "--package", "bellerophon-cli"])
        .current_dir(root);
    succeed(&mut command, "cargo build")?;
    Ok(crate::target_directory(root).join("debug/bellerophon"))
}

/// What a command prints, or why it fails.
pub(crate) fn succeed(command: &mut Command, what: &str) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot start {what}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{what} fails: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// A process that is killed at the end.
pub(crate) struct Running {
    process: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let mut process = command
            .env_remove("CARGO_MANIFEST_DIR")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start bellerophon: {error}"))?;
        let stdout = process.stdout.take().ok_or("stdout is not piped")?;
        let (sender, lines) = sync_channel(UNREAD_LINES_MAX);
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Ok(Self { process, lines })
    }

    pub(crate) fn wait_for(&self, text: &str) -> Result<String, String> {
        let begun = now();
        loop {
            let left = TIMEOUT.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left);
            let line = line.map_err(|error| format!("no line with {text:?}: {error}"))?;
            if line.contains(text) {
                return Ok(line);
            }
            if line.contains("build failed") {
                return Err(format!("waiting for {text:?}: {line}"));
            }
        }
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the end.
    pub(crate) fn interrupt(&mut self) -> Result<(), String> {
        let id = self.process.id().to_string();
        succeed(Command::new("kill").args(["-s", "INT", &id]), "kill")?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("bellerophon ends with {status}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
