//! What no honest client sends: malformed paths, headers and bodies, bombs, floods and silence.
//! Guarantees: the answer is a Status or a clean close, never a panic, and the server serves the
//! next client as if nothing had happened.

mod bodies; // what is too large, too deep or no text
mod floods; // too many and too slow
mod log; // what the server complains of
pub(crate) mod peer; // a client that sends any bytes
mod requests; // paths, queries, headers
