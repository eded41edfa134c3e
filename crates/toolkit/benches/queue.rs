//! The work queue in the shapes of client-go's own benchmarks.
//!
//! Run: `cargo bench -p bellerophon --bench queue [-- PART OF A SHAPE]`. One row for each shape and
//! type of key: keys per second, best and median of five, and the processor time per key of all
//! threads with the setup, which depends less on other load than wall time does. The last columns
//! are client-go's queue, best of five immediately before, if Go can build it, and the ratio.
//!
//! Texts are what client-go's own benchmarks queue: copied without reference counting, as Go copies
//! strings. Object keys are what a controller queues; in Go they are `types.NamespacedName`. Tasks
//! are compared with goroutines, threads with goroutines that are locked to a thread.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and measures real time"
)]

mod common; // the client-go program, and the processor time of this process

use std::hash::Hash;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bellerophon::ObjectKey;
use bellerophon::queue::{AddOpts, Priority, WorkQueue};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::Builder;
use tokio::task::consume_budget;

const ROUNDS: usize = 5;
const KEYS: usize = 1_000_000;

trait Key: Clone + Eq + Hash + Send + Sync + 'static {}
impl<T: Clone + Eq + Hash + Send + Sync + 'static> Key for T {}

fn main() {
    let client_go = common::client_go();
    let texts: Vec<&str> = (0..KEYS)
        .map(|i| &*format!("namespace-{}/name-{i}", i % 100).leak())
        .collect();
    let objects: Vec<ObjectKey> = (0..KEYS)
        .map(|i| ObjectKey::namespaced(format!("namespace-{}", i % 100), format!("name-{i}")))
        .collect();
    println!(
        "| shape | keys | M keys/s, best | median | processor ns a key | client-go, best | times |\n|---|---|---|---|---|---|---|"
    );
    // Leaked, so that they outlive every task.
    shapes("texts", texts.leak(), client_go.as_deref());
    shapes("object keys", objects.leak(), client_go.as_deref());
}

/// Every shape with one type of key.
fn shapes<T: Key>(kind: &str, keys: &'static [T], client_go: Option<&Path>) {
    let report = |shape: &str, count: usize, run: &dyn Fn() -> Duration| {
        report(kind, shape, client_go, count, run)
    };
    let few = &keys[..1000];
    let delayed_keys = &keys[..KEYS / 5];
    report(
        "full backlog: add all, then get and done all",
        KEYS,
        &|| backlog(keys),
    );
    report("one at a time: add, get, done", KEYS, &|| {
        one_at_a_time(keys)
    });
    report("100 keys in a new queue (`BenchmarkQueue`)", KEYS, &|| {
        again(KEYS / 100, || one_at_a_time(&few[..100]))
    });
    for (who, concurrency) in [
        ("tasks", Concurrency::Tasks),
        ("threads", Concurrency::Threads),
    ] {
        report(&format!("8 {who}: each add, get, done"), KEYS, &|| {
            everyone(concurrency, keys)
        });
        report(&format!("8 {who}: 4 add, 4 get and done"), KEYS, &|| {
            producers_and_consumers(concurrency, keys)
        });
    }
    report(
        "1,000 keys of three priorities in a new queue",
        KEYS,
        &|| again(KEYS / 1000, || priorities(few)),
    );
    report("delayed at random, then all due", KEYS / 5, &|| {
        delayed(delayed_keys)
    });
}

/// Prints the row of a shape; each run handles this number of keys.
fn report(
    kind: &str,
    shape: &str,
    client_go: Option<&Path>,
    keys: usize,
    run: &dyn Fn() -> Duration,
) {
    // Cargo adds its own flag.
    if std::env::args()
        .skip(1)
        .any(|word| !word.starts_with('-') && !shape.contains(&word))
    {
        return;
    }
    let peer = client_go.and_then(|program| {
        let output = Command::new(program)
            .args(["queue", kind, shape])
            .output()
            .ok()?;
        String::from_utf8(output.stdout)
            .ok()?
            .trim()
            .parse::<f64>()
            .ok()
    });
    let busy_before = common::processor_time();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| keys as f64 / run().as_secs_f64() / 1e6)
        .collect();
    let busy = common::processor_time()
        .zip(busy_before)
        .map(|(after, before)| (after - before).as_nanos() / (ROUNDS * keys) as u128);
    rates.sort_by(f64::total_cmp);
    let busy = busy.map_or("—".to_owned(), |busy| busy.to_string());
    let best = rates[ROUNDS - 1];
    let beside = peer.map_or("— | —".to_owned(), |peer| {
        format!("{peer:.1} | {:.1}", best / peer)
    });
    println!(
        "| {shape} | {kind} | {best:.1} | {:.1} | {busy} | {beside} |",
        rates[ROUNDS / 2]
    );
}

