//! Scheduler cache: nodes, the pods on them, and the aggregates that filters and scores read.
//!
//! In: nodes and assigned pods from informers, and assumed pods before the API server confirms
//! their binding. Out: requested resources per node, and pod counts per selector and node, so that
//! filters and scores do not iterate over pods.
//! Guarantees: a pod is on at most one node; every aggregate equals the sum over the pods.
//!
//! Capacity: counts are kept for at most [`MAX_COUNTED_SELECTORS`] selectors. The least recently
//! used one is dropped, and computed again when it is read.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use super::pod_info::{PodInfo, SymmetricEffect, SymmetricTerm, TopologyTerm};
use super::resources::{NonZeroRequests, Resources};
use super::selectors::{Labels, PodSelector};
use crate::host_ports::HostPort;

/// The maximum number of selectors whose matching pods are counted.
pub(crate) const MAX_COUNTED_SELECTORS: usize = 512;

static NO_LABELS: Labels = Labels::new();

/// A node with its pods. Mirrors the scheduler framework's `NodeInfo`.
#[derive(Debug, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// `None` while pods are assigned to it but the Node object is unknown.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: Resources,
    pub(crate) requested: Resources,
    pub(crate) non_zero_requested: NonZeroRequests,
    pub(crate) pods: Vec<Arc<PodInfo>>,
    pub(crate) used_ports: Vec<HostPort>,
}

impl NodeInfo {
    pub(crate) fn labels(&self) -> &Labels {
        self.node
            .as_ref()
            .and_then(|node| node.metadata.labels.as_ref())
            .unwrap_or(&NO_LABELS)
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        self.node
            .as_ref()
            .and_then(|node| node.spec.as_ref())
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default()
    }

    pub(crate) fn is_unschedulable(&self) -> bool {
        self.node
            .as_ref()
            .and_then(|node| node.spec.as_ref())
            .and_then(|spec| spec.unschedulable)
            == Some(true)
    }

    fn add_pod(&mut self, pod: &Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.non_zero_requested.add(pod.non_zero_requests);
        self.used_ports.extend(pod.host_ports.iter().cloned());
        self.pods.push(pod.clone());
        debug_assert!(self.is_consistent());
    }

    fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        // A node has at most a few hundred pods, and the order of `pods` has no meaning.
        let at = self.pods.iter().position(|pod| pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests);
        self.non_zero_requested.subtract(pod.non_zero_requests);
        if !pod.host_ports.is_empty() {
            // Ports do not record their pod, so the list is built again.
            self.used_ports = self
                .pods
                .iter()
                .flat_map(|pod| pod.host_ports.iter().cloned())
                .collect();
        }
        debug_assert!(self.is_consistent());
        Some(pod)
    }

    /// Whether every aggregate equals the sum over the pods.
    fn is_consistent(&self) -> bool {
        let mut requested = Resources::default();
        let mut non_zero_requested = NonZeroRequests::default();
        let mut ports = 0;
        for pod in &self.pods {
            requested.add(&pod.requests);
            non_zero_requested.add(pod.non_zero_requests);
            ports += pod.host_ports.len();
        }
        let amounts = |r: &Resources| (r.milli_cpu, r.memory, r.ephemeral_storage, r.pods);
        amounts(&requested) == amounts(&self.requested)
            && non_zero_requested == self.non_zero_requested
            && ports == self.used_ports.len()
    }
}

/// The topology domains of one topology key.
#[derive(Debug)]
pub(crate) struct Topology {
    /// The domain of each slot; `None` for a node without the label.
    pub(crate) domain_of: Vec<Option<usize>>,
    pub(crate) domains: usize,
}

impl Topology {
    /// Adds up values of slots by domain.
    pub(crate) fn sum_by_domain<N: Copy + Default + std::ops::AddAssign>(
        &self,
        by_slot: impl Iterator<Item = N>,
    ) -> Vec<N> {
        let mut sums = vec![N::default(); self.domains];
        for (domain, value) in self.domain_of.iter().zip(by_slot) {
            if let Some(domain) = domain {
                sums[*domain] += value;
            }
        }
        sums
    }
}

struct SelectorCounts {
    selector: Arc<PodSelector>,
    /// Matching pods by slot.
    counts: Vec<u32>,
    /// The value of [`Cache::reads`] at the last read.
    last_read: u64,
}

