//! Requests that once stopped, filled or misled the server, sent over HTTPS to the binary.
//!
//! Each test has its own server, without controllers. At its end the server still answers, has not
//! logged a panic, and exits with code 0 on SIGTERM.

mod access; // permissions and credentials
mod bodies; // request bodies that are expensive to process
mod client; // HTTP clients with credentials of their choice
mod connections; // peers that do not send, or do not read
mod deleting; // definitions with many objects, malformed selectors
#[path = "../binary/running.rs"]
mod running; // a `bellerophon up` process for one test
mod target; // a server, its accounts and its memory
mod watches; // watches of impossible names and future versions
