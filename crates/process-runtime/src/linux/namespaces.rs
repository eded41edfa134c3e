//! Namespaces of a pod: user, mount, PID, UTS and IPC. PID 1 creates that of the network, if the pod
//! has its own.
//!
//! The user of the node is root in the user namespace, and the only user there. A process that
//! runs as another user gets a nested user namespace in which that number is mapped.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{Pid, getegid, geteuid};

use super::{Stage, mounts, stage_command};
use crate::config::User;
use crate::protocol::SandboxSetup;

/// Creates the namespaces. The next child is PID 1.
pub(super) fn create() -> io::Result<()> {
    let uid = geteuid().as_raw();
    let gid = getegid().as_raw();
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .map_err(|error| describe("unshare", error.into()))?;
    map_user(User { uid: 0, gid: 0 }, uid, gid)
        .map_err(|error| describe("write the user mapping", error))
}

fn describe(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Maps a user inside of the current user namespace to one outside.
fn map_user(inside: User, uid: u32, gid: u32) -> io::Result<()> {
    fs::write("/proc/self/uid_map", format!("{} {uid} 1\n", inside.uid))?;
    // Without privileges, groups can only be mapped if setgroups is denied.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{} {gid} 1\n", inside.gid))
}

/// Makes the process run as that user of the sandbox, without its privileges.
pub(super) fn become_user(user: User) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    map_user(user, 0, 0)
}

/// Sets PID 1 up: mounts, host name and network.
pub(super) fn set_up(setup: &SandboxSetup) -> io::Result<super::network::Network> {
    mounts::set_up_sandbox().map_err(|error| describe("mount", error))?;
    rustix::system::sethostname(setup.hostname.as_bytes())
        .map_err(|error| describe("set the host name", error.into()))?;
    super::network::Network::set_up(setup).map_err(|error| describe("set up the network", error))
}

/// The PID namespace of this process, to return to.
pub(super) struct PidNamespace(OwnedFd);

impl PidNamespace {
    pub(super) fn current() -> io::Result<Self> {
        Ok(Self(File::open("/proc/self/ns/pid")?.into()))
    }

    /// Starts a child as PID 1 of a new PID namespace.
    pub(super) fn spawn_in_new(&self, command: &mut Command) -> io::Result<Pid> {
        unshare(CloneFlags::CLONE_NEWPID)?;
        self.spawn_and_return(command)
    }

    /// Starts a child in the PID namespace of a process.
    pub(super) fn spawn_in(&self, target: Pid, command: &mut Command) -> io::Result<Pid> {
        let path = format!("/proc/{}/ns/pid", target.as_raw_nonzero());
        setns(File::open(path)?, CloneFlags::CLONE_NEWPID)?;
        self.spawn_and_return(command)
    }

    fn spawn_and_return(&self, command: &mut Command) -> io::Result<Pid> {
        let child = command.spawn();
        setns(&self.0, CloneFlags::CLONE_NEWPID)?;
        Ok(Pid::from_child(&child?))
    }
}

/// The mount and user namespaces of a container, to execute another process in it.
pub(super) fn of_container(pid: Pid) -> io::Result<Vec<OwnedFd>> {
    let open = |name: &str| -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/{}/ns/{name}", pid.as_raw_nonzero()))?.into())
    };
    Ok(vec![open("mnt")?, open("user")?])
}

/// Joins the namespaces of [`of_container`].
pub(super) fn join_container(mount: &OwnedFd, user: &OwnedFd) -> io::Result<()> {
    setns(mount, CloneFlags::CLONE_NEWNS)?;
    match setns(user, CloneFlags::CLONE_NEWUSER) {
        // It is the user namespace of the sandbox, in which the process already is.
        Err(nix::errno::Errno::EINVAL) => Ok(()),
        result => Ok(result?),
    }
}

/// Tries everything that a sandbox needs. Prints on stderr what fails, or why there is no veth pair.
pub(super) fn probe() -> io::Result<()> {
    // The first stage creates the namespaces, the second one uses them.
    if rustix::process::getpid() != Pid::INIT {
        create()?;
        let output = stage_command(Stage::Probe, std::process::Stdio::null())
            .stderr(std::process::Stdio::inherit())
            .output()?;
        return if output.status.success() {
            Ok(())
        } else {
            Err(io::Error::other("the namespaces cannot be used"))
        };
    }
    let network = set_up(&SandboxSetup {
        hostname: "probe".to_owned(),
        ip: [10, 0, 0, 1].into(),
        host_network: false,
        local_ranges: Vec::new(),
    })?;
    if let Some(error) = network.services_error() {
        eprintln!("veth: {error}");
    }
    Ok(())
}