/// The time of many short runs.
fn again(times: usize, run: impl Fn() -> Duration) -> Duration {
    (0..times).map(|_| run()).sum()
}

fn backlog<T: Key>(keys: &[T]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    keys.iter().for_each(|key| queue.add(key.clone()));
    while let Some(item) = queue.try_get() {
        item.done();
    }
    start.elapsed()
}

fn one_at_a_time<T: Key>(keys: &[T]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for key in keys {
        queue.add(key.clone());
        queue.try_get().expect("just added").done();
    }
    start.elapsed()
}

/// What works on a queue concurrently.
#[derive(Clone, Copy)]
enum Concurrency {
    /// One thread each.
    Threads,
    /// One task each, on one thread per processor.
    Tasks,
}

impl Concurrency {
    /// The time until all work is done.
    fn time(self, work: Vec<BoxFuture<'static, ()>>) -> Duration {
        let runtime = |mut builder: Builder| builder.enable_time().build().expect("a runtime");
        match self {
            Self::Threads => {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    work.into_iter().for_each(|work| {
                        _ = scope
                            .spawn(move || runtime(Builder::new_current_thread()).block_on(work))
                    });
                });
                start.elapsed()
            }
            Self::Tasks => {
                let runtime = runtime(Builder::new_multi_thread());
                let start = Instant::now();
                runtime.block_on(join_all(work.into_iter().map(|work| runtime.spawn(work))));
                start.elapsed()
            }
        }
    }
}

fn everyone<T: Key>(concurrency: Concurrency, keys: &'static [T]) -> Duration {
    let queue = WorkQueue::default();
    let add_and_take = async |queue: WorkQueue<T>, part: &[T]| {
        for key in part {
            queue.add(key.clone());
            queue
                .get()
                .await
                .expect("the queue is not shut down")
                .done();
            consume_budget().await;
        }
    };
    let time = concurrency.time(
        keys.chunks(KEYS / 8)
            .map(|part| add_and_take(queue.clone(), part).boxed())
            .collect(),
    );
    assert_all_done(&queue);
    time
}

fn producers_and_consumers<T: Key>(concurrency: Concurrency, keys: &'static [T]) -> Duration {
    let queue = WorkQueue::default();
    let adding = Arc::new(AtomicUsize::new(4));
    let take = async |queue: WorkQueue<T>| {
        while let Some(item) = queue.get().await {
            item.done();
        }
    };
    let add = async |queue: WorkQueue<T>, part: &[T], adding: Arc<AtomicUsize>| {
        for key in part {
            queue.add(key.clone());
            consume_budget().await;
        }
        if adding.fetch_sub(1, Ordering::Relaxed) == 1 {
            queue.shut_down();
        }
    };
    let takers = (0..4).map(|_| take(queue.clone()).boxed());
    let adders = keys
        .chunks(KEYS / 4)
        .map(|part| add(queue.clone(), part, adding.clone()).boxed());
    let time = concurrency.time(takers.chain(adders).collect());
    assert_all_done(&queue);
    time
}

fn assert_all_done<T: Key>(queue: &WorkQueue<T>) {
    let stats = queue.stats();
    assert_eq!(stats.adds_total, KEYS as u64);
    assert_eq!(queue.len(), 0);
    assert_eq!(stats.processing, 0);
}

fn priorities<T: Key>(keys: &[T]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for (i, key) in keys.iter().enumerate() {
        queue.add_with_opts(
            key.clone(),
            AddOpts {
                priority: Priority::ALL[i % 3],
                ..AddOpts::default()
            },
        );
    }
    while let Some(item) = queue.try_get() {
        item.done();
    }
    start.elapsed()
}

fn delayed<T: Key>(keys: &[T]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for (i, key) in keys.iter().enumerate() {
        queue.add_after(
            key.clone(),
            Duration::from_nanos(1 + (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_000),
        );
    }
    let mut taken = 0;
    while taken < keys.len() {
        if let Some(item) = queue.try_get() {
            item.done();
            taken += 1;
        }
    }
    start.elapsed()
}
