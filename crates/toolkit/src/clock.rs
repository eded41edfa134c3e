//! Time of day and random numbers, each from one source, so that a run can be repeated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use tokio::time::Instant;

/// The random number generator of a Manager: jitter, random names, tie-breaks. Clones draw from one
/// sequence.
///
/// It is not suitable for secrets.
///
/// ```
/// use bellerophon::clock::Rng;
///
/// assert_eq!(Rng::seeded(7).below(100), Rng::seeded(7).below(100));
/// assert!(Rng::from_os().fraction() < 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct Rng(Arc<Mutex<StdRng>>);

impl Rng {
    /// A generator seeded by the operating system.
    pub fn from_os() -> Self {
        Self(Arc::new(Mutex::new(rand::make_rng())))
    }

    /// A generator whose sequence depends on the seed only.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// A number in `0.0..1.0`.
    pub fn fraction(&self) -> f64 {
        self.lock().random()
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // The bias of the modulo is irrelevant for jitter, and the result depends on one draw only.
        self.lock().next_u64() % bound
    }

    fn lock(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time of day, for timestamps in objects. It advances with tokio's clock, so a test that
/// pauses tokio's time pauses both.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::time::Duration;
///
/// use bellerophon::clock::Clock;
/// use jiff::Timestamp;
///
/// let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
/// tokio::time::sleep(Duration::from_secs(60)).await;
/// assert_eq!(clock.now().as_second(), 60);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Timestamp,
    /// The time of tokio's clock at `start`.
    started: Instant,
}

impl Clock {
    /// The clock of this machine.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where the time of day is read"
    )]
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// A clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            started: Instant::now(),
        }
    }

    /// The time of day at an instant of tokio's clock.
    pub fn at(&self, instant: Instant) -> Timestamp {
        let time = match instant.checked_duration_since(self.started) {
            Some(later) => self.start.checked_add(later),
            None => self.start.checked_sub(self.started - instant),
        };
        time.unwrap_or(self.start)
    }

    /// The current time of day.
    pub fn now(&self) -> Timestamp {
        self.start
            .saturating_add(self.started.elapsed())
            .unwrap_or(self.start)
    }
}
