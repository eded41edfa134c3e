//! Members as processes: real files, real sockets, TLS, `kill -9`.
//!
//! `BELLEROPHON_STORE_KILLS` and `BELLEROPHON_STORE_TRANSFERS` set how often members are killed and
//! leadership is transferred; the defaults are for a quick run.

#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod certificates; // a certificate authority and the certificates of members
mod cluster; // several members
mod handover; // leadership transfers and SIGTERM
mod kills; // kill -9 under load
mod load; // concurrent clients that record a history
mod process; // one member
mod refusals; // foreign members, tokens, certificates
mod restores; // snapshots, restored into other members
mod sync_order; // no response before the sync that covers it
