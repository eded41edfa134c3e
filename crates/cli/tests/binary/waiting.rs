//! Waits for the state of another process.

use std::{thread, time::Instant};

use crate::running::TIMEOUT;

/// Waits until a condition holds.
///
/// # Panics
/// It does not hold within the timeout.
#[expect(
    clippy::disallowed_methods,
    reason = "another process does not know the time of this one's runtime"
)]
pub(crate) fn await_condition(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        thread::yield_now();
    }
}
