//! Ledger: which pods are on which node, and what that leaves, kept up as things change.
//!
//! In: nodes and placed pods as informers tell of them, and the scheduler's own decisions before they are told back.
//! Out: sums and counts that filters and scores read without looking at single pods.
//! Holds: a pod is on one node at most; every sum equals what adding up its pods would give.
//!
//! Full: at most [`GROUPS_MAX`] groups are counted; the one that was not asked for longest goes, and is counted anew when
//! somebody asks.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use super::pod_info::{Declared, Effect, HostPort, PodInfo, Term};
use super::resources::Resources;
use super::terms::{Group, Labels};

/// How many groups of pods are counted at most.
pub(crate) const GROUPS_MAX: usize = 512;

static NO_LABELS: Labels = Labels::new();

/// A node and what is on it.
#[derive(Debug, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// `None` while only its pods are known.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: Resources,
    pub(crate) requested: Resources,
    /// Milli-CPUs and bytes its pods count for in scores.
    pub(crate) weight: (i64, i64),
    pub(crate) pods: Vec<Arc<PodInfo>>,
    pub(crate) ports: Vec<HostPort>,
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

    fn add(&mut self, pod: &Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.weight = (self.weight.0 + pod.weight.0, self.weight.1 + pod.weight.1);
        self.ports.extend(pod.ports.iter().cloned());
        self.pods.push(pod.clone());
    }

    fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|pod| pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests);
        self.weight = (self.weight.0 - pod.weight.0, self.weight.1 - pod.weight.1);
        if !pod.ports.is_empty() {
            self.ports = self
                .pods
                .iter()
                .flat_map(|pod| pod.ports.iter().cloned())
                .collect();
        }
        Some(pod)
    }
}

/// Which part of the cluster each node is in, by one label.
#[derive(Debug)]
pub(crate) struct Topology {
    /// By slot; `None` for a node without the label.
    pub(crate) domain_of: Vec<Option<usize>>,
    pub(crate) domains: usize,
}

impl Topology {
    /// Adds up numbers of slots by domain.
    pub(crate) fn sums<N: Copy + Default + std::ops::AddAssign>(
        &self,
        of_slots: impl Iterator<Item = N>,
    ) -> Vec<N> {
        let mut sums = vec![N::default(); self.domains];
        for (domain, number) in self.domain_of.iter().zip(of_slots) {
            if let Some(domain) = domain {
                sums[*domain] += number;
            }
        }
        sums
    }
}

struct Counted {
    group: Arc<Group>,
    /// Members by slot.
    counts: Vec<u32>,
    /// When it was last asked for.
    used: u64,
}

/// Something that pods on nodes declare, counted.
pub(crate) struct Standing {
    pub(crate) declared: Declared,
    /// Pods that declare it, by slot.
    pub(crate) counts: Vec<u32>,
    total: u32,
}

/// The whole cluster as far as scheduling is concerned.
#[derive(Default)]
pub(crate) struct Ledger {
    /// A slot keeps its number; those without node and pods are free.
    slots: Vec<NodeInfo>,
    by_name: HashMap<String, usize>,
    free: Vec<usize>,
    /// Nodes that are there.
    nodes: usize,
    /// Where each pod is, by uid.
    homes: HashMap<String, usize>,
    groups: HashMap<String, Counted>,
    asked: u64,
    standings: HashMap<String, Standing>,
    topologies: HashMap<Arc<str>, Arc<Topology>>,
    /// Pods that wait for room on a node, by its name.
    nominated: HashMap<String, Vec<Arc<PodInfo>>>,
    namespaces: HashMap<String, Labels>,
    /// Where the next search begins.
    pub(crate) cursor: usize,
}

