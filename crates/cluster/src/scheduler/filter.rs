//! Filters: whether a node can run a pod.
//!
//! In: a pending pod, the scheduler cache. Out: [`UnschedulableReasons`] per node.
//! Guarantees: the PreFilter state is computed once per pod; filtering a node allocates nothing and
//! does not iterate over pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelector, Taint};

use super::cache::{Cache, NodeInfo, Topology};
use super::diagnosis::{UnschedulableReasons, lacks_extended_resource};
use super::pod_info::{PendingPod, SpreadConstraint, SymmetricEffect, TopologyTerm};
use super::selectors::node_selector_matches;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, find_matching_toleration};

/// The number of pods in each topology domain.
struct DomainCounts {
    topology: Arc<Topology>,
    counts: Vec<u32>,
}

impl DomainCounts {
    fn of(cache: &mut Cache, term: &TopologyTerm) -> Self {
        let topology = cache.topology(&term.topology_key);
        let counts = topology.sum_by_domain(cache.matching_pods(&term.selector).iter().copied());
        Self { topology, counts }
    }

    /// The number of pods in the domain of a slot; `None` for a node without the topology key.
    fn at(&self, slot: usize) -> Option<u32> {
        self.topology.domain_of[slot].map(|domain| self.counts[domain])
    }

    fn has_pods_at(&self, slot: usize) -> bool {
        self.at(slot).is_some_and(|count| count > 0)
    }
}

/// A `DoNotSchedule` topology spread constraint.
struct SpreadLimit {
    matching: DomainCounts,
    /// The most matching pods a domain may have to take one more.
    max_matching: i64,
}

/// The filter plugins with their PreFilter state for one pod.
pub(crate) struct Filters<'a> {
    pending: &'a PendingPod,
    affinity: Vec<DomainCounts>,
    /// No pod matches the required affinity terms, and the pod itself does: it may be the first.
    is_first_match: bool,
    anti_affinity: Vec<DomainCounts>,
    existing_anti_affinity: Vec<DomainCounts>,
    spread_limits: Vec<SpreadLimit>,
    /// The node affinity of the pod's bound volumes.
    volume_selectors: &'a [NodeSelector],
}

impl<'a> Filters<'a> {
    /// Computes the PreFilter state.
    pub(crate) fn new(
        cache: &mut Cache,
        pending: &'a PendingPod,
        volume_selectors: &'a [NodeSelector],
    ) -> Self {
        let affinity: Vec<_> = pending
            .required_affinity
            .iter()
            .map(|term| DomainCounts::of(cache, term))
            .collect();
        let no_pod_matches = affinity
            .iter()
            .all(|matching| matching.counts.iter().all(|count| *count == 0));
        // Mirrors satisfyPodAffinity: otherwise the first pod of a series with affinity to itself
        // would never be scheduled.
        let is_first_match = no_pod_matches
            && pending
                .required_affinity
                .iter()
                .all(|term| cache.selector_matches(&term.selector, &pending.info));
        let anti_affinity = pending
            .required_anti_affinity
            .iter()
            .map(|term| DomainCounts::of(cache, term))
            .collect();
        let existing_anti_affinity = existing_anti_affinity_counts(cache, pending);
        let spread_limits = spread_limits(cache, pending);
        Self {
            pending,
            affinity,
            is_first_match,
            anti_affinity,
            existing_anti_affinity,
            spread_limits,
            volume_selectors,
        }
    }

