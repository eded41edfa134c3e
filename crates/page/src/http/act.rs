//! Actions: what a page may write if `--page-may-act` allows it.
//!
//! In: JSON of at most [`ACTION_MAX_BYTES`]. Out: a call of the [`Actor`], and its message.

use futures_util::future::BoxFuture;
use serde::Deserialize;

/// The length of the body of an action.
pub(super) const ACTION_MAX_BYTES: usize = 16 << 10;

/// Something that the user of the page can do to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Applies a sample file.
    ApplySample {
        /// The name of the file.
        sample: String,
    },
    /// Scales a Deployment.
    Scale {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The number of replicas.
        replicas: u32,
    },
    /// Deletes a Pod.
    DeletePod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Switches a simulated node off.
    PowerOff {
        /// The node.
        node: String,
    },
    /// Ends the watches of the controllers in this process, as if their connections were lost.
    CutWatch {
        /// The resource: `pods`, `deployments.apps`.
        resource: String,
    },
}

/// An action failed; the message is shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActError(pub String);

/// Executes actions as the administrator.
pub trait Actor: Send + Sync {
    /// The sample files that can be applied.
    fn samples(&self) -> Vec<String>;

    /// The names of the nodes that can be switched off.
    fn nodes(&self) -> Vec<String>;

    /// The resources whose watches can be cut.
    fn watched(&self) -> Vec<String>;

    /// Executes an action, and returns what was done.
    fn act(&self, action: Action) -> BoxFuture<'_, Result<String, ActError>>;
}
