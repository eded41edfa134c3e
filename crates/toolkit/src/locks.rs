//! Locks: the operating system's, or in tests those of a scheduler that tries interleavings.
//!
//! In: a value to guard. Out: guards.
//! Guarantees: a panic while a lock is held does not poison it. Guarded values must be consistent
//! whenever code that can panic runs.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};

/// An implementation of mutex and read-write lock.
pub(crate) trait Locks {
    type Mutex<T>;
    type RwLock<T>;

    fn mutex<T>(guarded: T) -> Self::Mutex<T>;
    fn lock<T>(mutex: &Self::Mutex<T>) -> impl DerefMut<Target = T>;
    fn rw_lock<T>(guarded: T) -> Self::RwLock<T>;
    fn read<T>(lock: &Self::RwLock<T>) -> impl Deref<Target = T>;
    fn write<T>(lock: &Self::RwLock<T>) -> impl DerefMut<Target = T>;
}

/// Spin-loop hints before the second and third try to lock a mutex; then the thread blocks.
const SPINS: [u32; 2] = [128, 512];

/// The locks of the operating system.
///
/// Mutexes are held for nanoseconds, and often locked again by the same thread. A thread that finds
/// one locked therefore spins for a few microseconds before it tries again: an immediate retry
/// would take the cache line from the owner.
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
            // A panic of user code under the lock must not stop every other object.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let spin_and_try = |spins: u32| {
            (0..spins).for_each(|_| std::hint::spin_loop());
            try_lock()
        };
        try_lock()
            .or_else(|| SPINS.into_iter().find_map(spin_and_try))
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

/// Locks at which shuttle may switch threads.
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
        YieldingGuard(Some(mutex.lock().expect("a run ends with the first panic")))
    }

    fn rw_lock<T>(guarded: T) -> shuttle::sync::RwLock<T> {
        shuttle::sync::RwLock::new(guarded)
    }

    fn read<T>(lock: &shuttle::sync::RwLock<T>) -> impl Deref<Target = T> {
        lock.read().expect("a run ends with the first panic")
    }

    fn write<T>(lock: &shuttle::sync::RwLock<T>) -> impl DerefMut<Target = T> {
        lock.write().expect("a run ends with the first panic")
    }
}

/// A guard after whose release another thread may run, such as before a notification that is sent
/// without the lock.
#[cfg(test)]
struct YieldingGuard<G>(Option<G>);

#[cfg(test)]
impl<G: Deref> Deref for YieldingGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        self.0.as_ref().expect("the guard is present until dropped")
    }
}

#[cfg(test)]
impl<G: DerefMut> DerefMut for YieldingGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.0.as_mut().expect("the guard is present until dropped")
    }
}

#[cfg(test)]
impl<G> Drop for YieldingGuard<G> {
    fn drop(&mut self) {
        self.0 = None;
        if !std::thread::panicking() {
            shuttle::thread::yield_now();
        }
    }
}
