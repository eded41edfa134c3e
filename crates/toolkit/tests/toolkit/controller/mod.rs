//! Controllers: from changes to reconciles, and what follows their results.

mod enqueue; // what enqueues a key
mod options; // settings and their inheritance
mod predicates; // which changes count
mod results; // actions and errors
mod workers; // concurrency and stop
