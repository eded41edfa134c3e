//! Preemption: which pods to evict so that a pod of higher priority becomes schedulable.
//!
//! In: an unschedulable pod, the reasons per node. Out: a node and its victims, or a message why
//! preemption does not help. Mirrors the `DefaultPreemption` plugin.
//! Guarantees: only pods of lower priority are victims, and no more than needed; disruption budgets
//! are violated only if no other candidate exists; the scheduler cache is unchanged on return.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;

use super::cache::Cache;
use super::diagnosis::{UnschedulableReasons, fit_error_message};
use super::filter::Filters;
use super::pdb::{PodDisruptionBudgets, pdb_violations};
use super::pod_info::{PendingPod, PodInfo};
use super::scheduling_cycle::{CycleInputs, Preemption, run_filters_with_nominated_pods};

/// Message for a node that preemption cannot make feasible.
pub(super) const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
/// Message for a pod whose victims are still terminating.
pub(super) const VICTIMS_TERMINATING: &str =
    "not eligible due to a terminating pod on the nominated node.";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// The search ends after this many candidates, or this percentage of the nodes if that is more
/// (upstream `minCandidateNodesAbsolute` and `minCandidateNodesPercentage`).
const MIN_CANDIDATE_NODES: usize = 100;
const MIN_CANDIDATE_NODES_PERCENT: usize = 10;

/// A node with the victims that must be evicted from it.
struct Candidate {
    slot: usize,
    victims: Vec<Arc<PodInfo>>,
    pdb_violations: usize,
}

impl Candidate {
    /// The criteria of `pickOneNodeForPreemption`, in order; smaller is better: PDB violations,
    /// highest priority of a victim, sum of priorities, number of victims, latest start time of the
    /// victims with the highest priority.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
        let highest_priority = self
            .victims
            .iter()
            .map(|pod| pod.priority)
            .max()
            .unwrap_or(i32::MIN);
        // The offset makes all summands positive, so that fewer victims of negative priority are
        // preferred.
        let priority_sum = self
            .victims
            .iter()
            .map(|pod| i64::from(pod.priority) + (1 << 31))
            .sum();
        let earliest_start = self
            .victims
            .iter()
            .filter(|pod| pod.priority == highest_priority)
            .filter_map(|pod| pod.start_time)
            .min()
            .unwrap_or(Timestamp::MAX);
        (
            self.pdb_violations,
            highest_priority,
            priority_sum,
            self.victims.len(),
            Reverse(earliest_start),
        )
    }
}

/// Selects a node and its victims. Mirrors `Evaluator.Preempt` up to the eviction.
///
/// # Errors
/// The message why no pod is preempted.
pub(crate) fn preempt(
    cache: &mut Cache,
    filters: &Filters<'_>,
    pending: &PendingPod,
    volume_selectors: &[NodeSelector],
    rejected: &[(usize, UnschedulableReasons)],
    inputs: &CycleInputs<'_>,
) -> Result<Option<Preemption>, String> {
    eligible_to_preempt_others(cache, pending, rejected)?;
    let resolvable: Vec<_> = rejected
        .iter()
        .filter(|(_, reasons)| reasons.is_resolvable_by_preemption())
        .map(|(slot, _)| *slot)
        .collect();
    let max_candidates =
        (resolvable.len() * MIN_CANDIDATE_NODES_PERCENT / 100).max(MIN_CANDIDATE_NODES);
    // Mirrors GetOffsetAndNumCandidates: a random start keeps preemption from hitting the same
    // nodes every time.
    let offset = usize::try_from(inputs.rng.below(resolvable.len() as u64)).unwrap_or_default();
    let mut candidates = Vec::new();
    let mut messages = Vec::new();
    for slot in resolvable
        .iter()
        .cycle()
        .skip(offset)
        .take(resolvable.len())
        .copied()
    {
        match select_victims_on_node(
            cache,
            filters,
            pending,
            volume_selectors,
            slot,
            inputs.budgets,
        ) {
            Ok(candidate) => candidates.push(candidate),
            Err(reasons) => messages.extend(reasons),
        }
        if candidates.len() >= max_candidates {
            break;
        }
    }
    let Some(best) = candidates.into_iter().min_by_key(Candidate::cost) else {
        // Nodes that were not evaluated are those preemption cannot help.
        messages.extend((resolvable.len()..cache.node_count()).map(|_| NOT_HELPFUL.to_owned()));
        return Err(fit_error_message(cache.node_count(), messages));
    };
    let node = cache
        .node(best.slot)
        .map(|node| node.name.clone())
        .unwrap_or_default();
    Ok(Some(Preemption {
        node,
        victims: best.victims,
    }))
}

