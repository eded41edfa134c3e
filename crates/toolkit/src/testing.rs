//! Options for tests: no randomness, no bound ports, everything traced.

use jiff::Timestamp;

use crate::clock::{Clock, Rng};
use crate::manager::ManagerOptions;
use crate::trace::Trace;

/// Records that the trace of a test keeps.
const TRACE_CAPACITY: usize = 100_000;

/// The start time of every test: 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;

/// Options of a Manager whose run can be repeated: jitter from this seed, a fixed start time, the
/// trace on, no address bound.
///
/// ```
/// use bellerophon::{prelude::*, testing};
///
/// # async fn example(client: kube::Client) {
/// let mgr = Manager::new(client, testing::options(1));
/// # }
/// ```
pub fn options(seed: u64) -> ManagerOptions {
    let start = Timestamp::from_second(START).expect("the start is a valid time");
    ManagerOptions {
        trace: Trace::new(TRACE_CAPACITY),
        clock: Clock::starting_at(start),
        rng: Rng::seeded(seed),
        ..ManagerOptions::default()
    }
}
