//! Trace bus: what happened, in one order, for those who ask why.
//!
//! In: typed records from every stage (watch event, enqueue, reconcile, write). Out: the newest of them by a global
//! sequence, as they come or on request, and the chain that led to a reconcile.
//! Holds: memory is bounded by the capacity; recording never waits; a reader that is too slow learns how many it missed.

mod bus; // the ring and its readers
mod record; // what one record says
mod why; // from a reconcile back to what led to it

pub use bus::{TraceBatch, TraceBus, TraceReader};
pub use record::{TraceEvent, TraceRecord};
pub use why::{Because, TracedReconcile, Why};
