//! Servers and clients as processes, and their cost as Linux measures it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bellerophon_apiserver::ApiServer;

use crate::{BoxError, median, objects, seconds};

/// A server with objects in its own process, which ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) kubeconfig: PathBuf,
    /// A description of its objects.
    pub(crate) content: String,
}

impl Server {
    pub(crate) fn start() -> Result<Self, BoxError> {
        let kubeconfig = std::env::temp_dir().join(format!(
            "bellerophon-bench-{}.kubeconfig",
            std::process::id()
        ));
        let mut process = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut content = String::new();
        BufReader::new(process.stdout.take().ok_or("the server has no output")?)
            .read_line(&mut content)?;
        if content.is_empty() {
            return Err("the server did not start".into());
        }
        Ok(Self {
            process,
            kubeconfig,
            content: content.trim_end().to_owned(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        if let Err(error) = self
            .process
            .wait()
            .and_then(|_| std::fs::remove_file(&self.kubeconfig))
        {
            eprintln!("the server failed to end: {error}");
        }
    }
}

/// Serves until standard input is closed.
pub(crate) fn serve(kubeconfig: &str) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let server = ApiServer::builder()
            .listen(([127, 0, 0, 1], 0).into())
            .start()
            .await?;
        server.write_kubeconfig(Path::new(kubeconfig))?;
        println!("{}", objects::create(&server.client()).await?);
        std::io::stdout().flush()?;
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        server.shutdown().await;
        Ok(())
    })
}

/// The cost of one run of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    wall: Duration,
    cpu: f64,
    /// KiB at the start.
    start: u64,
    /// The highest number of KiB.
    peak: u64,
    /// KiB at the end.
    settled: u64,
}

impl Cost {
    /// Prints the cost of this process.
    pub(crate) fn report(wall: Duration, cpu: f64, start: u64) -> Result<(), BoxError> {
        println!(
            "{} {cpu} {start} {} {}",
            wall.as_secs_f64(),
            memory("VmHWM")?,
            memory("VmRSS")?
        );
        Ok(())
    }

    fn parse(line: &str) -> Result<Self, BoxError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [wall, cpu, start, peak, settled] = words[..] else {
            return Err(format!("a client printed {line:?}").into());
        };
        let wall = Duration::from_secs_f64(wall.parse()?);
        Ok(Self {
            wall,
            cpu: cpu.parse()?,
            start: start.parse()?,
            peak: peak.parse()?,
            settled: settled.parse()?,
        })
    }

    pub(crate) fn row(costs: &[Self], objects: usize) -> String {
        let column = |figure: &dyn Fn(&Self) -> f64, decimals| {
            median(costs.iter().map(figure).collect(), decimals)
        };
        [
            column(&|cost| seconds(cost.wall), 2),
            column(&|cost| cost.cpu, 2),
            column(&|cost| cost.peak as f64 / 1024.0, 0),
            column(&|cost| cost.settled as f64 / 1024.0, 0),
            column(
                &|cost| cost.settled.saturating_sub(cost.start) as f64 * 1024.0 / objects as f64,
                0,
            ),
        ]
        .join(" | ")
    }
}

/// Runs one client of the Go program, or of this program.
pub(crate) fn run_client(
    name: &str,
    go: Option<&Path>,
    kubeconfig: &Path,
) -> Result<Cost, BoxError> {
    let program = match go {
        Some(go) => go.to_owned(),
        None => std::env::current_exe()?,
    };
    let output = Command::new(program)
        .args(["client", name])
        .arg(kubeconfig)
        .stderr(Stdio::inherit())
        .output()?;
    Cost::parse(&String::from_utf8(output.stdout)?)
}

/// A number of KiB in the status of this process.
pub(crate) fn memory(name: &str) -> Result<u64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .ok_or("no such line in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
