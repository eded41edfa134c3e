//! Nodes that run pods as local processes (`bellerophon up --runtime process`).
//!
//! Input: the image table of the command line. Output: the container runtime of the nodes, and a
//! dialer that reaches pods.

use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use bellerophon_apiserver::{ByteStream, Dialer, Dialing, LoopbackDialer};
use bellerophon_cluster::{Kubelets, ProcessNodes};
use bellerophon_process_runtime::images::ImageTable;
use bellerophon_process_runtime::{Runtime, RuntimeOptions, Sandbox, Tier};
use tracing::warn;

use crate::{error::CliError, up_options::UpOptions};

/// Set to `B`, it makes nodes do without namespaces.
pub(crate) const TIER_VARIABLE: &str = "BELLEROPHON_TIER";

/// What is left in the data directory of a cluster whose state was in memory.
const LEFT_OVER: [&str; 2] = ["pods", "persistent-volumes"];

/// Starts the container runtime; `None` if the nodes are simulated.
///
/// # Errors
/// The image table is invalid, or another cluster uses the data directory.
pub(crate) async fn start(options: &UpOptions) -> Result<Option<ProcessNodes>, CliError> {
    if !options.runs_processes()? {
        return Ok(None);
    }
    let images = image_table(options)?;
    let data_dir = data_dir(&options.kubeconfig).map_err(CliError::new)?;
    let runtime_options = RuntimeOptions {
        force_tier_b: is_tier_b_forced(),
        ..RuntimeOptions::new(&data_dir)
    };
    let runtime = Runtime::start(runtime_options)
        .await
        .map_err(CliError::context("cannot start --runtime process"))?;
    for name in LEFT_OVER {
        remove_dir(&data_dir.join(name)).map_err(CliError::new)?;
    }
    let capabilities = runtime.capabilities();
    if capabilities.tier.tier == Tier::B {
        let reason = capabilities.tier.reason.as_deref().unwrap_or_default();
        warn!(
            reason,
            "pods have no namespaces: a program must listen on $POD_IP"
        );
    }
    Ok(Some(ProcessNodes { runtime, images }))
}

/// Whether the environment forces tier B.
pub(crate) fn is_tier_b_forced() -> bool {
    std::env::var_os(TIER_VARIABLE).is_some_and(|tier| tier == "B")
}

/// Entries of `--image` precede those of the file.
fn image_table(options: &UpOptions) -> Result<ImageTable, CliError> {
    let own_program = std::env::current_exe().map_err(CliError::new)?;
    let mut images = ImageTable::new(&own_program);
    if let Some(path) = &options.images_file {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CliError::Usage(format!("cannot read --images {name}: {error}")))?;
        images
            .add_yaml(&text)
            .map_err(|error| CliError::Usage(format!("--images {name}: {error}")))?;
    }
    for flag in &options.images {
        images
            .add_flag(flag)
            .map_err(|error| CliError::Usage(error.to_string()))?;
    }
    Ok(images)
}

/// The directory of volumes and logs, next to the kubeconfig.
pub(crate) fn data_dir(kubeconfig: &Path) -> io::Result<PathBuf> {
    let mut name = kubeconfig.as_os_str().to_owned();
    name.push(".nodes");
    std::path::absolute(name)
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Dials kubelets in process, pods in their networks, and other loopback addresses.
pub(crate) struct NodeDialer {
    kubelets: Kubelets,
    /// `None` if the nodes are simulated: their pods listen on no port.
    runtime: Option<Runtime>,
}

impl NodeDialer {
    pub(crate) fn new(kubelets: Kubelets, nodes: Option<&ProcessNodes>) -> Self {
        Self {
            kubelets,
            runtime: nodes.map(|nodes| nodes.runtime.clone()),
        }
    }

    fn sandbox(&self, ip: IpAddr) -> Option<Sandbox> {
        self.runtime.as_ref()?.sandbox_by_ip(ip)
    }
}

impl fmt::Debug for NodeDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeDialer").finish_non_exhaustive()
    }
}

impl Dialer for NodeDialer {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        if let Some(stream) = self.kubelets.connect(address) {
            let stream = stream.map(|stream| Box::new(stream) as Box<dyn ByteStream>);
            return Box::pin(ready(stream));
        }
        let sandbox = self.runtime.as_ref();
        let Some(sandbox) = sandbox.and_then(|runtime| runtime.sandbox_at(address)) else {
            return LoopbackDialer.dial(address);
        };
        Box::pin(async move {
            let stream = sandbox.dial(address, None).await;
            let stream = stream.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }

    /// The loopback address of a pod of tier B is its own.
    fn may_proxy_to(&self, ip: IpAddr) -> bool {
        self.sandbox(ip).is_some() || LoopbackDialer.may_proxy_to(ip)
    }
}
