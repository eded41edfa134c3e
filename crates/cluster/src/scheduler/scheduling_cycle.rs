//! Scheduling cycle: selects a node for one pod from the current scheduler cache.
//!
//! In: a pending pod, the cache, its volumes' node selectors, disruption budgets. Out: a node; or
//! the fit error with the preemption that may resolve it.
//! Guarantees: no more nodes are filtered than are needed for scoring; nodes with equal scores are
//! chosen from at random, reproducibly for a seed.

use std::sync::Arc;

use bellerophon::clock::Rng;
use k8s_openapi::api::core::v1::NodeSelector;

use super::cache::Cache;
use super::diagnosis::{UnschedulableReasons, fit_error_message};
use super::filter::Filters;
use super::pdb::PodDisruptionBudgets;
use super::pod_info::{PendingPod, PodInfo};
use super::preemption;
use super::score::prioritize_nodes;

/// Clusters with fewer nodes are filtered completely, and at least this many feasible nodes are
/// searched for (upstream `minFeasibleNodesToFind`).
const MIN_FEASIBLE_NODES_TO_FIND: usize = 100;
/// The minimum percentage of the nodes to find (upstream `minFeasibleNodesPercentageToFind`).
const MIN_FEASIBLE_NODES_PERCENTAGE_TO_FIND: usize = 5;

/// What a scheduling cycle reads besides the pod and the cache.
pub(crate) struct CycleInputs<'a> {
    /// The node selectors of the pod's bound volumes, or the message why it is unschedulable.
    pub(crate) volume_selectors: Result<Vec<NodeSelector>, String>,
    pub(crate) budgets: &'a dyn PodDisruptionBudgets,
    pub(crate) rng: &'a Rng,
}

/// The result of a scheduling cycle.
#[derive(Debug)]
pub(crate) enum ScheduleResult {
    Scheduled { node: String },
    Unschedulable(FitError),
}

/// Why no node is feasible for a pod.
#[derive(Debug)]
pub(crate) struct FitError {
    pub(crate) message: String,
    /// The reasons of all nodes.
    pub(crate) reasons: UnschedulableReasons,
    pub(crate) preemption: Option<Preemption>,
}

impl FitError {
    /// Whether the pod stays nominated to its node: its victims are still terminating.
    pub(crate) fn keeps_nomination(&self) -> bool {
        self.message.ends_with(preemption::VICTIMS_TERMINATING)
    }
}

/// The victims to evict, and the node the pod is nominated to.
#[derive(Debug)]
pub(crate) struct Preemption {
    pub(crate) node: String,
    pub(crate) victims: Vec<Arc<PodInfo>>,
}

/// The number of feasible nodes at which the search ends. Mirrors `numFeasibleNodesToFind`.
fn num_feasible_nodes_to_find(nodes: usize) -> usize {
    // Mirrors the adaptive percentageOfNodesToScore: 50 % minus one for every 125 nodes.
    let percentage = 50_usize
        .saturating_sub(nodes / 125)
        .max(MIN_FEASIBLE_NODES_PERCENTAGE_TO_FIND);
    if nodes < MIN_FEASIBLE_NODES_TO_FIND {
        nodes
    } else {
        (nodes * percentage / 100).max(MIN_FEASIBLE_NODES_TO_FIND)
    }
}

/// Selects a node for a pod. Mirrors `schedulePod`, and `RunPostFilterPlugins` when no node is
/// feasible.
pub(crate) fn schedule_pod(
    cache: &mut Cache,
    pending: &PendingPod,
    inputs: &CycleInputs<'_>,
) -> ScheduleResult {
    if cache.node_count() == 0 {
        return ScheduleResult::Unschedulable(FitError {
            message: "no nodes available to schedule pods".to_owned(),
            // The reasons are unknown, so any event requeues the pod.
            reasons: UnschedulableReasons::ALL,
            preemption: None,
        });
    }
    let volume_selectors = match &inputs.volume_selectors {
        Ok(volume_selectors) => volume_selectors,
        Err(message) => return unbound_volumes(cache.node_count(), message),
    };
    let filters = Filters::new(cache, pending, volume_selectors);
    // Mirrors evaluateNominatedNode: the node of the preemption victims is tried first.
    if let Some(slot) = pending
        .nominated_node
        .as_deref()
        .and_then(|name| cache.slot_of(name))
        && run_filters_with_nominated_pods(cache, &filters, pending, volume_selectors, slot)
            .is_empty()
    {
        return scheduled(cache, slot);
    }
    let (feasible, rejected) = find_nodes_that_fit_pod(cache, &filters, pending, volume_selectors);
    match feasible.as_slice() {
        [] => {
            let reasons = rejected
                .iter()
                .fold(UnschedulableReasons::NONE, |all, (_, reasons)| {
                    all.union(*reasons)
                });
            let messages = rejected.iter().flat_map(|(slot, reasons)| {
                cache
                    .node(*slot)
                    .map(|node| reasons.messages(&pending.info, node))
                    .unwrap_or_default()
            });
            let mut message = fit_error_message(cache.node_count(), messages);
            let preempted = preemption::preempt(
                cache,
                &filters,
                pending,
                volume_selectors,
                &rejected,
                inputs,
            );
            let preemption = preempted.unwrap_or_else(|reason| {
                message.push_str(&format!(" preemption: {reason}"));
                None
            });
            ScheduleResult::Unschedulable(FitError {
                message,
                reasons,
                preemption,
            })
        }
        // Scores cannot change the result.
        [only] => scheduled(cache, *only),
        several => {
            let scores = prioritize_nodes(cache, pending, several);
            scheduled(cache, select_host(several, &scores, inputs.rng))
        }
    }
}

