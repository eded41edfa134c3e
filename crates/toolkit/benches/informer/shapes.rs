//! Caches without a server, in the shapes of client-go's own benchmarks: readers that list while
//! objects change, updates of an index, delivery to a handler.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bellerophon::informer::{
    CacheMode, EventHandler, FactoryOptions, InformerOptions, InitialList, ListPage, ListRequest,
    ListWatch, ListWatchError, Lister, SharedInformer, SharedInformerFactory, Tombstone,
    WatchEvent, WatchRequest, WatchStream,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, client::Body};
use tokio::{runtime::Runtime, sync::watch};

use crate::{BoxError, median, seconds};

const NAMESPACE: &str = "crowded";
const MEASURED: Duration = Duration::from_millis(500);

/// A source of pods with little more than a name, as in client-go's benchmark, that change
/// continuously.
#[derive(Clone)]
struct ChangingPods {
    pods: usize,
    version: Arc<AtomicU64>,
    /// Pods change while this is set.
    enabled: watch::Receiver<bool>,
}

impl ChangingPods {
    fn pod(i: usize, version: u64) -> String {
        let name = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let app = i % 1000;
        format!(
            r#"{{"metadata":{{"name":"{name:020}","namespace":"{NAMESPACE}","uid":"{i}","resourceVersion":"{version}","labels":{{"app":"{app}"}}}}}}"#
        )
    }
}

impl ListWatch for ChangingPods {
    fn list(&self, _: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>> {
        let items = (0..self.pods).map(|i| Self::pod(i, 1).into()).collect();
        let page = ListPage {
            items,
            resource_version: "1".into(),
            continue_token: None,
        };
        std::future::ready(Ok(page)).boxed()
    }

    fn watch(&self, _: WatchRequest) -> BoxFuture<'static, Result<WatchStream, ListWatchError>> {
        let events = stream::unfold(self.clone(), |mut source| async move {
            source.enabled.wait_for(|enabled| *enabled).await.ok()?;
            let version = source.version.fetch_add(1, Ordering::Relaxed);
            let i = usize::try_from(version).expect("few versions") % source.pods;
            let event = WatchEvent::Applied(Self::pod(i, version + 2).into());
            Some((Ok(event), source))
        });
        std::future::ready(Ok(events.boxed())).boxed()
    }
}

/// A synced informer of changing pods.
struct Running {
    runtime: Runtime,
    informers: SharedInformerFactory,
    informer: SharedInformer<Pod>,
    enabled: watch::Sender<bool>,
    version: Arc<AtomicU64>,
}

impl Running {
    fn start(pods: usize, cache_mode: CacheMode) -> Result<Self, BoxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let (enabled, receiver) = watch::channel(false);
        let source = ChangingPods {
            pods,
            version: Arc::default(),
            enabled: receiver,
        };
        let version = source.version.clone();
        let (informers, informer) = {
            let _guard = runtime.enter();
            // No request is sent: the objects come from another source.
            let unused = tower::service_fn(async |_: http::Request<Body>| {
                Err::<http::Response<Body>, _>(std::io::Error::other("there is no server"))
            });
            let client = Client::new(unused, "default");
            let informers = SharedInformerFactory::start(client, FactoryOptions::default());
            let informer = informers.informer::<Pod>(InformerOptions {
                list_watch: Some(Arc::new(move |_| Arc::new(source.clone()))),
                cache_mode: Some(cache_mode),
                initial_list: Some(InitialList::Paged),
                ..InformerOptions::default()
            });
            (informers, informer)
        };
        runtime.block_on(informer.wait_for_cache_sync())?;
        Ok(Self {
            runtime,
            informers,
            informer,
            enabled,
            version,
        })
    }

    /// Changes per second while `meanwhile` runs.
    fn changes(&self, meanwhile: impl FnOnce()) -> f64 {
        let begun = Instant::now();
        let before = self.version.load(Ordering::Relaxed);
        self.enabled.send_replace(true);
        meanwhile();
        self.enabled.send_replace(false);
        (self.version.load(Ordering::Relaxed) - before) as f64 / seconds(begun.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.runtime.block_on(self.informers.stop());
    }
}

/// Pods that all readers together may hold decoded: 12 GB.
const DECODED_MAX: usize = 500_000;

