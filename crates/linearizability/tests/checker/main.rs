//! Tests of the checker: hand-written histories, and random ones compared with a second checker.

mod builders; // operations, lists and watches in one line each
mod histories; // random histories and their mutations
mod illegal; // histories that must be rejected
mod legal; // histories that must be accepted
mod model; // the specification of a key, written a second time
mod random; // random histories
