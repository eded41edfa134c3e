//! Signals that end a command.
//!
//! Signals are received on a thread with its own runtime: tasks that occupy every worker of the
//! command's runtime do not delay them.
//!
//! Guarantees: after `listen`, the first signal requests a graceful shutdown. The second, or the end
//! of the grace period, ends the process with exit code 1.

use std::{io, process, sync::mpsc, thread, time::Duration};

use tokio::{runtime, sync::watch, time::timeout};
use tracing::info;

use crate::progress;

/// How long a graceful shutdown may take: the default of `ManagerOptions::graceful_shutdown_timeout`
/// and of a pod's `terminationGracePeriodSeconds` is 30 s, and 5 s are for what follows it.
const GRACE_PERIOD: Duration = Duration::from_secs(35);

/// SIGINT and, on Unix, SIGTERM.
pub(crate) struct Signals {
    /// How many signals were received.
    received: watch::Receiver<usize>,
}

impl Signals {
    /// Installs the signal handlers. They stay until the process ends.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn listen() -> io::Result<Self> {
        Self::with_grace_period(GRACE_PERIOD)
    }

    fn with_grace_period(grace_period: Duration) -> io::Result<Self> {
        let (sender, received) = watch::channel(0);
        let (installed, is_installed) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("signals".into())
            .spawn(move || receive_on_this_thread(&installed, &sender, grace_period))?;
        if is_installed.recv().is_err() {
            let result = thread.join().unwrap_or(Ok(()));
            result?;
        }
        Ok(Self { received })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        self.received.changed().await.map_err(io::Error::other)
    }

    /// Waits for a graceful shutdown. Another signal ends the process.
    pub(crate) async fn wait_for_shutdown(
        mut self,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        tokio::select! {
            () = shutdown => Ok(()),
            signal = self.next() => {
                signal?;
                // Not a return: the tasks that do not end are what the user gave up on.
                exit("pending requests were aborted")
            }
        }
    }
}

fn receive_on_this_thread(
    installed: &mpsc::SyncSender<()>,
    received: &watch::Sender<usize>,
    grace_period: Duration,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let handlers = Handlers::install()?;
        installed.send(()).map_err(io::Error::other)?;
        receive(handlers, received, grace_period).await
    })
}

/// Counts the first signal, and ends the process at the second one or after the grace period.
async fn receive(
    mut handlers: Handlers,
    received: &watch::Sender<usize>,
    grace_period: Duration,
) -> io::Result<()> {
    let signal = handlers.next().await?;
    info!(signal, "shutting down");
    progress::report("stopping; another Ctrl-C stops immediately");
    received.send_modify(|count| *count += 1);
    match timeout(grace_period, handlers.next()).await {
        Ok(second) => {
            second?;
            exit("pending requests were aborted")
        }
        Err(_) => exit(&format!("not stopped after {} s", grace_period.as_secs())),
    }
}

fn exit(reason: &str) -> ! {
    eprintln!("bellerophon: stopped immediately; {reason}");
    process::exit(1)
}

#[cfg(unix)]
struct Handlers {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Handlers {
    fn install() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The name of the next signal.
    async fn next(&mut self) -> io::Result<&'static str> {
        tokio::select! {
            _ = self.interrupt.recv() => Ok("SIGINT"),
            _ = self.terminate.recv() => Ok("SIGTERM"),
        }
    }
}

#[cfg(not(unix))]
struct Handlers;

#[cfg(not(unix))]
impl Handlers {
    fn install() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> io::Result<&'static str> {
        tokio::signal::ctrl_c().await?;
        Ok("Ctrl-C")
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        env,
        future::pending,
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    /// Set in the process that receives the signal.
    const CHILD: &str = "BELLEROPHON_TEST_SIGNALS_CHILD";
    const WORKERS: usize = 2;

    /// Occupies every worker of a runtime, and waits for a signal in it.
    fn run_with_busy_workers() {
        let mut signals = Signals::with_grace_period(Duration::from_millis(10)).expect("handlers");
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .enable_all()
            .build()
            .expect("a runtime");
        let (sender, started) = mpsc::sync_channel(WORKERS);
        for _ in 0..WORKERS {
            let sender = sender.clone();
            runtime.spawn(async move {
                sender.send(()).expect("the test waits");
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        for _ in 0..WORKERS {
            started.recv().expect("a worker starts");
        }
        eprintln!("busy");
        runtime.block_on(async {
            signals.next().await.expect("a signal");
            eprintln!("received");
            pending::<()>().await;
        });
    }

    #[test]
    fn busy_workers_do_not_delay_the_end_of_the_process() {
        if env::var_os(CHILD).is_some() {
            return run_with_busy_workers();
        }
        let name = "signals::tests::busy_workers_do_not_delay_the_end_of_the_process";
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut lines = stderr.lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "busy"));
        let kill = Command::new("kill")
            .args(["-s", "TERM", &child.id().to_string()])
            .status();
        assert!(kill.expect("kill starts").success());
        let rest: Vec<String> = lines.collect();
        assert_eq!(
            rest,
            [
                "received",
                "bellerophon: stopped immediately; not stopped after 0 s"
            ]
        );
        assert_eq!(child.wait().expect("it exits").code(), Some(1));
    }
}
