//! Caches without a server, in the shapes of client-go's own benchmarks: readers listing while events come, updates of an
//! index, objects handed to a handler.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bellerophon::{
    CacheForm, EventHandler, EventStream, HandlerOptions, InformerOptions, InitialList,
    ListRequest, ListWatch, Lister, Page, Received, SharedInformer, SourceError, SourceEvent,
    Tombstone, WatchRequest,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{Failure, median, seconds};

const NAMESPACE: &str = "crowded";
const MEASURED: Duration = Duration::from_millis(500);

/// Pods of a name alone, as in client-go's benchmark, and changes of them without end.
#[derive(Clone)]
struct Crowd {
    pods: usize,
    version: Arc<AtomicU64>,
    /// Changes come while this is set.
    open: tokio::sync::watch::Receiver<bool>,
}

impl Crowd {
    fn pod(&self, i: usize, version: u64) -> Received<Pod> {
        let name = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let json = format!(
            r#"{{"metadata":{{"name":"{name:020}","namespace":"{NAMESPACE}","uid":"{i}","resourceVersion":"{version}","labels":{{"app":"{}"}}}}}}"#,
            i % 1000
        );
        Received::from_json(json.into_bytes()).expect("this is a pod")
    }
}

impl ListWatch<Pod> for Crowd {
    fn list(&self, _: ListRequest) -> BoxFuture<'static, Result<Page<Received<Pod>>, SourceError>> {
        let objects = (0..self.pods).map(|i| self.pod(i, 1)).collect();
        let page = Page {
            objects,
            undecodable: Vec::new(),
            resource_version: "1".into(),
            continue_token: None,
        };
        std::future::ready(Ok(page)).boxed()
    }

    fn watch(&self, _: WatchRequest) -> BoxFuture<'static, Result<EventStream<Pod>, SourceError>> {
        let events = stream::unfold(self.clone(), |mut crowd| async move {
            crowd.open.wait_for(|open| *open).await.ok()?;
            let version = crowd.version.fetch_add(1, Ordering::Relaxed);
            let i = usize::try_from(version).expect("few versions") % crowd.pods;
            let event = SourceEvent::Applied(crowd.pod(i, version + 2));
            Some((Ok(event), crowd))
        });
        std::future::ready(Ok(events.boxed())).boxed()
    }
}

/// A synced informer of a crowd, and what starts and counts the changes.
struct Running {
    runtime: Runtime,
    informer: SharedInformer<Pod>,
    stop: CancellationToken,
    open: tokio::sync::watch::Sender<bool>,
    version: Arc<AtomicU64>,
}

