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

// A group of modules imports nothing of the groups below it.

// What nodes do without sandboxes.
pub mod atomic_writer; // updates of volumes
pub mod expansion; // `$(VAR)` in commands and variables
pub mod images; // from images to programs
pub mod relay; // connections of Services to endpoints
pub mod udp_relay; // datagrams of Services to endpoints

// Values and descriptors.
mod cgroup; // limits, where a cgroup is delegated
mod clock; // time stamps
mod config; // sandboxes, containers and commands
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod error; // why something was not done
pub mod logs; // log files in CRI format
mod open_files; // the limit of open files
mod options; // settings of a runtime
mod streams; // pipes and attached clients
mod terminal; // pseudo-terminals
mod tier; // the isolation of pods
mod usage; // what processes have used

// Shims.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod frame; // frames with file descriptors
#[cfg(target_os = "linux")]
mod linux; // the shim processes
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "used by the shim, which only Linux has")
)]
mod protocol; // requests to a shim
pub mod shim; // the entry point of shim processes
#[cfg(not(target_os = "linux"))]
mod unsupported; // there are no shims

// The node.
mod client; // the control socket of a shim
mod detect; // which tier this system offers
mod marker; // processes that are left of a node, pod or container
mod shared; // what sandboxes share

// Pods.
mod container; // a container and its supervisor
mod exec; // a command in a container
mod runtime; // sandboxes by their addresses
mod sandbox; // a pod

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
pub use detect::detect;
pub use error::{Error, StartError, StartErrorKind};
pub use exec::ExecProcess;
pub use options::RuntimeOptions;
pub use runtime::Runtime;
pub use sandbox::Sandbox;
pub use shared::Capabilities;
pub use streams::{Attachment, Chunk, Input, Output, STALL_MAX, SharedInput};
pub use terminal::Terminal;
pub use tier::{Tier, TierReport};
pub use usage::Usage;
