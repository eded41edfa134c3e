//! The common frame of all operators: CRDs, permissions, controllers and manifests.
//!
//! An [`Operator`] names its CRDs, the permissions it needs and its controllers. [`manager`] runs
//! one or several operators in a [`Manager`](bellerophon::Manager) with shared informers.
//! [`manifests`] returns the objects that install an operator in a cluster.

mod deployment; // plan and conditions of an owned Deployment
mod manifests; // the objects that install an operator
mod operator; // the description of an operator
mod permissions; // RBAC rules without wildcards
mod running; // start, wait for and stop operators
pub mod schemas; // schemas of Kubernetes types in custom resources
mod setup; // informers, recorders and options of controllers

pub use deployment::{DeploymentAction, Rollout};
pub use manifests::{Installation, manifests};
pub use operator::{Operator, Placement, RunOptions, controllers_of, manager, manager_of};
pub use permissions::{INFORMER_VERBS, allow, lease_permissions, permissions_of};
pub use running::{RunError, Running, define, run_until};
pub use setup::{BY_CONTROLLER, Setup, SetupError};
