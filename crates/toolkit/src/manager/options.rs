//! Settings of a Manager.

use std::net::SocketAddr;
use std::time::Duration;

use crate::clock::{Clock, Rng};
use crate::cluster::ControllerClients;
use crate::controller::ControllerOptions;
use crate::informer::{CacheMode, Namespaces};
use crate::leader::LeaderElectionOptions;
use crate::metrics::Metrics;
use crate::trace::Trace;
#[cfg(feature = "webhooks")]
use crate::webhook::WebhookOptions;

/// How long controllers may take to finish running reconciles, as in controller-runtime.
const GRACEFUL_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a [`Manager`](super::Manager).
///
/// ```
/// use bellerophon::leader::LeaderElectionOptions;
/// use bellerophon::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let options = ManagerOptions {
///     metrics_bind_address: Some(([0, 0, 0, 0], 8080).into()),
///     leader_election: Some(LeaderElectionOptions::new("hero-operator")),
///     ..ManagerOptions::default()
/// };
/// # assert!(options.health_probe_bind_address.is_none());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The `reportingInstance` of events, and, with a random suffix, the candidate in leader
    /// election; default: the environment variable `HOSTNAME`, which in a pod is the name of the
    /// pod.
    pub identity: Option<String>,
    /// The namespaces of its informers; default: all. Cluster-scoped kinds are watched always.
    pub namespaces: Namespaces,
    /// How its caches keep objects, where an informer sets nothing else.
    pub cache_mode: Option<CacheMode>,
    /// Settings of its controllers, where a controller sets nothing else.
    pub controller: ControllerOptions,
    /// The clients of reconciles and of event recorders; default: the client of the Manager.
    pub controller_clients: Option<ControllerClients>,
    /// Where `/metrics` is served; default: nowhere.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Where `/healthz` and `/readyz` are served; default: nowhere. It may be the address of the
    /// metrics.
    pub health_probe_bind_address: Option<SocketAddr>,
    /// The lease to hold before controllers run; default: none. Caches are filled before, so that a
    /// standby takes over quickly.
    pub leader_election: Option<LeaderElectionOptions>,
    /// How long controllers and runnables may take to end; default: 30 s.
    pub graceful_shutdown_timeout: Duration,
    /// The metrics registry. Several Managers of one process may share one.
    pub metrics: Metrics,
    /// The trace. Several Managers of one process may share one.
    pub trace: Trace,
    /// The time that is written into objects.
    pub clock: Clock,
    /// The source of jitter.
    pub rng: Rng,
    /// Settings of its webhooks. It needs the cargo feature `webhooks`.
    #[cfg(feature = "webhooks")]
    pub webhooks: WebhookOptions,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            identity: None,
            namespaces: Namespaces::All,
            cache_mode: None,
            controller: ControllerOptions::default(),
            controller_clients: None,
            metrics_bind_address: None,
            health_probe_bind_address: None,
            leader_election: None,
            graceful_shutdown_timeout: GRACEFUL_SHUTDOWN_TIMEOUT,
            metrics: Metrics::new(),
            trace: Trace::off(),
            clock: Clock::system(),
            rng: Rng::from_os(),
            #[cfg(feature = "webhooks")]
            webhooks: WebhookOptions::default(),
        }
    }
}

impl ManagerOptions {
    pub(super) fn identity(&self) -> String {
        let hostname = || {
            std::env::var("HOSTNAME")
                .ok()
                .filter(|name| !name.is_empty())
        };
        let identity = self.identity.clone().or_else(hostname);
        identity.unwrap_or_else(|| "bellerophon".to_owned())
    }
}
