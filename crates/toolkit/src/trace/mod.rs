//! Reconcile trace: what happened, in one total order, and what caused what.
//!
//! In: typed events from every stage (watch event, enqueue, reconcile, write). Out: the newest of
//! them by sequence number, as a stream or on request, and the timeline that led to a reconcile.
//! Guarantees: memory is bounded by the capacity; recording never waits; a reader that is too slow
//! gets the number of records it missed.

mod links; // index: which write caused which reconcile
mod probes; // the queues and caches of everything that records
mod record; // trace events and their text form
mod ring; // the ring buffer and its readers
mod timeline; // reconciles with causes and writes, as text

pub(crate) use probes::TracedCache;
pub use probes::{CacheSnapshot, QueueSnapshot};
pub use record::{AcceptedWrite, ERROR_MAX_BYTES, TraceEvent, TraceRecord, WriteAttributes};
pub use ring::{Trace, TraceBatch, TraceReader};
pub use timeline::{CauseLink, Timeline, TracedReconcile};
