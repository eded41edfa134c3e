//! Container runtime that runs pods as local processes, without images, containers or root.
//!
//! A kubelet creates a [`Sandbox`] per pod and starts [`Container`]s in it, as with the Container
//! Runtime Interface (CRI). There are two tiers: with unprivileged namespaces (A), a pod has its
//! own network, mounts and process IDs; without them (B), it has a loopback address. See [`Tier`].
//!
//! No process outlives the node: a sandbox ends when the Unix socket to the node is closed, which
//! the kernel does when the node is killed, and a new [`Runtime`] kills what is left of an earlier
//! one with the same data directory.
//!
//! # Limits
//!
//! - A pod of tier A reaches only addresses for which the node listens ([`Sandbox::listen`]), by
//!   TCP: there is no route to the node or to the Internet.
//! - Without veth support in the kernel, a wildcard listener of a pod of tier A conflicts with a
//!   listener of the node on the same port.
//! - Limits of CPU, memory and processes need a delegated cgroup v2; see [`Capabilities`].
//! - Tier B has neither `runAsUser` nor mount paths nor read-only volumes, and a program that
//!   clears its environment and loses its shim to a `SIGKILL` is not found by the next node.
//! - A file that is neither a binary nor a script with `#!` is executed by `sh`, as execvp(3) does.
//! - As in containers, the main process is PID 1 in tier A: without a handler it ignores
//!   `SIGTERM` and is killed after the grace period.

pub mod atomic_writer;
pub mod expansion;
pub mod images;
pub mod logs;
pub mod relay;
pub mod shim;
pub mod udp_relay;

mod cgroup;
mod client;
mod clock;
mod config;
mod container;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod error;
mod exec;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod frame;
#[cfg(target_os = "linux")]
mod linux;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod protocol;
mod runtime;
mod sandbox;
mod streams;
mod terminal;
mod tier;
#[cfg(not(target_os = "linux"))]
mod unsupported;
mod usage;

#[cfg(target_os = "linux")]
use linux as sys;
#[cfg(not(target_os = "linux"))]
use unsupported as sys;

pub use cgroup::{CgroupParent, check_limits};
pub use clock::{Clock, system_clock};
pub use config::{
    ContainerConfig, ExecConfig, Limits, Mount, SandboxConfig, SandboxNetwork, Streams,
    TargetContainer, User,
};
pub use container::{Container, ContainerExit, ContainerState};
pub use error::{Error, StartError, StartErrorKind};
pub use exec::ExecProcess;
pub use runtime::{Capabilities, Runtime, RuntimeOptions};
pub use sandbox::Sandbox;
pub use streams::{Attachment, Chunk, Input, Output, STALL_MAX, SharedInput};
pub use terminal::Terminal;
pub use tier::{Tier, TierReport, detect};
pub use usage::Usage;
