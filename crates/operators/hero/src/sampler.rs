//! Sampler: rates that need two observations.
//!
//! In: reports of members. Out: reads per second, and recent elections.
//! Guarantees: its state can be lost at any time; it is bounded by the number of stores.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};

use crate::observed::Report;

/// The time in which elections are counted.
pub const WINDOW: SignedDuration = SignedDuration::from_mins(10);

/// The minimum time between two samples of a rate: shorter ones are dominated by bursts.
const RATE_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// The maximum number of terms that are remembered per store; more elections are unusual anyway.
const TERMS_MAX: usize = 32;

/// The rates of one store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The reads per second of all members; `None` until two samples were taken.
    pub reads_per_second: Option<f64>,
    /// The number of elections within [`WINDOW`].
    pub elections: u64,
}

/// Samples of all stores, by UID.
#[derive(Debug, Default)]
pub struct Sampler(Mutex<BTreeMap<String, Samples>>);

#[derive(Debug, Default)]
struct Samples {
    taken: Option<Timestamp>,
    /// The reads of each member since its start.
    reads: BTreeMap<String, u64>,
    rate: Option<f64>,
    /// New terms and when they were seen.
    terms: VecDeque<(Timestamp, u64)>,
}

impl Sampler {
    /// Adds a sample of a store.
    pub fn sample(&self, uid: &str, reports: &BTreeMap<String, Report>, now: Timestamp) -> Rates {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = all.entry(uid.to_owned()).or_default();
        samples.add_reads(reports, now);
        samples.add_term(reports, now);
        Rates {
            reads_per_second: samples.rate,
            elections: samples.terms.len().saturating_sub(1) as u64,
        }
    }

    /// Drops the samples of stores that no longer exist.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|uid, _| exists(uid));
    }
}

impl Samples {
    fn add_reads(&mut self, reports: &BTreeMap<String, Report>, now: Timestamp) {
        let elapsed = self.taken.map(|taken| now.duration_since(taken));
        if elapsed.is_some_and(|elapsed| elapsed < RATE_INTERVAL) {
            return;
        }
        let current: BTreeMap<String, u64> = reports
            .iter()
            .filter_map(|(name, report)| Some((name.clone(), report.as_ref().ok()?.requests.reads)))
            .collect();
        if let Some(elapsed) = elapsed {
            // A restarted member counts from zero again.
            let reads: u64 = current
                .iter()
                .filter_map(|(name, count)| count.checked_sub(*self.reads.get(name)?))
                .sum();
            self.rate = Some(reads as f64 / elapsed.as_secs_f64());
        }
        self.taken = Some(now);
        self.reads = current;
    }

    fn add_term(&mut self, reports: &BTreeMap<String, Report>, now: Timestamp) {
        let terms = reports
            .values()
            .filter_map(|report| Some(report.as_ref().ok()?.term));
        if let Some(term) = terms.max()
            && self.terms.back().is_none_or(|(_, last)| *last < term)
        {
            self.terms.push_back((now, term));
        }
        // The oldest term is kept as the one that the others are counted from.
        while self.terms.len() > 1
            && (self.terms.len() > TERMS_MAX || now.duration_since(self.terms[1].0) > WINDOW)
        {
            self.terms.pop_front();
        }
    }
}
