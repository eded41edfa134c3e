//! The work queue in the shapes of client-go's own benchmarks.
//!
//! Run: `cargo bench -p bellerophon --bench queue [-- PART OF A SHAPE]`. One row a shape: keys a second, best and median of five, and the
//! processor time of a key over all threads, setting up included, which a busy machine changes less than the time that
//! passes. The last columns are client-go's queue, best of five in the same run, where Go can build it, and how many times
//! as fast this one is.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark prints, and measures real time")]

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellerophon::{AddOpts, Priority, WorkQueue};

const ROUNDS: usize = 5;
const KEYS: usize = 1_000_000;

type Keys = Vec<Arc<str>>;

fn main() {
    let keys: Keys = (0..KEYS).map(|i| format!("namespace-{}/name-{i}", i % 100).into()).collect();
    let small = keys[..1000].to_vec();
    let peers = client_go();
    let peer = |shape: &str| peers.get(shape).copied();
    println!("| shape | M keys/s, best | median | processor ns a key | client-go, best | times |\n|---|---|---|---|---|---|");
    report("full backlog: add all, then get and done all", peer("backlog"), || (KEYS, backlog(&keys)));
    report("one at a time: add, get, done", peer("one at a time"), || (KEYS, one_at_a_time(&keys)));
    report("8 threads: 4 add, 4 get and done", peer("producers and consumers"), || (KEYS, producers_and_consumers(&keys)));
    report("8 threads: each add, get, done", peer("everyone"), || (KEYS, everyone(&keys)));
    report("100 keys in a new queue (`BenchmarkQueue`)", peer("new queues"), || (KEYS, again(KEYS / 100, || one_at_a_time(&small[..100]))));
    report("1,000 keys of three priorities in a new queue", None, || (KEYS, again(KEYS / 1000, || priorities(&small))));
    report("delayed at random, then all due", peer("delayed"), || (KEYS / 5, delayed(&keys[..KEYS / 5])));
}

/// What client-go's queue does here, in millions of keys a second, by shape; nothing without Go.
fn client_go() -> HashMap<String, f64> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/clientgo");
    let ran = Command::new("go").args(["run", ".", "queue"]).current_dir(folder).output();
    let printed = ran.map(|output| output.stdout).unwrap_or_default();
    let read = |line: &str| line.split_once('\t').and_then(|(shape, rate)| Some((shape.to_owned(), rate.parse().ok()?)));
    String::from_utf8_lossy(&printed).lines().filter_map(read).collect()
}

/// Prints the row of a shape, given how many keys each run handles in what time.
fn report(shape: &str, client_go: Option<f64>, mut run: impl FnMut() -> (usize, Duration)) {
    // Cargo adds a flag of its own.
    if std::env::args().skip(1).any(|word| !word.starts_with('-') && !shape.contains(&word)) {
        return;
    }
    let (busy_before, mut keys) = (processor_time(), 0);
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (handled, time) = run();
            keys += handled;
            handled as f64 / time.as_secs_f64() / 1e6
        })
        .collect();
    let busy = processor_time().zip(busy_before).map(|(after, before)| (after - before).as_nanos() / keys as u128);
    rates.sort_by(f64::total_cmp);
    let busy = busy.map_or("—".to_owned(), |busy| busy.to_string());
    let best = rates[ROUNDS - 1];
    let beside = client_go.map_or("— | —".to_owned(), |peer| format!("{peer:.1} | {:.1}", best / peer));
    println!("| {shape} | {best:.1} | {:.1} | {busy} | {beside} |", rates[ROUNDS / 2]);
}

/// The time of many short runs.
fn again(times: usize, run: impl Fn() -> Duration) -> Duration {
    (0..times).map(|_| run()).sum()
}

/// What all threads of this process used so far, in hundredths of a second, where the system tells.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // User and system time are the 14th and 15th field; the second one is a name in brackets and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks()? + ticks()?)))
}

fn backlog(keys: &Keys) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    keys.iter().for_each(|key| queue.add(key.clone()));
    while let Some(item) = queue.try_get() {
        item.done();
    }
    start.elapsed()
}

fn one_at_a_time(keys: &[Arc<str>]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for key in keys {
        queue.add(key.clone());
        queue.try_get().expect("just added").done();
    }
    start.elapsed()
}

fn producers_and_consumers(keys: &Keys) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..4).map(|_| scope.spawn(|| consume(&queue))).collect();
        let producers: Vec<_> =
            keys.chunks(KEYS / 4).map(|part| scope.spawn(|| part.iter().for_each(|key| queue.add(key.clone())))).collect();
        producers.into_iter().for_each(|thread| thread.join().expect("adding does not fail"));
        queue.shut_down();
        let taken: usize = consumers.into_iter().map(|thread| thread.join().expect("taking does not fail")).sum();
        assert_eq!(taken, KEYS);
    });
    start.elapsed()
}

fn consume(queue: &WorkQueue<Arc<str>>) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime for one thread");
    runtime.block_on(async {
        let mut taken = 0;
        while let Some(item) = queue.get().await {
            item.done();
            taken += 1;
        }
        taken
    })
}

fn everyone(keys: &Keys) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in keys.chunks(KEYS / 8) {
            let queue = &queue;
            scope.spawn(move || {
                for key in part {
                    queue.add(key.clone());
                    if let Some(item) = queue.try_get() {
                        item.done();
                    }
                }
            });
        }
    });
    start.elapsed()
}

fn priorities(keys: &Keys) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for (i, key) in keys.iter().enumerate() {
        queue.add_with_opts(key.clone(), AddOpts { priority: Priority::ALL[i % 3], ..AddOpts::default() });
    }
    while let Some(item) = queue.try_get() {
        item.done();
    }
    start.elapsed()
}

fn delayed(keys: &[Arc<str>]) -> Duration {
    let queue = WorkQueue::default();
    let start = Instant::now();
    for (i, key) in keys.iter().enumerate() {
        queue.add_after(key.clone(), Duration::from_nanos(1 + (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_000));
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
