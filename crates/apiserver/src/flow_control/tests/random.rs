//! Random requests at all levels: limits are kept, nothing leaks, and the order depends on the seed
//! alone.

use std::time::Duration;

use tokio::time::Instant;

use super::request;
use crate::{
    entropy::Entropy,
    flow_control::{
        Load, Work,
        state::{Start, State},
        upkeep::tests::default_configuration,
    },
};

/// Random arrivals, ends and changes at all levels; the order in which requests were executed.
fn random_run(seed: u64, steps: usize) -> Vec<(u32, usize)> {
    const PROCESSOR_SEATS: u64 = 24;
    let entropy = Entropy::seeded(seed);
    let mut now = Instant::now();
    let mut state = State::new(60, PROCESSOR_SEATS, now);
    let mut handles = state.configure(default_configuration().levels, now);
    let mut order = Vec::new();
    // Level and slot of each request that has not ended, and whether it was seen executing.
    let mut requests: Vec<(u32, usize, bool)> = Vec::new();
    for _ in 0..steps {
        now += Duration::from_micros(entropy.below(3000));
        match entropy.below(100) {
            0..=54 => {
                let names: Vec<&String> = handles.keys().collect();
                let index = usize::try_from(entropy.below(names.len() as u64)).expect("an index");
                let id = handles[names[index]].id;
                let final_seats = entropy.below(12).saturating_sub(9);
                let work = Work {
                    initial_seats: 1 + entropy.below(5).saturating_sub(2),
                    final_seats,
                    additional_latency: Duration::from_millis(final_seats * 4),
                };
                match state.start(id, request(entropy.below(9), work, now), now) {
                    Start::Executing(slot) | Start::Waiting(slot, _) => {
                        requests.push((id, slot, false));
                    }
                    Start::Rejected => {}
                }
            }
            55..=97 if !requests.is_empty() => {
                let index = entropy.below(requests.len() as u64);
                let index = usize::try_from(index).expect("an index");
                let (id, slot, _) = requests.swap_remove(index);
                state.end(id, slot, now);
            }
            98 => {
                let mut levels = default_configuration().levels;
                if entropy.below(2) == 0 {
                    levels.retain(|level| level.name != "workload-low");
                }
                handles = state.configure(levels, now);
            }
            _ => {
                if let Some((id, slot, true)) = requests.first().copied() {
                    state.release_processor(id, slot, now);
                }
            }
        }
        for (id, slot, seen) in &mut requests {
            if !*seen && state.is_executing(*id, *slot) {
                *seen = true;
                order.push((*id, *slot));
            }
        }
        state.check(PROCESSOR_SEATS);
    }
    for (id, slot, _) in requests {
        state.end(id, slot, now);
    }
    state.advance(now + Duration::from_secs(60));
    assert!(
        state.levels().all(|level| level.queues.is_idle()),
        "a request leaked"
    );
    assert_eq!(state.load(), (Load::default(), Load::default()));
    order
}

#[tokio::test(start_paused = true)]
async fn random_requests_keep_the_limits_and_the_order() {
    for seed in 0..4 {
        let order = random_run(seed, 3_000);
        assert!(order.len() > 500, "{}", order.len());
        assert_eq!(
            order,
            random_run(seed, 3_000),
            "the same order for the same seed"
        );
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "one million steps take half a minute without optimization"]
async fn a_million_random_requests_keep_the_limits_and_the_order() {
    for seed in 100..105 {
        assert_eq!(random_run(seed, 100_000), random_run(seed, 100_000));
    }
}
