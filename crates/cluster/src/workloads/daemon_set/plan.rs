//! Plan for one DaemonSet: pods to create and delete per node, and the status.
//!
//! Input: the DaemonSet, node eligibility, its pods by node, the time. Output: pods to create and
//! delete, events, a status.
//! Guarantees: a node has at most one pod of the current template; a rolling update deletes at most
//! `maxUnavailable` available pods or creates at most `maxSurge` additional ones, and starts only
//! when no other pod has to be created or deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::daemon_pod::{NodeEligibility, is_pod_updated};
use crate::workloads::counts::omit_zero;
use crate::workloads::events::{normal_event, warning_event};
use crate::workloads::int_or_percent::{Round, scaled_value};
use crate::workloads::pods::{
    Phase, duration_from_seconds, has_deletion_timestamp, is_available, is_ready,
    next_availability_check, node_name, phase,
};
use bellerophon::events::Event;

/// The pods of a DaemonSet by target node.
pub(super) type PodsByNode = BTreeMap<String, Vec<Arc<Pod>>>;

/// Observed state of one DaemonSet.
pub(super) struct DaemonSetState<'a> {
    pub(super) set: &'a DaemonSet,
    /// Hash of the current template.
    pub(super) hash: &'a str,
    /// All nodes by name.
    pub(super) nodes: &'a BTreeMap<String, NodeEligibility>,
    pub(super) pods: &'a PodsByNode,
    pub(super) now: Timestamp,
}

/// Result of planning one reconcile.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Nodes on which a pod is created.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) events: Vec<Event>,
    /// Time until the next availability check or end of a back-off.
    pub(super) requeue_after: Option<Duration>,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty()
    }

    fn requeue_within(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |after| after.min(delay)));
    }
}

/// Plans one reconcile. `backoff` returns the remaining delay before the failed pod of a node is
/// replaced. Mirrors updateDaemonSet: manage, then rollingUpdate.
pub(super) fn plan(
    state: &DaemonSetState<'_>,
    mut backoff: impl FnMut(&str) -> Option<Duration>,
) -> Plan {
    let mut plan = Plan::default();
    for (node, eligibility) in state.nodes {
        let pods = state.pods.get(node).map(Vec::as_slice).unwrap_or_default();
        match eligibility {
            NodeEligibility::Run if pods.is_empty() => plan.create.push(node.clone()),
            NodeEligibility::Run | NodeEligibility::ContinueRunning => {
                state.manage_node(node, *eligibility, pods, &mut plan, &mut backoff);
            }
            NodeEligibility::Excluded => plan.delete.extend(
                pods.iter()
                    .filter(|pod| !has_deletion_timestamp(pod))
                    .cloned(),
            ),
        }
    }
    // Mirrors getUnscheduledPodsWithoutNode: no other controller deletes an unscheduled pod whose
    // target node does not exist.
    let without_node = state
        .pods
        .iter()
        .filter(|(node, _)| !state.nodes.contains_key(*node))
        .flat_map(|(_, pods)| pods);
    plan.delete.extend(
        without_node
            .filter(|pod| node_name(pod).is_empty() && !has_deletion_timestamp(pod))
            .cloned(),
    );
    // Mirrors updateDaemonSet: the rolling update starts when manage has nothing to do.
    if plan.is_empty() && state.is_rolling_update() {
        state.rolling_update(&mut plan);
    }
    if let Some(delay) = next_availability_check(
        state.pods.values().flatten().map(|pod| &**pod),
        state.min_ready(),
        state.now,
    ) {
        plan.requeue_within(delay);
    }
    plan
}

/// The pods of one node: at most one of the current template and one of an old one.
struct NodePods<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

