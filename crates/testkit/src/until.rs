//! Waiting for a condition.
//! Holds: nothing polls; a condition is looked at when a watch tells of a change.

use std::{fmt::Debug, time::Duration};

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
    // In the order of their keys.
    let mut seen: Vec<K> = Vec::new();
    let waiting = async {
        loop {
            let listed = api.list(&Default::default()).await.expect("a list");
            let version = listed.metadata.resource_version.unwrap_or_default();
            seen = listed.items;
            seen.sort_by_cached_key(ObjectKey::of);
            if so(&seen) {
                return;
            }
            let events = api
                .watch(&WatchParams::default(), &version)
                .await
                .expect("a watch");
            pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                let (object, is_there) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(_) => continue,
                    // Too old: list again.
                    WatchEvent::Error(_) => break,
                };
                match (
                    seen.binary_search_by_key(&ObjectKey::of(&object), ObjectKey::of),
                    is_there,
                ) {
                    (Ok(place), true) => seen[place] = object,
                    (Ok(place), false) => drop(seen.remove(place)),
                    (Err(place), true) => seen.insert(place, object),
                    (Err(_), false) => {}
                }
                if so(&seen) {
                    return;
                }
            }
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    assert!(
        waited.is_ok(),
        "{wanted}: not within an hour; there is {seen:#?}"
    );
    seen
}
