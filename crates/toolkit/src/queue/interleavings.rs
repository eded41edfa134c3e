//! The queue where threads meet, under a scheduler that tries many interleavings of its lock.
//!
//! A run in which somebody waits for ever ends with "deadlock" instead of hanging.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shuttle::future::block_on;
use shuttle::thread;

use super::shared::{Contents, Shared};
use super::*;
use crate::locks::Interleaved;

/// How many interleavings each promise is held against.
const RUNS: usize = 1_000;

type Queue = Shared<usize, Interleaved>;

fn queue() -> Arc<Queue> {
    Arc::new(Shared::new(Contents::new(
        false,
        Limiter::new(RateLimit::default(), Entropy::seeded(1)),
    )))
}

/// Tries interleavings at random, and with the few switches that most races need.
fn check(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), RUNS);
    shuttle::check_pct(run, RUNS, 3);
}

fn add(queue: &Queue, key: usize) {
    queue.add(key, Add::default());
}

/// Takes until there is nothing more, and counts.
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
fn every_key_wakes_a_waiting_worker() {
    check(|| {
        let queue = queue();
        // Each worker takes one key and keeps it: if a wake-up were lost, one of them would wait for ever.
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
fn dropped_worker_hands_its_wake_up_on() {
    check(|| {
        let queue = queue();
        let waiting = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.get()).expect("not shut down").key)
        };
        let impatient = {
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
        if let Some(slot) = impatient.join().unwrap() {
            // It got the key; the one who still waits gets it next.
            add(&queue, 7);
            queue.done(slot);
        }
        assert_eq!(waiting.join().unwrap(), 7);
    });
}

#[test]
fn one_key_is_never_with_two_workers_in_any_interleaving() {
    check(|| {
        let (queue, busy) = (queue(), Arc::new([const { AtomicBool::new(false) }; 2]));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, busy) = (queue.clone(), busy.clone());
                thread::spawn(move || {
                    work(&queue, |key| {
                        assert!(
                            !busy[key].swap(true, Ordering::SeqCst),
                            "two workers have {key}"
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

/// The last add of a key is followed by a run of it that begins later: nothing is lost by being merged.
#[test]
fn change_during_a_run_is_seen_by_a_later_run() {
    check(|| {
        let (queue, wanted, seen) = (
            queue(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let worker = {
            let (queue, wanted, seen) = (queue.clone(), wanted.clone(), seen.clone());
            thread::spawn(move || {
                work(&queue, |_| {
                    seen.store(wanted.load(Ordering::SeqCst), Ordering::SeqCst)
                })
            })
        };
        for change in 1..=3 {
            wanted.store(change, Ordering::SeqCst);
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
        let (queue, done) = (queue(), Arc::new(AtomicUsize::new(0)));
        (0..3).for_each(|key| add(&queue, key));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, done) = (queue.clone(), done.clone());
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
