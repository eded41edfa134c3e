//! Locks: the operating system's, or those of a scheduler that tries interleavings in tests.
//! In: a value to guard. Out: guards.
//! Holds: a panic while a lock is held does not lock out others; whoever guards a value keeps it consistent at every step.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};

/// A family of locks.
pub(crate) trait Locks {
    type Mutex<T>;
    type RwLock<T>;

    fn mutex<T>(guarded: T) -> Self::Mutex<T>;
    fn lock<T>(mutex: &Self::Mutex<T>) -> impl DerefMut<Target = T>;
    fn rw_lock<T>(guarded: T) -> Self::RwLock<T>;
    fn read<T>(lock: &Self::RwLock<T>) -> impl Deref<Target = T>;
    fn write<T>(lock: &Self::RwLock<T>) -> impl DerefMut<Target = T>;
}

/// How often whoever finds a mutex taken pauses before it asks again, and at last sleeps.
const PAUSES: [u32; 2] = [128, 512];

/// The locks of the operating system. A mutex is held for nanoseconds only and often wanted again by the same thread, so
/// whoever finds it taken stays away for a few microseconds: asking at once takes the memory from the one who works with it.
pub(crate) struct Os;

impl Locks for Os {
    type Mutex<T> = Mutex<T>;
    type RwLock<T> = RwLock<T>;

    fn mutex<T>(guarded: T) -> Mutex<T> {
        Mutex::new(guarded)
    }

    fn lock<T>(mutex: &Mutex<T>) -> impl DerefMut<Target = T> {
        let try_lock = || match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let after = |pauses: u32| {
            (0..pauses).for_each(|_| std::hint::spin_loop());
            try_lock()
        };
        try_lock()
            .or_else(|| PAUSES.into_iter().find_map(after))
            .unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn rw_lock<T>(guarded: T) -> RwLock<T> {
        RwLock::new(guarded)
    }

    fn read<T>(lock: &RwLock<T>) -> impl Deref<Target = T> {
        lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(lock: &RwLock<T>) -> impl DerefMut<Target = T> {
        lock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks at which a scheduler may switch threads.
#[cfg(test)]
pub(crate) struct Interleaved;

#[cfg(test)]
impl Locks for Interleaved {
    type Mutex<T> = shuttle::sync::Mutex<T>;
    type RwLock<T> = shuttle::sync::RwLock<T>;

    fn mutex<T>(guarded: T) -> shuttle::sync::Mutex<T> {
        shuttle::sync::Mutex::new(guarded)
    }

    fn lock<T>(mutex: &shuttle::sync::Mutex<T>) -> impl DerefMut<Target = T> {
        Held(Some(mutex.lock().expect("no run goes on after a panic")))
    }

    fn rw_lock<T>(guarded: T) -> shuttle::sync::RwLock<T> {
        shuttle::sync::RwLock::new(guarded)
    }

    fn read<T>(lock: &shuttle::sync::RwLock<T>) -> impl Deref<Target = T> {
        lock.read().expect("no run goes on after a panic")
    }

    fn write<T>(lock: &shuttle::sync::RwLock<T>) -> impl DerefMut<Target = T> {
        lock.write().expect("no run goes on after a panic")
    }
}

/// A guard after whose release others may come first: before a bell is rung, say, which no lock guards.
#[cfg(test)]
struct Held<G>(Option<G>);

#[cfg(test)]
impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        self.0.as_ref().expect("it is held until dropped")
    }
}

#[cfg(test)]
impl<G: DerefMut> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.0.as_mut().expect("it is held until dropped")
    }
}

#[cfg(test)]
impl<G> Drop for Held<G> {
    fn drop(&mut self) {
        self.0 = None;
        if !std::thread::panicking() {
            shuttle::thread::yield_now();
        }
    }
}
