//! Gate: the work queue of one controller, and the writes that hold its keys back.
//!
//! In: changes from handlers, writes from reconciles. Out: keys in the queue.
//! Guarantees: a key with a write that the caches do not show yet is not reconciled, within the
//! bounds of `writes`, and is enqueued as soon as they do.

mod core; // shared state of a controller
mod writes; // read your writes

pub(crate) use self::core::Core;
