//! A `bellerophon up` that lives as long as the test that started it.
//! Holds: nothing is waited for without a limit; no process and no file outlives its test.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Lines a program may write before somebody reads them; then it waits.
const LINES_UNREAD_MAX: usize = 1024;

/// What a program prints, line by line as it comes.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    /// Reads on until the program closes its end.
    pub(crate) fn of(source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(LINES_UNREAD_MAX);
        thread::spawn(move || {
            BufReader::new(source)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self(receiver)
    }

    /// The next line for which this is true.
    pub(crate) fn next_where(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self
                .0
                .recv_timeout(PATIENCE)
                .expect("the line comes in time and before the program ends");
            if wanted(&line) {
                return line;
            }
        }
    }
}

/// A server in a process and a directory of its own.
pub(crate) struct Running {
    pub(crate) process: Child,
    pub(crate) directory: TempDir,
    /// The line that said it is ready.
    pub(crate) ready: Value,
}

impl Running {
    /// Starts it and returns when it is ready.
    pub(crate) fn start(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = command(&directory)
            .args(["up", "--output", "json"])
            .args(more)
            .spawn()
            .expect("the binary starts");
        let lines = Lines::of(process.stdout.take().expect("stdout is piped"));
        let ready = serde_json::from_str(&lines.next_where(|line| line.contains(r#""ready""#)))
            .expect("JSON");
        Self {
            process,
            directory,
            ready,
        }
    }

    /// The file it wrote for its clients.
    pub(crate) fn kubeconfig(&self) -> &str {
        self.ready["kubeconfig"].as_str().expect("a path")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The binary, in this directory and with nothing of the tester's own settings.
pub(crate) fn command(directory: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    command
        .current_dir(directory)
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