impl Ledger {
    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes
    }

    /// How many slots there are, free ones included.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The node in a slot, if there is one.
    pub(crate) fn node(&self, slot: usize) -> Option<&NodeInfo> {
        self.slots.get(slot).filter(|info| info.node.is_some())
    }

    pub(crate) fn slot_of(&self, name: &str) -> Option<usize> {
        self.by_name
            .get(name)
            .copied()
            .filter(|slot| self.slots[*slot].node.is_some())
    }

    /// Whether the pod is on a node.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.homes.contains_key(uid)
    }

    /// A node is there, or changed.
    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let slot = self.slot(&node.name_any());
        let info = &mut self.slots[slot];
        let known = info.node.is_some();
        let relabelled =
            !known || info.labels() != node.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
        info.allocatable = Resources::of(
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.as_ref()),
        );
        info.node = Some(node);
        self.nodes += usize::from(!known);
        if relabelled {
            self.topologies.clear();
        }
    }

    /// A node is gone; its pods are not, until somebody says so.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot_of(name) else {
            return;
        };
        self.slots[slot].node = None;
        self.nodes -= 1;
        self.topologies.clear();
        self.release(slot);
    }

    /// A pod is on a node. Told again, or of another form of the pod, it counts once.
    pub(crate) fn place(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.remove(&pod.uid);
        let slot = self.slot(node);
        self.homes.insert(pod.uid.clone(), slot);
        self.put(slot, pod);
    }

    /// A pod is on no node any more; says whether it was on one.
    pub(crate) fn remove(&mut self, uid: &str) -> bool {
        let Some(slot) = self.homes.remove(uid) else {
            return false;
        };
        self.take(slot, uid);
        self.release(slot);
        true
    }

    /// Puts a pod there for a while, or for good.
    pub(crate) fn put(&mut self, slot: usize, pod: &Arc<PodInfo>) {
        self.slots[slot].add(pod);
        self.count(slot, pod, 1);
    }

    /// Takes a pod away for a while, or for good.
    pub(crate) fn take(&mut self, slot: usize, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.slots[slot].remove(uid)?;
        self.count(slot, &pod, -1);
        Some(pod)
    }

    /// A pod waits for room on a node.
    pub(crate) fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.withdraw(&pod.uid);
        self.nominated
            .entry(node.to_owned())
            .or_default()
            .push(pod.clone());
    }

    /// A pod waits for no node any more.
    pub(crate) fn withdraw(&mut self, uid: &str) {
        if !self.nominated.is_empty() {
            self.nominated.retain(|_, pods| {
                pods.retain(|pod| pod.uid != uid);
                !pods.is_empty()
            });
        }
    }

    /// Pods that wait for room on that node and go before a pod of that priority.
    pub(crate) fn going_before(&self, node: &str, uid: &str, priority: i32) -> Vec<Arc<PodInfo>> {
        let waiting = self.nominated.get(node).into_iter().flatten();
        waiting
            .filter(|pod| pod.uid != uid && pod.priority >= priority && !self.has(&pod.uid))
            .cloned()
            .collect()
    }

    /// Whether anybody waits for room.
    pub(crate) fn anybody_waits(&self) -> bool {
        !self.nominated.is_empty()
    }

    pub(crate) fn set_namespace(&mut self, name: String, labels: Option<Labels>) {
        let changed = match labels {
            Some(labels) => self.namespaces.insert(name, labels.clone()) != Some(labels),
            None => self.namespaces.remove(&name).is_some(),
        };
        if changed {
            self.groups.clear();
        }
    }

    /// The parts of the cluster by one label.
    pub(crate) fn topology(&mut self, label: &Arc<str>) -> Arc<Topology> {
        if let Some(known) = self.topologies.get(label) {
            return known.clone();
        }
        let mut domains: HashMap<&str, usize> = HashMap::new();
        let mut domain_of = Vec::with_capacity(self.slots.len());
        for info in &self.slots {
            let value = info
                .node
                .is_some()
                .then(|| info.labels().get(&**label))
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
        self.topologies.insert(label.clone(), topology.clone());
        topology
    }

    /// Members of a group, by slot.
    pub(crate) fn counts(&mut self, group: &Arc<Group>) -> &[u32] {
        self.asked += 1;
        if !self.groups.contains_key(&group.identity) {
            let counts = self.count_members(group);
            self.forget_one_group_if_full();
            self.groups.insert(
                group.identity.clone(),
                Counted {
                    group: group.clone(),
                    counts,
                    used: 0,
                },
            );
        }
        let counted = self
            .groups
            .get_mut(&group.identity)
            .expect("it was put there if it was not");
        counted.used = self.asked;
        counted.counts.resize(self.slots.len(), 0);
        &counted.counts
    }

    /// What pods on nodes declare.
    pub(crate) fn standings(&self) -> impl Iterator<Item = &Standing> {
        self.standings.values()
    }

    /// Whether a pod is in a group.
    pub(crate) fn contains(&self, group: &Group, pod: &PodInfo) -> bool {
        group.contains(pod.candidate(), |name| self.namespaces.get(name))
    }

    fn count_members(&self, group: &Group) -> Vec<u32> {
        let members = |info: &NodeInfo| {
            info.pods
                .iter()
                .filter(|pod| self.contains(group, pod))
                .count()
        };
        self.slots
            .iter()
            .map(|info| u32::try_from(members(info)).unwrap_or(u32::MAX))
            .collect()
    }

    fn forget_one_group_if_full(&mut self) {
        if self.groups.len() < GROUPS_MAX {
            return;
        }
        if let Some(oldest) = self
            .groups
            .iter()
            .min_by_key(|(_, counted)| counted.used)
            .map(|(identity, _)| identity.clone())
        {
            self.groups.remove(&oldest);
        }
    }

    fn count(&mut self, slot: usize, pod: &PodInfo, by: i32) {
        let namespaces = &self.namespaces;
        for counted in self.groups.values_mut() {
            if counted
                .group
                .contains(pod.candidate(), |name| namespaces.get(name))
            {
                bump(&mut counted.counts, slot, by);
            }
        }
        for declared in &pod.declared {
            let identity = standing_identity(&declared.term, declared.effect);
            let standing = self
                .standings
                .entry(identity.clone())
                .or_insert_with(|| Standing {
                    declared: declared.clone(),
                    counts: Vec::new(),
                    total: 0,
                });
            bump(&mut standing.counts, slot, by);
            standing.total = standing.total.saturating_add_signed(by);
            if standing.total == 0 {
                self.standings.remove(&identity);
            }
        }
    }

    fn slot(&mut self, name: &str) -> usize {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(NodeInfo::default());
            self.topologies.clear();
            self.slots.len() - 1
        });
        self.slots[slot] = NodeInfo {
            name: name.to_owned(),
            ..NodeInfo::default()
        };
        self.by_name.insert(name.to_owned(), slot);
        slot
    }

    fn release(&mut self, slot: usize) {
        let info = &self.slots[slot];
        if info.node.is_none() && info.pods.is_empty() {
            self.by_name.remove(&info.name);
            self.free.push(slot);
        }
    }

    /// Whether every sum is what adding up its pods gives.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let sums = self.slots.iter().all(|info| {
            let (mut requested, mut weight) = (Resources::default(), (0, 0));
            for pod in &info.pods {
                requested.add(&pod.requests);
                weight = (weight.0 + pod.weight.0, weight.1 + pod.weight.1);
            }
            let amounts = |r: &Resources| (r.cpu, r.memory, r.ephemeral, r.pods);
            amounts(&requested) == amounts(&info.requested) && weight == info.weight
        });
        let groups = self.groups.values().all(|counted| {
            let mut counts = counted.counts.clone();
            counts.resize(self.slots.len(), 0);
            counts == self.count_members(&counted.group)
        });
        let homes = self
            .homes
            .iter()
            .all(|(uid, slot)| self.slots[*slot].pods.iter().any(|pod| pod.uid == *uid));
        sums && groups && homes
    }
}

fn standing_identity(term: &Term, effect: Effect) -> String {
    format!("{effect:?} {} {}", term.topology, term.group.identity)
}

fn bump(counts: &mut Vec<u32>, slot: usize, by: i32) {
    if counts.len() <= slot {
        counts.resize(slot + 1, 0);
    }
    counts[slot] = counts[slot].saturating_add_signed(by);
}
