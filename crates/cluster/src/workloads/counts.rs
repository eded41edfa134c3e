//! Counts in status fields.

/// The count as an API field, at most `i32::MAX`.
pub(crate) fn saturating_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The count as an optional field that is omitted when it is 0, as `omitempty` in Go.
pub(crate) fn omit_zero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}
