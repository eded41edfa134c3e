//! Shared: the queue's state behind its lock, and those who wait for it to change.
//!
//! In: calls from any thread. Out: keys for workers, each woken when there is one for it.
//! Holds: no wake-up is lost, also when a waiting worker is dropped; nobody is woken while the lock is held.

use std::hash::Hash;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::limit::Limiter;
use super::slots::SlotIndex;
use super::state::{Add, State, Taken};
use crate::locks::Locks;

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Contents<T> {
    pub(super) state: State<T>,
    limiter: Limiter,
    /// Takers that found nothing. While there are none, nobody is notified.
    takers: usize,
    /// The bell was rung for takers, and none has come since. Whoever comes passes it on if there is more than it takes.
    rung: bool,
}

impl<T: Clone + Eq + Hash> Contents<T> {
    pub(super) fn new(measured: bool, limiter: Limiter) -> Self {
        Self { state: State::new(measured), limiter, takers: 0, rung: false }
    }

    /// Whether the bell for takers is to be rung, once the lock is released: somebody waits, and nobody is on the way.
    fn ring(&mut self) -> bool {
        let ring = self.takers > 0 && !self.rung;
        self.rung |= ring;
        ring
    }
}

/// The contents and two bells.
pub(super) struct Shared<T, L: Locks> {
    contents: L::Mutex<Contents<T>>,
    /// Wakes takers when a key is ready, an earlier time is asked for, or the queue shuts down.
    ready: Notify,
    /// Wakes those who wait for the queue to be empty.
    idle: Notify,
}

impl<T: Clone + Eq + Hash, L: Locks> Shared<T, L> {
    pub(super) fn new(contents: Contents<T>) -> Self {
        Self { contents: L::mutex(contents), ready: Notify::new(), idle: Notify::new() }
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Contents<T>) -> R) -> R {
        act(&mut L::lock(&self.contents))
    }

    pub(super) fn add(&self, key: T, add: Add) {
        let notify = self.with(|contents| contents.state.add(key, add, Instant::now) && contents.ring());
        if notify {
            self.ready.notify_one();
        }
    }

    /// Counts a failure of the key and says how long it has to wait for that.
    pub(super) fn count_failure(&self, key: &T) -> Duration {
        self.with(|contents| {
            if contents.state.shutting_down {
                return Duration::ZERO;
            }
            let failures = contents.state.count_failure(key);
            contents.limiter.delay(failures, Instant::now())
        })
    }

    pub(super) fn try_get(&self) -> Option<Taken<T>> {
        let (taken, more) = self.with(|contents| {
            let taken = contents.state.take(Instant::now)?;
            Some((taken, contents.state.has_ready() && contents.ring()))
        })?;
        if more {
            self.ready.notify_one();
        }
        Some(taken)
    }

    pub(super) async fn get(&self) -> Option<Taken<T>> {
        if let Some(answer) = self.poll_once() {
            return answer;
        }
        let _waiting = Taker::new(self);
        loop {
            // Made before looking again: a bell that rings between looking and waiting is remembered.
            let notified = self.ready.notified();
            if let Some(answer) = self.poll_once() {
                return answer;
            }
            let due = self.with(|contents| contents.state.next_due());
            let rung = match due {
                Some(at) => tokio::select! {
                    biased;
                    () = notified => true,
                    () = sleep_until(at) => false,
                },
                None => {
                    notified.await;
                    true
                }
            };
            if rung {
                self.with(|contents| contents.rung = false);
            }
        }
    }

    /// Takes a key back and says how long the worker had it, in a queue that is measured.
    pub(super) fn done(&self, slot: SlotIndex) -> Option<Duration> {
        let (notify, idle, worked) = self.with(|contents| {
            let (again, worked) = contents.state.done(slot, Instant::now);
            (again && contents.ring(), contents.state.shutting_down && contents.state.is_idle(), worked)
        });
        if notify {
            self.ready.notify_one();
        }
        if idle {
            self.idle.notify_waiters();
        }
        worked
    }

    pub(super) fn shut_down(&self) {
        self.with(|contents| contents.state.shut_down());
        self.ready.notify_waiters();
        self.idle.notify_waiters();
    }

    /// Waits until nothing is ready and nothing is with a worker.
    pub(super) async fn drained(&self) {
        loop {
            let notified = self.idle.notified();
            if self.with(|contents| contents.state.is_idle()) {
                return;
            }
            notified.await;
        }
    }

    /// A key, or that there will be none.
    fn poll_once(&self) -> Option<Option<Taken<T>>> {
        match self.try_get() {
            Some(taken) => Some(Some(taken)),
            None if self.with(|contents| contents.state.shutting_down) => Some(self.try_get()),
            None => None,
        }
    }
}

/// One who waits for a key, counted for as long as it waits.
struct Taker<'a, T: Clone + Eq + Hash, L: Locks>(&'a Shared<T, L>);

impl<'a, T: Clone + Eq + Hash, L: Locks> Taker<'a, T, L> {
    fn new(shared: &'a Shared<T, L>) -> Self {
        shared.with(|contents| contents.takers += 1);
        Self(shared)
    }
}

impl<T: Clone + Eq + Hash, L: Locks> Drop for Taker<'_, T, L> {
    fn drop(&mut self) {
        let orphaned = self.0.with(|contents| {
            contents.takers -= 1;
            contents.state.next_due().is_some() && contents.ring()
        });
        // It may have been the only one that waited for the next time. A key that is ready was handed on with the last one.
        if orphaned {
            self.0.ready.notify_one();
        }
    }
}
