//! Random histories through a faulty connection: requests fail, watches end after a few events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::clock::Rng;
use bellerophon::informer::{
    CacheMode, EventHandler, InformerOptions, InitialList, KubeListWatch, ListPage, ListRequest,
    ListWatch, ListWatchError, Tombstone, WatchRequest, WatchStream,
};
use bellerophon::prelude::*;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{config_map, factory, put};
use crate::harness::server;

type Versions = BTreeMap<ObjectKey, String>;

#[tokio::test(start_paused = true)]
async fn random_histories_with_faults_end_with_the_objects_of_the_server() {
    let server = server().await;
    for seed in 0..300 {
        history(&server.client(), seed).await;
    }
}

/// The objects that a handler knows.
#[derive(Clone, Default)]
struct Known {
    state: Arc<Mutex<KnownState>>,
    calls: watch::Sender<usize>,
}

#[derive(Default)]
struct KnownState {
    versions: Versions,
    /// Calls that contradict earlier ones.
    contradictions: usize,
}

impl Known {
    fn set(&self, key: ObjectKey, version: Option<String>, before: Option<&ConfigMap>) {
        let mut state = self.state.lock().unwrap();
        let known = match version {
            Some(version) => state.versions.insert(key, version),
            None => state.versions.remove(&key),
        };
        let expected = before.and_then(ResourceExt::resource_version);
        state.contradictions += usize::from(known != expected);
        drop(state);
        self.calls.send_modify(|calls| *calls += 1);
    }

    /// Waits until it knows exactly these objects.
    async fn caught_up(&self, expected: &Versions, seed: u64) {
        let mut calls = self.calls.subscribe();
        let caught_up = calls.wait_for(|_| self.state.lock().unwrap().versions == *expected);
        let caught_up = timeout(Duration::from_secs(3600), caught_up).await;
        assert!(caught_up.is_ok(), "never caught up, seed {seed}");
    }
}

impl EventHandler<ConfigMap> for Known {
    fn on_add(&self, object: &Arc<ConfigMap>, _: bool) {
        let key = ObjectKey::from_object(&**object);
        self.set(key, object.resource_version(), None);
    }
    fn on_update(&self, old: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        let key = ObjectKey::from_object(&**new);
        self.set(key, new.resource_version(), Some(old));
    }
    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        let mut state = self.state.lock().unwrap();
        let known = state.versions.remove(&last.key);
        state.contradictions += usize::from(known.is_none());
        drop(state);
        self.calls.send_modify(|calls| *calls += 1);
    }
}

/// The server behind a faulty connection.
struct Faulty {
    source: KubeListWatch,
    rng: Rng,
    /// Cancelled once no more faults are injected.
    repaired: CancellationToken,
}

impl Faulty {
    fn error(&self) -> Option<ListWatchError> {
        if self.repaired.is_cancelled() {
            return None;
        }
        match self.rng.below(10) {
            0 => Some(ListWatchError::Unreachable("connection refused".into())),
            1 => Some(ListWatchError::Expired("too old resource version".into())),
            2 => Some(ListWatchError::TooLarge(
                "too large resource version".into(),
            )),
            _ => None,
        }
    }
}

impl ListWatch for Faulty {
    fn list(&self, request: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>> {
        match self.error() {
            Some(error) => std::future::ready(Err(error)).boxed(),
            None => self.source.list(request),
        }
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<WatchStream, ListWatchError>> {
        if let Some(error) = self.error() {
            return std::future::ready(Err(error)).boxed();
        }
        let opened = self.source.watch(request);
        if self.repaired.is_cancelled() {
            return opened;
        }
        let length = usize::try_from(self.rng.below(8)).expect("small");
        let repaired = self.repaired.clone();
        async move {
            let events = opened.await?.take(length);
            let until_repaired = events.take_until(async move { repaired.cancelled().await });
            Ok(until_repaired.boxed())
        }
        .boxed()
    }
}

/// The options of one history, with a source whose faults end with `repaired`.
fn options(
    client: &Client,
    seed: u64,
    rng: &Rng,
    repaired: &CancellationToken,
) -> InformerOptions<ConfigMap> {
    let path = ConfigMap::url_path(&(), Some("default"));
    let source = KubeListWatch::new(client.clone(), path).labels("app=x");
    let faults = rng.clone();
    let repaired = repaired.clone();
    let modes = [
        CacheMode::default(),
        CacheMode::Compact { decoded_max: 1 },
        CacheMode::Compact { decoded_max: 0 },
        CacheMode::Decoded,
    ];
    let initial_list = match seed % 3 {
        0 => InitialList::Paged,
        _ => InitialList::Streamed,
    };
    InformerOptions {
        list_watch: Some(Arc::new(move |_| {
            Arc::new(Faulty {
                source: source.clone(),
                rng: faults.clone(),
                repaired: repaired.clone(),
            })
        })),
        initial_list: Some(initial_list),
        cache_mode: Some(modes[usize::try_from(rng.below(4)).expect("small")]),
        page_size: Some(2),
        ..InformerOptions::default()
    }
}

/// One random write.
async fn write(maps: &Api<ConfigMap>, rng: &Rng, value: String) {
    let name = ["a", "b", "c", "d"][usize::try_from(rng.below(4)).expect("small")];
    if rng.below(3) == 0 {
        match maps.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => _ = deleted.unwrap(),
        }
        return;
    }
    // An object that loses its label leaves the cache without being deleted.
    let app = if rng.below(4) == 0 { "y" } else { "x" };
    let mut object = config_map(name, app);
    object.data = Some([("step".to_owned(), value)].into());
    put(maps, &object).await;
}

/// Writes while faults are injected; afterwards the cache and the handler have the server's
/// objects.
async fn history(client: &Client, seed: u64) {
    let rng = Rng::seeded(seed);
    let repaired = CancellationToken::new();
    let informers = factory(client, seed);
    let informer = informers.informer(options(client, seed, &rng, &repaired));
    let by_step = informer.index("step", |map: &ConfigMap| {
        let data = map.data.iter();
        data.flat_map(|data| data.values().cloned()).collect()
    });
    let known = Known::default();
    informer.add_event_handler(known.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for step in 0..12 {
        write(&maps, &rng, format!("{seed}-{step}")).await;
        if rng.below(2) == 0 {
            sleep(Duration::from_millis(rng.below(3000))).await;
        }
    }
    repaired.cancel();
    let stored = maps.list(&ListParams::default().labels("app=x")).await;
    let stored = stored.unwrap().items;
    let version = |map: &ConfigMap| {
        let version = map.resource_version().unwrap_or_default();
        (ObjectKey::from_object(map), version)
    };
    let expected: Versions = stored.iter().map(version).collect();
    // The cache has a change before its handlers receive it.
    known.caught_up(&expected, seed).await;
    let lister = informer.lister();
    let cached: Versions = lister.list().iter().map(|map| version(map)).collect();
    assert_eq!(cached, expected, "seed {seed}");
    for object in stored {
        let key = ObjectKey::from_object(&object);
        let step = &object.data.as_ref().expect("each has data")["step"];
        assert_eq!(
            by_step.keys(step),
            std::slice::from_ref(&key),
            "seed {seed}"
        );
        let read = lister.get(&key).expect("it is cached");
        assert_eq!(read.data, object.data);
        assert_eq!(read.metadata.labels, object.metadata.labels);
        assert_eq!(read.metadata.uid, object.metadata.uid);
    }
    let contradictions = known.state.lock().unwrap().contradictions;
    assert_eq!(contradictions, 0, "seed {seed}");
    informers.stop().await;
}