impl DaemonSetState<'_> {
    fn min_ready(&self) -> Duration {
        duration_from_seconds(
            self.set
                .spec
                .as_ref()
                .and_then(|spec| spec.min_ready_seconds),
        )
    }

    fn is_rolling_update(&self) -> bool {
        let strategy = self
            .set
            .spec
            .as_ref()
            .and_then(|spec| spec.update_strategy.as_ref());
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    /// Absolute `(maxSurge, maxUnavailable)`; percentages are rounded up. Mirrors SurgeCount and
    /// UnavailableCount.
    fn surge_and_unavailable(&self, desired: usize) -> (usize, usize) {
        let strategy = self
            .set
            .spec
            .as_ref()
            .and_then(|spec| spec.update_strategy.as_ref())
            .filter(|_| self.is_rolling_update());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let total = i32::try_from(desired).unwrap_or(i32::MAX);
        let count = |value| usize::try_from(scaled_value(value, total, Round::Up)).unwrap_or(0);
        let surge = count(rolling.and_then(|rolling| rolling.max_surge.as_ref()));
        let unavailable = count(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()));
        // With both at 0 the update could not proceed; one pod at a time is also the default.
        if surge == 0 && unavailable == 0 {
            (0, 1)
        } else {
            (surge, unavailable)
        }
    }

    /// Mirrors AllowsSurge.
    fn allows_surge(&self) -> bool {
        self.surge_and_unavailable(1).0 > 0
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        is_pod_updated(self.set, pod, self.hash)
    }

    /// Deletes terminal and surplus pods of a node that runs daemon pods. Mirrors
    /// podsShouldBeOnNode.
    fn manage_node(
        &self,
        node: &str,
        eligibility: NodeEligibility,
        pods: &[Arc<Pod>],
        plan: &mut Plan,
        backoff: &mut impl FnMut(&str) -> Option<Duration>,
    ) {
        let mut running = Vec::new();
        for pod in pods.iter().filter(|pod| !has_deletion_timestamp(pod)) {
            let description = || {
                format!(
                    "daemon pod {}/{} on node {node}",
                    pod.namespace().unwrap_or_default(),
                    pod.name_any()
                )
            };
            match phase(pod) {
                // The back-off avoids a hot loop with a kubelet that rejects the pod.
                Phase::Failed => match backoff(node) {
                    Some(delay) => plan.requeue_within(delay),
                    None => {
                        plan.events.push(warning_event(
                            "FailedDaemonPod",
                            format!("Found failed {}, will try to kill it", description()),
                        ));
                        plan.delete.push(pod.clone());
                    }
                },
                Phase::Succeeded => {
                    plan.events.push(normal_event(
                        "SucceededDaemonPod",
                        format!("Found succeeded {}, will try to delete it", description()),
                    ));
                    plan.delete.push(pod.clone());
                }
                _ => running.push(pod.clone()),
            }
        }
        running.sort_by_key(|pod| pod_order(pod));
        // Mirrors podsShouldBeOnNode: the oldest pod is kept.
        if !self.allows_surge() {
            plan.delete.extend(running.into_iter().skip(1));
        } else if running.is_empty() {
            if eligibility == NodeEligibility::Run {
                plan.create.push(node.to_owned());
            }
        } else {
            self.delete_surplus(running, plan);
        }
    }

    /// Keeps the oldest new pod, and the oldest old pod until the new one is available.
    fn delete_surplus(&self, running: Vec<Arc<Pod>>, plan: &mut Plan) {
        let (new, old): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|pod| self.is_updated(pod));
        // Mirrors podsShouldBeOnNode: an old pod that is not ready is deleted without waiting for
        // the new one, because it contributes no availability.
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!is_ready(old) || self.is_available(new))
        {
            plan.delete.push(old.clone());
        }
        plan.delete
            .extend(new.into_iter().skip(1).chain(old.into_iter().skip(1)));
    }

    /// One step of a rolling update. Mirrors rollingUpdate.
    fn rolling_update(&self, plan: &mut Plan) {
        let desired = self
            .nodes
            .values()
            .filter(|eligibility| **eligibility == NodeEligibility::Run)
            .count();
        match self.surge_and_unavailable(desired) {
            (0, max_unavailable) => self.rolling_update_by_deleting(plan, max_unavailable),
            (max_surge, _) => self.rolling_update_by_surging(plan, max_surge, desired),
        }
    }

    /// The new and the old pod of a node; `None` if there are several of either. Mirrors
    /// findUpdatedPodsOnNode.
    fn find_updated_pods_on_node(&self, node: &str) -> Option<NodePods<'_>> {
        let pods = self
            .pods
            .get(node)
            .into_iter()
            .flatten()
            .filter(|pod| !has_deletion_timestamp(pod));
        let (new, old): (Vec<_>, Vec<_>) = pods.partition(|pod| self.is_updated(pod));
        // Several pods of one template are surplus. manage_node deletes them first, and the update
        // leaves the node alone until then.
        (new.len() <= 1 && old.len() <= 1).then(|| NodePods {
            new: new.first().copied(),
            old: old.first().copied(),
        })
    }

    /// Nodes that have pods or should run one.
    fn nodes_to_update(&self) -> impl Iterator<Item = &str> {
        let without_pods = self.nodes.iter().filter(|(node, eligibility)| {
            **eligibility == NodeEligibility::Run && !self.pods.contains_key(*node)
        });
        self.pods
            .keys()
            .map(String::as_str)
            .chain(without_pods.map(|(node, _)| node.as_str()))
    }

    /// Deletes all old pods that are not available, and available ones within `maxUnavailable`.
    fn rolling_update_by_deleting(&self, plan: &mut Plan, max_unavailable: usize) {
        let mut unavailable = 0;
        let mut candidates = Vec::new();
        for node in self.nodes_to_update() {
            match self.find_updated_pods_on_node(node) {
                Some(NodePods {
                    new: Some(new),
                    old: None,
                }) => unavailable += usize::from(!self.is_available(new)),
                Some(NodePods {
                    new: None,
                    old: Some(old),
                }) if self.is_available(old) => candidates.push(old.clone()),
                Some(NodePods {
                    new: None,
                    old: Some(old),
                }) => {
                    plan.delete.push(old.clone());
                    unavailable += 1;
                }
                // Missing and surplus pods are handled by manage_node and count as unavailable.
                _ => unavailable += 1,
            }
        }
        plan.delete.extend(
            candidates
                .into_iter()
                .take(max_unavailable.saturating_sub(unavailable)),
        );
    }

    /// Creates new pods beside old ones, which are deleted once the new ones are available.
    fn rolling_update_by_surging(&self, plan: &mut Plan, max_surge: usize, desired: usize) {
        let mut surging = 0;
        let mut available = 0;
        let mut candidates = Vec::new();
        let mut on_ineligible_nodes = Vec::new();
        for node in self.nodes_to_update() {
            let Some(NodePods { new, old }) = self.find_updated_pods_on_node(node) else {
                surging += 1;
                continue;
            };
            // As upstream, the old pod is counted if there are two.
            available += usize::from(old.or(new).is_some_and(|pod| self.is_available(pod)));
            let should_run = self.nodes.get(node) == Some(&NodeEligibility::Run);
            match (new, old) {
                (Some(new), Some(old)) if self.is_available(new) => plan.delete.push(old.clone()),
                // The new pod is not available yet, so it uses the surge.
                (Some(_), Some(_)) => surging += 1,
                (None, Some(old)) if !self.is_available(old) && should_run => {
                    plan.create.push(node.to_owned())
                }
                (None, Some(old)) if !self.is_available(old) => plan.delete.push(old.clone()),
                (None, Some(_)) if should_run => candidates.push(node.to_owned()),
                (None, Some(old)) => on_ineligible_nodes.push(old.clone()),
                (_, None) => {}
            }
        }
        // An available pod on a node that should not run one is deleted only when enough others are
        // available.
        plan.delete.extend(
            on_ineligible_nodes
                .into_iter()
                .take(available.saturating_sub(desired)),
        );
        plan.create.extend(
            candidates
                .into_iter()
                .take(max_surge.saturating_sub(surging)),
        );
    }

    /// The new status. Mirrors updateDaemonSetStatus.
    pub(super) fn status(&self) -> DaemonSetStatus {
        let current = self.set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: current.collision_count,
            conditions: current.conditions,
            ..DaemonSetStatus::default()
        };
        let mut updated = 0;
        let mut available = 0;
        for (node, eligibility) in self.nodes {
            let pod = self
                .pods
                .get(node)
                .and_then(|pods| pods.iter().min_by_key(|pod| pod_order(pod)));
            match (eligibility, pod) {
                (NodeEligibility::Run, pod) => {
                    status.desired_number_scheduled += 1;
                    if let Some(pod) = pod {
                        status.current_number_scheduled += 1;
                        status.number_ready += i32::from(is_ready(pod));
                        available += i32::from(self.is_available(pod));
                        updated += i32::from(self.is_updated(pod));
                    }
                }
                (_, Some(_)) => status.number_misscheduled += 1,
                (_, None) => {}
            }
        }
        status.updated_number_scheduled = omit_zero(updated);
        status.number_available = omit_zero(available);
        status.number_unavailable = omit_zero(status.desired_number_scheduled - available);
        status
    }
}

/// Sort key: scheduled pods before unscheduled ones, older before newer. Mirrors
/// podByCreationTimestampAndPhase.
fn pod_order(pod: &Pod) -> impl Ord + use<> {
    (
        node_name(pod).is_empty(),
        pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        pod.metadata.name.clone(),
    )
}

#[cfg(test)]
mod tests;
