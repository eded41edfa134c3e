//! The server as a process of its own, and inside this one.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bellerophon_apiserver::ApiServer;
use http_body_util::Full;
use tower::ServiceExt;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A running `bellerophon up`, stopped when dropped.
pub(crate) struct Server {
    child: Child,
    /// From starting the process to its ready line.
    pub(crate) ready_after: Duration,
    /// Where it wrote its kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Starts one and waits until it is ready.
    pub(crate) fn start() -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        let begun = now();
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
        let ready_after = begun.elapsed();
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

    /// Resident memory.
    pub(crate) fn memory_kib(&self) -> Result<u64, Failure> {
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
        // The process may be gone already; there is nothing else to do then.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// From `start()` to the first answer, inside this process: the median of many.
pub(crate) async fn in_process() -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for _ in 0..25 {
        let begun = now();
        let server = ApiServer::builder().start().await?;
        let request = http::Request::get("/api/v1/namespaces/default")
            .body(Full::<bytes::Bytes>::default())?;
        let response = server.service().oneshot(request).await?;
        times.push(begun.elapsed());
        assert_eq!(response.status(), 200);
    }
    times.sort();
    Ok(times[times.len() / 2])
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Prints a page.
pub(crate) fn print(page: &str) {
    // Nobody is left to tell when the terminal is gone.
    let _written = std::io::stdout().write_all(page.as_bytes());
}
