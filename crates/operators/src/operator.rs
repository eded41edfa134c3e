//! The description of an operator, and the manager that runs operators.
//!
//! Inputs: operators, a client, options. Output: a manager that runs their controllers on shared
//! informers.
//!
//! Guarantee: an operator installs nothing; what it needs in a cluster is in its CRDs, permissions
//! and admission policies.

use std::collections::BTreeSet;

use bellerophon::{Controller, Manager, ManagerOptions, TraceBus};
use k8s_openapi::{
    api::rbac::v1::PolicyRule,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Client;
use serde_json::Value;

use crate::setup::{Setup, SetupError};

/// The workload that runs an operator's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A Deployment with leader election: one replica is active, the others are on standby.
    Deployment,
    /// A DaemonSet. Such an operator is never part of `bellerophon run all`.
    DaemonSet {
        /// Directories of the node that are mounted read-only at the same path.
        host_paths: &'static [&'static str],
    },
}

/// One operator.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// Its name on the command line, in metrics and as field manager.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Its CustomResourceDefinitions.
    pub crds: fn() -> Vec<CustomResourceDefinition>,
    /// Its RBAC rules in every namespace it watches: no wildcards, and nothing that it does not
    /// use.
    pub permissions: fn() -> Vec<PolicyRule>,
    /// Admission policies that restrict its service account further than RBAC can.
    pub admission_policies: fn() -> Vec<Value>,
    /// The workload that runs its pods.
    pub placement: Placement,
    /// Features that are off by default and enabled by `bellerophon run --allow`.
    pub feature_switches: &'static [&'static str],
    /// Its controllers. Called once for each run.
    pub controllers: fn(&Setup) -> Result<Vec<Controller>, SetupError>,
}

/// Options of a run of operators.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The only namespace to watch. Default: all namespaces.
    pub namespace: Option<String>,
    /// The maximum number of concurrent reconciles of each controller.
    pub workers: usize,
    /// The enabled [feature switches](Operator::feature_switches).
    pub feature_switches: BTreeSet<String>,
    /// The reporting instance of the Events it records.
    pub identity: String,
    /// Receives the reconcile trace.
    pub trace: TraceBus,
    /// Options of the manager: HTTP endpoints, leader election, metrics, clock and randomness.
    pub manager: ManagerOptions,
}

impl Default for RunOptions {
    /// Two workers, as in sample-controller; no HTTP endpoints and no leader election.
    fn default() -> Self {
        Self {
            namespace: None,
            workers: 2,
            feature_switches: BTreeSet::new(),
            identity: "bellerophon".into(),
            trace: TraceBus::off(),
            manager: ManagerOptions::default(),
        }
    }
}

/// A manager that runs operators. They share one informer per resource.
///
/// # Errors
/// An operator cannot be set up.
pub fn manager(
    client: Client,
    operators: &[Operator],
    options: RunOptions,
) -> Result<Manager, SetupError> {
    manager_of(client, options, |setup| controllers_of(operators, setup))
}

/// The controllers of operators, for a manager that also runs other controllers.
///
/// # Errors
/// An operator cannot be set up.
pub fn controllers_of(
    operators: &[Operator],
    setup: &Setup,
) -> Result<Vec<Controller>, SetupError> {
    let controllers: Result<Vec<_>, _> = operators
        .iter()
        .map(|operator| (operator.controllers)(setup))
        .collect();
    Ok(controllers?.into_iter().flatten().collect())
}

/// A manager that runs controllers built from one setup.
///
/// # Errors
/// The controllers cannot be built.
pub fn manager_of(
    client: Client,
    options: RunOptions,
    controllers: impl FnOnce(&Setup) -> Result<Vec<Controller>, SetupError>,
) -> Result<Manager, SetupError> {
    let setup = Setup::new(client.clone(), &options);
    let controllers = controllers(&setup)?;
    let manager = Manager::new(client, options.manager).factory(&setup.factory);
    let manager = controllers.into_iter().fold(manager, Manager::controller);
    Ok(setup.finish(manager))
}