    /// Whether the result for a node depends on pods of other nodes, so that the PreFilter state
    /// must be computed again when pods are added or removed.
    pub(crate) fn depends_on_other_nodes(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.existing_anti_affinity.is_empty()
            && self.spread_limits.is_empty())
    }

    /// Runs the filters in the default plugin order and returns the reasons of the first that
    /// rejects the node; [`UnschedulableReasons::NONE`] if the node is feasible. Mirrors
    /// `RunFilterPlugins`.
    pub(crate) fn run(&self, slot: usize, node: &NodeInfo) -> UnschedulableReasons {
        // The order is that of the default plugins, because the first rejection determines the
        // message. Cheap filters come first in it as well.
        let filters = [
            Self::node_unschedulable,
            Self::taint_toleration,
            Self::node_affinity,
            Self::node_ports,
            Self::node_resources_fit,
            Self::volume_binding,
        ];
        for filter in filters {
            let reasons = filter(self, node);
            if !reasons.is_empty() {
                return reasons;
            }
        }
        let reasons = self.pod_topology_spread(slot);
        if reasons.is_empty() {
            self.inter_pod_affinity(slot)
        } else {
            reasons
        }
    }

    /// `NodeUnschedulable`.
    fn node_unschedulable(&self, node: &NodeInfo) -> UnschedulableReasons {
        // A toleration of the unschedulable taint also tolerates spec.unschedulable.
        let taint = || Taint {
            key: UNSCHEDULABLE.into(),
            effect: NO_SCHEDULE.into(),
            ..Default::default()
        };
        let rejected = node.is_unschedulable()
            && find_matching_toleration(&self.pending.tolerations, &taint()).is_none();
        UnschedulableReasons::NODE_UNSCHEDULABLE.when(rejected)
    }

    /// `TaintToleration`.
    fn taint_toleration(&self, node: &NodeInfo) -> UnschedulableReasons {
        UnschedulableReasons::UNTOLERATED_TAINT.when(!tolerates_taints(self.pending, node))
    }

    /// `NodeAffinity`.
    fn node_affinity(&self, node: &NodeInfo) -> UnschedulableReasons {
        UnschedulableReasons::NODE_AFFINITY.when(!matches_node_affinity(self.pending, node))
    }

    /// `NodePorts`.
    fn node_ports(&self, node: &NodeInfo) -> UnschedulableReasons {
        let conflict = self
            .pending
            .info
            .host_ports
            .iter()
            .any(|port| node.used_ports.iter().any(|used| used.conflicts(port)));
        UnschedulableReasons::HOST_PORTS.when(conflict)
    }

    /// `NodeResourcesFit`. Mirrors `fitsRequest`: all insufficient resources are reported.
    fn node_resources_fit(&self, node: &NodeInfo) -> UnschedulableReasons {
        let requests = &self.pending.info.requests;
        let allocatable = &node.allocatable;
        let requested = &node.requested;
        // The pod itself counts as one.
        let too_many_pods = requested.pods + 1 > allocatable.pods;
        let mut reasons = UnschedulableReasons::TOO_MANY_PODS.when(too_many_pods);
        for (request, allocatable, requested, reason) in [
            (
                requests.milli_cpu,
                allocatable.milli_cpu,
                requested.milli_cpu,
                UnschedulableReasons::INSUFFICIENT_CPU,
            ),
            (
                requests.memory,
                allocatable.memory,
                requested.memory,
                UnschedulableReasons::INSUFFICIENT_MEMORY,
            ),
            (
                requests.ephemeral_storage,
                allocatable.ephemeral_storage,
                requested.ephemeral_storage,
                UnschedulableReasons::INSUFFICIENT_EPHEMERAL_STORAGE,
            ),
        ] {
            if request > 0 && request > allocatable - requested {
                reasons = reasons
                    .union(reason)
                    .union(UnschedulableReasons::EXCEEDS_ALLOCATABLE.when(request > allocatable));
            }
        }
        for (name, request) in &requests.extended {
            if lacks_extended_resource(node, name, *request) {
                let exceeds = *request > allocatable.extended(name);
                reasons = reasons
                    .union(UnschedulableReasons::INSUFFICIENT_EXTENDED_RESOURCE)
                    .union(UnschedulableReasons::EXCEEDS_ALLOCATABLE.when(exceeds));
            }
        }
        reasons
    }

    /// `VolumeBinding`, for volumes that are bound.
    fn volume_binding(&self, node: &NodeInfo) -> UnschedulableReasons {
        let matches = self
            .volume_selectors
            .iter()
            .all(|selector| node_selector_matches(selector, &node.name, node.labels()));
        UnschedulableReasons::VOLUME_NODE_AFFINITY.when(!matches)
    }

    /// `PodTopologySpread`.
    fn pod_topology_spread(&self, slot: usize) -> UnschedulableReasons {
        for limit in &self.spread_limits {
            match limit.matching.at(slot) {
                // Preemption cannot add a label, so this is a separate reason.
                None => return UnschedulableReasons::TOPOLOGY_SPREAD_MISSING_LABEL,
                Some(matching) if i64::from(matching) > limit.max_matching => {
                    return UnschedulableReasons::TOPOLOGY_SPREAD;
                }
                Some(_) => {}
            }
        }
        UnschedulableReasons::NONE
    }

    /// `InterPodAffinity`. Mirrors `satisfyPodAffinity`, `satisfyPodAntiAffinity` and
    /// `satisfyExistingPodsAntiAffinity`, in this order.
    fn inter_pod_affinity(&self, slot: usize) -> UnschedulableReasons {
        // A node without the topology key never satisfies the term, not even for the first pod.
        let satisfies_affinity = self.affinity.iter().all(|matching| {
            matching
                .at(slot)
                .is_some_and(|count| count > 0 || self.is_first_match)
        });
        if !satisfies_affinity {
            return UnschedulableReasons::POD_AFFINITY;
        }
        if self
            .anti_affinity
            .iter()
            .any(|matching| matching.has_pods_at(slot))
        {
            return UnschedulableReasons::POD_ANTI_AFFINITY;
        }
        if self
            .existing_anti_affinity
            .iter()
            .any(|existing| existing.has_pods_at(slot))
        {
            return UnschedulableReasons::EXISTING_PODS_ANTI_AFFINITY;
        }
        UnschedulableReasons::NONE
    }
}

