//! The live page: which event triggered which controller, why, and what it wrote.
//!
//! ```text
//! trace, object versions ─→ lines of JSON ─→ file (recorder)
//!                                        └─→ HTTP on loopback ─→ browser: timeline, why, queues, …
//! ```
//!
//! Guarantees: read-only unless actions are allowed; nothing is computed per request or per record
//! without a viewer; values of Secrets never leave the process (one module creates all visible
//! objects); every buffer is bounded, and a reader that is too slow gets the number of records it
//! missed.

mod object_log; // versions of objects, for diffs
mod secret; // the only way from a stored object to a visible one

mod diff; // differences between two versions
mod digest; // summary of an object for the tree

mod filter; // which records and objects a reader receives
mod stored; // the objects that exist now

mod line; // the trace format: one JSON object per line
mod recorder; // writes a trace file
mod replay; // reads a trace file
mod state; // queues and caches as a line

mod lines; // the trace format as a stream of text
mod source; // the source of lines: a running process, or a file

mod http; // the server of the page

pub use http::{ActError, Action, Actor, Page, PageError, PageOptions, TextEndpoint};
pub use lines::{following_lines, stored_lines};
pub use object_log::ObjectLog;
pub use recorder::{RecordError, record};
pub use replay::{Replay, ReplayError};
pub use source::{LiveSource, Source};
pub use stored::{StoredObject, StoredObjects};
