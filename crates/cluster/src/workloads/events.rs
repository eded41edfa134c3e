//! Constructors of events whose action equals their reason.

use bellerophon::events::Event;

/// A `Normal` event.
pub(crate) fn normal_event(reason: &str, message: String) -> Event {
    Event::normal(reason, reason, message)
}

/// A `Warning` event.
pub(crate) fn warning_event(reason: &str, message: String) -> Event {
    Event::warning(reason, reason, message)
}
