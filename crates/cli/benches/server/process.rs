//! The server as a process, and in this process.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bellerophon_apiserver::ApiServer;
use http_body_util::Full;
use tower::ServiceExt;

type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// A running `bellerophon up`, stopped when dropped.
pub(crate) struct Server {
    child: Child,
    /// From the start of the process to its ready message.
    pub(crate) ready_after: Duration,
    /// The path of its kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start() -> Result<Self, BenchError> {
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        let start = now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
            .args([
                "up",
                "--cluster",
                "none",
                "--output",
                "json",
                "--kubeconfig",
            ])
            .arg(&kubeconfig)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let ready_after = start.elapsed();
        if !line.contains("\"ready\"") {
            return Err(format!("not ready: {line}").into());
        }
        Ok(Self {
            child,
            ready_after,
            kubeconfig,
            _directory: directory,
        })
    }

    /// The processor time of all its threads.
    pub(crate) fn processor_time(&self) -> Result<Duration, BenchError> {
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let statistics = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let first = statistics.split_whitespace().next().ok_or("no number")?;
            nanoseconds += first.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Its resident set size.
    pub(crate) fn memory_kib(&self) -> Result<u64, BenchError> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find(|l| l.starts_with("VmRSS:"))
            .ok_or("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// The median time from `start()` to the first response, in this process.
pub(crate) async fn in_process() -> Result<Duration, BenchError> {
    let mut times = Vec::new();
    for _ in 0..25 {
        let start = now();
        let server = ApiServer::builder().start().await?;
        let request = http::Request::get("/api/v1/namespaces/default")
            .body(Full::<bytes::Bytes>::default())?;
        let response = server.service().oneshot(request).await?;
        times.push(start.elapsed());
        assert_eq!(response.status(), 200);
    }
    times.sort();
    Ok(times[times.len() / 2])
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Prints the table.
pub(crate) fn print(table: &str) {
    // An error means that stdout is closed.
    let _written = std::io::stdout().write_all(table.as_bytes());
}