/// Mirrors `PodEligibleToPreemptOthers`: a pod whose victims still terminate preempts no others.
fn eligible_to_preempt_others(
    cache: &Cache,
    pending: &PendingPod,
    rejected: &[(usize, UnschedulableReasons)],
) -> Result<(), String> {
    if !pending.can_preempt {
        return Err("not eligible due to preemptionPolicy=Never.".into());
    }
    let nominated = pending
        .nominated_node
        .as_deref()
        .and_then(|name| cache.slot_of(name));
    // A nominated node that became unresolvable permits another preemption.
    let still_resolvable = nominated.filter(|nominated| {
        rejected
            .iter()
            .all(|(slot, reasons)| slot != nominated || reasons.is_resolvable_by_preemption())
    });
    let has_terminating_victim = still_resolvable
        .and_then(|slot| cache.node(slot))
        .is_some_and(|node| {
            node.pods
                .iter()
                .any(|pod| pod.preempted && pod.priority < pending.info.priority)
        });
    if has_terminating_victim {
        Err(VICTIMS_TERMINATING.into())
    } else {
        Ok(())
    }
}

/// The minimal victims on a node. Mirrors `SelectVictimsOnNode`: removes all pods of lower
/// priority, then reprieves as many as possible, those that would violate a budget first.
fn select_victims_on_node(
    cache: &mut Cache,
    filters: &Filters<'_>,
    pending: &PendingPod,
    volume_selectors: &[NodeSelector],
    slot: usize,
    budgets: &dyn PodDisruptionBudgets,
) -> Result<Candidate, Vec<String>> {
    let node = cache.node(slot).ok_or_else(Vec::new)?;
    let mut lower_priority: Vec<_> = node
        .pods
        .iter()
        .filter(|pod| pod.priority < pending.info.priority)
        .cloned()
        .collect();
    if lower_priority.is_empty() {
        return Err(vec![NO_VICTIMS.to_owned()]);
    }
    // Mirrors SelectVictimsOnNode: the most important pods are reprieved first.
    sort_by_importance(&mut lower_priority);
    for pod in &lower_priority {
        cache.remove_from_slot(slot, &pod.uid);
    }
    let run_filters = |cache: &mut Cache| {
        if filters.depends_on_other_nodes() {
            // The PreFilter state includes the removed pods.
            let filters = Filters::new(cache, pending, volume_selectors);
            run_filters_with_nominated_pods(cache, &filters, pending, volume_selectors, slot)
        } else {
            run_filters_with_nominated_pods(cache, filters, pending, volume_selectors, slot)
        }
    };
    let reasons = run_filters(cache);
    if !reasons.is_empty() {
        let messages = cache
            .node(slot)
            .map(|node| reasons.messages(&pending.info, node))
            .unwrap_or_default();
        for pod in &lower_priority {
            cache.add_to_slot(slot, pod);
        }
        return Err(messages);
    }
    let violating = pdb_violations(&lower_priority, budgets);
    let mut reprieve_order: Vec<_> = lower_priority.into_iter().zip(violating).collect();
    // The sort is stable: pods that violate a budget come first, each group by importance.
    reprieve_order.sort_by_key(|(_, violates)| !violates);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (pod, violates) in reprieve_order {
        cache.add_to_slot(slot, &pod);
        if !run_filters(cache).is_empty() {
            cache.remove_from_slot(slot, &pod.uid);
            violations += usize::from(violates);
            victims.push(pod);
        }
    }
    // The cache must be unchanged on return: this was only a simulation.
    for pod in &victims {
        cache.add_to_slot(slot, pod);
    }
    sort_by_importance(&mut victims);
    Ok(Candidate {
        slot,
        victims,
        pdb_violations: violations,
    })
}

/// Mirrors `MoreImportantPod`: higher priority first, then longer running.
fn sort_by_importance(pods: &mut [Arc<PodInfo>]) {
    pods.sort_by_key(|pod| (Reverse(pod.priority), pod.start_time, pod.uid.clone()));
}
