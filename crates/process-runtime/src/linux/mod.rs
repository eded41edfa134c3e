//! Linux: the shim processes and what they need of the kernel.
//!
//! The node starts the shim program, which is its own binary, with a Unix socket as stdin. Stages:
//! `sandbox` creates the namespaces of a pod (tier A) or supervises one container (tier B); `init`
//! is PID 1 of the pod; `container` sets a container up and executes its program; `probe` tries
//! whether namespaces can be created.
//!
//! Guarantees: a shim ends, and with it all processes that it has started, when the socket to the
//! node is closed.

mod container;
mod devices;
mod launch;
mod listeners;
mod mounts;
mod namespaces;
mod netlink;
mod network;
mod program;
mod supervisor;

mod procfs;

pub(crate) use self::launch::{Launcher, ShimProcess};
pub(crate) use self::listeners::{listening_ports, wildcard_listeners};
pub(crate) use self::procfs::{kill_with_environment, with_environment};

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{PidfdFlags, Signal};

use crate::frame;
use crate::protocol::Message;
use crate::tier::Tier;

/// The hidden subcommand of the shim.
pub(crate) const SUBCOMMAND: &str = "process-runtime-shim";

/// What a shim process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Launches the shim of a sandbox (tier A) or of a container (tier B).
    Sandbox(Tier),
    /// PID 1 of a sandbox of tier A.
    Init,
    /// Sets up a container process and executes its program.
    Container,
    /// Tries to create namespaces and exits with 0, or prints what failed.
    Probe,
}

impl Stage {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox(Tier::A) => "sandbox-a",
            Self::Sandbox(Tier::B) => "sandbox-b",
            Self::Init => "init",
            Self::Container => "container",
            Self::Probe => "probe",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [
            Self::Sandbox(Tier::A),
            Self::Sandbox(Tier::B),
            Self::Init,
            Self::Container,
            Self::Probe,
        ]
        .into_iter()
        .find(|stage| stage.as_str() == text)
    }
}

/// Runs a stage if the arguments, with the program's name, are those of a shim.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let stage = args.next()?.into_string().ok()?;
    let result = match Stage::parse(&stage)? {
        Stage::Sandbox(Tier::A) => launch_namespaced(),
        Stage::Sandbox(Tier::B) => supervise_container(),
        Stage::Init => init(),
        Stage::Container => container::run(),
        Stage::Probe => namespaces::probe(),
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

/// The command of a stage, which inherits nothing but its stdin and the environment.
fn stage_command(stage: Stage, stdin: impl Into<Stdio>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([SUBCOMMAND, stage.as_str()])
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Takes the control socket from stdin, which becomes `/dev/null`.
fn take_control_socket() -> io::Result<OwnedFd> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(control)
}

/// Creates the namespaces, starts PID 1 in them and exits. PID 1 inherits the control socket.
fn launch_namespaced() -> io::Result<()> {
    let control = take_control_socket()?;
    let launched = namespaces::create().and_then(|()| {
        let child = stage_command(Stage::Init, control.try_clone()?).spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        // The child is not reaped yet, so the number is still its own.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok((pid, pidfd))
    });
    match launched {
        Ok((pid, pidfd)) => {
            let pid = pid.as_raw_nonzero().get();
            frame::send(&control, &Message::Launched { pid }, vec![pidfd])
        }
        Err(error) => {
            let message = format!("cannot create the namespaces of the pod: {error}");
            frame::send(&control, &Message::LaunchFailed { message }, Vec::new())
        }
    }
}

fn init() -> io::Result<()> {
    supervisor::run(take_control_socket()?, Tier::A)
}

/// Tier B: supervises one container in its own session.
fn supervise_container() -> io::Result<()> {
    let control = take_control_socket()?;
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The signal is blocked and read by the supervisor, which kills its descendants first.
    supervisor::block_signals()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let pid = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let message = Message::Launched {
        pid: pid.as_raw_nonzero().get(),
    };
    frame::send(&control, &message, vec![pidfd])?;
    supervisor::run(control, Tier::B)
}
