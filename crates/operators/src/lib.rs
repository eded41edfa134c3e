//! The common frame of all operators: CRDs, permissions, controllers and manifests.
//!
//! An [`Operator`] names its CRDs, the permissions it needs and the setup of its controllers.
//! [`manager`] runs one or several operators in a [`Manager`](bellerophon::manager::Manager) with
//! shared informers. [`manifests`] returns the objects that install an operator in a cluster.

pub mod crd_json; // functions of serde_json for derived custom resources
mod deployment; // plan and conditions of an owned Deployment
mod json; // objects as JSON values
mod manifests; // the objects that install an operator
mod operator; // the description of an operator
mod permissions; // RBAC rules without wildcards
mod program; // a program that is one operator
pub mod schemas; // schemas of Kubernetes types in custom resources
mod webhooks; // webhooks of an operator: their objects and settings

pub use deployment::{DeploymentAction, Rollout};
pub use manifests::{Installation, manifests};
pub use operator::{Operator, Placement, RoleAggregation, Switches, WEBHOOKS, define, manager};
pub use permissions::{INFORMER_VERBS, allow, lease_permissions, permissions_of, user_permissions};
pub use program::main;
pub use webhooks::{declared_webhooks, webhook_options, webhook_permissions};
