//! Source of time stamps.

use std::sync::Arc;

use jiff::Timestamp;

/// Returns the current time. The node passes its own clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of the system.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock of nodes that have none"
)]
pub fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}
