//! Constructors of events whose action equals their reason.

use bellerophon::{EventType, Note};

/// A `Normal` event.
pub(crate) fn normal_event(reason: &str, message: String) -> Note {
    event(EventType::Normal, reason, message)
}

/// A `Warning` event.
pub(crate) fn warning_event(reason: &str, message: String) -> Note {
    event(EventType::Warning, reason, message)
}

fn event(type_: EventType, reason: &str, message: String) -> Note {
    Note {
        type_,
        reason: reason.into(),
        action: reason.into(),
        note: message,
    }
}
