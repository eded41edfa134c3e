//! Source of time stamps.

use std::sync::Arc;

use jiff::Timestamp;

/// Returns the current time. The node passes its own clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of the system.
pub fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}
