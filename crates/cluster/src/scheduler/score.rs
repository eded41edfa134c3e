//! Scores: which of the feasible nodes is best for a pod.
//!
//! In: a pending pod, its feasible nodes, the scheduler cache. Out: one score per node; the highest
//! is best.
//! Guarantees: weights and normalization are those of kube-scheduler's default plugins:
//! `TaintToleration` 3, `NodeAffinity` 2, `PodTopologySpread` 2, `InterPodAffinity` 2,
//! `NodeResourcesFit` 1, `NodeResourcesBalancedAllocation` 1.

use std::sync::Arc;

use super::cache::{Cache, NodeInfo, Topology};
use super::pod_info::{PendingPod, SymmetricEffect, TopologyTerm};
use super::selectors::{PodSelector, node_selector_term_matches};
use crate::taints::{PREFER_NO_SCHEDULE, find_matching_toleration};

/// The highest score of one plugin for a node.
const MAX_NODE_SCORE: i64 = 100;

/// Topology keys and maximum skews of the system default constraints, which apply to pods of a
/// controller that specify none.
const SYSTEM_DEFAULT_CONSTRAINTS: [(&str, i64); 2] = [
    ("kubernetes.io/hostname", 3),
    ("topology.kubernetes.io/zone", 5),
];

/// The weighted sum of all plugin scores, per node. Mirrors `prioritizeNodes`.
pub(crate) fn prioritize_nodes(
    cache: &mut Cache,
    pending: &PendingPod,
    slots: &[usize],
) -> Vec<i64> {
    let inter_pod_affinity = inter_pod_affinity_score(cache, pending, slots);
    let pod_topology_spread = pod_topology_spread_score(cache, pending, slots);
    let nodes: Vec<_> = slots
        .iter()
        .map(|slot| cache.node(*slot).expect("a feasible node is in the cache"))
        .collect();
    let mut totals: Vec<i64> = nodes
        .iter()
        .map(|node| {
            node_resources_fit_score(pending, node) + balanced_allocation_score(pending, node)
        })
        .collect();
    add_weighted(&mut totals, 3, taint_toleration_score(pending, &nodes));
    add_weighted(&mut totals, 2, node_affinity_score(pending, &nodes));
    add_weighted(&mut totals, 2, pod_topology_spread);
    add_weighted(&mut totals, 2, inter_pod_affinity);
    totals
}

/// Adds the scores of a plugin; `None` means that the plugin skips the pod.
fn add_weighted(totals: &mut [i64], weight: i64, scores: Option<Vec<i64>>) {
    for (total, score) in totals.iter_mut().zip(scores.into_iter().flatten()) {
        *total += weight * score;
    }
}

/// `NodeResourcesFit` with the `LeastAllocated` strategy (`leastResourceScorer`): the mean of the
/// free shares of CPU and memory.
fn node_resources_fit_score(pending: &PendingPod, node: &NodeInfo) -> i64 {
    let free_share = |allocatable: i64, requested: i64| {
        // Defaults for containers without requests can exceed the allocatable of a feasible node.
        if allocatable == 0 || requested > allocatable {
            0
        } else {
            (allocatable - requested) * MAX_NODE_SCORE / allocatable
        }
    };
    let mut requested = node.non_zero_requested;
    requested.add(pending.info.non_zero_requests);
    let cpu = free_share(node.allocatable.milli_cpu, requested.milli_cpu);
    let memory = free_share(node.allocatable.memory, requested.memory);
    (cpu + memory) / 2
}

/// `NodeResourcesBalancedAllocation`: how much the pod improves the balance between CPU and memory
/// usage. 75 means no change; best-effort pods are not scored.
fn balanced_allocation_score(pending: &PendingPod, node: &NodeInfo) -> i64 {
    let requests = &pending.info.requests;
    let allocatable = &node.allocatable;
    let requested = &node.requested;
    // Mirrors PreScore of BalancedAllocation: a best-effort pod changes no balance.
    let is_best_effort = requests.milli_cpu == 0 && requests.memory == 0;
    if is_best_effort || allocatable.milli_cpu == 0 || allocatable.memory == 0 {
        return 0;
    }
    // Mirrors balancedResourceScorer: the standard deviation of two fractions is half of their
    // difference.
    let balance = |milli_cpu: i64, memory: i64| {
        let cpu = (milli_cpu as f64 / allocatable.milli_cpu as f64).min(1.0);
        let memory = (memory as f64 / allocatable.memory as f64).min(1.0);
        let deviation = (cpu - memory).abs() / 2.0;
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    };
    let with_pod = balance(
        requested.milli_cpu + requests.milli_cpu,
        requested.memory + requests.memory,
    );
    let without_pod = balance(requested.milli_cpu, requested.memory);
    MAX_NODE_SCORE / 2 + (MAX_NODE_SCORE / 2 + with_pod - without_pod) / 2
}

