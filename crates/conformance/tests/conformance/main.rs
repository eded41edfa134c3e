//! Recorded scenarios, replayed.

mod embedded; // against the embedded API server
mod replay; // against a small server of the test