/// The fit error of a pod whose claims are not ready.
fn unbound_volumes(nodes: usize, reason: &str) -> ScheduleResult {
    let not_helpful = (0..nodes).map(|_| preemption::NOT_HELPFUL.to_owned());
    let not_helpful = fit_error_message(nodes, not_helpful);
    let message = format!("0/{nodes} nodes are available: {reason}. preemption: {not_helpful}");
    ScheduleResult::Unschedulable(FitError {
        message,
        reasons: UnschedulableReasons::UNBOUND_VOLUMES,
        preemption: None,
    })
}

fn scheduled(cache: &Cache, slot: usize) -> ScheduleResult {
    ScheduleResult::Scheduled {
        node: cache
            .node(slot)
            .map(|node| node.name.clone())
            .unwrap_or_default(),
    }
}

/// Filters nodes in turn until enough are feasible; returns those, and the reasons of the others.
/// Mirrors `findNodesThatFitPod`: the next cycle starts where this one ended.
fn find_nodes_that_fit_pod(
    cache: &mut Cache,
    filters: &Filters<'_>,
    pending: &PendingPod,
    volume_selectors: &[NodeSelector],
) -> (Vec<usize>, Vec<(usize, UnschedulableReasons)>) {
    let slots = cache.slot_count();
    let start = cache.next_start_slot;
    let max_feasible = num_feasible_nodes_to_find(cache.node_count());
    let mut feasible = Vec::with_capacity(max_feasible);
    let mut rejected = Vec::new();
    let mut visited = 0;
    while visited < slots && feasible.len() < max_feasible {
        let slot = (start + visited) % slots;
        visited += 1;
        // The slot is free, or its Node object is unknown.
        if cache.node(slot).is_none() {
            continue;
        }
        let reasons =
            run_filters_with_nominated_pods(cache, filters, pending, volume_selectors, slot);
        if reasons.is_empty() {
            feasible.push(slot);
        } else {
            rejected.push((slot, reasons));
        }
    }
    cache.next_start_slot = (start + visited) % slots.max(1);
    (feasible, rejected)
}

/// Filters one node as if the pods nominated to it, of equal or higher priority, were running.
/// Mirrors `RunFilterPluginsWithNominatedPods`.
pub(super) fn run_filters_with_nominated_pods(
    cache: &mut Cache,
    filters: &Filters<'_>,
    pending: &PendingPod,
    volume_selectors: &[NodeSelector],
    slot: usize,
) -> UnschedulableReasons {
    let run = |cache: &Cache, filters: &Filters<'_>| {
        cache
            .node(slot)
            .map_or(UnschedulableReasons::ALL, |node| filters.run(slot, node))
    };
    let nominated = if cache.has_nominated_pods() {
        let name = cache
            .node(slot)
            .map(|node| node.name.as_str())
            .unwrap_or_default();
        cache.nominated_pods(name, &pending.info.uid, pending.info.priority)
    } else {
        Vec::new()
    };
    if nominated.is_empty() {
        return run(cache, filters);
    }
    for pod in &nominated {
        cache.add_to_slot(slot, pod);
    }
    let with_nominated = if filters.depends_on_other_nodes() {
        let filters = Filters::new(cache, pending, volume_selectors);
        run(cache, &filters)
    } else {
        run(cache, filters)
    };
    for pod in &nominated {
        cache.remove_from_slot(slot, &pod.uid);
    }
    // Nominated pods may be scheduled elsewhere, so the node must be feasible without them too.
    if with_nominated.is_empty() {
        run(cache, filters)
    } else {
        with_nominated
    }
}

/// A random one of the nodes with the highest score. Mirrors `selectHost`.
fn select_host(slots: &[usize], scores: &[i64], rng: &Rng) -> usize {
    let highest = scores.iter().copied().max().unwrap_or_default();
    let best = || {
        slots
            .iter()
            .zip(scores)
            .filter(|(_, score)| **score == highest)
            .map(|(slot, _)| *slot)
    };
    let chosen = rng.below(best().count() as u64);
    best()
        .nth(usize::try_from(chosen).unwrap_or_default())
        .unwrap_or(slots[0])
}
