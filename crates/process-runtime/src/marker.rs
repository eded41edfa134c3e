//! Environment variables that mark the processes of a node, so that they are found after the node or
//! a shim was killed.

use std::time::Duration;

use crate::error::Error;
use crate::sys::{kill_with_environment, with_environment};

/// The environment variable that marks all processes of a node.
pub(crate) const NODE_MARKER: &str = "BELLEROPHON_NODE";
/// The environment variable that marks all processes of a pod.
pub(crate) const POD_MARKER: &str = "BELLEROPHON_POD";
/// The environment variable that marks all processes of a container of tier B.
pub(crate) const CONTAINER_MARKER: &str = "BELLEROPHON_CONTAINER";

/// How long processes of an earlier node are waited for after they are killed.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
const SWEEP_INTERVAL: Duration = Duration::from_millis(5);

/// Kills all processes with a marker and waits until they have ended.
pub(crate) async fn sweep(marker: &str, value: &str) -> Result<(), Error> {
    let killed = kill_with_environment(marker, value)?;
    if killed == 0 {
        return Ok(());
    }
    tracing::info!(
        killed,
        marker,
        "killed processes whose shim or node was killed"
    );
    let swept = tokio::time::timeout(SWEEP_TIMEOUT, async {
        while !with_environment(marker, value)?.is_empty() {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            kill_with_environment(marker, value)?;
        }
        Ok::<_, Error>(())
    });
    swept.await.unwrap_or_else(|_| {
        let message = format!("processes with {marker}={value} cannot be killed");
        Err(Error::Sandbox(message))
    })
}