/// Readers that list a namespace continuously while its pods change.
pub(crate) fn readers() -> Result<(), BoxError> {
    println!("readers listing one namespace while its pods change\n");
    println!(
        "| pods | readers | decoded: lists/s | changes/s | compact: lists/s | changes/s | compact keys/s | changes/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for pods in [10_000, 40_000, 160_000] {
        let decoded = Running::start(pods, CacheMode::Decoded)?;
        let compact = Running::start(pods, CacheMode::default())?;
        for readers in [0, 1, 10, 80] {
            let list = |lister: &Lister<Pod>| assert!(!lister.in_namespace(NAMESPACE).is_empty());
            let keys = |lister: &Lister<Pod>| assert!(!lister.keys().is_empty());
            let columns = |(reads, changes): (f64, f64)| format!("{reads:.1} | {changes:.0}");
            let from_decoded = columns(with_readers(&decoded, readers, list));
            let of_keys = columns(with_readers(&compact, readers, keys));
            let from_compact = match pods * readers <= DECODED_MAX {
                true => columns(with_readers(&compact, readers, list)),
                false => "— | —".to_owned(),
            };
            println!("| {pods} | {readers} | {from_decoded} | {from_compact} | {of_keys} |");
        }
    }
    println!();
    Ok(())
}

/// Reads and changes per second.
fn with_readers(
    running: &Running,
    readers: usize,
    read: impl Fn(&Lister<Pod>) + Sync,
) -> (f64, f64) {
    let over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let lister = running.informer.lister();
    let begun = Instant::now();
    let changes = running.changes(|| {
        std::thread::scope(|scope| {
            for _ in 0..readers {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        read(&lister);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(MEASURED);
            over.store(true, Ordering::Relaxed);
        });
    });
    (
        reads.load(Ordering::Relaxed) as f64 / seconds(begun.elapsed()),
        changes,
    )
}

/// A handler that counts the objects it receives.
#[derive(Clone, Default)]
struct Count(Arc<Mutex<u64>>);

impl EventHandler<Pod> for Count {
    fn on_add(&self, _: &Arc<Pod>, _: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    fn on_update(&self, _: &Arc<Pod>, _: &Arc<Pod>) {}
    fn on_delete(&self, _: Tombstone<Pod>) {}
}

/// Events from the source to the cache, and delivery to a handler that is added late.
pub(crate) fn updates() -> Result<(), BoxError> {
    const ROUNDS: usize = 5;
    println!("single operations, ns each\n\n| shape | decoded | compact |\n|---|---|---|");
    let modes = [CacheMode::Decoded, CacheMode::default()];
    let shape = |name: &str,
                 measure: &dyn Fn(CacheMode) -> Result<f64, BoxError>|
     -> Result<(), BoxError> {
        let mut columns = Vec::new();
        for mode in modes {
            columns.push(median(
                (0..ROUNDS)
                    .map(|_| measure(mode))
                    .collect::<Result<_, _>>()?,
                0,
            ));
        }
        println!("| {name} | {} |", columns.join(" | "));
        Ok(())
    };
    let event = |running: &Running| 1e9 / running.changes(|| std::thread::sleep(MEASURED));
    shape("event decoded and cached, 5,000 pods", &|mode| {
        Ok(event(&Running::start(5000, mode)?))
    })?;
    shape("the same, in an index of 1,000 values", &|mode| {
        let running = Running::start(5000, mode)?;
        let by_app = |pod: &Pod| {
            pod.metadata
                .labels
                .iter()
                .flat_map(|labels| labels.get("app").cloned())
                .collect()
        };
        let _index = running.informer.index("app", by_app);
        Ok(event(&running))
    })?;
    shape("get by key", &|mode| {
        let running = Running::start(5000, mode)?;
        let lister = running.informer.lister();
        let keys: Vec<_> = lister.keys().into_iter().step_by(10).collect();
        let begun = Instant::now();
        (0..100).for_each(|_| {
            keys.iter()
                .for_each(|key| assert!(lister.get(key).is_some()))
        });
        Ok(begun.elapsed().as_nanos() as f64 / (100 * keys.len()) as f64)
    })?;
    shape("object delivered to a handler, 100,000 pods", &|mode| {
        let running = Running::start(100_000, mode)?;
        let count = Count::default();
        let begun = Instant::now();
        let registration = running.informer.add_event_handler(count.clone());
        running
            .runtime
            .block_on(registration.wait_for_cache_sync())?;
        let delivered = *count.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(delivered, 100_000);
        Ok(begun.elapsed().as_nanos() as f64 / 1e5)
    })?;
    println!();
    Ok(())
}
