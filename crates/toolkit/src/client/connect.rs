//! Clients of clusters, for controllers.

use kube::{Client, Config};

/// A client of the cluster of a configuration, for a [`Manager`](crate::manager::Manager).
///
/// Every response is returned to the caller. `Client::try_from` repeats a request that the server
/// answers with 429, 503 or 504 up to 15 times, for minutes: a reconcile would neither learn that a
/// PodDisruptionBudget refuses an eviction, nor end. Informers and work queues back off themselves.
///
/// # Errors
/// The configuration has no valid URL, certificate or credentials.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}
