//! Waiting for a condition.
//! Holds: nothing polls; a condition is looked at when a watch tells of a change.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use bellerophon::ObjectKey;
use futures_util::{StreamExt as _, pin_mut};
use kube::{
    Api, Resource,
    api::{WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How much cluster life a condition may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Waits until the objects of an API are as wanted, and returns them in the order of their keys.
///
/// # Panics
/// An hour of virtual time passes without it, or the API cannot be read.
pub async fn until<K>(api: &Api<K>, wanted: &str, so: impl Fn(&[K]) -> bool) -> Vec<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut seen: BTreeMap<ObjectKey, K> = BTreeMap::new();
    let waiting = async {
        loop {
            let listed = api.list(&Default::default()).await.expect("a list");
            let version = listed.metadata.resource_version.unwrap_or_default();
            seen = listed.items.into_iter().map(|object| (ObjectKey::of(&object), object)).collect();
            if so(&seen.values().cloned().collect::<Vec<_>>()) {
                return;
            }
            let events = api.watch(&WatchParams::default(), &version).await.expect("a watch");
            pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => seen.insert(ObjectKey::of(&object), object),
                    WatchEvent::Deleted(object) => seen.remove(&ObjectKey::of(&object)),
                    WatchEvent::Bookmark(_) => continue,
                    // Too old: list again.
                    WatchEvent::Error(_) => break,
                };
                if so(&seen.values().cloned().collect::<Vec<_>>()) {
                    return;
                }
            }
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "{wanted}: not within an hour; there is {:#?}", seen.values().collect::<Vec<_>>());
    seen.into_values().collect()
}
