//! A running container.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::cgroup::Cgroup;
use crate::client::ShimClient;
use crate::clock::Clock;
use crate::config::{ContainerConfig, ExecConfig, TargetContainer};
use crate::error::Error;
use crate::exec::ExecProcess;
use crate::logs::{ContainerLog, LogUpdates, Stream};
use crate::marker::{CONTAINER_MARKER, sweep};
use crate::protocol::{ProcessSpec, Request, WaitStatus};
use crate::shared::Shared;
use crate::streams::{Attachment, ContainerStreams, NodeStreams, create_pipes};
use crate::sys::wildcard_listeners;
use crate::usage::{self, Usage};

const SIGTERM: i32 = rustix::process::Signal::TERM.as_raw();
const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();

/// How long output is read after the end of a container. All of its processes have ended, so this
/// matters only if a process outside of it has its streams open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How a container has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    /// The exit code; 128 and the number of the signal if it was killed.
    pub exit_code: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Whether it exceeded its memory limit. Known only with a cgroup.
    pub oom_killed: bool,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl ContainerExit {
    /// The reason in the status of the container.
    pub fn reason(&self) -> &'static str {
        if self.oom_killed {
            "OOMKilled"
        } else if self.exit_code == 0 {
            "Completed"
        } else {
            "Error"
        }
    }
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It is running.
    Running {
        /// When it started.
        since: Timestamp,
    },
    /// It has ended, with all of its processes, and its log is complete.
    Exited(ContainerExit),
}

/// A started container. Dropping it kills the container without a status.
pub struct Container {
    process: u64,
    shim: Arc<ShimClient>,
    name: String,
    /// The main process, as a template for commands.
    spec: ProcessSpec,
    streams: Arc<ContainerStreams>,
    log: Arc<ContainerLog>,
    state: watch::Receiver<ContainerState>,
    supervisor: JoinHandle<()>,
}

impl Drop for Container {
    fn drop(&mut self) {
        self.supervisor.abort();
        let container = self.process;
        // In tier B the shim ends with this container; in tier A the queue of its requests may be
        // full, and the sandbox is about to end or to receive another request.
        if !self.has_exited() && !self.shim.try_send(Request::Kill { container }) {
            tracing::warn!(container = self.name, "dropped container was not killed");
        }
    }
}

impl Container {
    pub(crate) async fn start(
        shared: &Shared,
        shim: Arc<ShimClient>,
        config: ContainerConfig,
        env: Vec<(String, String)>,
    ) -> Result<Self, Error> {
        let clock = shared.options.clock.clone();
        let log = ContainerLog::open(&config.log_path, shared.options.rotation, clock.clone())?;
        let log = Arc::new(log);
        let cgroup = match &shared.cgroups {
            Some(cgroups) => Some(cgroups.create(config.limits)?),
            None => None,
        };
        let marker = env.iter().find(|(name, _)| name == CONTAINER_MARKER);
        let marker = marker.map(|(_, value)| value.clone());
        let spec = ProcessSpec {
            argv: config.argv,
            env,
            working_dir: config.working_dir,
            user: config.user,
            tty: config.streams.tty,
            mounts: config.mounts,
            read_only_root: config.read_only_root,
            cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        };
        let (mut node, fds) = create_pipes(config.streams)?;
        let request = |process| Request::Start {
            process,
            spec: spec.clone(),
            target: config.target.map(|target| target.0),
        };
        let (process, fds, exit) = shim.start(request, fds).await?;
        node.set_terminal(fds, config.streams)?;
        let streams = ContainerStreams::new(&mut node, config.streams, log.clone());
        let streams = Arc::new(streams);
        let since = clock();
        let (state_sender, state) = watch::channel(ContainerState::Running { since });
        let supervisor = Supervisor {
            streams: streams.clone(),
            cgroup,
            marker,
            clock,
            since,
        };
        let supervisor = tokio::spawn(async move {
            let exit = supervisor.run(node, exit).await;
            state_sender.send_replace(ContainerState::Exited(exit));
        });
        Ok(Self {
            process,
            shim,
            name: config.name,
            spec,
            streams,
            log,
            state,
            supervisor,
        })
    }

    /// The current state.
    pub fn state(&self) -> ContainerState {
        *self.state.borrow()
    }

    /// Changes of the state.
    pub fn watch(&self) -> watch::Receiver<ContainerState> {
        self.state.clone()
    }

    fn has_exited(&self) -> bool {
        matches!(self.state(), ContainerState::Exited(_))
    }

