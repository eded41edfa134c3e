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

use std::sync::Mutex;

use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::Node;

pub(crate) use self::reconciler::{is_conflict, is_not_found};
use self::{metrics::RebootMetrics, reconciler::RebootReconciler};
use crate::{
    annotations::AnnotationPrefix,
    ledger::{LEDGER, RebootLedger},
    policy::RebootPolicy,
    state::NodeState,
};

/// Adds the controller to a Manager. It grants its own node last. Every event enqueues the key of
/// the ledger, so that one reconcile at a time plans for the whole cluster.
pub fn controller(mgr: &mut Manager, prefix: AnnotationPrefix, own_node: Option<String>) {
    let reconciler = RebootReconciler {
        nodes: mgr.lister(),
        policies: mgr.lister(),
        own_node,
        prefix: prefix.clone(),
        metrics: RebootMetrics::register(mgr.metrics()),
        state: Mutex::default(),
    };
    // Kubelets update the status of their Nodes every few minutes without a relevant change.
    let is_relevant = Predicate::on_update(move |old: &Node, new: &Node| {
        NodeState::is_changed(old, new, &prefix)
    });
    mgr.controller::<RebootLedger>()
        .watches::<Node>(|_| vec![ObjectKey::cluster(LEDGER)])
        .predicate(is_relevant)
        .watches::<RebootPolicy>(|_| vec![ObjectKey::cluster(LEDGER)])
        .predicate(Predicate::generation_changed())
        .name(crate::OPERATOR.name)
        .with_options(crate::controller_options())
        .reconcile(reconciler);
}
