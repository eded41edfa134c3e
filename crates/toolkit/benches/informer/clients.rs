//! What is measured against a server, one client per process: caches until they are synced,
//! controllers until every object was reconciled once.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bellerophon::informer::{
    CacheMode, EventHandler, FactoryOptions, HandlerRegistration, InformerOptions, SharedInformer,
    SharedInformerFactory, Tombstone, Transform,
};
use bellerophon::prelude::*;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_runtime::{WatchStreamExt, reflector, watcher};
use tokio::sync::Notify;

use crate::{
    BoxError,
    common::processor_time,
    objects::{CONFIG_MAPS, PODS},
    process::{Cost, memory},
};

/// How long a client is idle before its memory is measured.
const IDLE: Duration = Duration::from_millis(500);

const OURS: &str = "bellerophon";
const OURS_OBJECT_HANDLER: &str = "bellerophon, a handler of objects";
const OURS_KEY_HANDLER: &str = "bellerophon, a handler of keys";
const OURS_DECODED: &str = "bellerophon, decoded";
const OURS_MANAGED_FIELDS: &str = "bellerophon, managedFields kept";
const KUBE_LIST: &str = "kube-runtime, paged list";
const KUBE_STREAM: &str = "kube-runtime, streamed list";
const KUBE_STRIPPED: &str = "kube-runtime, streamed list, managedFields dropped";
pub(crate) const SYNCS: [&str; 8] = [
    OURS,
    OURS_KEY_HANDLER,
    OURS_OBJECT_HANDLER,
    OURS_DECODED,
    OURS_MANAGED_FIELDS,
    KUBE_LIST,
    KUBE_STREAM,
    KUBE_STRIPPED,
];

const OUR_CONTROLLER: &str = "bellerophon controller";
const KUBE_CONTROLLER: &str = "kube-runtime controller";
pub(crate) const RECONCILES: [&str; 2] = [OUR_CONTROLLER, KUBE_CONTROLLER];

/// The clients of the program in `clientgo`.
pub(crate) const GO_SYNCS: [&str; 3] = [
    "client-go",
    "client-go, a handler of objects",
    "client-go, managedFields dropped",
];
pub(crate) const GO_RECONCILES: [&str; 1] = ["client-go controller"];

/// The start of a measurement.
struct Measurement {
    begun: Instant,
    /// KiB at the start.
    memory: u64,
}

impl Measurement {
    /// Reads time and processor time, waits until memory is stable, and reports.
    async fn report(self) -> Result<(), BoxError> {
        let wall = self.begun.elapsed();
        let cpu = processor_time().ok_or("this system does not report the processor time")?;
        tokio::time::sleep(IDLE).await;
        Cost::report(wall, cpu.as_secs_f64(), self.memory)
    }
}

pub(crate) fn run(name: &str, kubeconfig: &str) -> Result<(), BoxError> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let memory = memory("VmRSS")?;
        let measurement = Measurement { begun, memory };
        let kubeconfig = Kubeconfig::read_from(Path::new(kubeconfig))?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        measure(name, Client::try_from(config)?, measurement).await
    })
}

async fn measure(name: &str, client: Client, measurement: Measurement) -> Result<(), BoxError> {
    let options = InformerOptions::default;
    match name {
        OURS => sync(client, options(), measurement).await,
        OURS_OBJECT_HANDLER => {
            let add = |informer: &SharedInformer<Pod>, count| informer.add_event_handler(count);
            deliver(client, measurement, add).await
        }
        OURS_KEY_HANDLER => {
            let add = |informer: &SharedInformer<Pod>, Count(count): Count| {
                informer.add_key_handler(move |_| _ = count.fetch_add(1, Ordering::Relaxed))
            };
            deliver(client, measurement, add).await
        }
        OURS_DECODED => {
            let options = InformerOptions {
                cache_mode: Some(CacheMode::Decoded),
                ..options()
            };
            sync(client, options, measurement).await
        }
        OURS_MANAGED_FIELDS => {
            let options = InformerOptions {
                transform: Some(Transform::none()),
                ..options()
            };
            sync(client, options, measurement).await
        }
        KUBE_LIST => {
            let config = watcher::Config::default();
            reflect(client, config, ManagedFields::Kept, measurement).await
        }
        KUBE_STREAM => {
            let config = watcher::Config::default().streaming_lists();
            reflect(client, config, ManagedFields::Kept, measurement).await
        }
        KUBE_STRIPPED => {
            let config = watcher::Config::default().streaming_lists();
            reflect(client, config, ManagedFields::Dropped, measurement).await
        }
        OUR_CONTROLLER => reconcile(client, measurement).await,
        KUBE_CONTROLLER => reconcile_with_kube(client, measurement).await,
        name => Err(format!("there is no client {name}").into()),
    }
}