    /// Waits for the end of the container.
    pub fn wait(&self) -> impl Future<Output = ContainerExit> + Send + 'static {
        let mut state = self.state.clone();
        async move {
            loop {
                if let ContainerState::Exited(exit) = *state.borrow_and_update() {
                    return exit;
                }
                if state.changed().await.is_err() {
                    // The container was dropped.
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Sends `SIGTERM` to the main process, and kills all processes of the container if it has
    /// not ended after the grace period (`StopContainer`). Several calls may run concurrently: the
    /// shortest grace period applies.
    pub async fn stop(&self, grace_period: Duration) -> ContainerExit {
        if !grace_period.is_zero() {
            self.signal(SIGTERM).await;
            if let Ok(exit) = tokio::time::timeout(grace_period, self.wait()).await {
                return exit;
            }
        }
        self.kill().await;
        self.wait().await
    }

    /// Sends a signal to the main process.
    pub async fn signal(&self, signal: i32) {
        let process = self.process;
        let request = Request::Signal { process, signal };
        // A shim that has ended has killed the container.
        if let Err(error) = self.shim.call(request, Vec::new()).await {
            tracing::debug!(container = self.name, %error, "signal was not sent");
        }
    }

    /// Kills all processes of the container.
    pub async fn kill(&self) {
        let container = self.process;
        let request = Request::Kill { container };
        if let Err(error) = self.shim.call(request, Vec::new()).await {
            tracing::debug!(container = self.name, %error, "container was not killed");
            self.shim.kill();
        }
    }

    /// Runs a command in the container (`Exec`).
    pub async fn exec(&self, config: ExecConfig) -> Result<ExecProcess, Error> {
        if self.has_exited() {
            return Err(Error::NotRunning);
        }
        let spec = ProcessSpec {
            argv: config.argv,
            tty: config.streams.tty,
            mounts: Vec::new(),
            ..self.spec.clone()
        };
        ExecProcess::start(&self.shim, self.process, spec, config.streams).await
    }

    /// This container, as the target of another one.
    pub fn target(&self) -> TargetContainer {
        TargetContainer(self.process)
    }

    /// Attaches a client to the standard streams (`Attach`).
    pub fn attach(&self) -> Attachment {
        self.streams.attach()
    }

    /// Notifies followers of the log.
    pub fn log_updates(&self) -> LogUpdates {
        self.log.updates()
    }

    /// What its processes have used: by its cgroup, or by those that run now.
    ///
    /// # Errors
    /// The container has ended, or the files of the cgroup cannot be read.
    pub async fn usage(&self) -> io::Result<Usage> {
        if self.has_exited() {
            return Err(io::Error::other(Error::NotRunning));
        }
        if let Some(cgroup) = &self.spec.cgroup {
            return usage::of_cgroup(cgroup);
        }
        let usage = self.shim.usage(self.process).await;
        usage.map_err(io::Error::other)
    }

    /// The TCP ports on which its processes listen for all addresses of this machine (tier B). In
    /// tier A, all addresses are those of the pod, and there are none.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn wildcard_listeners(&self) -> io::Result<BTreeSet<u16>> {
        let marker = self
            .spec
            .env
            .iter()
            .find(|(name, _)| name == CONTAINER_MARKER);
        match marker {
            Some((name, value)) => wildcard_listeners(name, value),
            None => Ok(BTreeSet::new()),
        }
    }

    /// The process ID of the shim that supervises the container.
    pub fn shim_pid(&self) -> i32 {
        self.shim.pid()
    }
}

/// Waits for the end of a container and copies its output.
struct Supervisor {
    streams: Arc<ContainerStreams>,
    cgroup: Option<Cgroup>,
    /// The marker of its processes (tier B).
    marker: Option<String>,
    clock: Clock,
    since: Timestamp,
}

impl Supervisor {
    async fn run(
        self,
        mut node: NodeStreams,
        exit: oneshot::Receiver<WaitStatus>,
    ) -> ContainerExit {
        let stdout = node.stdout.take();
        let stderr = node.stderr.take();
        let copy = async {
            tokio::join!(
                self.streams.copy(Stream::Stdout, stdout),
                self.streams.copy(Stream::Stderr, stderr)
            );
        };
        let exited = async {
            let status = match exit.await {
                Ok(status) => status,
                // The shim has ended.
                Err(_) => {
                    self.kill_orphans().await;
                    WaitStatus::Signaled(SIGKILL)
                }
            };
            (status, (self.clock)())
        };
        tokio::pin!(copy);
        tokio::pin!(exited);
        let (status, finished_at) = tokio::select! {
            status = &mut exited => {
                // An error is the timeout.
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, &mut copy).await;
                status
            }
            () = &mut copy => exited.await,
        };
        self.streams.close();
        let oom_killed = self.cgroup.as_ref().is_some_and(Cgroup::oom_killed);
        let (exit_code, signal) = status.exit_code();
        ContainerExit {
            exit_code,
            signal,
            oom_killed,
            started_at: self.since,
            finished_at,
        }
    }
}

impl Supervisor {
    /// Kills the processes of a container of tier B whose shim was killed: the kernel has killed
    /// only the children of the shim. In tier A it has killed all.
    async fn kill_orphans(&self) {
        if let Some(marker) = &self.marker
            && let Err(error) = sweep(CONTAINER_MARKER, marker).await
        {
            tracing::warn!(marker, %error, "processes of a killed shim are left");
        }
    }
}
