//! Messages between the node and its shims.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::{Mount, User};
use crate::error::StartError;
use crate::usage::Usage;

/// How a sandbox is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxSetup {
    pub(crate) hostname: String,
    pub(crate) ip: IpAddr,
    /// Whether it has the network of the node.
    pub(crate) host_network: bool,
    /// Address ranges that are local in the sandbox.
    pub(crate) local_ranges: Vec<(IpAddr, u8)>,
}

/// What a container process executes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessSpec {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) user: Option<User>,
    pub(crate) tty: bool,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) read_only_root: bool,
    /// The cgroup directory to join.
    pub(crate) cgroup: Option<PathBuf>,
}

/// The protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// A request of the node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Sets the sandbox up; the first request.
    Setup(SandboxSetup),
    /// Starts the main process of a container. Descriptors: stdin, stdout, stderr; none with a
    /// terminal, which the reply has. With a target, it joins the PID namespace of that container.
    Start {
        process: u64,
        spec: ProcessSpec,
        target: Option<u64>,
    },
    /// Starts another process in a container. Descriptors as for `Start`.
    Exec {
        process: u64,
        container: u64,
        spec: ProcessSpec,
    },
    /// Sends a signal to one process.
    Signal { process: u64, signal: i32 },
    /// Kills all processes of a container.
    Kill { container: u64 },
    /// Measures the processes of a container.
    Usage { container: u64 },
    /// Creates a socket in the sandbox, optionally bound to a source address.
    Socket {
        transport: Transport,
        source: Option<SocketAddr>,
        ipv6: bool,
    },
    /// Creates a listening socket in the sandbox.
    Listen {
        transport: Transport,
        address: SocketAddr,
    },
    /// Mounts a tmpfs on a directory, for all containers that start later.
    MountTmpfs {
        path: PathBuf,
        size_bytes: Option<u64>,
    },
}

/// A request and its number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) request: Request,
}

/// The wait status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WaitStatus {
    Exited(i32),
    Signaled(i32),
}

impl WaitStatus {
    /// The exit code, 128 and the number of the signal if it was killed; and the signal.
    pub(crate) fn exit_code(self) -> (i32, Option<i32>) {
        match self {
            Self::Exited(code) => (code, None),
            Self::Signaled(signal) => (128 + signal, Some(signal)),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// The process could not be started.
    Start(StartError),
    /// A system call failed: what was tried, and the error number if there is one.
    System { message: String, errno: Option<i32> },
}

impl Failure {
    pub(crate) fn new(what: &str, error: &io::Error) -> Self {
        Self::System {
            message: format!("{what}: {error}"),
            errno: error.raw_os_error(),
        }
    }
}

/// What a shim sends to the node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The shim runs. Descriptor: a pidfd of its process.
    Launched { pid: i32 },
    /// The shim could not be launched.
    LaunchFailed { message: String },
    /// The answer to a request, with the usage that was requested. Descriptors: a terminal, a
    /// socket or nothing.
    Reply {
        id: u64,
        result: Result<Option<Usage>, Failure>,
    },
    /// A process has ended. With the main process of a container, all of its processes have.
    Exited { process: u64, status: WaitStatus },
}
