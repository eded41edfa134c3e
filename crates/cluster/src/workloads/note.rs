//! Notes for people, in the words users of Kubernetes know.

use bellerophon::{EventType, Note};

/// Good news.
pub(crate) fn normal(reason: &str, note: String) -> Note {
    Note {
        type_: EventType::Normal,
        reason: reason.into(),
        action: reason.into(),
        note,
    }
}

/// Somebody may have to look.
pub(crate) fn warning(reason: &str, note: String) -> Note {
    Note {
        type_: EventType::Warning,
        reason: reason.into(),
        action: reason.into(),
        note,
    }
}
