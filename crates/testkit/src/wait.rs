//! Wait for a condition on the objects of an API.
//!
//! Guarantee: nothing polls; the condition is evaluated after the initial list and after every
//! watch event.

use std::{sync::Arc, time::Duration};

use bellerophon::{ObjectKey, kinds};
use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::external::condition_timeout;

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
    let mut changes = Changes {
        collection: Collection {
            url: api.resource_url().to_owned(),
            client: api.clone().into_client(),
        },
        state: State::List,
    };
    // Sorted by key, so that the condition sees the same order in every run.
    let mut current: Vec<K> = Vec::new();
    let waiting = async {
        loop {
            update(&mut current, changes.next().await);
            if condition(&current) {
                return;
            }
        }
    };
    let limit = condition_timeout(TIMEOUT);
    let waited = timeout(limit, waiting).await;
    assert!(
        waited.is_ok(),
        "condition not met within {limit:?}: {expected}; current objects: {current:#?}"
    );
    current
}

/// A change of the objects of an API. They are JSON; the codec of a kind decodes them.
enum Change {
    /// All objects.
    Listed(Vec<Value>),
    /// An object was added or modified.
    Set(Value),
    Deleted(Value),
}

/// The changes of the objects of an API, without their type: one state machine for all kinds and
/// conditions.
struct Changes {
    collection: Collection,
    state: State,
}

/// The source of the next change.
enum State {
    List,
    /// A watch from this version, that of the list: no change in between is missed.
    Watch(String),
    Events(BoxStream<'static, kube::Result<WatchEvent<Value>>>),
}

impl Changes {
    /// The next change. The first one is a list, as is each one after the end of a watch.
    fn next(&mut self) -> BoxFuture<'_, Change> {
        Box::pin(async move {
            loop {
                self.state = match &mut self.state {
                    State::List => {
                        let (version, objects) = self.collection.list().await;
                        self.state = State::Watch(version);
                        return Change::Listed(objects);
                    }
                    State::Watch(version) => {
                        let version = std::mem::take(version);
                        State::Events(self.collection.watch(&version).await)
                    }
                    State::Events(events) => match events.next().await {
                        Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                            return Change::Set(object);
                        }
                        Some(Ok(WatchEvent::Deleted(object))) => return Change::Deleted(object),
                        Some(Ok(WatchEvent::Bookmark(_))) => continue,
                        // 410 Gone: the version is no longer in the watch history.
                        Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => State::List,
                    },
                };
            }
        })
    }
}

/// The objects of an API, as JSON.
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

/// Applies a change to objects that are sorted by key.
fn update<K: kinds::Kind>(current: &mut Vec<K>, change: Change) {
    match change {
        Change::Listed(objects) => {
            *current = objects.iter().map(decode).collect();
            current.sort_by_cached_key(ObjectKey::from_object);
        }
        Change::Set(object) => {
            let object: K = decode(&object);
            match position(current, &object) {
                Ok(index) => current[index] = object,
                Err(index) => current.insert(index, object),
            }
        }
        Change::Deleted(object) => {
            if let Ok(index) = position(current, &decode(&object)) {
                current.remove(index);
            }
        }
    }
}

/// The index of the object with the key of this one, or the index to insert it at.
fn position<K: kinds::Kind>(current: &[K], object: &K) -> Result<usize, usize> {
    let key = ObjectKey::from_object(object);
    current.binary_search_by_key(&key, ObjectKey::from_object)
}

fn decode<K: kinds::Kind>(object: &Value) -> K {
    let decoded = kinds::decode(object.to_string().as_bytes());
    Arc::unwrap_or_clone(decoded.expect("an object of the kind"))
}
