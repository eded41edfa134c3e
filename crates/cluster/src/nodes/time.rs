//! Arithmetic on timestamps that saturates instead of failing, and durations as text.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The timestamp `delay` after `at`; [`Timestamp::MAX`] on overflow.
pub(crate) fn after(at: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    at.saturating_add(delay).unwrap_or(Timestamp::MAX)
}

/// The time from `now` until `deadline`; zero if it has passed.
pub(crate) fn remaining(now: Timestamp, deadline: Timestamp) -> Duration {
    Duration::try_from(deadline.duration_since(now)).unwrap_or_default()
}

/// Formats a duration of whole seconds below an hour as Go's `Duration.String` does.
pub(crate) fn format_go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}
