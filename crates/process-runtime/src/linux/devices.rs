//! `/dev` of a sandbox: a few devices of the node, own terminals and own shared memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount};
use rustix::pty::OpenptFlags;

use super::mounts::bind_descriptor;

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Mounts `/dev`.
pub(super) fn mount_devices() -> io::Result<()> {
    let dev = Path::new("/dev");
    let mut devices = Vec::new();
    for name in DEVICES {
        let device = rustix::fs::open(
            dev.join(name),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        devices.push((name, device));
    }
    let flags = MountFlags::NOSUID;
    mount("tmpfs", dev, "tmpfs", flags, c"mode=0755")?;
    for (name, device) in devices {
        let target = dev.join(name);
        File::create(&target)?;
        bind_descriptor(&device, &target)?;
    }
    for (name, target) in LINKS {
        symlink(target, dev.join(name))?;
    }
    fs::create_dir(dev.join("pts"))?;
    let options = c"newinstance,ptmxmode=0666,mode=0620";
    mount(
        "devpts",
        dev.join("pts"),
        "devpts",
        flags | MountFlags::NOEXEC,
        options,
    )?;
    fs::create_dir(dev.join("shm"))?;
    let options = c"mode=1777";
    mount(
        "tmpfs",
        dev.join("shm"),
        "tmpfs",
        flags | MountFlags::NODEV,
        options,
    )?;
    Ok(())
}

/// Opens a terminal; returns the master and the terminal of the process.
pub(super) fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, terminal))
}
