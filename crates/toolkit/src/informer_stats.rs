//! Statistics of informers, for metrics and the trace.

use std::time::Duration;

/// Statistics of an informer: its cache, and the requests of its reflectors.
///
/// ```
/// use bellerophon::informer::{
///     FactoryOptions, InformerOptions, InformerStats, SharedInformerFactory,
/// };
/// use k8s_openapi::api::core::v1::Namespace;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = bellerophon_apiserver::ApiServer::builder().start().await?;
/// # let client = server.client();
/// let informers = SharedInformerFactory::start(client, FactoryOptions::default());
/// let namespaces = informers.informer::<Namespace>(InformerOptions::default());
/// namespaces.wait_for_cache_sync().await?;
///
/// let stats: InformerStats = namespaces.stats();
/// assert_eq!(stats.relists, 1);
/// assert_eq!(stats.objects, 4); // default, kube-node-lease, kube-public, kube-system
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InformerStats {
    /// Complete lists, the first included.
    pub relists: u64,
    /// Watches requested.
    pub watches: u64,
    /// Objects that could not be decoded and were skipped.
    pub undecodable: u64,
    /// Objects in the cache.
    pub objects: usize,
    /// Notifications that handlers have not received yet, one per object and handler.
    pub backlog: usize,
    /// How long the oldest of those has been pending.
    pub lag: Duration,
    /// Time since the last event, of the watch without events for longest. Servers send a bookmark
    /// about every minute.
    pub silence: Duration,
}
