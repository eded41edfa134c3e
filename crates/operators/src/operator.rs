//! The description of an operator, and the Manager that runs operators.
//!
//! Inputs: operators, a client, options. Output: a Manager that runs their controllers on shared
//! informers.
//!
//! Guarantee: an operator installs nothing; what it needs in a cluster is in its CRDs, permissions
//! and admission policies.

use std::collections::BTreeSet;

use bellerophon::{
    client::{ReconcileClient, WriteError},
    manager::{Manager, ManagerOptions},
};
use k8s_openapi::{
    api::rbac::v1::PolicyRule,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Client;
use serde_json::Value;

/// The field manager that applies CRDs.
const FIELD_MANAGER: &str = "bellerophon";

/// The default number of concurrent reconciles of each controller, as in sample-controller.
const CONCURRENCY: usize = 2;

/// The switch that declares the webhooks of operators. `bellerophon run --webhooks` turns it on.
pub const WEBHOOKS: &str = "webhooks";

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

/// The built-in ClusterRoles that the namespaced custom resources of an operator are aggregated to.
/// Cluster-scoped ones are aggregated to `view`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleAggregation {
    /// `edit` and `view`: a user who may edit a namespace may write the custom resources in it.
    EditAndView,
    /// `view` only. Writing the custom resources is a separate permission, which a binding of the
    /// ClusterRole `PLURAL.GROUP-edit` grants.
    View,
}

/// One operator.
///
/// # Example
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon_operator::{
///     INFORMER_VERBS, Operator, Placement, RoleAggregation, Switches, allow,
/// };
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// async fn reconcile(req: Request<ConfigMap>) -> Result<Action, Error> {
///     println!("{} changed", req.key());
///     Ok(Action::await_change())
/// }
///
/// fn setup(mgr: &mut Manager, _switches: &Switches) {
///     mgr.controller::<ConfigMap>().name(OPERATOR.name).reconcile(reconcile);
/// }
///
/// const OPERATOR: Operator = Operator {
///     name: "observer",
///     summary: "prints the names of changed ConfigMaps",
///     crds: Vec::new,
///     permissions: || vec![allow(INFORMER_VERBS, "", "configmaps")],
///     admission_policies: Vec::new,
///     role_aggregation: RoleAggregation::EditAndView,
///     placement: Placement::Deployment,
///     feature_switches: &[],
///     webhooks: None,
///     setup,
/// };
/// ```
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
    /// Who may write its custom resources.
    pub role_aggregation: RoleAggregation,
    /// The workload that runs its pods.
    pub placement: Placement,
    /// Features that are off by default and enabled by `bellerophon run --allow`.
    pub feature_switches: &'static [&'static str],
    /// Declares its webhooks, if it has any. They are optional: [`manager`] declares them if the
    /// switch [`WEBHOOKS`] is on.
    pub webhooks: Option<fn(&mut Manager, &Switches)>,
    /// Adds its controllers and runnables to a Manager.
    pub setup: fn(&mut Manager, &Switches),
}

/// The [feature switches](Operator::feature_switches) that are on. Default: none.
///
/// # Example
/// ```
/// use bellerophon_operator::Switches;
///
/// let switches: Switches = ["copy-to-system-namespaces"].into_iter().collect();
/// assert!(switches.is_on("copy-to-system-namespaces"));
/// assert!(!Switches::default().is_on("copy-to-system-namespaces"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches(BTreeSet<String>);

impl Switches {
    /// Whether a feature switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

impl<S: Into<String>> FromIterator<S> for Switches {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

/// A Manager that runs operators. They share one informer per resource. Their CRDs must exist; see
/// [`define`].
///
/// Default for `options.controller.concurrency`: 2.
pub fn manager(
    client: Client,
    operators: &[Operator],
    switches: &Switches,
    mut options: ManagerOptions,
) -> Manager {
    // Only a default: the program that runs the operators may have chosen a number.
    options.controller.concurrency.get_or_insert(CONCURRENCY);
    let mut mgr = Manager::new(client, options);
    for operator in operators {
        (operator.setup)(&mut mgr, switches);
        if let Some(declare) = operator.webhooks.filter(|_| switches.is_on(WEBHOOKS)) {
            declare(&mut mgr, switches);
        }
    }
    mgr
}

/// Applies the CRDs of operators.
///
/// # Errors
/// The server refuses one; the error has its name.
pub async fn define(client: &Client, operators: &[Operator]) -> Result<(), WriteError> {
    let client = ReconcileClient::new(client.clone(), FIELD_MANAGER);
    for crd in operators.iter().flat_map(|operator| (operator.crds)()) {
        // Applied rather than created, so that the definitions of a former version are updated.
        client.apply(&crd).await?;
    }
    Ok(())
}
