//! Concurrency of the queue, under a scheduler that tries many interleavings of its lock.
//!
//! A run in which a thread waits forever ends with "deadlock" instead of hanging.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shuttle::future::block_on;
use shuttle::thread;

use super::shared::{Contents, Shared};
use super::*;
use crate::locks::Interleaved;

/// The number of interleavings of each test and scheduler.
const RUNS: usize = 1_000;

type Queue = Shared<usize, Interleaved>;

fn queue() -> Arc<Queue> {
    Arc::new(Shared::new(Contents::new(
        false,
        RateLimiter::new(RateLimit::default(), Rng::seeded(1)),
    )))
}

/// Tries random interleavings, and ones with the few context switches that most races need (PCT).
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), RUNS);
    shuttle::check_pct(run, RUNS, 3);
}

fn add(queue: &Queue, key: usize) {
    queue.add(key, Add::default());
}

/// Processes keys until the queue is shut down and empty; returns their number.
fn work(queue: &Queue, handle: impl Fn(usize)) -> usize {
    let mut taken = 0;
    while let Some(item) = block_on(queue.get()) {
        handle(item.key);
        queue.done(item.slot);
        taken += 1;
    }
    taken
}

#[test]
fn every_key_is_handed_to_a_waiting_worker() {
    check(|| {
        let queue = queue();
        // Each worker keeps its key: if a notification were lost, one of them would wait forever.
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || block_on(queue.get()).expect("not shut down").key)
            })
            .collect();
        let adders: Vec<_> = (0..3)
            .map(|key| {
                let queue = queue.clone();
                thread::spawn(move || add(&queue, key))
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        let mut taken: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
    });
}

#[test]
fn dropped_worker_passes_its_notification_on() {
    check(|| {
        let queue = queue();
        let waiting = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.get()).expect("not shut down").key)
        };
        let cancelled = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut get = Box::pin(queue.get());
                let once = block_on(std::future::poll_fn(|context| {
                    std::task::Poll::Ready(get.as_mut().poll(context))
                }));
                match once {
                    std::task::Poll::Ready(taken) => taken.map(|taken| taken.slot),
                    std::task::Poll::Pending => None,
                }
            })
        };
        add(&queue, 7);
        if let Some(slot) = cancelled.join().unwrap() {
            // It got the key; the worker that still waits gets it next.
            add(&queue, 7);
            queue.done(slot);
        }
        assert_eq!(waiting.join().unwrap(), 7);
    });
}

#[test]
fn key_is_processed_by_one_worker_in_any_interleaving() {
    check(|| {
        let queue = queue();
        let busy = Arc::new([const { AtomicBool::new(false) }; 2]);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                let busy = busy.clone();
                thread::spawn(move || {
                    work(&queue, |key| {
                        assert!(
                            !busy[key].swap(true, Ordering::SeqCst),
                            "two workers process {key}"
                        );
                        thread::yield_now();
                        busy[key].store(false, Ordering::SeqCst);
                    })
                })
            })
            .collect();
        for key in [0, 1, 0, 0, 1] {
            add(&queue, key);
        }
        queue.shut_down();
        let taken: usize = workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum();
        assert!((2..=5).contains(&taken), "{taken}");
    });
}

/// Merging adds loses nothing: a reconcile that starts after the last add follows.
#[test]
fn change_while_processing_is_seen_by_a_later_reconcile() {
    check(|| {
        let queue = queue();
        let current = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(AtomicUsize::new(0));
        let worker = {
            let queue = queue.clone();
            let current = current.clone();
            let seen = seen.clone();
            thread::spawn(move || {
                work(&queue, |_| {
                    seen.store(current.load(Ordering::SeqCst), Ordering::SeqCst)
                })
            })
        };
        for change in 1..=3 {
            current.store(change, Ordering::SeqCst);
            add(&queue, 0);
            thread::yield_now();
        }
        queue.shut_down();
        worker.join().unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn drain_ends_when_the_last_worker_is_done() {
    check(|| {
        let queue = queue();
        let done = Arc::new(AtomicUsize::new(0));
        (0..3).for_each(|key| add(&queue, key));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                let done = done.clone();
                thread::spawn(move || work(&queue, |_| _ = done.fetch_add(1, Ordering::SeqCst)))
            })
            .collect();
        queue.shut_down();
        block_on(queue.drained());
        assert_eq!(done.load(Ordering::SeqCst), 3, "drained means done");
        workers
            .into_iter()
            .for_each(|worker| _ = worker.join().unwrap());
    });
}
