//! What is measured against a server, one client a process: caches until they are synced, controllers until every object
//! was reconciled once.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bellerophon::{
    CacheForm, Controller, EventHandler, HandlerHandle, HandlerOptions, InformerOptions, Outcome,
    Request, SharedInformer, Tombstone, Transform,
};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_runtime::{WatchStreamExt, controller::Action, reflector, watcher};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    Failure,
    common::processor_time,
    objects::{CONFIG_MAPS, PODS},
    process::{Cost, memory},
};

/// How long a client rests before its memory counts as settled.
const REST: Duration = Duration::from_millis(500);

const OURS: &str = "bellerophon";
const OURS_TOLD: &str = "bellerophon, a handler told of every pod";
const OURS_TOLD_KEYS: &str = "bellerophon, a handler told of every key";
const OURS_DECODED: &str = "bellerophon, decoded";
const OURS_WHOLE: &str = "bellerophon, managedFields kept";
const KUBE_LIST: &str = "kube-runtime, paged list";
const KUBE_STREAM: &str = "kube-runtime, streamed list";
const KUBE_STRIPPED: &str = "kube-runtime, streamed list, managedFields dropped";
pub(crate) const SYNCS: [&str; 8] = [
    OURS,
    OURS_TOLD_KEYS,
    OURS_TOLD,
    OURS_DECODED,
    OURS_WHOLE,
    KUBE_LIST,
    KUBE_STREAM,
    KUBE_STRIPPED,
];

const OUR_CONTROLLER: &str = "bellerophon controller";
const KUBE_CONTROLLER: &str = "kube-runtime controller";
pub(crate) const RECONCILES: [&str; 2] = [OUR_CONTROLLER, KUBE_CONTROLLER];

/// Those of client-go, which are in `clientgo`.
pub(crate) const GO_SYNCS: [&str; 3] = [
    "client-go",
    "client-go, a handler told of every pod",
    "client-go, managedFields dropped",
];
pub(crate) const GO_RECONCILES: [&str; 1] = ["client-go controller"];

pub(crate) fn run(name: &str, kubeconfig: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let start = memory("VmRSS")?;
        let kubeconfig = Kubeconfig::read_from(Path::new(kubeconfig))?;
        let client = Client::try_from(
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?,
        )?;
        let options = InformerOptions::default;
        match name {
            OURS => sync(client, options(), begun, start).await,
            OURS_TOLD => {
                told(client, begun, start, |informer, count| {
                    informer.add_handler(count, HandlerOptions::default())
                })
                .await
            }
            OURS_TOLD_KEYS => {
                let add = |informer: &SharedInformer<Pod>, Count(count): Count| {
                    informer.add_key_handler(
                        move |_| _ = count.fetch_add(1, Ordering::Relaxed),
                        HandlerOptions::default(),
                    )
                };
                told(client, begun, start, add).await
            }
            OURS_DECODED => {
                sync(
                    client,
                    InformerOptions {
                        cache: CacheForm::Decoded,
                        ..options()
                    },
                    begun,
                    start,
                )
                .await
            }
            OURS_WHOLE => {
                sync(
                    client,
                    InformerOptions {
                        transform: Transform::none(),
                        ..options()
                    },
                    begun,
                    start,
                )
                .await
            }
            KUBE_LIST => {
                reflect(
                    client,
                    watcher::Config::default(),
                    ManagedFields::Kept,
                    begun,
                    start,
                )
                .await
            }
            KUBE_STREAM => {
                reflect(
                    client,
                    watcher::Config::default().streaming_lists(),
                    ManagedFields::Kept,
                    begun,
                    start,
                )
                .await
            }
            KUBE_STRIPPED => {
                reflect(
                    client,
                    watcher::Config::default().streaming_lists(),
                    ManagedFields::Dropped,
                    begun,
                    start,
                )
                .await
            }
            OUR_CONTROLLER => reconcile(client, begun, start).await,
            KUBE_CONTROLLER => reconcile_with_kube(client, begun, start).await,
            name => Err(format!("no client is called {name}").into()),
        }
    })
}

/// Takes the time, lets memory settle, and reports.
async fn settle(begun: Instant, start: u64) -> Result<(), Failure> {
    let (wall, cpu) = (
        begun.elapsed(),
        processor_time().ok_or("the system does not tell the processor time")?,
    );
    tokio::time::sleep(REST).await;
    Cost::report(wall, cpu.as_secs_f64(), start)
}

fn expect(found: usize, wanted: usize) -> Result<(), Failure> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{found} objects instead of {wanted}").into())
    }
}

