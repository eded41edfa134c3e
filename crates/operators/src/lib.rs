//! What every operator is, whoever starts it: `bellerophon run`, `bellerophon up`, or a test.
//!
//! An [`Operator`] names the kinds it defines, the rights it needs and its controllers. [`manager`] puts one or several
//! operators into a [`Manager`](bellerophon::Manager) with shared caches; [`manifests`] is what a cluster must be given
//! for an operator to run there.

mod deployment; // owning a Deployment
mod manifests; // what a cluster is given
mod operator; // the contract
mod rights; // rules without wildcards
mod running; // operators at work
pub mod schemas; // schemas of Kubernetes types in custom resources
mod setup; // what controllers are made with

pub use deployment::{Rollout, Step};
pub use manifests::{Installation, manifests};
pub use operator::{Operator, Place, RunOptions, controllers_of, manager, manager_of};
pub use rights::{Rights, allow, lease_rights, rights_of};
pub use running::{RunError, Running, define, run_until};
pub use setup::{BY_CONTROLLER, Setup, SetupError};
