//! The contract between an operator and whoever runs it.
//!
//! In: operators, a client, options. Out: a manager that runs their controllers on shared caches.
//! Holds: an operator installs nothing; what it needs of a cluster is in its definitions and rights.

use std::collections::BTreeSet;

use bellerophon::{Controller, Manager, ManagerOptions, TraceBus};
use k8s_openapi::{
    api::rbac::v1::PolicyRule,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Client;
use serde_json::Value;

use crate::setup::{Setup, SetupError};

/// Where an operator's pods are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Anywhere; one of a few works, and the others stand by.
    Anywhere,
    /// On every node, with these folders of the node mounted. Such a program is never part of `all`.
    EveryNode(&'static [&'static str]),
}

/// One operator.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// Its name on the command line, in metrics and as field manager.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// The kinds it defines.
    pub definitions: fn() -> Vec<CustomResourceDefinition>,
    /// What it may do, in every namespace it watches: no wildcard, and nothing it does not do.
    pub rights: fn() -> Vec<PolicyRule>,
    /// Objects that keep its account to what rights cannot say.
    pub guards: fn() -> Vec<Value>,
    /// Where its pods are.
    pub place: Place,
    /// What it does only when told so at its start.
    pub switches: &'static [&'static str],
    /// Its controllers. Called once for each run.
    pub controllers: fn(&Setup) -> Result<Vec<Controller>, SetupError>,
}

/// How operators are run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Only this namespace is watched; all unless set.
    pub namespace: Option<String>,
    /// How many objects each controller works on at once.
    pub workers: usize,
    /// The [switches](Operator::switches) that are on.
    pub switches: BTreeSet<String>,
    /// Who this process is, in the events it writes.
    pub identity: String,
    /// Where traces go.
    pub trace: TraceBus,
    /// Pages, leader election, metrics, time and chance.
    pub manager: ManagerOptions,
}

impl Default for RunOptions {
    /// Two workers, as in the sample controller; no pages and no leader election.
    fn default() -> Self {
        Self {
            namespace: None,
            workers: 2,
            switches: BTreeSet::new(),
            identity: "bellerophon".into(),
            trace: TraceBus::off(),
            manager: ManagerOptions::default(),
        }
    }
}

/// A manager that runs the operators, each kind cached once for all of them.
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

/// The controllers of operators, for a manager that runs others beside them.
///
/// # Errors
/// An operator cannot be set up.
pub fn controllers_of(
    operators: &[Operator],
    setup: &Setup,
) -> Result<Vec<Controller>, SetupError> {
    let made: Result<Vec<_>, _> = operators
        .iter()
        .map(|operator| (operator.controllers)(setup))
        .collect();
    Ok(made?.into_iter().flatten().collect())
}

/// A manager that runs what is made with one setup: the controllers of operators, or others beside them.
///
/// # Errors
/// They cannot be made.
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