/// Whether a pod tolerates all `NoSchedule` and `NoExecute` taints of a node.
fn tolerates_taints(pending: &PendingPod, node: &NodeInfo) -> bool {
    let repels = |effect: &str| effect == NO_SCHEDULE || effect == NO_EXECUTE;
    node.taints()
        .iter()
        .filter(|taint| repels(&taint.effect))
        .all(|taint| find_matching_toleration(&pending.tolerations, taint).is_some())
}

/// Whether a node matches the node selector and the required node affinity of a pod. Mirrors
/// `RequiredNodeAffinity.Match`.
fn matches_node_affinity(pending: &PendingPod, node: &NodeInfo) -> bool {
    let labels = node.labels();
    pending
        .node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && pending
            .required_node_affinity
            .as_ref()
            .is_none_or(|selector| node_selector_matches(selector, &node.name, labels))
}

/// Pods whose required anti-affinity selects the pending pod. Mirrors
/// `getExistingAntiAffinityCounts`.
fn existing_anti_affinity_counts(cache: &mut Cache, pending: &PendingPod) -> Vec<DomainCounts> {
    let anti_affinity = cache
        .symmetric_terms()
        .filter(|existing| existing.term.effect == SymmetricEffect::RequiredAntiAffinity);
    // Collected first: computing a topology needs the cache mutably.
    let selecting: Vec<_> = anti_affinity
        .filter(|existing| cache.selector_matches(&existing.term.term.selector, &pending.info))
        .map(|existing| {
            let topology_key = existing.term.term.topology_key.clone();
            (topology_key, existing.counts.clone())
        })
        .collect();
    let domain_counts = |(topology_key, by_slot): (Arc<str>, Vec<u32>)| {
        let topology = cache.topology(&topology_key);
        let counts = topology.sum_by_domain(by_slot.into_iter());
        DomainCounts { topology, counts }
    };
    selecting.into_iter().map(domain_counts).collect()
}

/// The limits of the `DoNotSchedule` constraints. Mirrors `calPreFilterState` of
/// `PodTopologySpread`: only nodes with all topology keys count.
fn spread_limits(cache: &mut Cache, pending: &PendingPod) -> Vec<SpreadLimit> {
    let constraints: Vec<_> = pending
        .spread_constraints
        .iter()
        .filter(|constraint| constraint.do_not_schedule)
        .collect();
    let topologies: Vec<_> = constraints
        .iter()
        .map(|constraint| cache.topology(&constraint.term.topology_key))
        .collect();
    let limit = |(constraint, topology): (&&SpreadConstraint, &Arc<Topology>)| {
        let is_eligible = |slot: usize| {
            cache.node(slot).is_some_and(|node| {
                (!constraint.honors_node_affinity || matches_node_affinity(pending, node))
                    && (!constraint.honors_node_taints || tolerates_taints(pending, node))
            }) && topologies
                .iter()
                .all(|topology| topology.domain_of[slot].is_some())
        };
        let eligible: Vec<bool> = (0..cache.slot_count()).map(is_eligible).collect();
        let matching = cache.matching_pods(&constraint.term.selector).to_vec();
        let counts = topology.sum_by_domain(
            matching
                .iter()
                .zip(&eligible)
                .map(|(count, eligible)| if *eligible { *count } else { 0 }),
        );
        let eligible_nodes =
            topology.sum_by_domain(eligible.iter().map(|eligible| u32::from(*eligible)));
        let eligible_domains = || {
            counts
                .iter()
                .zip(&eligible_nodes)
                .filter(|(_, nodes)| **nodes > 0)
                .map(|(count, _)| i64::from(*count))
        };
        // Mirrors minMatchNum: with fewer domains than minDomains the global minimum is zero.
        let min_matching = if eligible_domains().count() < constraint.min_domains {
            0
        } else {
            eligible_domains().min().unwrap_or(0)
        };
        let self_match =
            i64::from(cache.selector_matches(&constraint.term.selector, &pending.info));
        SpreadLimit {
            matching: DomainCounts {
                topology: topology.clone(),
                counts,
            },
            // Mirrors the skew check: matching + self_match - min_matching <= maxSkew.
            max_matching: min_matching + constraint.max_skew - self_match,
        }
    };
    constraints.iter().zip(&topologies).map(limit).collect()
}