async fn sync(
    client: Client,
    options: InformerOptions<Pod>,
    begun: Instant,
    start: u64,
) -> Result<(), Failure> {
    let informer = SharedInformer::<Pod>::new(client, (), options);
    let running = tokio::spawn({
        let informer = informer.clone();
        async move { informer.run(CancellationToken::new()).await }
    });
    informer.wait_for_sync().await?;
    expect(informer.lister().len(), PODS)?;
    settle(begun, start).await?;
    running.abort();
    Ok(())
}

#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl EventHandler<Pod> for Count {
    fn on_add(&self, pod: &Arc<Pod>, _: bool) {
        self.0
            .fetch_add(usize::from(pod.spec.is_some()), Ordering::Relaxed);
    }
    fn on_update(&self, _: &Arc<Pod>, _: &Arc<Pod>) {}
    fn on_delete(&self, _: Tombstone<Pod>) {}
}

async fn told(
    client: Client,
    begun: Instant,
    start: u64,
    add: impl FnOnce(&SharedInformer<Pod>, Count) -> HandlerHandle,
) -> Result<(), Failure> {
    let informer = SharedInformer::<Pod>::new(client, (), InformerOptions::default());
    let count = Count::default();
    let handle = add(&informer, count.clone());
    let running = tokio::spawn(async move { informer.run(CancellationToken::new()).await });
    handle.wait_for_sync().await?;
    expect(count.0.load(Ordering::Relaxed), PODS)?;
    settle(begun, start).await?;
    running.abort();
    Ok(())
}

enum ManagedFields {
    Kept,
    Dropped,
}

async fn reflect(
    client: Client,
    config: watcher::Config,
    managed_fields: ManagedFields,
    begun: Instant,
    start: u64,
) -> Result<(), Failure> {
    let (store, writer) = reflector::store();
    let events = watcher(Api::<Pod>::all(client), config).default_backoff();
    let events = match managed_fields {
        ManagedFields::Kept => events.boxed(),
        ManagedFields::Dropped => events
            .modify(|pod| pod.metadata.managed_fields = None)
            .boxed(),
    };
    let running = tokio::spawn(events.reflect(writer).for_each(|_| std::future::ready(())));
    store.wait_until_ready().await?;
    expect(store.len(), PODS)?;
    settle(begun, start).await?;
    running.abort();
    Ok(())
}

/// Counts objects, and says when the last one was seen.
#[derive(Clone, Default)]
struct Seen(Arc<(AtomicUsize, Notify)>);

impl Seen {
    fn one(&self) {
        if self.0.0.fetch_add(1, Ordering::Relaxed) + 1 == CONFIG_MAPS {
            self.0.1.notify_one();
        }
    }

    async fn all(&self) {
        self.0.1.notified().await;
    }
}

async fn reconcile(client: Client, begun: Instant, start: u64) -> Result<(), Failure> {
    let options = InformerOptions {
        labels: Some("bench=cm".into()),
        ..InformerOptions::default()
    };
    let maps = SharedInformer::<ConfigMap>::new(client, (), options);
    let seen = Seen::default();
    let controller = Controller::of(&maps).workers(4).reconcile_with({
        let seen = seen.clone();
        move |request: Request<ConfigMap>| {
            assert!(request.object.is_some(), "{} is in the cache", request.key);
            seen.one();
            std::future::ready(Ok(Outcome::Done))
        }
    });
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { tokio::join!(maps.run(stop.clone()), controller.run(stop)) }
    });
    seen.all().await;
    settle(begun, start).await?;
    stop.cancel();
    let (cache, controller) = running.await?;
    cache?;
    Ok(controller?)
}

async fn reconcile_with_kube(client: Client, begun: Instant, start: u64) -> Result<(), Failure> {
    let seen = Seen::default();
    let config = watcher::Config::default()
        .labels("bench=cm")
        .streaming_lists();
    let controller = kube_runtime::Controller::new(Api::<ConfigMap>::all(client), config)
        .with_config(kube_runtime::controller::Config::default().concurrency(4));
    let reconciles = controller.run(
        async |_: Arc<ConfigMap>, seen: Arc<Seen>| {
            seen.one();
            Ok::<_, std::convert::Infallible>(Action::await_change())
        },
        |_, _, _| Action::await_change(),
        Arc::new(seen.clone()),
    );
    let running = tokio::spawn(reconciles.for_each(|_| std::future::ready(())));
    seen.all().await;
    settle(begun, start).await?;
    running.abort();
    Ok(())
}
