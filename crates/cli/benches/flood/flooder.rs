//! The process that floods.
//!
//! It is this executable with [`ARGUMENT`]. It prints one line when the flood is complete, floods
//! until its stdin is closed, and prints the results of the flood since that line.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use crate::{
    common::{
        BenchError,
        client::Target,
        process::{now, print},
    },
    floods::FLOODS,
    statistics::Statistics,
};

/// The first argument of the process.
pub(crate) const ARGUMENT: &str = "--flood";

/// A flood of which the server takes only a part is never complete.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that floods, killed when dropped.
pub(crate) struct Flooding {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// Starts a flood, and waits until it is complete.
pub(crate) fn start(flood: &str, kubeconfig: &Path) -> Result<Flooding, BenchError> {
    // SCHED_IDLE: the server and the measured client have the processors whenever they need them. A
    // process with nice 19 would keep them until the end of its time slice, which is 3 ms.
    let mut child = Command::new("chrt")
        .args(["--idle", "0"])
        .arg(std::env::current_exe()?)
        .args([ARGUMENT, flood])
        .arg(kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut flooding = Flooding {
        child,
        output: BufReader::new(output),
    };
    flooding.output.read_line(&mut String::new())?;
    Ok(flooding)
}

impl Flooding {
    /// Ends the flood. Returns its results.
    pub(crate) fn stop(mut self) -> Result<String, BenchError> {
        drop(self.child.stdin.take());
        let mut outcome = String::new();
        self.output.read_to_string(&mut outcome)?;
        Ok(outcome.trim().to_owned())
    }
}

impl Drop for Flooding {
    fn drop(&mut self) {
        // The process may have exited already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Floods until stdin is closed.
pub(crate) fn run(name: &str, kubeconfig: &Path) -> Result<(), BenchError> {
    let target = Target::read(kubeconfig)?;
    let (_, flood) = FLOODS
        .into_iter()
        .find(|(flood, _)| *flood == name)
        .ok_or_else(|| format!("no flood {name:?}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let statistics = Arc::new(Statistics::default());
    runtime.block_on(async {
        let size = flood(&target, &statistics);
        let started = now();
        while statistics.size() < size && started.elapsed() < COMPLETE_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    statistics.reset();
    print("complete\n");
    let started = now();
    std::io::stdin().read_to_end(&mut Vec::new())?;
    print(&statistics.format(started.elapsed()));
    // The tasks never end.
    runtime.shutdown_background();
    Ok(())
}
