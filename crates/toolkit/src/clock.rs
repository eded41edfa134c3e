//! Randomness and wall-clock time, each from one place, so that a run can be repeated.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// The one source of randomness: jitter, spread, tie-breaks. Clones draw from the same stream.
#[derive(Clone, Debug)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    /// Different on every run.
    pub fn from_os() -> Self {
        Self(Arc::new(Mutex::new(rand::make_rng())))
    }

    /// The same on every run with the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// A number from 0 to 1, without 1.
    pub fn fraction(&self) -> f64 {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next_u64()
                % bound
        }
    }
}

/// The time of day, for what is written into objects. It runs with tokio's clock, so a test that pauses one pauses both.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Timestamp,
    started: Instant,
}

impl WallClock {
    /// The time of day of this machine.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where the time of day comes in"
    )]
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// It is that time now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            started: Instant::now(),
        }
    }

    /// The time of day at that moment.
    pub fn at(&self, moment: Instant) -> Timestamp {
        let time = match moment.checked_duration_since(self.started) {
            Some(later) => self.start.checked_add(later),
            None => self.start.checked_sub(self.started - moment),
        };
        time.unwrap_or(self.start)
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        self.start
            .saturating_add(self.started.elapsed())
            .unwrap_or(self.start)
    }
}