fn expect(found: usize, expected: usize) -> Result<(), BoxError> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{found} objects instead of {expected}").into())
    }
}

async fn sync(
    client: Client,
    options: InformerOptions<Pod>,
    measurement: Measurement,
) -> Result<(), BoxError> {
    let informers = SharedInformerFactory::start(client, FactoryOptions::default());
    let informer = informers.informer(options);
    informer.wait_for_cache_sync().await?;
    expect(informer.lister().len(), PODS)?;
    measurement.report().await?;
    informers.stop().await;
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

async fn deliver(
    client: Client,
    measurement: Measurement,
    add: impl FnOnce(&SharedInformer<Pod>, Count) -> HandlerRegistration,
) -> Result<(), BoxError> {
    let informers = SharedInformerFactory::start(client, FactoryOptions::default());
    let informer = informers.informer::<Pod>(InformerOptions::default());
    let count = Count::default();
    let registration = add(&informer, count.clone());
    registration.wait_for_cache_sync().await?;
    expect(count.0.load(Ordering::Relaxed), PODS)?;
    measurement.report().await?;
    informers.stop().await;
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
    measurement: Measurement,
) -> Result<(), BoxError> {
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
    measurement.report().await?;
    running.abort();
    Ok(())
}

/// Counts reconciles, and notifies when there was one for each object.
#[derive(Clone, Default)]
struct Reconciled(Arc<(AtomicUsize, Notify)>);

impl Reconciled {
    fn one(&self) {
        if self.0.0.fetch_add(1, Ordering::Relaxed) + 1 == CONFIG_MAPS {
            self.0.1.notify_one();
        }
    }

    async fn all(&self) {
        self.0.1.notified().await;
    }
}

async fn reconcile(client: Client, measurement: Measurement) -> Result<(), BoxError> {
    let mut mgr = Manager::new(client, ManagerOptions::default());
    let maps = mgr.informer::<ConfigMap>(InformerOptions::labels("bench=cm"));
    let reconciled = Reconciled::default();
    let count = reconciled.clone();
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .concurrency(4)
        .reconcile(move |req: Request<ConfigMap>| {
            assert!(req.object().is_some(), "{} is cached", req.key());
            count.one();
            std::future::ready(Ok(Action::await_change()))
        });
    let running = mgr.start();
    reconciled.all().await;
    measurement.report().await?;
    Ok(running.stop().await?)
}

async fn reconcile_with_kube(client: Client, measurement: Measurement) -> Result<(), BoxError> {
    let reconciled = Reconciled::default();
    let config = watcher::Config::default()
        .labels("bench=cm")
        .streaming_lists();
    let controller = kube_runtime::Controller::new(Api::<ConfigMap>::all(client), config)
        .with_config(kube_runtime::controller::Config::default().concurrency(4));
    let reconciles = controller.run(
        async |_: Arc<ConfigMap>, reconciled: Arc<Reconciled>| {
            reconciled.one();
            Ok::<_, std::convert::Infallible>(kube_runtime::controller::Action::await_change())
        },
        |_, _, _| kube_runtime::controller::Action::await_change(),
        Arc::new(reconciled.clone()),
    );
    let running = tokio::spawn(reconciles.for_each(|_| std::future::ready(())));
    reconciled.all().await;
    measurement.report().await?;
    running.abort();
    Ok(())
}
