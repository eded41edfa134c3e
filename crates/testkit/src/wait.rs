//! Wait for a condition on the objects of an API.
//!
//! Guarantee: nothing polls; the condition is evaluated after the initial list and after every
//! watch event.

use std::{fmt::Debug, time::Duration};

use bellerophon::ObjectKey;
use futures_util::{StreamExt as _, pin_mut};
use kube::{
    Api, Resource,
    api::{WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How much virtual time a condition may take.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Waits until the objects of an API meet a condition, and returns them sorted by key.
///
/// `expected` names the condition in the panic message.
///
/// # Panics
/// The condition is not met within an hour of virtual time, or the API cannot be read.
///
/// # Example
/// ```
/// use bellerophon_testkit::{TestCluster, wait_until};
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::api_server_only().await;
/// let settings = json!({
///     "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
/// });
/// cluster.apply(settings).await;
/// let config_maps = cluster.namespaced::<ConfigMap>("default");
/// let found = wait_until(&config_maps, "one ConfigMap exists", |all| all.len() == 1).await;
/// assert_eq!(found[0].metadata.name.as_deref(), Some("settings"));
/// cluster.stop().await;
/// # }
/// ```
pub async fn wait_until<K>(api: &Api<K>, expected: &str, condition: impl Fn(&[K]) -> bool) -> Vec<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    // Sorted by key.
    let mut current: Vec<K> = Vec::new();
    let waiting = async {
        loop {
            let listed = api.list(&Default::default()).await.expect("a list");
            let version = listed.metadata.resource_version.unwrap_or_default();
            current = listed.items;
            current.sort_by_cached_key(ObjectKey::of);
            if condition(&current) {
                return;
            }
            let events = api
                .watch(&WatchParams::default(), &version)
                .await
                .expect("a watch");
            pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                let (object, exists) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(_) => continue,
                    // 410 Gone: the version is no longer in the watch history, so list again.
                    WatchEvent::Error(_) => break,
                };
                let found = current.binary_search_by_key(&ObjectKey::of(&object), ObjectKey::of);
                match (found, exists) {
                    (Ok(index), true) => current[index] = object,
                    (Ok(index), false) => drop(current.remove(index)),
                    (Err(index), true) => current.insert(index, object),
                    (Err(_), false) => {}
                }
                if condition(&current) {
                    return;
                }
            }
        }
    };
    let waited = timeout(TIMEOUT, waiting).await;
    assert!(
        waited.is_ok(),
        "condition not met within an hour: {expected}; current objects: {current:#?}"
    );
    current
}
