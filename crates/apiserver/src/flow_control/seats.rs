//! Seats of the priority levels: how many each has, and how they borrow from each other.
//! In: shares, percentages and the seat demand of each level. Out: the concurrency limit of each.
//! Guarantees: limits are those that kube-apiserver 1.36 derives from the same demand.

use std::time::Duration;

use tokio::time::Instant;

/// How often seats are lent again.
pub(super) const BORROWING_PERIOD: Duration = Duration::from_secs(10);

/// The decay of the smoothed demand per period: half of it is gone after five minutes.
const SMOOTHING: f64 = 0.977;

/// Targets below this count as this, so that they can be divided by.
const TARGET_MIN: f64 = 0.001;

/// How far sums may differ and count as equal.
const EPSILON: f64 = 1e-7;

/// The concurrency settings of a PriorityLevelConfiguration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) nominal: u32,
    pub(super) lendable_percent: u32,
    /// Without a limit, all seats of the server can be borrowed.
    pub(super) borrowing_limit_percent: Option<u32>,
}

/// The range of a level's concurrency limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeatRange {
    /// The seats of the level if no level borrows.
    pub(super) nominal: u64,
    /// `nominal` without what the level lends.
    pub(super) min: u64,
    /// `nominal` and what it may borrow.
    pub(super) max: u64,
}

impl SeatRange {
    /// The part of `total` seats that `shares` of `shares_total` are; rounded up, so that the parts
    /// may sum up to a few seats more.
    pub(super) fn new(shares: Shares, shares_total: u64, total: u64) -> Self {
        let nominal = if shares_total == 0 {
            0.0
        } else {
            (total as f64 * f64::from(shares.nominal) / shares_total as f64).ceil()
        };
        let part = |percent: u32| (nominal * f64::from(percent) / 100.0).round() as u64;
        let lendable = part(shares.lendable_percent);
        let borrowable = shares.borrowing_limit_percent.map_or(total, part);
        let nominal = nominal as u64;
        Self {
            nominal,
            min: nominal.saturating_sub(lendable),
            max: nominal.saturating_add(borrowable),
        }
    }
}

/// Integrates a level's seat demand over time.
#[derive(Clone, Debug)]
pub(super) struct DemandIntegrator {
    since: Instant,
    demand: u64,
    seconds: f64,
    sum: f64,
    squares: f64,
    max: u64,
}

impl DemandIntegrator {
    /// No demand, from now on.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            demand: 0,
            seconds: 0.0,
            sum: 0.0,
            squares: 0.0,
            max: 0,
        }
    }

    /// The demand is this, from now on.
    pub(super) fn set(&mut self, now: Instant, demand: u64) {
        self.integrate(now);
        self.demand = demand;
        self.max = self.max.max(demand);
    }

    fn integrate(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        let demand = self.demand as f64;
        self.since = now;
        self.seconds += seconds;
        self.sum += demand * seconds;
        self.squares += demand * demand * seconds;
    }

    /// The observation since the last reset; the integral starts again.
    fn reset(&mut self, now: Instant) -> Observation {
        self.integrate(now);
        let average = self.sum / self.seconds;
        let variance = self.squares / self.seconds - average * average;
        let observation = Observation {
            seconds: self.seconds,
            average,
            deviation: variance.max(0.0).sqrt(),
            max: self.max,
        };
        *self = Self {
            demand: self.demand,
            max: self.demand,
            ..Self::new(now)
        };
        observation
    }
}

/// The demand of a period.
struct Observation {
    seconds: f64,
    /// Time-weighted.
    average: f64,
    deviation: f64,
    max: u64,
}

/// The demand of a level in the last period, and in those before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DemandStats {
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub(super) high_watermark: u64,
    pub(super) smoothed: f64,
}

impl DemandStats {
    /// Ends a period. Mirrors `seatDemandStats.update`.
    pub(super) fn update(&mut self, demand: &mut DemandIntegrator, now: Instant) {
        let seen = demand.reset(now);
        self.high_watermark = seen.max;
        if seen.seconds <= 0.0 {
            return;
        }
        self.average = seen.average;
        self.deviation = seen.deviation;
        let envelope = seen.average + seen.deviation;
        let decayed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope;
        self.smoothed = envelope.max(decayed);
    }

