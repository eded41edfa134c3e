//! The state of the queue behind its lock, and the workers that wait for keys.
//!
//! In: calls from any thread. Out: keys for workers, each notified when there is one.
//! Guarantees: no notification is lost, also when a waiting worker is dropped; workers are not
//! notified while the lock is held.

use std::hash::Hash;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::rate_limit::RateLimiter;
use super::slots::{KeyHasher, SlotIndex};
use super::state::{Add, Done, State, Taken};
use crate::locks::Locks;

/// The state that the lock guards.
#[derive(Debug)]
pub(super) struct Contents<T> {
    pub(super) state: State<T>,
    limiter: RateLimiter,
    /// The number of waiting workers. Without any, no notification is sent.
    waiters: usize,
    /// A waiter was notified and has not polled since. When it does, it notifies the next one if
    /// there is more than it takes.
    notified: bool,
}

impl<T: Clone + Eq + Hash> Contents<T> {
    pub(super) fn new(measured: bool, limiter: RateLimiter) -> Self {
        Self {
            state: State::new(measured),
            limiter,
            waiters: 0,
            notified: false,
        }
    }

    /// Whether a waiter has to be notified once the lock is released: there is one, and none was
    /// notified already.
    fn should_notify(&mut self) -> bool {
        let notify = self.waiters > 0 && !self.notified;
        self.notified |= notify;
        notify
    }
}

/// The locked state and its notifiers.
pub(super) struct Shared<T, L: Locks> {
    hasher: KeyHasher,
    contents: L::Mutex<Contents<T>>,
    /// Notifies waiters when a key is ready, the next due time is earlier, or the queue shuts down.
    ready: Notify,
    /// Notifies when the queue is drained.
    idle: Notify,
}

impl<T: Clone + Eq + Hash, L: Locks> Shared<T, L> {
    pub(super) fn new(contents: Contents<T>) -> Self {
        Self {
            hasher: KeyHasher::default(),
            contents: L::mutex(contents),
            ready: Notify::new(),
            idle: Notify::new(),
        }
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Contents<T>) -> R) -> R {
        act(&mut L::lock(&self.contents))
    }

    pub(super) fn add(&self, key: T, add: Add) {
        let key = self.hasher.hash(key);
        let notify = self.with(|contents| {
            contents.state.add(key, add, Instant::now) && contents.should_notify()
        });
        if notify {
            self.ready.notify_one();
        }
    }

    /// Counts a failure of the key and returns its delay.
    pub(super) fn count_failure(&self, key: &T, backoff_max: Option<Duration>) -> Duration {
        let key = self.hasher.hash(key.clone());
        self.with(|contents| {
            // A failure that is counted now would never be forgotten, and its slot never released.
            if contents.state.shutting_down {
                return Duration::ZERO;
            }
            let failures = contents.state.count_failure(key);
            contents
                .limiter
                .delay(failures, backoff_max, Instant::now())
        })
    }

    /// Resets the back-off of the key.
    pub(super) fn forget(&self, key: &T) {
        let key = self.hasher.hash(key);
        self.with(|contents| contents.state.forget(key));
    }

    /// Rate-limited adds of the key since the last forget.
    pub(super) fn failures(&self, key: &T) -> u32 {
        let key = self.hasher.hash(key);
        self.with(|contents| contents.state.failures(key))
    }

    pub(super) fn try_get(&self) -> Option<Taken<T>> {
        let mut more = false;
        let taken = self.with(|contents| {
            let taken = contents.state.take(Instant::now);
            // One notification per add would be enough for one key each, but `notified` merges
            // them: the worker that takes a key passes the notification on.
            more = taken.is_some() && contents.state.has_ready() && contents.should_notify();
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
        let mut waiter = Waiter {
            shared: self,
            waiting: false,
            notified: false,
        };
        loop {
            // Created before the poll, so that a notification between poll and wait is not lost.
            let notified = self.ready.notified();
            let due = match waiter.poll() {
                Polled::Taken(taken) => return Some(taken),
                Polled::ShutDown => return None,
                Polled::Wait(due) => due,
            };
            waiter.notified = match due {
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

    /// Ends the processing of a key and returns its duration, in a queue with an observer.
    pub(super) fn done(&self, slot: SlotIndex) -> Option<Duration> {
        let mut notify = false;
        let mut idle = false;
        let Done { worked, .. } = self.with(|contents| {
            let done = contents.state.done(slot, Instant::now);
            notify = done.requeued && contents.should_notify();
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
        // All waiters: each of them has to return.
        self.ready.notify_waiters();
        self.idle.notify_waiters();
    }

    /// Waits until no key is ready or processed.
    pub(super) async fn drained(&self) {
        loop {
            // Created before the check, so that a notification between check and wait is not lost.
            let notified = self.idle.notified();
            if self.with(|contents| contents.state.is_idle()) {
                return;
            }
            notified.await;
        }
    }
}

/// The result of polling the queue.
enum Polled<T> {
    Taken(Taken<T>),
    /// The queue is shut down and empty.
    ShutDown,
    /// No key is ready; the next delayed one is due at this time.
    Wait(Option<Instant>),
}

/// A worker that waits for a key.
struct Waiter<'a, T: Clone + Eq + Hash, L: Locks> {
    shared: &'a Shared<T, L>,
    /// It is counted in [`Contents::waiters`].
    waiting: bool,
    /// It was notified and has not polled since.
    notified: bool,
}

impl<T: Clone + Eq + Hash, L: Locks> Waiter<'_, T, L> {
    /// Takes a key or starts to wait, in one step under the lock.
    fn poll(&mut self) -> Polled<T> {
        let (polled, notify) = self.shared.with(|contents| {
            if std::mem::take(&mut self.notified) {
                contents.notified = false;
            }
            let taken = contents.state.take(Instant::now);
            if taken.is_none() && !contents.state.shutting_down {
                // Under the same lock as the failed take: an add afterwards sees the waiter.
                contents.waiters += usize::from(!std::mem::replace(&mut self.waiting, true));
                return (Polled::Wait(contents.state.next_due()), false);
            }
            let notify =
                self.leave(contents) || (contents.state.has_ready() && contents.should_notify());
            (taken.map_or(Polled::ShutDown, Polled::Taken), notify)
        });
        if notify {
            self.shared.ready.notify_one();
        }
        polled
    }

    /// Stops waiting. Returns whether another waiter has to be notified, because this may have been
    /// the only one that waits for the next due time.
    fn leave(&mut self, contents: &mut Contents<T>) -> bool {
        if !std::mem::take(&mut self.waiting) {
            return false;
        }
        contents.waiters -= 1;
        contents.state.next_due().is_some() && contents.should_notify()
    }
}

impl<T: Clone + Eq + Hash, L: Locks> Drop for Waiter<'_, T, L> {
    fn drop(&mut self) {
        // Ready keys were announced to another waiter when the last key was taken.
        if self.waiting && self.shared.with(|contents| self.leave(contents)) {
            self.shared.ready.notify_one();
        }
    }
}