/// `TaintToleration`: fewer untolerated `PreferNoSchedule` taints score higher.
fn taint_toleration_score(pending: &PendingPod, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
    let intolerable = |node: &&NodeInfo| {
        let preferences = node
            .taints()
            .iter()
            .filter(|taint| taint.effect == PREFER_NO_SCHEDULE);
        i64::try_from(
            preferences
                .filter(|taint| find_matching_toleration(&pending.tolerations, taint).is_none())
                .count(),
        )
        .unwrap_or(i64::MAX)
    };
    // Equal scores of all nodes do not change the order, so the plugin is skipped.
    if nodes.iter().all(|node| node.taints().is_empty()) {
        return None;
    }
    let counts: Vec<_> = nodes.iter().map(intolerable).collect();
    let max = counts.iter().copied().max().filter(|max| *max > 0)?;
    // Mirrors DefaultNormalizeScore with reverse set.
    Some(
        counts
            .into_iter()
            .map(|count| MAX_NODE_SCORE - count * MAX_NODE_SCORE / max)
            .collect(),
    )
}

/// `NodeAffinity`: the weights of the matching preferred terms.
fn node_affinity_score(pending: &PendingPod, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
    if pending.preferred_node_affinity.is_empty() {
        return None;
    }
    let weight_sum = |node: &&NodeInfo| -> i64 {
        let matching = pending
            .preferred_node_affinity
            .iter()
            .filter(|term| node_selector_term_matches(&term.preference, &node.name, node.labels()));
        matching.map(|term| i64::from(term.weight)).sum()
    };
    let sums: Vec<_> = nodes.iter().map(weight_sum).collect();
    let max = sums.iter().copied().max().filter(|max| *max > 0)?;
    Some(
        sums.into_iter()
            .map(|sum| sum * MAX_NODE_SCORE / max)
            .collect(),
    )
}

/// `PodTopologySpread`: topology domains with fewer matching pods score higher.
fn pod_topology_spread_score(
    cache: &mut Cache,
    pending: &PendingPod,
    slots: &[usize],
) -> Option<Vec<i64>> {
    let constraints = soft_constraints(pending);
    if constraints.is_empty() {
        return None;
    }
    let mut raw_scores = vec![0.0_f64; slots.len()];
    let mut ignored = vec![false; slots.len()];
    // Mirrors requireAllTopologies: with constraints of the pod, nodes without a topology key are
    // ignored; with the system defaults, a node without a zone label is still spread by hostname.
    let require_all_topologies = !pending.spread_constraints.is_empty();
    for (term, max_skew) in &constraints {
        let topology = cache.topology(&term.topology_key);
        let matching = topology.sum_by_domain(cache.matching_pods(&term.selector).iter().copied());
        let weight = topology_normalizing_weight(domain_count(&topology, slots));
        for ((raw_score, ignored), slot) in raw_scores.iter_mut().zip(&mut ignored).zip(slots) {
            match topology.domain_of[*slot] {
                // Mirrors scoreForCount: maxSkew - 1 dampens differences between domains.
                Some(domain) => {
                    *raw_score += f64::from(matching[domain]) * weight + (max_skew - 1) as f64;
                }
                None => *ignored |= require_all_topologies,
            }
        }
    }
    let raw_scores: Vec<_> = raw_scores
        .into_iter()
        .map(|raw_score| raw_score.round() as i64)
        .collect();
    Some(normalize_spread(&raw_scores, &ignored))
}

