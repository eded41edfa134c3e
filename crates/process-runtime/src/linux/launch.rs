//! Starts shims, from the node.
//!
//! Guarantees: shims are started by a thread that lives as long as the launcher, because the
//! parent-death signal of a process follows the thread that has started it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::{SUBCOMMAND, Stage};
use crate::error::Error;
use crate::frame::Receiver;
use crate::protocol::Message;
use crate::tier::Tier;

/// Shims that wait to be started. Further callers wait.
const SPAWNS_MAX: usize = 64;

/// Settings of the allocator, if it is mimalloc: without arenas, a shim has 2 MB of private memory
/// instead of 6 MB. Containers do not inherit the environment of shims.
const ALLOCATOR: (&str, &str) = ("MIMALLOC_ARENA_RESERVE", "0");

struct Spawn {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Starts shims.
pub(crate) struct Launcher {
    shim: PathBuf,
    tier: Tier,
    env: Vec<(String, String)>,
    /// Dropping it ends the thread.
    spawns: mpsc::Sender<Spawn>,
}

impl Launcher {
    /// A launcher of shims with that environment.
    pub(crate) fn new(shim: PathBuf, tier: Tier, env: Vec<(String, String)>) -> io::Result<Self> {
        let (spawns, mut requests) = mpsc::channel::<Spawn>(SPAWNS_MAX);
        let handle = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name("shim-launcher".to_owned())
            .spawn(move || {
                let _guard = handle.enter();
                while let Some(mut spawn) = requests.blocking_recv() {
                    // The caller may have gone; the child then ends with its socket.
                    let _ = spawn.reply.send(spawn.command.spawn());
                }
            })?;
        Ok(Self {
            shim,
            tier,
            env,
            spawns,
        })
    }

    /// Starts a shim; returns it with the node's end of its control socket.
    pub(crate) async fn launch(
        &self,
        env: &[(String, String)],
    ) -> Result<(ShimProcess, UnixStream, Receiver), Error> {
        // The shim uses its end with blocking calls.
        let (socket, shim_socket) = std::os::unix::net::UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut command = Command::new(&self.shim);
        command
            .args([SUBCOMMAND, Stage::Sandbox(self.tier).as_str()])
            .env_clear()
            .env(ALLOCATOR.0, ALLOCATOR.1)
            .envs(
                self.env
                    .iter()
                    .chain(env)
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::from(OwnedFd::from(shim_socket)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (reply, spawned) = oneshot::channel();
        let ended = || Error::Sandbox("the shim launcher has ended".to_owned());
        self.spawns
            .send(Spawn { command, reply })
            .await
            .map_err(|_| ended())?;
        let mut child = spawned.await.map_err(|_| ended())?.map_err(|error| {
            Error::Sandbox(format!("cannot start {}: {error}", self.shim.display()))
        })?;
        let socket = UnixStream::from_std(socket)?;
        let mut receiver = Receiver::default();
        let message = receive(&socket, &mut receiver).await?;
        let Some((Message::Launched { pid }, mut fds)) = message else {
            let status = child.wait().await?;
            return Err(Error::Sandbox(match message {
                Some((Message::LaunchFailed { message }, _)) => message,
                _ => format!("the shim {} has ended: {status}", self.shim.display()),
            }));
        };
        let child = match self.tier {
            Tier::A => {
                // The launching stage ends; PID 1 is not a child of the node.
                child.wait().await?;
                None
            }
            Tier::B => Some(child),
        };
        let pid = Pid::from_raw(pid).filter(|_| !fds.is_empty());
        let pid = pid.ok_or_else(|| Error::Sandbox("the shim sent no pidfd".to_owned()))?;
        let process = ShimProcess {
            pid,
            // Only its readiness is used, which is that of any descriptor.
            pidfd: pipe::Receiver::from_owned_fd_unchecked(fds.swap_remove(0))?,
            child: child.map(Box::new),
        };
        Ok((process, socket, receiver))
    }
}

async fn receive(
    socket: &UnixStream,
    receiver: &mut Receiver,
) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    loop {
        if let Some(message) = receiver.next()? {
            return Ok(Some(message));
        }
        socket.readable().await?;
        match socket.try_io(Interest::READABLE, || receiver.read_from(socket)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// A running shim.
pub(crate) struct ShimProcess {
    pid: Pid,
    pidfd: pipe::Receiver,
    /// Tier B: the shim is a child, reaped by tokio when this is dropped.
    child: Option<Box<Child>>,
}

impl ShimProcess {
    /// The process ID of the shim.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the shim, and in tier A every process of the sandbox, has ended.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        self.pidfd.readable().await?;
        if self.child.is_none() {
            // If the node is a subreaper or PID 1, it has inherited the shim and must reap it.
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
        }
        Ok(())
    }

    /// Kills the shim. Only for shims that do not end by themselves.
    pub(crate) fn kill(&self) {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}
