//! Controller: of the nodes that want to reboot, lets as many as may.
//!
//! In: nodes, policies, the ledger. Out: grants, and one reason for every node that waits.
//! Holds: see [`plan`](self::plan) for what is allowed, [`pass`] for the order of reads and writes.

mod asked; // reboots that alerts ask for
mod held; // what holds nodes back from outside
mod metrics; // what a scrape tells
mod pass; // one look at the cluster, and what follows
pub(crate) mod plan; // who may reboot now
mod prometheus; // one question, one answer
mod report; // what policies say of their pools
mod standing; // how one grant stands
#[cfg(test)]
mod tests; // plans, as tables

use std::sync::{Arc, Mutex};

use bellerophon::{Controller, ObjectKey, Predicate};
use bellerophon_operator::Setup;
use k8s_openapi::api::core::v1::Node;

pub(crate) use self::pass::{is_conflict, is_gone};
use self::{metrics::Figures, pass::Watchman};
use crate::{
    ledger::{LEDGER, RebootLedger},
    notes::Prefix,
    policy::RebootPolicy,
    state::NodeState,
};

/// The controller, which lets its own node reboot last. Every change leads to one key, so that the whole cluster is looked at in one
/// place, one pass at a time.
pub fn controller(setup: &Setup, prefix: Prefix, own_node: Option<String>) -> Controller {
    let (ledgers, policies) = (
        setup.cluster_informer::<RebootLedger>(),
        setup.cluster_informer::<RebootPolicy>(),
    );
    let nodes = setup.cluster_informer::<Node>();
    let options = setup.options(crate::OPERATOR.name);
    let watchman = Arc::new(Watchman {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(crate::OPERATOR.name),
        nodes: nodes.lister(),
        policies: policies.lister(),
        own_node,
        prefix: prefix.clone(),
        figures: Figures::register(&options.metrics),
        memory: Mutex::default(),
    });
    // A kubelet tells every few minutes that nothing changed.
    let matters =
        Predicate::changed(move |old: &Node, new: &Node| NodeState::changed(old, new, &prefix));
    Controller::of(&ledgers)
        .watches_if(&nodes, matters, |_| vec![ObjectKey::cluster(LEDGER)])
        .watches_if(&policies, Predicate::generation_changed(), |_| {
            vec![ObjectKey::cluster(LEDGER)]
        })
        .with_options(options)
        .reconcile_with(move |request| watchman.clone().reconcile(request))
}
