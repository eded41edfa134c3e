//! The stage of a container process before its program: namespaces, mounts, streams, user.
//!
//! In: one [`ContainerStart`] on stdin, with the descriptors of the streams. Out: the program
//! replaces this process, or one [`StartError`] is sent.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::{mounts, namespaces, program, take_control_socket};
use crate::error::{StartError, StartErrorKind};
use crate::frame::{self, Receiver};
use crate::open_files::raise_open_files_limit;
use crate::protocol::ProcessSpec;

/// The namespaces that the process creates or joins.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Join {
    /// Tier B.
    None,
    /// The main process of a container.
    NewMountNamespace,
    /// Another process of a container: the last two descriptors are its namespaces.
    Container,
}

/// What to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ContainerStart {
    pub(super) spec: ProcessSpec,
    pub(super) join: Join,
}

pub(super) fn run() -> io::Result<()> {
    let control = take_control_socket()?;
    let received = Receiver::default().receive::<ContainerStart>(&control)?;
    let Some((start, fds)) = received else {
        return Ok(());
    };
    let error = execute(start, fds);
    frame::send(&control, &error, Vec::new())
}

fn setup_error(what: &str, error: &io::Error) -> StartError {
    StartError::new(StartErrorKind::Setup, format!("{what}: {error}"))
}

/// Executes the program; returns only if that fails.
fn execute(start: ContainerStart, fds: Vec<OwnedFd>) -> StartError {
    let mut command = match set_up(&start, fds) {
        Ok(command) => command,
        Err(error) => return error,
    };
    // The mask is inherited, and the shim blocks the signals that it reads from a descriptor.
    if let Err(error) = SigSet::empty().thread_set_mask() {
        return setup_error("unblock signals", &error.into());
    }
    let error = command.exec();
    program::exec_error(&start.spec.argv, &error)
}

fn set_up(start: &ContainerStart, mut fds: Vec<OwnedFd>) -> Result<Command, StartError> {
    let ContainerStart { spec, join } = start;
    if let Some(cgroup) = &spec.cgroup {
        fs::write(cgroup.join("cgroup.procs"), "0")
            .map_err(|error| setup_error("join the cgroup", &error))?;
    }
    rustix::process::setsid().map_err(|error| setup_error("setsid", &error.into()))?;
    match join {
        Join::None => {}
        Join::NewMountNamespace => {
            unshare(CloneFlags::CLONE_NEWNS)
                .map_err(|error| setup_error("create a mount namespace", &error.into()))?;
            mounts::set_up_container(spec)
                .map_err(|message| StartError::new(StartErrorKind::Mount, message))?;
        }
        Join::Container => {
            let user = fds.pop();
            let mount = fds.pop();
            if let (Some(mount), Some(user)) = (mount, user) {
                namespaces::join_container(&mount, &user)
                    .map_err(|error| setup_error("join the namespaces", &error))?;
            }
        }
    }
    set_streams(&fds, spec.tty).map_err(|error| setup_error("set up the streams", &error))?;
    // As from container runtimes.
    raise_open_files_limit()
        .map_err(|error| setup_error("raise the limit of open files", &error))?;
    become_user(spec, *join)?;
    // The parent is a shim with one thread, so the signal follows the process.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| setup_error("set the parent-death signal", &error.into()))?;
    // Without namespaces, the default is the working directory of the node.
    let root = (!matches!(join, Join::None)).then(|| Path::new("/"));
    if let Some(dir) = spec.working_dir.as_deref().or(root) {
        std::env::set_current_dir(dir).map_err(|error| {
            let message = format!("chdir to cwd ({:?}) failed: {error}", dir.display());
            StartError::new(StartErrorKind::WorkingDirectory, message)
        })?;
    }
    let path = program::find(&spec.argv, &spec.env)?;
    let mut command = Command::new(path);
    command
        .arg0(&spec.argv[0])
        .args(&spec.argv[1..])
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

/// Stdin, stdout and stderr, or one terminal for all.
fn set_streams(fds: &[OwnedFd], tty: bool) -> io::Result<()> {
    let [stdin, stdout, stderr] = match fds {
        [terminal] if tty => {
            rustix::process::ioctl_tiocsctty(terminal)?;
            [terminal, terminal, terminal]
        }
        [stdin, stdout, stderr] => [stdin, stdout, stderr],
        _ => return Err(io::Error::other("unexpected number of descriptors")),
    };
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    Ok(())
}

fn become_user(spec: &ProcessSpec, join: Join) -> Result<(), StartError> {
    let Some(user) = spec.user else {
        return Ok(());
    };
    match join {
        // The user namespace of the container is joined.
        Join::Container => Ok(()),
        Join::NewMountNamespace if user.uid == 0 => Ok(()),
        Join::NewMountNamespace => namespaces::become_user(user)
            .map_err(|error| setup_error(&format!("run as user {}", user.uid), &error)),
        Join::None => {
            let own = rustix::process::geteuid().as_raw();
            if user.uid == own {
                return Ok(());
            }
            let message = format!(
                "run as user {}: without user namespaces, containers run as user {own}; \
                 remove runAsUser",
                user.uid
            );
            Err(StartError::new(StartErrorKind::Setup, message))
        }
    }
}
