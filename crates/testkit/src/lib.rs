//! Tests of operators on a complete control plane, in virtual time.
//!
//! A [`TestCluster`] is an embedded API server with the built-in controllers and simulated nodes.
//! An [`Account`] is a service account with exactly the RBAC rules it was given; its
//! [`RequestLog`] records every request: which were forbidden, which permissions were never used,
//! what was written. An [`OperatorUnderTest`] is started by a function that sets up a
//! [`Manager`](bellerophon::manager::Manager) for the client of an account. It can be killed after
//! any of its writes and started again, and every [`Fault`] can be [injected](Account::inject) into
//! the requests of its account. [`converges_after_any_crash`], [`converges_under_any_fault`] and
//! [`converges_after_failover`] do so systematically and check that every run converges to the same
//! state.
//! An [`OperatorFixture`] connects an [`Operator`](bellerophon_operator::Operator) to all of these.
//!
//! With the path of a kubeconfig in `BELLEROPHON_TEST_KUBECONFIG`, a test cluster is the control plane
//! of that kubeconfig with simulated nodes, in real time: `cargo xtask real` runs the tests of
//! operators so, with `--test-threads=1`. Everything but the objects of the control plane is deleted
//! there before each test. A cluster whose namespace `default` does not permit that, by the annotation
//! `testkit.bellerophon.io/disposable: "true"`, is rejected.
//!
//! Run tests with `#[tokio::test(start_paused = true)]`: an hour of virtual time takes
//! milliseconds, and nothing sleeps in wall time.

mod account; // a service account, its client and its permissions
mod convergence; // runs with crashes and faults, compared with an undisturbed run
mod external; // a control plane of other processes
mod faults; // faults between a client and the API server
mod fixture; // the common setup of an operator's tests
mod operator_under_test; // start, stop and kill an operator
mod request_log; // the requests of an account
mod test_cluster; // API server, controllers and simulated nodes
mod wait; // wait for a condition by watching
mod webhooks; // webhooks of an operator, called in process

pub use account::{Account, WriteCounter};
pub use convergence::{
    converges_after_any_crash, converges_after_failover, converges_under_any_fault,
    converges_while_crashing,
};
pub use faults::Fault;
pub use fixture::OperatorFixture;
pub use operator_under_test::OperatorUnderTest;
pub use request_log::{RecordedRequest, RequestLog};
pub use test_cluster::{ROOT_CA, TestCluster};
pub use wait::wait_until;

/// The examples of these pages, compiled as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/admission.md")]
    mod admission {}

    #[doc = include_str!("../../../docs/nodes.md")]
    mod nodes {}

    #[doc = include_str!("../../../docs/testing.md")]
    mod testing {}
}
