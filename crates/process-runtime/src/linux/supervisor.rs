//! The supervisor of a sandbox (tier A, as PID 1) or of one container (tier B, as subreaper).
//!
//! In: requests of the node on the control socket, `SIGCHLD`. Out: replies, ended processes.
//! Guarantees: it waits only for events, never for a process or the node; when the control socket
//! is closed, every process that it has started is killed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as BlockedSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus as RawStatus};

use super::container::{ContainerStart, Join};
use super::namespaces::{self, PidNamespace};
use super::network::Network;
use super::{Stage, devices, mounts, procfs, stage_command};
use crate::error::{StartError, StartErrorKind};
use crate::frame::{self, Receiver};
use crate::protocol::{Call, Failure, Message, ProcessSpec, Request, WaitStatus};
use crate::tier::Tier;
use crate::usage::Usage;

/// How long a new process may take to read what it starts. Requests of the node wait for it.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The signals that are read from a descriptor.
fn signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(BlockedSignal::SIGCHLD);
    signals.add(BlockedSignal::SIGTERM);
    signals.add(BlockedSignal::SIGINT);
    signals
}

pub(super) fn block_signals() -> io::Result<()> {
    Ok(signals().thread_block()?)
}

/// Serves the control socket until it is closed.
pub(super) fn run(control: OwnedFd, tier: Tier) -> io::Result<()> {
    block_signals()?;
    let mut supervisor = Supervisor {
        control,
        tier,
        signals: SignalFd::with_flags(&signals(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
        receiver: Receiver::default(),
        sandbox: None,
        processes: HashMap::new(),
    };
    let result = supervisor.serve();
    if tier == Tier::B {
        procfs::kill_descendants()?;
    }
    // Tier A: the kernel kills the PID namespace when this process ends.
    result
}

/// The namespaces of a sandbox of tier A.
struct Sandbox {
    network: Network,
    pids: PidNamespace,
}

/// A started process.
struct Process {
    pid: Pid,
    /// The container of which it is the main process, or in which it was executed.
    container: u64,
    /// Whether it is the main process of a container in the PID namespace of another one.
    shares_pids: bool,
    starting: Option<Starting>,
    failed: bool,
}

/// A process that has not yet executed its program.
struct Starting {
    request: u64,
    /// Closed when the program is executed.
    socket: UnixStream,
    receiver: Receiver,
    terminal: Option<OwnedFd>,
}

struct Supervisor {
    control: OwnedFd,
    tier: Tier,
    signals: SignalFd,
    receiver: Receiver,
    sandbox: Option<Sandbox>,
    processes: HashMap<u64, Process>,
}

/// As what a process starts.
enum StartMode {
    /// As the main process of a container.
    Container,
    /// As the main process of a container in the PID namespace of another one.
    Ephemeral { target: u64 },
    /// In a container that is running.
    Exec { container: u64 },
}

/// What the reply to a request has.
#[derive(Default)]
struct Answer {
    fds: Vec<OwnedFd>,
    usage: Option<Usage>,
}

impl Answer {
    fn descriptor(fd: OwnedFd) -> Self {
        Self {
            fds: vec![fd],
            usage: None,
        }
    }
}

enum Next {
    Continue,
    End,
}

impl Supervisor {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let starting: Vec<u64> = self
                .processes
                .iter()
                .filter(|(_, process)| process.starting.is_some())
                .map(|(id, _)| *id)
                .collect();
            let ready = self.wait(&starting)?;
            for (id, is_ready) in starting.iter().zip(&ready[2..]) {
                if *is_ready {
                    self.finish_start(*id)?;
                }
            }
            if ready[1]
                && let Next::End = self.read_signals()?
            {
                return Ok(());
            }
            if ready[0]
                && let Next::End = self.read_requests()?
            {
                return Ok(());
            }
        }
    }

    /// Waits until the control socket, the signals or a starting process are readable.
    fn wait(&self, starting: &[u64]) -> io::Result<Vec<bool>> {
        let sockets = starting
            .iter()
            .filter_map(|id| self.processes[id].starting.as_ref());
        let mut fds = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        fds.extend(sockets.map(|starting| PollFd::new(&starting.socket, PollFlags::IN)));
        loop {
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                result => {
                    result?;
                    return Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect());
                }
            }
        }
    }

    fn read_signals(&mut self) -> io::Result<Next> {
        let mut next = Next::Continue;
        while let Some(signal) = self.signals.read_signal()? {
            // PID 1 of a sandbox cannot be terminated by its containers.
            let terminates = signal.ssi_signo != BlockedSignal::SIGCHLD as u32;
            if terminates && self.tier == Tier::B {
                next = Next::End;
            }
        }
        self.reap()?;
        Ok(next)
    }

    fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.ended(pid, status)?;
        }
        Ok(())
    }

    fn ended(&mut self, pid: Pid, status: RawStatus) -> io::Result<()> {
        let by_pid = |(id, process): (&u64, &Process)| (process.pid == pid).then_some(*id);
        // Orphans of containers are reaped only.
        let Some(id) = self.processes.iter().find_map(by_pid) else {
            return Ok(());
        };
        // It has ended, so its socket is closed and this does not wait.
        while self.processes[&id].starting.is_some() {
            self.finish_start(id)?;
        }
        let process = self
            .processes
            .remove(&id)
            .expect("the process was found above");
        if self.tier == Tier::B && process.container == id {
            for (pid, status) in procfs::kill_descendants()? {
                self.ended(pid, status)?;
            }
        }
        if process.shares_pids {
            // The kernel kills only what is in a PID namespace whose first process has ended.
            procfs::kill_session(pid)?;
        }
        if process.failed {
            return Ok(());
        }
        let message = Message::Exited {
            process: id,
            status: wait_status(status),
        };
        frame::send(&self.control, &message, Vec::new())
    }

    fn read_requests(&mut self) -> io::Result<Next> {
        if self.receiver.read_from(&self.control)? == 0 {
            return Ok(Next::End);
        }
        while let Some((call, fds)) = self.receiver.next::<Call>()? {
            let Call { id, request } = call;
            match self.handle(id, request, fds) {
                Ok(None) => {}
                Ok(Some(Answer { fds, usage })) => self.reply(id, Ok(usage), fds)?,
                Err(failure) => self.reply(id, Err(failure), Vec::new())?,
            }
        }
        Ok(Next::Continue)
    }

    fn reply(
        &self,
        id: u64,
        result: Result<Option<Usage>, Failure>,
        fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        frame::send(&self.control, &Message::Reply { id, result }, fds)
    }

    /// Handles a request; returns the reply, or `None` if it is sent later.
    fn handle(
        &mut self,
        call: u64,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, Failure> {
        match request {
            Request::Setup(setup) => {
                let set_up = || -> io::Result<Sandbox> {
                    let network = namespaces::set_up(&setup)?;
                    let pids = PidNamespace::current()?;
                    Ok(Sandbox { network, pids })
                };
                let what = "cannot set up the pod sandbox";
                self.sandbox = Some(set_up().map_err(|error| Failure::new(what, &error))?);
                Ok(Some(Answer::default()))
            }
            Request::Start {
                process,
                spec,
                target,
            } => {
                let mode = match target {
                    Some(target) => StartMode::Ephemeral { target },
                    None => StartMode::Container,
                };
                let start = self.start(call, process, mode, spec, fds);
                start.map_err(|error| start_failure(&error)).map(|()| None)
            }
            Request::Exec {
                process,
                container,
                spec,
            } => {
                let mode = StartMode::Exec { container };
                let start = self.start(call, process, mode, spec, fds);
                start.map_err(|error| start_failure(&error)).map(|()| None)
            }
            Request::Signal { process, signal } => {
                if let Some(process) = self.processes.get(&process)
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    kill(process.pid, signal)?;
                }
                Ok(Some(Answer::default()))
            }
            Request::Kill { container } => {
                self.kill_container(container)?;
                Ok(Some(Answer::default()))
            }
            Request::Usage { container } => {
                let usage = self.usage(container);
                let failure = |error| Failure::new("cannot measure the container", &error);
                Ok(Some(Answer {
                    usage: Some(usage.map_err(failure)?),
                    ..Answer::default()
                }))
            }
            Request::Socket {
                transport,
                source,
                ipv6,
            } => {
                let socket = self.network()?.socket(transport, source, ipv6);
                let failure = |error| Failure::new("cannot create a socket", &error);
                Ok(Some(Answer::descriptor(socket.map_err(failure)?)))
            }
            Request::Listen { transport, address } => {
                let socket = self.network()?.listen(transport, address);
                let failure = |error| Failure::new(&format!("cannot listen on {address}"), &error);
                Ok(Some(Answer::descriptor(socket.map_err(failure)?)))
            }
            Request::MountTmpfs { path, size_bytes } => {
                let mounted = mounts::mount_volume_tmpfs(&path, size_bytes);
                let what = format!("cannot mount a tmpfs on {}", path.display());
                mounted.map_err(|error| Failure::new(&what, &error))?;
                Ok(Some(Answer::default()))
            }
        }
    }

    /// Measures the processes of a container: in tier A those of its PID namespace, in tier B all
    /// descendants.
    fn usage(&self, container: u64) -> io::Result<Usage> {
        let main = self.main(container)?;
        match self.tier {
            Tier::A => procfs::usage_of_namespace(main),
            Tier::B => procfs::usage_of_descendants(),
        }
    }

    fn network(&self) -> Result<&Network, Failure> {
        let sandbox = self.sandbox.as_ref();
        sandbox
            .map(|sandbox| &sandbox.network)
            .ok_or_else(|| Failure::System {
                message: "the sandbox has no network namespace".to_owned(),
                errno: None,
            })
    }

    /// Kills a container. Its other processes are killed when its main process has ended: by the
    /// kernel, or by [`procfs::kill_descendants`].
    fn kill_container(&mut self, container: u64) -> Result<(), Failure> {
        match self.processes.get(&container) {
            Some(process) => kill(process.pid, Signal::KILL),
            None => Ok(()),
        }
    }

    /// Starts a process. The reply is sent when its program is executed.
    fn start(
        &mut self,
        request: u64,
        id: u64,
        mode: StartMode,
        spec: ProcessSpec,
        mut fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let (socket, child_socket) = UnixStream::pair()?;
        socket.set_write_timeout(Some(SETUP_TIMEOUT))?;
        let mut command = stage_command(Stage::Container, OwnedFd::from(child_socket));
        let mut terminal = None;
        if spec.tty {
            let (master, slave) = devices::open_terminal()?;
            fds = vec![slave];
            terminal = Some(master);
        }
        let mut join = Join::None;
        let pid = match (&self.sandbox, &mode) {
            (None, _) => Pid::from_child(&command.spawn()?),
            (Some(sandbox), StartMode::Container) => {
                join = Join::NewMountNamespace;
                sandbox.pids.spawn_in_new(&mut command)?
            }
            (Some(sandbox), StartMode::Ephemeral { target }) => {
                join = Join::NewMountNamespace;
                sandbox.pids.spawn_in(self.main(*target)?, &mut command)?
            }
            (Some(sandbox), StartMode::Exec { container }) => {
                join = Join::Container;
                let main = self.main(*container)?;
                fds.extend(namespaces::of_container(main)?);
                sandbox.pids.spawn_in(main, &mut command)?
            }
        };
        // The command has a copy of the child's socket.
        drop(command);
        let start = ContainerStart { spec, join };
        let container = match mode {
            StartMode::Container | StartMode::Ephemeral { .. } => id,
            StartMode::Exec { container } => container,
        };
        let process = Process {
            pid,
            container,
            shares_pids: self.sandbox.is_some() && matches!(mode, StartMode::Ephemeral { .. }),
            starting: Some(Starting {
                request,
                receiver: Receiver::default(),
                terminal,
                socket: socket.try_clone()?,
            }),
            failed: false,
        };
        self.processes.insert(id, process);
        // A child that ended early is reported by its wait status.
        let _ = frame::send(&socket, &start, fds);
        Ok(())
    }

    /// The main process of a container.
    fn main(&self, container: u64) -> io::Result<Pid> {
        let process = self.processes.get(&container);
        let process = process.ok_or_else(|| io::Error::other("the container is not running"))?;
        Ok(process.pid)
    }

    /// Reads from the socket of a starting process: an error, or its end.
    fn finish_start(&mut self, id: u64) -> io::Result<()> {
        let Some(process) = self.processes.get_mut(&id) else {
            return Ok(());
        };
        let Some(starting) = &mut process.starting else {
            return Ok(());
        };
        let end = starting.receiver.read_from(starting.socket.as_fd());
        let error = starting.receiver.next::<StartError>()?;
        if error.is_none() && end.as_ref().is_ok_and(|len| *len > 0) {
            return Ok(());
        }
        let starting = process
            .starting
            .take()
            .expect("the process was starting above");
        match error {
            Some((error, _)) => {
                process.failed = true;
                self.reply(starting.request, Err(Failure::Start(error)), Vec::new())
            }
            None => {
                let terminal = starting.terminal.into_iter().collect();
                self.reply(starting.request, Ok(None), terminal)
            }
        }
    }
}

fn start_failure(error: &io::Error) -> Failure {
    let message = format!("unable to start container process: {error}");
    Failure::Start(StartError::new(StartErrorKind::Setup, message))
}

fn kill(pid: Pid, signal: Signal) -> Result<(), Failure> {
    rustix::process::kill_process(pid, signal)
        .map_err(|error| Failure::new("cannot send a signal", &error.into()))
}

fn wait_status(status: RawStatus) -> WaitStatus {
    match status.terminating_signal() {
        Some(signal) => WaitStatus::Signaled(signal),
        None => WaitStatus::Exited(status.exit_status().unwrap_or_default()),
    }
}
