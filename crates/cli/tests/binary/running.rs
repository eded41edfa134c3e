//! A `bellerophon up` process for one test.
//!
//! Guarantees: every wait has a timeout; no process and no file outlives its test.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// The timeout of every wait: longer than anything takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of unread lines; the reader thread waits beyond it.
const UNREAD_LINES_MAX: usize = 1024;

/// The output of a process, line by line.
pub(crate) struct Lines(pub(crate) Receiver<String>);

impl Lines {
    /// Starts to read the output of a process.
    pub(crate) fn new(source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(UNREAD_LINES_MAX);
        thread::spawn(move || {
            BufReader::new(source)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self(receiver)
    }

    /// Waits for the next line that matches.
    pub(crate) fn next_matching(&self, matches: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self
                .0
                .recv_timeout(TIMEOUT)
                .expect("the process prints the line within the timeout");
            if matches(&line) {
                return line;
            }
        }
    }
}

/// A running server with its own directory, killed on drop.
pub(crate) struct RunningServer {
    pub(crate) process: Child,
    pub(crate) directory: TempDir,
    /// The ready message.
    pub(crate) ready: Value,
}

impl RunningServer {
    /// Starts `bellerophon up` with these options, and waits until it is ready.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_with(options, &[])
    }

    /// The same with variables of the environment.
    pub(crate) fn start_with(options: &[&str], env: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = command(&directory)
            .args(["up", "--output", "json"])
            .args(options)
            .envs(env.iter().copied())
            .spawn()
            .expect("the binary starts");
        let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
        let line = lines.next_matching(|line| line.contains(r#""ready""#));
        let ready = serde_json::from_str(&line).expect("JSON");
        Self {
            process,
            directory,
            ready,
        }
    }

    /// The path of the kubeconfig it wrote.
    pub(crate) fn kubeconfig(&self) -> &str {
        self.ready["kubeconfig"].as_str().expect("a path")
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A command of the binary in this directory, without RUST_LOG of the environment.
pub(crate) fn command(directory: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    command
        .current_dir(directory)
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
