//! The server as a process.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::BenchError;

/// A running `bellerophon up`, stopped when dropped.
pub(crate) struct Server {
    child: Child,
    /// The path of its kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Starts a server without controllers, and waits until it is ready.
    pub(crate) fn start() -> Result<Self, BenchError> {
        Self::start_with(&["--cluster", "none"], &[])
    }

    /// Starts `up` with these options and environment variables, and waits until it is ready.
    pub(crate) fn start_with(
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, BenchError> {
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        let mut child = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
            .arg("up")
            .args(options)
            .args(["--output", "json", "--kubeconfig"])
            .arg(&kubeconfig)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        if !line.contains("\"ready\"") {
            return Err(format!("not ready: {line}").into());
        }
        Ok(Self {
            child,
            kubeconfig,
            _directory: directory,
        })
    }

    /// A file of its directory in `/proc`.
    pub(crate) fn proc_path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.id())).join(file)
    }

    /// A size of its memory: `VmRSS` is the resident set, `VmHWM` its peak.
    pub(crate) fn memory_kib(&self, name: &str) -> Result<u64, BenchError> {
        let status = std::fs::read_to_string(self.proc_path("status"))?;
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .ok_or_else(|| format!("no {name}"))?;
        Ok(size.split_whitespace().next().ok_or("no number")?.parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Prints a table.
pub(crate) fn print(table: &str) {
    // An error means that stdout is closed.
    let _written = std::io::stdout().write_all(table.as_bytes());
}
