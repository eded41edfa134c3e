//! Tests of operators on a whole control plane, in virtual time.
//!
//! A [`World`] is an embedded API server with a cluster on it. An [`Account`] is a client with exactly the rights it was
//! given, and a record of every request: which were refused, which rights were never used, what was written. A
//! [`Subject`] is the operator under test: it can be killed after any of its writes and started again, and its account can
//! [suffer](Account::suffer) every [`Fault`]. [`survives_any_crash`], [`survives_any_fault`] and [`hands_over`] do so
//! systematically and compare the ends.
//!
//! Run tests with `#[tokio::test(start_paused = true)]`: an hour of cluster life takes milliseconds, and nothing sleeps.

mod account; // a client with rights, and what it did
mod record; // requests, as rights see them
mod subject; // what is tested: started, killed, started again
mod trial; // the same story under every fault, and its ends compared
mod until; // waiting for a condition, by watching
mod weather; // faults on the way to the server
mod world; // a server and a cluster

pub use account::Account;
pub use record::{Record, Seen};
pub use subject::{Run, Subject};
pub use trial::{hands_over, survives_any_crash, survives_any_fault};
pub use until::until;
pub use weather::Fault;
pub use world::{ROOT_CA, World};
