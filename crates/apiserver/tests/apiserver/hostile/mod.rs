//! Malformed paths, headers and bodies, compression bombs, floods and silent clients.
//! Guarantees: the response is a Status or a clean close, never a panic, and the server continues
//! to serve other clients.

mod bodies; // what is too large, too deep or no text
mod floods; // too many and too slow
mod log; // errors that the server logs
pub(crate) mod peer; // a client that sends any bytes
mod requests; // paths, queries, headers
