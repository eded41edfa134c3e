//! The plan for one DaemonSet: on which nodes pods come and go, and what its status says.
//!
//! In: the set, the nodes with their places, its pods by node, the time. Out: pods to create and delete, notes, a status.
//! Holds: no node is left with two pods of the present template; an update takes at most `maxUnavailable` pods away, or
//! brings at most `maxSurge` more, and never begins while pods are still being set right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::place::{Place, is_updated};
use crate::workloads::note::{normal, warning};
use crate::workloads::pods::{
    Phase, is_available, is_deleting, is_ready, next_available, node_name, phase, seconds,
};
use crate::workloads::share::{Round, share};
use bellerophon::Note;

/// The pods of a set by the node they are on or meant for.
pub(super) type ByNode = BTreeMap<String, Vec<Arc<Pod>>>;

/// What a plan is made from.
pub(super) struct Facts<'a> {
    pub(super) set: &'a DaemonSet,
    /// The hash of the present template.
    pub(super) hash: &'a str,
    /// Every node by name.
    pub(super) places: &'a BTreeMap<String, Place>,
    pub(super) pods: &'a ByNode,
    pub(super) now: Timestamp,
}

/// What is to happen.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) notes: Vec<Note>,
    /// When to look again even if nothing changes.
    pub(super) next: Option<Duration>,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty()
    }

    fn look_again(&mut self, after: Duration) {
        self.next = Some(self.next.map_or(after, |next| next.min(after)));
    }
}

/// Makes the plan. `hold_back` says how long a failed pod of a node must wait before it is replaced, if at all.
pub(super) fn plan(facts: &Facts<'_>, mut hold_back: impl FnMut(&str) -> Option<Duration>) -> Plan {
    let mut plan = Plan::default();
    for (node, place) in facts.places {
        let pods = facts.pods.get(node).map(Vec::as_slice).unwrap_or_default();
        match place {
            Place::Run if pods.is_empty() => plan.create.push(node.clone()),
            Place::Run | Place::Stay => facts.tend(node, *place, pods, &mut plan, &mut hold_back),
            Place::No => plan
                .delete
                .extend(pods.iter().filter(|pod| !is_deleting(pod)).cloned()),
        }
    }
    // Nobody else deletes pods that wait for a node that is gone.
    let homeless = facts
        .pods
        .iter()
        .filter(|(node, _)| !facts.places.contains_key(*node))
        .flat_map(|(_, pods)| pods);
    plan.delete.extend(
        homeless
            .filter(|pod| node_name(pod).is_empty() && !is_deleting(pod))
            .cloned(),
    );
    if plan.is_empty() && facts.is_rolling() {
        facts.roll(&mut plan);
    }
    if let Some(wait) = next_available(
        facts.pods.values().flatten().map(|pod| &**pod),
        facts.min_ready(),
        facts.now,
    ) {
        plan.look_again(wait);
    }
    plan
}

/// At most one pod of the present template and one of another, on one node.
struct Pair<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