    /// The same as that many periods without any demand.
    pub(super) fn decay(&mut self, demand: &mut DemandIntegrator, periods: u32, until: Instant) {
        self.smoothed *= SMOOTHING.powf(f64::from(periods));
        *demand = DemandIntegrator::new(until);
    }
}

/// A level that seats are allocated to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) range: SeatRange,
    pub(super) demand: DemandStats,
}

impl Claim {
    /// The seats that the level keeps whatever the demand of others is.
    fn low(&self) -> u64 {
        let used = self.range.nominal.min(self.demand.high_watermark);
        self.range.min.max(used)
    }

    /// The seats that the level would have without bounds.
    fn target(&self) -> f64 {
        (self.low() as f64).max(self.demand.smoothed)
    }
}

/// How the seats are shared out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Allocation {
    /// The concurrency limit of each level, in the order of the claims.
    pub(super) limits: Vec<u64>,
    /// The proportion of its target that each level gets; 0 if there are too few seats for that.
    pub(super) fair_fraction: f64,
}

/// The limit of the level that is exempt: what it used, and at least its own minimum.
pub(super) fn exempt_limit(claim: &Claim) -> u64 {
    claim.range.min.max(claim.demand.high_watermark)
}

/// Shares `total` seats out among the levels that are not exempt, of which the exempt one uses
/// `exempt`. Mirrors `updateBorrowingLocked`. `None` if no such limits exist.
pub(super) fn allocate(total: u64, exempt: u64, claims: &[Claim]) -> Option<Allocation> {
    let remaining = total.saturating_sub(exempt);
    let min_sum: u64 = claims.iter().map(|claim| claim.range.min).sum();
    let low_sum: u64 = claims.iter().map(Claim::low).sum();
    if remaining <= min_sum {
        return Some(Allocation {
            limits: claims.iter().map(|claim| claim.range.min).collect(),
            fair_fraction: 0.0,
        });
    }
    if remaining <= low_sum {
        let fraction = (remaining - min_sum) as f64 / (low_sum - min_sum) as f64;
        let limit = |claim: &Claim| {
            let min = claim.range.min;
            min + ((claim.low() - min) as f64 * fraction).round() as u64
        };
        return Some(Allocation {
            limits: claims.iter().map(limit).collect(),
            fair_fraction: 0.0,
        });
    }
    let fair_fraction = fair_fraction(total as f64, claims)?;
    let limit = |claim: &Claim| {
        let target = claim.target().max(TARGET_MIN);
        let fair = (fair_fraction * target).min(claim.range.max as f64);
        fair.max(claim.low() as f64).round() as u64
    };
    Some(Allocation {
        limits: claims.iter().map(limit).collect(),
        fair_fraction,
    })
}