/// A term of assigned pods that applies to pods scheduled later.
pub(crate) struct SymmetricTermCounts {
    pub(crate) term: SymmetricTerm,
    /// Pods with this term, by slot.
    pub(crate) counts: Vec<u32>,
    total: u32,
}

/// The scheduler's view of the cluster.
#[derive(Default)]
pub(crate) struct Cache {
    /// Nodes by slot. A node keeps its slot; slots without node and pods are free.
    slots: Vec<NodeInfo>,
    slot_by_node: HashMap<String, usize>,
    free_slots: Vec<usize>,
    /// Slots with a Node object.
    node_count: usize,
    /// The slot of each pod, by uid.
    slot_by_pod: HashMap<String, usize>,
    selector_counts: HashMap<String, SelectorCounts>,
    /// Counts reads of `selector_counts`, to find the least recently used entry.
    reads: u64,
    symmetric_terms: HashMap<String, SymmetricTermCounts>,
    topologies: HashMap<Arc<str>, Arc<Topology>>,
    /// Pods nominated to a node by preemption, by node name.
    nominated: HashMap<String, Vec<Arc<PodInfo>>>,
    namespace_labels: HashMap<String, Labels>,
    /// The slot at which the next scheduling cycle starts to filter (upstream
    /// `nextStartNodeIndex`).
    pub(crate) next_start_slot: usize,
}

impl Cache {
    pub(crate) fn node_count(&self) -> usize {
        self.node_count
    }

    /// The number of slots, free ones included.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The node in a slot, if its Node object is known.
    pub(crate) fn node(&self, slot: usize) -> Option<&NodeInfo> {
        self.slots.get(slot).filter(|info| info.node.is_some())
    }

    pub(crate) fn slot_of(&self, name: &str) -> Option<usize> {
        self.slot_by_node
            .get(name)
            .copied()
            .filter(|slot| self.slots[*slot].node.is_some())
    }

    /// Whether the pod is assigned or assumed.
    pub(crate) fn contains_pod(&self, uid: &str) -> bool {
        self.slot_by_pod.contains_key(uid)
    }

