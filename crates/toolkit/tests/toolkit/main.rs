//! The toolkit on the embedded API server. One program, since every test program is linked alone.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod external; // an API server of another process
mod harness; // servers, faulty clients, Managers, logs

mod client; // reads and writes of a reconcile
mod controller; // from changes to reconciles
mod custom_resource; // a kind of the user
mod determinism; // the same seed, the same requests
mod dynamic; // kinds known at run time
mod factory; // informers that come and go
mod fairness; // flows of a queue
mod informer; // caches
mod manager; // setup, start and stop, leader election, endpoints
mod metrics; // names, types and labels
mod read_your_writes; // the gate
mod refusals; // HTTP statuses of lists and watches
mod regressions; // defects of other libraries
mod spans; // logs of a reconcile
mod trace; // from write to write
mod webhook; // reviews, certificates, registration
