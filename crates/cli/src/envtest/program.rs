//! Shared by the programs of the drop-in.

use tokio::runtime::{self, Runtime};

use super::flags::Flags;
use crate::error::CliError;

/// Prints what of the command line has no effect. An environment shows it if its output is attached
/// (`KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT=true`).
pub(super) fn warn(flags: &Flags) {
    for warning in &flags.warnings {
        eprintln!("bellerophon: {warning}");
    }
}

/// A runtime for a process of which many run concurrently.
pub(super) fn runtime() -> Result<Runtime, CliError> {
    runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(CliError::context("cannot start the runtime"))
}

/// A suite runs one control plane per package and several packages at a time.
const WORKERS: usize = 2;