impl Facts<'_> {
    fn min_ready(&self) -> Duration {
        seconds(
            self.set
                .spec
                .as_ref()
                .and_then(|spec| spec.min_ready_seconds),
        )
    }

    fn is_rolling(&self) -> bool {
        let strategy = self
            .set
            .spec
            .as_ref()
            .and_then(|spec| spec.update_strategy.as_ref());
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    /// How many pods more and fewer there may be than `desired`; percentages count up.
    fn leeway(&self, desired: usize) -> (usize, usize) {
        let strategy = self
            .set
            .spec
            .as_ref()
            .and_then(|spec| spec.update_strategy.as_ref())
            .filter(|_| self.is_rolling());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let total = i32::try_from(desired).unwrap_or(i32::MAX);
        let count = |of| usize::try_from(share(of, total, Round::Up)).unwrap_or(0);
        let surge = count(rolling.and_then(|rolling| rolling.max_surge.as_ref()));
        let unavailable = count(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()));
        if surge == 0 && unavailable == 0 {
            (0, 1)
        } else {
            (surge, unavailable)
        }
    }

    fn surges(&self) -> bool {
        self.leeway(1).0 > 0
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        is_updated(self.set, pod, self.hash)
    }

    /// Sets the pods of one node right: none that ended, one that runs, two while one takes over from the other.
    fn tend(
        &self,
        node: &str,
        place: Place,
        pods: &[Arc<Pod>],
        plan: &mut Plan,
        hold_back: &mut impl FnMut(&str) -> Option<Duration>,
    ) {
        let mut running = Vec::new();
        for pod in pods.iter().filter(|pod| !is_deleting(pod)) {
            let which = || {
                format!(
                    "daemon pod {}/{} on node {node}",
                    pod.namespace().unwrap_or_default(),
                    pod.name_any()
                )
            };
            match phase(pod) {
                // The kubelet may refuse the next one as well: replacing it again and again would be a fight.
                Phase::Failed => match hold_back(node) {
                    Some(wait) => plan.look_again(wait),
                    None => {
                        plan.notes.push(warning(
                            "FailedDaemonPod",
                            format!("Found failed {}, will try to kill it", which()),
                        ));
                        plan.delete.push(pod.clone());
                    }
                },
                Phase::Succeeded => {
                    plan.notes.push(normal(
                        "SucceededDaemonPod",
                        format!("Found succeeded {}, will try to delete it", which()),
                    ));
                    plan.delete.push(pod.clone());
                }
                _ => running.push(pod.clone()),
            }
        }
        running.sort_by_key(|pod| seniority(pod));
        if !self.surges() {
            plan.delete.extend(running.into_iter().skip(1));
        } else if running.is_empty() {
            plan.create
                .extend((place == Place::Run).then(|| node.to_owned()));
        } else {
            self.hand_over(running, plan);
        }
    }

    /// Keeps the oldest pod of the present template, and the oldest other one as long as it is needed.
    fn hand_over(&self, running: Vec<Arc<Pod>>, plan: &mut Plan) {
        let (new, old): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|pod| self.is_updated(pod));
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!is_ready(old) || self.is_available(new))
        {
            plan.delete.push(old.clone());
        }
        plan.delete
            .extend(new.into_iter().skip(1).chain(old.into_iter().skip(1)));
    }

    /// One step of an update.
    fn roll(&self, plan: &mut Plan) {
        let desired = self
            .places
            .values()
            .filter(|place| **place == Place::Run)
            .count();
        match self.leeway(desired) {
            (0, max_unavailable) => self.roll_by_replacing(plan, max_unavailable),
            (max_surge, _) => self.roll_by_surging(plan, max_surge, desired),
        }
    }

    /// The pods of a node, of the present template and of another; `None` if there are more than one of either.
    fn pair(&self, node: &str) -> Option<Pair<'_>> {
        let pods = self
            .pods
            .get(node)
            .into_iter()
            .flatten()
            .filter(|pod| !is_deleting(pod));
        let (new, old): (Vec<_>, Vec<_>) = pods.partition(|pod| self.is_updated(pod));
        (new.len() <= 1 && old.len() <= 1).then(|| Pair {
            new: new.first().copied(),
            old: old.first().copied(),
        })
    }

    /// Every node that has pods or is to have one.
    fn nodes(&self) -> impl Iterator<Item = &str> {
        let wanted = self
            .places
            .iter()
            .filter(|(node, place)| **place == Place::Run && !self.pods.contains_key(*node));
        self.pods
            .keys()
            .map(String::as_str)
            .chain(wanted.map(|(node, _)| node.as_str()))
    }

    /// Takes old pods away, those that are not available at once, others as far as the limit allows.
    fn roll_by_replacing(&self, plan: &mut Plan, max_unavailable: usize) {
        let mut unavailable = 0;
        let mut candidates = Vec::new();
        for node in self.nodes() {
            match self.pair(node) {
                Some(Pair {
                    new: Some(new),
                    old: None,
                }) => unavailable += usize::from(!self.is_available(new)),
                Some(Pair {
                    new: None,
                    old: Some(old),
                }) if self.is_available(old) => candidates.push(old.clone()),
                Some(Pair {
                    new: None,
                    old: Some(old),
                }) => {
                    plan.delete.push(old.clone());
                    unavailable += 1;
                }
                _ => unavailable += 1,
            }
        }
        plan.delete.extend(
            candidates
                .into_iter()
                .take(max_unavailable.saturating_sub(unavailable)),
        );
    }

    /// Brings new pods beside old ones, which go when the new ones are available.
    fn roll_by_surging(&self, plan: &mut Plan, max_surge: usize, desired: usize) {
        let mut surging = 0;
        let mut available = 0;
        let mut candidates = Vec::new();
        let mut misplaced = Vec::new();
        for node in self.nodes() {
            let Some(Pair { new, old }) = self.pair(node) else {
                surging += 1;
                continue;
            };
            available += usize::from(old.or(new).is_some_and(|pod| self.is_available(pod)));
            let runs = self.places.get(node) == Some(&Place::Run);
            match (new, old) {
                (Some(new), Some(old)) if self.is_available(new) => plan.delete.push(old.clone()),
                (Some(_), Some(_)) => surging += 1,
                (None, Some(old)) if !self.is_available(old) && runs => {
                    plan.create.push(node.to_owned())
                }
                (None, Some(old)) if !self.is_available(old) => plan.delete.push(old.clone()),
                (None, Some(_)) if runs => candidates.push(node.to_owned()),
                (None, Some(old)) => misplaced.push(old.clone()),
                (_, None) => {}
            }
        }
        // Whoever surges wants all to be available: a pod where none should be goes when another one serves in its place.
        plan.delete.extend(
            misplaced
                .into_iter()
                .take(available.saturating_sub(desired)),
        );
        plan.create.extend(
            candidates
                .into_iter()
                .take(max_surge.saturating_sub(surging)),
        );
    }

    /// The status that follows.
    pub(super) fn status(&self) -> DaemonSetStatus {
        let was = self.set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: was.collision_count,
            conditions: was.conditions,
            ..DaemonSetStatus::default()
        };
        let mut updated = 0;
        let mut available = 0;
        for (node, place) in self.places {
            let pod = self
                .pods
                .get(node)
                .and_then(|pods| pods.iter().min_by_key(|pod| seniority(pod)));
            match (place, pod) {
                (Place::Run, pod) => {
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
        let some = |count: i32| (count != 0).then_some(count);
        status.updated_number_scheduled = some(updated);
        status.number_available = some(available);
        status.number_unavailable = some(status.desired_number_scheduled - available);
        status
    }
}

/// Bound pods come before those that wait, older ones before younger.
fn seniority(pod: &Pod) -> impl Ord + use<> {
    (
        node_name(pod).is_empty(),
        pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        pod.metadata.name.clone(),
    )
}

#[cfg(test)]
mod tests;
