//! A priority level: its configuration, its requests and its demand.

use std::{
    cmp::Ordering,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering as Memory},
    },
};

use tokio::time::Instant;

use super::{
    config::LevelConfig,
    queue::Queuing,
    queue_set::QueueSet,
    retry_after::RetryAfter,
    seats::{Claim, DemandIntegrator, DemandStats, SeatRange},
};

/// Identifies a level for as long as it exists; never used twice.
pub(super) type LevelId = u32;

/// The level of a schema.
#[derive(Debug)]
pub(super) struct LevelHandle {
    pub(super) id: LevelId,
    /// The most seats of one request; 0 for a level without queues, which has no such limit.
    pub(super) seats_max: AtomicU64,
}

impl LevelHandle {
    /// The most seats of one request, if there is a limit.
    pub(super) fn seats_max(&self) -> Option<u64> {
        Some(self.seats_max.load(Memory::Relaxed)).filter(|seats| *seats > 0)
    }
}

/// A priority level.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) handle: Arc<LevelHandle>,
    pub(super) config: LevelConfig,
    /// The level is no longer configured; it goes once it is idle and no request is classified to
    /// it.
    pub(super) quiescing: bool,
    pub(super) queues: QueueSet,
    pub(super) range: SeatRange,
    pub(super) demand: DemandIntegrator,
    pub(super) demand_stats: DemandStats,
    pub(super) retry_after: RetryAfter,
}

impl Level {
    pub(super) fn new(id: LevelId, config: LevelConfig, now: Instant) -> Self {
        Self {
            handle: Arc::new(LevelHandle {
                id,
                seats_max: AtomicU64::new(0),
            }),
            queues: QueueSet::new(config.queuing, 0, now),
            config,
            quiescing: false,
            range: SeatRange::default(),
            demand: DemandIntegrator::new(now),
            demand_stats: DemandStats::default(),
            retry_after: RetryAfter::default(),
        }
    }

    pub(super) fn is_exempt(&self) -> bool {
        self.config.queuing == Queuing::Exempt
    }

    pub(super) fn claim(&self) -> Claim {
        Claim {
            range: self.range,
            demand: self.demand_stats,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.quiescing && self.queues.is_idle() && Arc::strong_count(&self.handle) == 1
    }

    /// Records the demand after it changed.
    pub(super) fn demand_changed(&mut self, now: Instant) {
        self.demand.set(now, self.queues.demand());
    }

    /// Whether this level has the smaller part of its seats in use.
    pub(super) fn less_used(&self, other: &Self) -> Ordering {
        let product = |level: &Self, other: &Self| {
            u128::from(level.queues.seats_in_use()) * u128::from(other.queues.limit())
        };
        product(self, other).cmp(&product(other, self))
    }
}

/// How many requests are executed and wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}
