//! The controller: grants reboots to nodes with a request, within the limits of their policies.
//!
//! Inputs: Nodes, RebootPolicies, the RebootLedger. Outputs: grants, and one reason for every node
//! that waits.
//!
//! See [`plan`](self::plan) for what is granted, [`reconciler`] for the sequence of reads and
//! writes.

mod alert_requests; // reboots requested by Prometheus alerts
mod blockers; // pods and alerts that block reboots
mod grant_phase; // the phase of one grant
mod metrics; // Prometheus metrics
pub(crate) mod plan; // grants and reasons
mod policy_status; // the status of RebootPolicies
mod prometheus; // instant queries
mod reconciler; // reads, plans and writes
#[cfg(test)]
mod tests; // table tests of the plan

use std::sync::{Arc, Mutex};

use bellerophon::{Controller, ObjectKey, Predicate};
use bellerophon_operator::Setup;
use k8s_openapi::api::core::v1::Node;

pub(crate) use self::reconciler::{is_conflict, is_not_found};
use self::{metrics::RebootMetrics, reconciler::RebootReconciler};
use crate::{
    annotations::AnnotationPrefix,
    ledger::{LEDGER, RebootLedger},
    policy::RebootPolicy,
    state::NodeState,
};

/// The controller. It grants its own node last. Every event enqueues the key of the ledger, so that
/// one reconcile at a time plans for the whole cluster.
pub fn controller(setup: &Setup, prefix: AnnotationPrefix, own_node: Option<String>) -> Controller {
    let ledgers = setup.cluster_informer::<RebootLedger>();
    let policies = setup.cluster_informer::<RebootPolicy>();
    let nodes = setup.cluster_informer::<Node>();
    let options = setup.options(crate::OPERATOR.name);
    let reconciler = Arc::new(RebootReconciler {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(crate::OPERATOR.name),
        nodes: nodes.lister(),
        policies: policies.lister(),
        own_node,
        prefix: prefix.clone(),
        metrics: RebootMetrics::register(&options.metrics),
        state: Mutex::default(),
    });
    // Kubelets update the status of their Nodes every few minutes without a relevant change.
    let is_relevant =
        Predicate::changed(move |old: &Node, new: &Node| NodeState::is_changed(old, new, &prefix));
    Controller::of(&ledgers)
        .watches_if(&nodes, is_relevant, |_| vec![ObjectKey::cluster(LEDGER)])
        .watches_if(&policies, Predicate::generation_changed(), |_| {
            vec![ObjectKey::cluster(LEDGER)]
        })
        .with_options(options)
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
}