/// Mirrors `PodTopologySpread.NormalizeScore`: the lowest raw score becomes the highest score.
fn normalize_spread(raw_scores: &[i64], ignored: &[bool]) -> Vec<i64> {
    let counted = || {
        raw_scores
            .iter()
            .zip(ignored)
            .filter(|(_, ignored)| !**ignored)
            .map(|(raw_score, _)| *raw_score)
    };
    let min = counted().min().unwrap_or(0);
    let max = counted().max().unwrap_or(0);
    let normalize = |(raw_score, ignored): (&i64, &bool)| match (ignored, max) {
        (true, _) => 0,
        (false, 0) => MAX_NODE_SCORE,
        (false, max) => MAX_NODE_SCORE * (max + min - raw_score) / max,
    };
    raw_scores.iter().zip(ignored).map(normalize).collect()
}

/// The weight of a constraint by the number of its domains. Mirrors `topologyNormalizingWeight`:
/// a topology with many domains, such as hostname, has fewer pods per domain than one with few,
/// such as zone; the logarithm keeps its counts from being outweighed. Two is added so that the
/// weight is above 1 even for a single domain (ln 3 = 1.09).
fn topology_normalizing_weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

/// The `ScheduleAnyway` constraints of a pod, or the system defaults for pods of a controller.
/// Mirrors `buildDefaultConstraints`.
fn soft_constraints(pending: &PendingPod) -> Vec<(TopologyTerm, i64)> {
    if !pending.spread_constraints.is_empty() {
        return pending
            .spread_constraints
            .iter()
            .filter(|constraint| !constraint.do_not_schedule)
            .map(|constraint| (constraint.term.clone(), constraint.max_skew))
            .collect();
    }
    let Some(controller_uid) = &pending.info.controller_uid else {
        return Vec::new();
    };
    // Upstream combines the selectors of matching services and controllers (DefaultSelector); this
    // selects the pods of the pod's own controller.
    let selector = Arc::new(PodSelector::from_controller(controller_uid));
    SYSTEM_DEFAULT_CONSTRAINTS
        .map(|(topology_key, max_skew)| {
            let term = TopologyTerm {
                selector: selector.clone(),
                topology_key: topology_key.into(),
            };
            (term, max_skew)
        })
        .into()
}

/// The number of topology domains of the feasible nodes.
fn domain_count(topology: &Topology, slots: &[usize]) -> usize {
    let mut seen = vec![false; topology.domains];
    for domain in slots.iter().filter_map(|slot| topology.domain_of[*slot]) {
        seen[domain] = true;
    }
    seen.into_iter().filter(|seen| *seen).count()
}

/// `InterPodAffinity`: the weights of the pod's preferred terms that match assigned pods, and of
/// the assigned pods' terms that match the pod.
fn inter_pod_affinity_score(
    cache: &mut Cache,
    pending: &PendingPod,
    slots: &[usize],
) -> Option<Vec<i64>> {
    let weight_of = |effect: SymmetricEffect| match effect {
        SymmetricEffect::Weight(weight) => Some(weight),
        SymmetricEffect::RequiredAntiAffinity => None,
    };
    // Topology key, weight, and pods by slot.
    let mut terms: Vec<(Arc<str>, i64, Vec<u32>)> = cache
        .symmetric_terms()
        .filter_map(|existing| Some((existing, weight_of(existing.term.effect)?)))
        .filter(|(existing, _)| cache.selector_matches(&existing.term.term.selector, &pending.info))
        .map(|(existing, weight)| {
            (
                existing.term.term.topology_key.clone(),
                weight,
                existing.counts.clone(),
            )
        })
        .collect();
    for (weight, term) in &pending.preferred_terms {
        terms.push((
            term.topology_key.clone(),
            *weight,
            cache.matching_pods(&term.selector).to_vec(),
        ));
    }
    if terms.is_empty() {
        return None;
    }
    let mut sums = vec![0_i64; slots.len()];
    for (topology_key, weight, by_slot) in terms {
        let topology = cache.topology(&topology_key);
        let counts = topology.sum_by_domain(by_slot.into_iter().map(i64::from));
        for (sum, slot) in sums.iter_mut().zip(slots) {
            *sum += topology.domain_of[*slot].map_or(0, |domain| counts[domain] * weight);
        }
    }
    // Mirrors InterPodAffinity.NormalizeScore.
    let min = sums.iter().copied().min()?;
    let max = sums.iter().copied().max()?;
    let normalize = |sum: i64| {
        if max == min {
            0
        } else {
            MAX_NODE_SCORE * (sum - min) / (max - min)
        }
    };
    Some(sums.into_iter().map(normalize).collect())
}
