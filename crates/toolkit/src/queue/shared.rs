//! Shared: the queue's state behind its lock, and those who wait for it to change.
//!
//! In: calls from any thread. Out: keys for workers, each woken when there is one for it.
//! Holds: no wake-up is lost, also when a waiting worker is dropped; nobody is woken while the lock is held.

use std::hash::Hash;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::limit::Limiter;
use super::slots::{Hashes, SlotIndex};
use super::state::{Add, Done, State, Taken};
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
        Self {
            state: State::new(measured),
            limiter,
            takers: 0,
            rung: false,
        }
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
    hashes: Hashes,
    contents: L::Mutex<Contents<T>>,
    /// Wakes takers when a key is ready, an earlier time is asked for, or the queue shuts down.
    ready: Notify,
    /// Wakes those who wait for the queue to be empty.
    idle: Notify,
}

impl<T: Clone + Eq + Hash, L: Locks> Shared<T, L> {
    pub(super) fn new(contents: Contents<T>) -> Self {
        Self {
            hashes: Hashes::default(),
            contents: L::mutex(contents),
            ready: Notify::new(),
            idle: Notify::new(),
        }
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Contents<T>) -> R) -> R {
        act(&mut L::lock(&self.contents))
    }

    pub(super) fn add(&self, key: T, add: Add) {
        let key = self.hashes.of(key);
        let notify =
            self.with(|contents| contents.state.add(key, add, Instant::now) && contents.ring());
        if notify {
            self.ready.notify_one();
        }
    }

    /// Counts a failure of the key and says how long it has to wait for that.
    pub(super) fn count_failure(&self, key: &T) -> Duration {
        let key = self.hashes.of(key.clone());
        self.with(|contents| {
            if contents.state.shutting_down {
                return Duration::ZERO;
            }
            let failures = contents.state.count_failure(key);
            contents.limiter.delay(failures, Instant::now())
        })
    }

    /// Starts the key's back-off afresh.
    pub(super) fn forget(&self, key: &T) {
        let key = self.hashes.of(key);
        self.with(|contents| contents.state.forget(key));
    }

    /// How often the key failed since it was last forgotten.
    pub(super) fn failures(&self, key: &T) -> u32 {
        let key = self.hashes.of(key);
        self.with(|contents| contents.state.failures(key))
    }

    pub(super) fn try_get(&self) -> Option<Taken<T>> {
        let mut more = false;
        let taken = self.with(|contents| {
            let taken = contents.state.take(Instant::now);
            more = taken.is_some() && contents.state.has_ready() && contents.ring();
            taken
        });
        if more {
            self.ready.notify_one();
        }
        taken
    }

    pub(super) async fn get(&self) -> Option<Taken<T>> {
        if let Some(taken) = self.try_get() {
            return Some(taken);
        }
        let mut taker = Taker {
            shared: self,
            waits: false,
            woken: false,
        };
        loop {
            // Made before looking: a bell that rings between looking and waiting is remembered.
            let notified = self.ready.notified();
            let due = match taker.look() {
                Look::Taken(taken) => return Some(taken),
                Look::Over => return None,
                Look::Wait(due) => due,
            };
            taker.woken = match due {
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
        }
    }

    /// Takes a key back and says how long the worker had it, in a queue that is measured.
    pub(super) fn done(&self, slot: SlotIndex) -> Option<Duration> {
        let (mut notify, mut idle) = (false, false);
        let Done { worked, .. } = self.with(|contents| {
            let done = contents.state.done(slot, Instant::now);
            notify = done.again && contents.ring();
            idle = contents.state.shutting_down && contents.state.is_idle();
            done
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
}

/// What one who wants a key finds.
enum Look<T> {
    Taken(Taken<T>),
    /// There will be none any more.
    Over,
    /// Nothing yet; at this time there may be, if nobody rings before.
    Wait(Option<Instant>),
}

/// One who waits for a key, counted for as long as it waits.
struct Taker<'a, T: Clone + Eq + Hash, L: Locks> {
    shared: &'a Shared<T, L>,
    waits: bool,
    /// The bell was rung for it, and it has not looked since.
    woken: bool,
}

impl<T: Clone + Eq + Hash, L: Locks> Taker<'_, T, L> {
    /// Takes a key, or begins to wait, as one step.
    fn look(&mut self) -> Look<T> {
        let (look, ring) = self.shared.with(|contents| {
            if std::mem::take(&mut self.woken) {
                contents.rung = false;
            }
            let taken = contents.state.take(Instant::now);
            if taken.is_none() && !contents.state.shutting_down {
                contents.takers += usize::from(!std::mem::replace(&mut self.waits, true));
                return (Look::Wait(contents.state.next_due()), false);
            }
            let ring = self.leave(contents) || (contents.state.has_ready() && contents.ring());
            (taken.map_or(Look::Over, Look::Taken), ring)
        });
        if ring {
            self.shared.ready.notify_one();
        }
        look
    }

    /// Waits no longer. It may have been the only one that waited for the next time: whether another is to be told.
    fn leave(&mut self, contents: &mut Contents<T>) -> bool {
        if !std::mem::take(&mut self.waits) {
            return false;
        }
        contents.takers -= 1;
        contents.state.next_due().is_some() && contents.ring()
    }
}

impl<T: Clone + Eq + Hash, L: Locks> Drop for Taker<'_, T, L> {
    fn drop(&mut self) {
        // A key that is ready was handed on with the last one.
        if self.waits && self.shared.with(|contents| self.leave(contents)) {
            self.shared.ready.notify_one();
        }
    }
}
