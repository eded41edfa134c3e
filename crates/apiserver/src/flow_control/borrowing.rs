//! Borrowing: which levels there are, and how their seats follow shares and demand.
//! In: configurations, and the demand of each period. Out: the levels and their concurrency limits.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use super::{
    config::LevelConfig,
    level::{Level, LevelHandle},
    seats::{self, BORROWING_PERIOD, Claim, SeatRange},
    state::State,
};

/// The part of its nominal seats that a request of a level may take.
const SEATS_MAX_FRACTION: f64 = 0.15;

impl State {
    /// Takes over a configuration. Levels keep their requests; those that are no longer configured
    /// go once they are idle.
    pub(super) fn configure(
        &mut self,
        configs: Vec<LevelConfig>,
        now: Instant,
    ) -> BTreeMap<String, Arc<LevelHandle>> {
        self.advance(now);
        for level in self.levels.values_mut() {
            level.quiescing = true;
        }
        let mut handles = BTreeMap::new();
        for config in configs {
            let known = self
                .levels
                .values_mut()
                .find(|level| level.config.name == config.name);
            let handle = match known {
                Some(level) => {
                    level.quiescing = false;
                    level.config = config.clone();
                    level.handle.clone()
                }
                None => {
                    let id = self.next_id;
                    self.next_id += 1;
                    let level = Level::new(id, config.clone(), now);
                    let handle = level.handle.clone();
                    self.levels.insert(id, level);
                    handle
                }
            };
            handles.insert(config.name, handle);
        }
        self.set_ranges();
        self.adjust(now);
        handles
    }

    /// Derives the seats of each level from the shares of all. Mirrors
    /// `finishQueueSetReconfigsLocked`.
    pub(super) fn set_ranges(&mut self) {
        self.levels.retain(|_, level| !level.is_done());
        let shares: u64 = self
            .levels
            .values()
            .map(|level| u64::from(level.config.shares.nominal))
            .sum();
        self.nominal_sum = 0;
        for level in self.levels.values_mut() {
            level.range = SeatRange::new(level.config.shares, shares, self.seats_total);
            let nominal = level.range.nominal;
            self.nominal_sum += nominal;
            let seats_max = level.config.hand_size.map_or(0, |hand_size| {
                let part = (nominal as f64 * SEATS_MAX_FRACTION).ceil() as u64;
                part.min(nominal / u64::from(hand_size)).max(1)
            });
            level.handle.seats_max.store(seats_max, Ordering::Relaxed);
        }
    }

    /// Derives the concurrency limits from the demand since the last time.
    pub(super) fn adjust(&mut self, now: Instant) {
        for level in self.levels.values_mut() {
            level.demand_stats.update(&mut level.demand, now);
        }
        let exempt = self.levels.values().filter(|level| level.is_exempt());
        let exempt = exempt
            .map(|level| seats::exempt_limit(&level.claim()))
            .sum();
        let limited = || self.levels.values().filter(|level| !level.is_exempt());
        let claims: Vec<Claim> = limited().map(Level::claim).collect();
        let allocation = seats::allocate(self.nominal_sum, exempt, &claims);
        if allocation.is_none() {
            tracing::error!(
                ?claims,
                "no concurrency limits fit the demand; they stay as they are"
            );
        }
        self.fair_fraction = allocation.as_ref().map_or(0.0, |found| found.fair_fraction);
        let mut limits = allocation.iter().flat_map(|found| &found.limits).copied();
        for level in self.levels.values_mut() {
            let limit = if level.is_exempt() {
                seats::exempt_limit(&level.claim())
            } else {
                limits.next().unwrap_or(level.queues.limit())
            };
            level.queues.configure(level.config.queuing, limit, now);
        }
        self.dispatch(now);
    }

    /// Without requests, all periods but the last are alike: the smoothed demand decays.
    pub(super) fn skip_idle_periods(&mut self, adjusted: Instant, now: Instant) {
        if self.levels.values().any(|level| !level.queues.is_idle()) {
            return;
        }
        let periods = (now - adjusted).as_secs() / BORROWING_PERIOD.as_secs();
        let skipped = u32::try_from(periods.saturating_sub(1)).unwrap_or(u32::MAX);
        let until = adjusted + BORROWING_PERIOD * skipped;
        for level in self.levels.values_mut() {
            level.demand_stats.decay(&mut level.demand, skipped, until);
        }
        self.next_adjustment = until + BORROWING_PERIOD;
    }
}