impl Running {
    fn start(pods: usize, cache: CacheForm) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let (open, opened) = tokio::sync::watch::channel(false);
        let crowd = Crowd {
            pods,
            version: Arc::default(),
            open: opened,
        };
        let version = crowd.version.clone();
        let options = InformerOptions {
            cache,
            initial_list: InitialList::Paged,
            ..InformerOptions::default()
        };
        let informer = SharedInformer::from_sources(
            ApiResource::erase::<Pod>(&()),
            move |_| Arc::new(crowd.clone()),
            options,
        );
        let stop = CancellationToken::new();
        runtime.spawn({
            let (informer, stop) = (informer.clone(), stop.clone());
            async move { informer.run(stop).await }
        });
        runtime.block_on(informer.wait_for_sync())?;
        Ok(Self {
            runtime,
            informer,
            stop,
            open,
            version,
        })
    }

    /// Changes a second while `beside` runs.
    fn changes(&self, beside: impl FnOnce()) -> f64 {
        let (begun, before) = (Instant::now(), self.version.load(Ordering::Relaxed));
        self.open.send_replace(true);
        beside();
        self.open.send_replace(false);
        (self.version.load(Ordering::Relaxed) - before) as f64 / seconds(begun.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// How many pods all readers together may hold that they decoded for themselves: 12 GB.
const DECODED_AT_ONCE_MAX: usize = 500_000;

/// Readers that list a namespace as fast as they can while every pod changes in turn.
pub(crate) fn readers() -> Result<(), Failure> {
    println!("readers listing one namespace while its pods change\n");
    println!(
        "| pods | readers | decoded: lists/s | changes/s | compact: lists/s | changes/s | compact keys/s | changes/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for pods in [10_000, 40_000, 160_000] {
        let (decoded, compact) = (
            Running::start(pods, CacheForm::Decoded)?,
            Running::start(pods, CacheForm::default())?,
        );
        for readers in [0, 1, 10, 80] {
            let list = |lister: &Lister<Pod>| assert!(!lister.in_namespace(NAMESPACE).is_empty());
            let keys = |lister: &Lister<Pod>| assert!(!lister.keys().is_empty());
            let (a, b) = beside_readers(&decoded, readers, list);
            let (e, f) = beside_readers(&compact, readers, keys);
            let fits = pods * readers <= DECODED_AT_ONCE_MAX;
            let decoding = fits
                .then(|| beside_readers(&compact, readers, list))
                .map(|(c, d)| format!("{c:.1} | {d:.0}"));
            let decoding = decoding.as_deref().unwrap_or("— | —");
            println!("| {pods} | {readers} | {a:.1} | {b:.0} | {decoding} | {e:.1} | {f:.0} |");
        }
    }
    println!();
    Ok(())
}

fn beside_readers(
    running: &Running,
    readers: usize,
    read: impl Fn(&Lister<Pod>) + Sync,
) -> (f64, f64) {
    let (over, reads, lister) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        running.informer.lister(),
    );
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

/// A handler that says when it was told the last object.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<u64>>);

impl EventHandler<Pod> for Told {
    fn on_add(&self, _: &Arc<Pod>, _: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    fn on_update(&self, _: &Arc<Pod>, _: &Arc<Pod>) {}
    fn on_delete(&self, _: Tombstone<Pod>) {}
}

/// Events through the whole way from the source, and objects handed to a handler that comes late.
pub(crate) fn updates() -> Result<(), Failure> {
    const ROUNDS: usize = 5;
    println!("one thing at a time, ns each\n\n| shape | decoded | compact |\n|---|---|---|");
    let forms = [CacheForm::Decoded, CacheForm::default()];
    let shape =
        |name: &str, measure: &dyn Fn(CacheForm) -> Result<f64, Failure>| -> Result<(), Failure> {
            let mut columns = Vec::new();
            for form in forms {
                columns.push(median(
                    (0..ROUNDS)
                        .map(|_| measure(form))
                        .collect::<Result<_, _>>()?,
                    0,
                ));
            }
            println!("| {name} | {} |", columns.join(" | "));
            Ok(())
        };
    let event = |running: &Running| 1e9 / running.changes(|| std::thread::sleep(MEASURED));
    shape("event decoded and cached, 5,000 pods", &|form| {
        Ok(event(&Running::start(5000, form)?))
    })?;
    shape("the same, in an index of 1,000 values", &|form| {
        let running = Running::start(5000, form)?;
        let by_app = |pod: &Pod| {
            pod.metadata
                .labels
                .iter()
                .flat_map(|labels| labels.get("app").cloned())
                .collect()
        };
        running.informer.add_index("app", by_app)?;
        Ok(event(&running))
    })?;
    shape("get by key", &|form| {
        let running = Running::start(5000, form)?;
        let (lister, begun) = (running.informer.lister(), Instant::now());
        let keys: Vec<_> = lister.keys().into_iter().step_by(10).collect();
        (0..100).for_each(|_| {
            keys.iter()
                .for_each(|key| assert!(lister.get(key).is_some()))
        });
        Ok(begun.elapsed().as_nanos() as f64 / (100 * keys.len()) as f64)
    })?;
    shape("object handed to a handler, 100,000 pods", &|form| {
        let running = Running::start(100_000, form)?;
        let (told, begun) = (Told::default(), Instant::now());
        let handle = running
            .informer
            .add_handler(told.clone(), HandlerOptions::default());
        running.runtime.block_on(handle.wait_for_sync())?;
        assert_eq!(
            *told.0.lock().unwrap_or_else(PoisonError::into_inner),
            100_000
        );
        Ok(begun.elapsed().as_nanos() as f64 / 1e5)
    })?;
    println!();
    Ok(())
}