    /// Adds or updates a node.
    pub(crate) fn update_node(&mut self, node: Arc<Node>) {
        let slot = self.allocate_slot(&node.name_any());
        let info = &mut self.slots[slot];
        let is_new = info.node.is_none();
        let labels_changed =
            is_new || info.labels() != node.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
        info.allocatable = Resources::from_list(
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.as_ref()),
        );
        info.node = Some(node);
        // A slot may exist before its node: an informer can deliver a pod first.
        self.node_count += usize::from(is_new);
        if labels_changed {
            self.topologies.clear();
        }
        debug_assert!(self.slot_is_consistent(slot));
    }

    /// Removes a node. Its pods stay until they are removed themselves.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot_of(name) else {
            return;
        };
        // Mirrors cacheImpl.RemoveNode: pods of a deleted node are removed by their own events.
        self.slots[slot].node = None;
        self.node_count -= 1;
        self.topologies.clear();
        self.release_slot_if_empty(slot);
        debug_assert!(self.slot_is_consistent(slot));
    }

    /// Adds a pod to a node. An older version of the pod is replaced.
    pub(crate) fn add_pod(&mut self, pod: &Arc<PodInfo>, node: &str) {
        // Removing the old version first keeps the aggregates exact if the requests or labels
        // changed.
        self.remove_pod(&pod.uid);
        let slot = self.allocate_slot(node);
        self.slot_by_pod.insert(pod.uid.clone(), slot);
        self.add_to_slot(slot, pod);
        debug_assert!(self.slot_is_consistent(slot));
    }

    /// Removes a pod from its node; returns whether it was on one.
    pub(crate) fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(slot) = self.slot_by_pod.remove(uid) else {
            return false;
        };
        self.remove_from_slot(slot, uid);
        self.release_slot_if_empty(slot);
        debug_assert!(self.slot_is_consistent(slot));
        true
    }

    /// Adds a pod to the aggregates of a slot. Filters use it to simulate nominated pods, and
    /// preemption to reprieve victims; both undo it with [`Cache::remove_from_slot`].
    pub(crate) fn add_to_slot(&mut self, slot: usize, pod: &Arc<PodInfo>) {
        self.slots[slot].add_pod(pod);
        self.count(slot, pod, 1);
    }

    /// Removes a pod from the aggregates of a slot; the inverse of [`Cache::add_to_slot`].
    pub(crate) fn remove_from_slot(&mut self, slot: usize, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.slots[slot].remove_pod(uid)?;
        self.count(slot, &pod, -1);
        Some(pod)
    }

    /// Nominates a pod to a node; an earlier nomination of the pod ends.
    pub(crate) fn add_nominated_pod(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.delete_nominated_pod(&pod.uid);
        self.nominated
            .entry(node.to_owned())
            .or_default()
            .push(pod.clone());
    }

    pub(crate) fn delete_nominated_pod(&mut self, uid: &str) {
        if !self.nominated.is_empty() {
            self.nominated.retain(|_, pods| {
                pods.retain(|pod| pod.uid != uid);
                !pods.is_empty()
            });
        }
    }

    /// Pods nominated to the node, other than `uid`, with at least that priority. Mirrors the
    /// selection of `addGENominatedPods`.
    pub(crate) fn nominated_pods(
        &self,
        node: &str,
        uid: &str,
        min_priority: i32,
    ) -> Vec<Arc<PodInfo>> {
        let nominated = self.nominated.get(node).into_iter().flatten();
        nominated
            .filter(|pod| {
                pod.uid != uid && pod.priority >= min_priority && !self.contains_pod(&pod.uid)
            })
            .cloned()
            .collect()
    }

    pub(crate) fn has_nominated_pods(&self) -> bool {
        !self.nominated.is_empty()
    }

    /// Sets the labels of a namespace; `None` if the namespace was deleted.
    pub(crate) fn set_namespace_labels(&mut self, name: String, labels: Option<Labels>) {
        let changed = match labels {
            // Counts of selectors with a namespaceSelector depend on these labels.
            Some(labels) => self.namespace_labels.insert(name, labels.clone()) != Some(labels),
            None => self.namespace_labels.remove(&name).is_some(),
        };
        if changed {
            self.selector_counts.clear();
        }
    }

    /// The topology domains of a topology key.
    pub(crate) fn topology(&mut self, key: &Arc<str>) -> Arc<Topology> {
        if let Some(cached) = self.topologies.get(key) {
            return cached.clone();
        }
        let mut domains: HashMap<&str, usize> = HashMap::new();
        let mut domain_of = Vec::with_capacity(self.slots.len());
        for info in &self.slots {
            let value = info
                .node
                .is_some()
                .then(|| info.labels().get(&**key))
                .flatten();
            domain_of.push(value.map(|value| {
                let next = domains.len();
                *domains.entry(value).or_insert(next)
            }));
        }
        let topology = Arc::new(Topology {
            domain_of,
            domains: domains.len(),
        });
        self.topologies.insert(key.clone(), topology.clone());
        topology
    }

    /// The number of matching pods, by slot.
    pub(crate) fn matching_pods(&mut self, selector: &Arc<PodSelector>) -> &[u32] {
        self.reads += 1;
        if !self.selector_counts.contains_key(&selector.key) {
            // The only iteration over all pods; from here on `count` keeps the entry up to date.
            let counts = self.count_matching_pods(selector);
            self.evict_least_recently_read_selector();
            self.selector_counts.insert(
                selector.key.clone(),
                SelectorCounts {
                    selector: selector.clone(),
                    counts,
                    last_read: 0,
                },
            );
        }
        let entry = self
            .selector_counts
            .get_mut(&selector.key)
            .expect("the entry was inserted if it was missing");
        entry.last_read = self.reads;
        // Slots added since the last read have no matching pods yet.
        entry.counts.resize(self.slots.len(), 0);
        &entry.counts
    }

    /// The terms of assigned pods that apply to pods scheduled later.
    pub(crate) fn symmetric_terms(&self) -> impl Iterator<Item = &SymmetricTermCounts> {
        self.symmetric_terms.values()
    }

    pub(crate) fn selector_matches(&self, selector: &PodSelector, pod: &PodInfo) -> bool {
        selector.matches(pod.attributes(), |name| self.namespace_labels.get(name))
    }

    fn count_matching_pods(&self, selector: &PodSelector) -> Vec<u32> {
        let matching = |info: &NodeInfo| {
            info.pods
                .iter()
                .filter(|pod| self.selector_matches(selector, pod))
                .count()
        };
        self.slots
            .iter()
            .map(|info| u32::try_from(matching(info)).unwrap_or(u32::MAX))
            .collect()
    }

    fn evict_least_recently_read_selector(&mut self) {
        if self.selector_counts.len() < MAX_COUNTED_SELECTORS {
            return;
        }
        if let Some(oldest) = self
            .selector_counts
            .iter()
            .min_by_key(|(_, entry)| entry.last_read)
            .map(|(key, _)| key.clone())
        {
            self.selector_counts.remove(&oldest);
        }
    }

    fn count(&mut self, slot: usize, pod: &PodInfo, delta: i32) {
        let namespace_labels = &self.namespace_labels;
        for entry in self.selector_counts.values_mut() {
            if entry
                .selector
                .matches(pod.attributes(), |name| namespace_labels.get(name))
            {
                add_delta(&mut entry.counts, slot, delta);
            }
        }
        for term in &pod.symmetric_terms {
            let key = symmetric_term_key(&term.term, term.effect);
            let entry =
                self.symmetric_terms
                    .entry(key.clone())
                    .or_insert_with(|| SymmetricTermCounts {
                        term: term.clone(),
                        counts: Vec::new(),
                        total: 0,
                    });
            add_delta(&mut entry.counts, slot, delta);
            entry.total = entry.total.saturating_add_signed(delta);
            // Filters and scores iterate over all entries, so unused ones are removed.
            if entry.total == 0 {
                self.symmetric_terms.remove(&key);
            }
        }
    }

    fn allocate_slot(&mut self, name: &str) -> usize {
        if let Some(slot) = self.slot_by_node.get(name) {
            return *slot;
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(NodeInfo::default());
            // Topologies have one element per slot.
            self.topologies.clear();
            self.slots.len() - 1
        });
        self.slots[slot] = NodeInfo {
            name: name.to_owned(),
            ..NodeInfo::default()
        };
        self.slot_by_node.insert(name.to_owned(), slot);
        slot
    }

    fn release_slot_if_empty(&mut self, slot: usize) {
        let info = &self.slots[slot];
        if info.node.is_none() && info.pods.is_empty() {
            self.slot_by_node.remove(&info.name);
            self.free_slots.push(slot);
        }
    }

    /// Whether a slot is either free, or found by its node and by each of its pods.
    fn slot_is_consistent(&self, slot: usize) -> bool {
        let info = &self.slots[slot];
        if info.node.is_none() && info.pods.is_empty() {
            return self.free_slots.contains(&slot)
                && self.slot_by_node.get(&info.name) != Some(&slot);
        }
        let is_slot_of = |pod: &Arc<PodInfo>| self.slot_by_pod.get(&pod.uid) == Some(&slot);
        self.slot_by_node.get(&info.name) == Some(&slot) && info.pods.iter().all(is_slot_of)
    }

    /// Whether every slot is consistent and every count equals the number of matching pods.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let slots_match = (0..self.slots.len())
            .all(|slot| self.slots[slot].is_consistent() && self.slot_is_consistent(slot));
        let nodes = self.slots.iter().filter(|info| info.node.is_some());
        let nodes_match = nodes.count() == self.node_count;
        let counts_match = self.selector_counts.values().all(|entry| {
            let mut counts = entry.counts.clone();
            counts.resize(self.slots.len(), 0);
            counts == self.count_matching_pods(&entry.selector)
        });
        let pods_match = self
            .slot_by_pod
            .iter()
            .all(|(uid, slot)| self.slots[*slot].pods.iter().any(|pod| pod.uid == *uid));
        slots_match && nodes_match && counts_match && pods_match
    }
}

fn symmetric_term_key(term: &TopologyTerm, effect: SymmetricEffect) -> String {
    format!("{effect:?} {} {}", term.topology_key, term.selector.key)
}

fn add_delta(counts: &mut Vec<u32>, slot: usize, delta: i32) {
    if counts.len() <= slot {
        counts.resize(slot + 1, 0);
    }
    counts[slot] = counts[slot].saturating_add_signed(delta);
}
