//! The stack of deep expressions.
//! In: work that recurses as deep as an expression. Out: its result.
//! Guarantees: what is deeper than [`SHALLOW`] runs on a separate stack, so that a caller with a
//! small one does not overflow it.

use std::{panic, thread};

/// How deep work may recurse on the stack of the caller: some hundred KiB in a build without
/// optimisation.
pub(crate) const SHALLOW: usize = 40;
/// Several times the stack that the deepest expression needs.
const STACK_BYTES: usize = 16 << 20;

/// Runs work that recurses `depth` levels; `None` if a separate stack is needed and cannot be
/// allocated.
pub(crate) fn with_stack<T: Send>(depth: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    if depth <= SHALLOW {
        return Some(work());
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("deep expression".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .ok()?;
        Some(
            thread
                .join()
                .unwrap_or_else(|panicked| panic::resume_unwind(panicked)),
        )
    })
}

/// At most how deep the tree of a text is: as many levels as it has characters that can begin one.
pub(crate) fn depth_max(text: &str) -> usize {
    text.bytes()
        .filter(|b| b"([{?.+-*/%<>=!&|".contains(b))
        .count()
}
