//! Wait for a condition on the objects of an API.
//!
//! Guarantee: nothing polls; the condition is evaluated after the initial list and after every
//! watch event.

use std::{sync::Arc, time::Duration};

use bellerophon::{ObjectKey, kinds};
use futures_util::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use serde_json::Value;
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
    K: kinds::Kind,
{
    let collection = Collection {
        url: api.resource_url().to_owned(),
        client: api.clone().into_client(),
    };
    // Sorted by key.
    let mut current: Vec<K> = Vec::new();
    let waiting = async {
        loop {
            // List, then watch from that version: no change in between is missed.
            let (version, listed) = collection.list().await;
            current = listed.iter().map(decode).collect();
            current.sort_by_cached_key(ObjectKey::from_object);
            if condition(&current) {
                return;
            }
            let mut events = collection.watch(&version).await;
            while let Some(Ok(event)) = events.next().await {
                let (object, exists) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(_) => continue,
                    // 410 Gone: the version is no longer in the watch history, so list again.
                    WatchEvent::Error(_) => break,
                };
                let object: K = decode(&object);
                let key = ObjectKey::from_object(&object);
                // Kept sorted, so that the condition sees the same order in every run.
                let found = current.binary_search_by_key(&key, ObjectKey::from_object);
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

/// The objects of an API, as JSON: the codec of a kind decodes them.
struct Collection {
    client: Client,
    url: String,
}

impl Collection {
    /// The objects and the version of the list.
    async fn list(&self) -> (String, Vec<Value>) {
        let request = Request::new(&*self.url).list(&ListParams::default());
        let mut list: Value = self
            .client
            .request(request.expect("a request"))
            .await
            .expect("a list");
        let version = list["metadata"]["resourceVersion"].as_str();
        let version = version.unwrap_or_default().to_owned();
        let items = match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        (version, items)
    }

    /// The changes after a version.
    async fn watch(&self, version: &str) -> BoxStream<'static, kube::Result<WatchEvent<Value>>> {
        let request = Request::new(&*self.url).watch(&WatchParams::default(), version);
        self.client
            .request_events(request.expect("a request"))
            .await
            .expect("a watch")
            .boxed()
    }
}

fn decode<K: kinds::Kind>(object: &Value) -> K {
    let decoded = kinds::decode(object.to_string().as_bytes());
    Arc::unwrap_or_clone(decoded.expect("an object of the kind"))
}