/// The factor by which each target, kept between its bounds, makes the sum of all the total.
///
/// The sum grows with the factor and is linear between the factors at which a level reaches a
/// bound, so these are visited in ascending order. Mirrors `computeConcurrencyAllocation`.
fn fair_fraction(total: f64, claims: &[Claim]) -> Option<f64> {
    let low = |claim: &Claim| claim.low() as f64;
    let high = |claim: &Claim| claim.range.max as f64;
    let target = |claim: &Claim| claim.target().max(TARGET_MIN);
    let low_sum: f64 = claims.iter().map(low).sum();
    let high_sum: f64 = claims.iter().map(high).sum();
    if low_sum - total > EPSILON || total - high_sum > EPSILON {
        return None;
    }
    // A level's seats grow with the factor from its lower bound on, until its upper bound.
    let mut bounds: Vec<(f64, f64)> = claims
        .iter()
        .flat_map(|claim| {
            let target = target(claim);
            [
                (low(claim) / target, target),
                (high(claim) / target, -target),
            ]
        })
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = low_sum;
    let mut growth = 0.0;
    let mut factor = bounds.first().map_or(0.0, |(bound, _)| *bound);
    for (bound, change) in bounds {
        let next = sum + (bound - factor) * growth;
        if next >= total && growth > 0.0 {
            return Some(factor + (total - sum) / growth);
        }
        sum = next;
        factor = bound;
        growth += change;
    }
    Some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, shares and lendable percentage of the limited levels of a new cluster.
    const DEFAULTS: [(&str, u32, u32); 7] = [
        ("system", 30, 33),
        ("node-high", 40, 25),
        ("leader-election", 10, 0),
        ("workload-high", 40, 50),
        ("workload-low", 100, 90),
        ("global-default", 20, 50),
        ("catch-all", 5, 0),
    ];

    fn claims(demand: impl Fn(&str) -> DemandStats) -> Vec<Claim> {
        let claim = |(name, nominal, lendable_percent): &(&str, u32, u32)| Claim {
            range: SeatRange::new(
                Shares {
                    nominal: *nominal,
                    lendable_percent: *lendable_percent,
                    borrowing_limit_percent: None,
                },
                245,
                600,
            ),
            demand: demand(name),
        };
        DEFAULTS.iter().map(claim).collect()
    }

    #[test]
    fn shares_become_seats() {
        let claims = claims(|_| DemandStats::default());
        let nominal: Vec<u64> = claims.iter().map(|c| c.range.nominal).collect();
        assert_eq!(nominal, [74, 98, 25, 98, 245, 49, 13]);
        assert_eq!(nominal.iter().sum::<u64>(), 602);
        let min: Vec<u64> = claims.iter().map(|c| c.range.min).collect();
        assert_eq!(min, [50, 73, 25, 49, 24, 24, 13]);
        assert!(claims.iter().all(|c| c.range.max == c.range.nominal + 600));
        let limited = Shares {
            nominal: 20,
            lendable_percent: 50,
            borrowing_limit_percent: Some(10),
        };
        assert_eq!(SeatRange::new(limited, 245, 600).max, 54);
    }

    #[test]
    fn idle_levels_share_all_seats_by_their_minimum() {
        let allocation = allocate(602, 0, &claims(|_| DemandStats::default())).expect("it exists");
        assert_eq!(allocation.limits, [117, 170, 58, 114, 56, 56, 30]);
        assert!((allocation.fair_fraction - 7.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn level_with_all_the_demand_borrows_what_others_lend() {
        let claims = claims(|name| DemandStats {
            smoothed: if name == "global-default" {
                1000.0
            } else {
                0.0
            },
            ..DemandStats::default()
        });
        let allocation = allocate(602, 0, &claims).expect("it exists");
        assert_eq!(allocation.limits, [50, 73, 25, 49, 24, 368, 13]);
    }

    #[test]
    fn exempt_demand_leaves_the_minimum_or_part_of_what_was_used() {
        let claims = claims(|name| DemandStats {
            high_watermark: if name == "workload-low" { 245 } else { 0 },
            ..DemandStats::default()
        });
        let few = allocate(602, 602, &claims).expect("it exists");
        assert_eq!(few.limits, [50, 73, 25, 49, 24, 24, 13]);
        // 300 seats are left: the minima take 258, and of the 221 that workload-low used more 42.
        let some = allocate(602, 302, &claims).expect("it exists");
        assert_eq!(some.limits, [50, 73, 25, 49, 66, 24, 13]);
    }

    #[test]
    fn limits_without_a_solution_are_not_made_up() {
        let narrow = Claim {
            range: SeatRange {
                nominal: 10,
                min: 10,
                max: 10,
            },
            demand: DemandStats::default(),
        };
        assert_eq!(allocate(20, 0, &[narrow]), None);
        let exact = allocate(20, 0, &[narrow, narrow]).expect("it exists");
        assert_eq!(exact.limits, [10, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn demand_is_weighted_by_time_and_forgotten_slowly() {
        let start = Instant::now();
        let mut demand = DemandIntegrator::new(start);
        let mut stats = DemandStats::default();
        demand.set(start, 100);
        demand.set(start + Duration::from_secs(5), 0);
        stats.update(&mut demand, start + BORROWING_PERIOD);
        assert_eq!(stats.high_watermark, 100);
        assert!((stats.average - 50.0).abs() < 1e-9);
        assert!((stats.deviation - 50.0).abs() < 1e-9);
        assert!((stats.smoothed - 100.0).abs() < 1e-9);

        let mut decayed = stats;
        let mut idle = demand.clone();
        for period in 2..32 {
            stats.update(&mut demand, start + BORROWING_PERIOD * period);
        }
        decayed.decay(&mut idle, 30, start + BORROWING_PERIOD * 31);
        assert_eq!(stats.high_watermark, 0);
        assert!((stats.smoothed - 49.76).abs() < 0.01, "{}", stats.smoothed);
        assert!((stats.smoothed - decayed.smoothed).abs() < 1e-9);
    }
}
