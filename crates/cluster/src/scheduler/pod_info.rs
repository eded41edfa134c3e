//! Scheduling information of pods, extracted from the Pod object once.
//!
//! In: a Pod. Out: [`PodInfo`] for assigned pods, [`PendingPod`] for pods in the scheduling queue.
//! Guarantees: the Pod object itself is not retained; fields that only matter before a pod is
//! assigned are dropped with its [`PendingPod`].

use std::sync::Arc;

use bellerophon::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    NodeSelector, Pod, PodAffinityTerm, PodSpec, PreferredSchedulingTerm, Toleration,
    WeightedPodAffinityTerm,
};

use super::resources::{NonZeroRequests, Resources, non_zero_requests, pod_requests};
use super::selectors::{Labels, PodAttributes, PodSelector};
use crate::host_ports::{HostPort, host_ports};

/// The `schedulerName` of the pods that this scheduler handles.
pub(crate) const SCHEDULER_NAME: &str = "default-scheduler";

/// Weight of a required affinity term of an existing pod when it scores nodes for later pods
/// (upstream `hardPodAffinityWeight`).
const HARD_POD_AFFINITY_WEIGHT: i64 = 1;

/// Selected pods, counted by the value of a node label.
#[derive(Clone, Debug)]
pub(crate) struct TopologyTerm {
    pub(crate) selector: Arc<PodSelector>,
    pub(crate) topology_key: Arc<str>,
}

/// A topology spread constraint.
#[derive(Clone, Debug)]
pub(crate) struct SpreadConstraint {
    pub(crate) term: TopologyTerm,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: usize,
    /// `whenUnsatisfiable: DoNotSchedule`, as opposed to `ScheduleAnyway`.
    pub(crate) do_not_schedule: bool,
    /// `nodeAffinityPolicy: Honor`: nodes that the pod's node affinity excludes do not count.
    pub(crate) honors_node_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: nodes with taints that the pod does not tolerate do not count.
    pub(crate) honors_node_taints: bool,
}

/// An affinity term of an assigned pod that applies symmetrically to pods scheduled later.
#[derive(Clone, Debug)]
pub(crate) struct SymmetricTerm {
    pub(crate) term: TopologyTerm,
    pub(crate) effect: SymmetricEffect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymmetricEffect {
    /// Filter: no selected pod may be scheduled into the same topology domain.
    RequiredAntiAffinity,
    /// Score: selected pods gain this weight in the same topology domain; negative for
    /// anti-affinity.
    Weight(i64),
}

/// The scheduling information of an assigned pod.
#[derive(Clone, Debug)]
pub(crate) struct PodInfo {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) controller_uid: Option<String>,
    pub(crate) priority: i32,
    pub(crate) requests: Resources,
    pub(crate) non_zero_requests: NonZeroRequests,
    pub(crate) host_ports: Vec<HostPort>,
    pub(crate) symmetric_terms: Vec<SymmetricTerm>,
    pub(crate) start_time: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub(crate) terminating: bool,
    /// It is terminating because the scheduler preempted it.
    pub(crate) preempted: bool,
}

/// A pod without a node, with its scheduling constraints.
#[derive(Clone, Debug)]
pub(crate) struct PendingPod {
    pub(crate) info: Arc<PodInfo>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) node_selector: Labels,
    pub(crate) required_node_affinity: Option<NodeSelector>,
    pub(crate) preferred_node_affinity: Vec<PreferredSchedulingTerm>,
    pub(crate) required_affinity: Vec<TopologyTerm>,
    pub(crate) required_anti_affinity: Vec<TopologyTerm>,
    /// Preferred affinity terms with their weights; weights of anti-affinity terms are negative.
    pub(crate) preferred_terms: Vec<(i64, TopologyTerm)>,
    pub(crate) spread_constraints: Vec<SpreadConstraint>,
    /// Names of the persistent volume claims it uses.
    pub(crate) volume_claims: Vec<String>,
    /// It has scheduling gates.
    pub(crate) gated: bool,
    pub(crate) can_preempt: bool,
    pub(crate) nominated_node: Option<String>,
}

impl PodInfo {
    pub(crate) fn of(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let namespace = meta.namespace.clone().unwrap_or_default();
        let labels = meta.labels.clone().unwrap_or_default();
        let status = pod.status.as_ref();
        let terminating = meta.deletion_timestamp.is_some();
        let controller = meta
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        let mut requests = pod_requests(spec);
        // The pod itself counts against the node's `pods` resource.
        requests.pods = 1;
        Self {
            key: ObjectKey::from_object(pod),
            uid: meta.uid.clone().unwrap_or_default(),
            symmetric_terms: symmetric_terms(spec, &namespace, &labels),
            labels,
            controller_uid: controller.map(|owner| owner.uid.clone()),
            priority: spec.priority.unwrap_or_default(),
            requests,
            non_zero_requests: non_zero_requests(spec),
            host_ports: host_ports(spec),
            start_time: status
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0),
            terminating,
            preempted: terminating && is_preemption_target(pod),
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.namespace().unwrap_or_default()
    }

    pub(crate) fn attributes(&self) -> PodAttributes<'_> {
        PodAttributes {
            namespace: self.namespace(),
            labels: &self.labels,
            controller_uid: self.controller_uid.as_deref(),
            terminating: self.terminating,
        }
    }
}

impl PendingPod {
    pub(crate) fn of(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let info = PodInfo::of(pod);
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let affinity = spec.affinity.as_ref();
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let pod_affinity = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let pod_anti_affinity = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let term = |term: &PodAffinityTerm| affinity_term(term, info.namespace(), &info.labels);
        let required =
            |terms: Option<&Vec<PodAffinityTerm>>| terms.into_iter().flatten().map(term).collect();
        let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<_> {
            terms
                .into_iter()
                .flatten()
                .map(|weighted| {
                    let weight = sign * i64::from(weighted.weight);
                    (weight, term(&weighted.pod_affinity_term))
                })
                .collect()
        };
        let mut preferred_terms = preferred(
            pod_affinity.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            }),
            1,
        );
        preferred_terms.extend(preferred(
            pod_anti_affinity.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            }),
            -1,
        ));
        Self {
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            required_node_affinity: node_affinity.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .clone()
            }),
            preferred_node_affinity: node_affinity
                .and_then(|a| {
                    a.preferred_during_scheduling_ignored_during_execution
                        .clone()
                })
                .unwrap_or_default(),
            required_affinity: required(pod_affinity.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            required_anti_affinity: required(pod_anti_affinity.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred_terms,
            spread_constraints: spread_constraints(spec, &info),
            volume_claims: volume_claims(pod, spec),
            gated: spec
                .scheduling_gates
                .as_ref()
                .is_some_and(|gates| !gates.is_empty()),
            can_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            nominated_node: pod
                .status
                .as_ref()
                .and_then(|status| status.nominated_node_name.clone())
                .filter(|name| !name.is_empty()),
            info: Arc::new(info),
        }
    }
}

/// Whether the scheduler marked the pod as a preemption victim.
fn is_preemption_target(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| {
            condition.type_ == "DisruptionTarget"
                && condition.reason.as_deref() == Some("PreemptionByScheduler")
        })
}

fn affinity_term(term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> TopologyTerm {
    TopologyTerm {
        selector: Arc::new(PodSelector::from_affinity_term(term, namespace, labels)),
        topology_key: term.topology_key.as_str().into(),
    }
}

/// The affinity terms of a pod that apply to pods scheduled after it.
fn symmetric_terms(spec: &PodSpec, namespace: &str, labels: &Labels) -> Vec<SymmetricTerm> {
    let Some(affinity) = &spec.affinity else {
        return Vec::new();
    };
    let symmetric = |term: &PodAffinityTerm, effect| SymmetricTerm {
        term: affinity_term(term, namespace, labels),
        effect,
    };
    let mut terms = Vec::new();
    if let Some(pod_affinity) = &affinity.pod_affinity {
        terms.extend(
            pod_affinity
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|term| symmetric(term, SymmetricEffect::Weight(HARD_POD_AFFINITY_WEIGHT))),
        );
        let preferred = pod_affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        terms.extend(preferred.map(|weighted| {
            symmetric(
                &weighted.pod_affinity_term,
                SymmetricEffect::Weight(weighted.weight.into()),
            )
        }));
    }
    if let Some(pod_anti_affinity) = &affinity.pod_anti_affinity {
        terms.extend(
            pod_anti_affinity
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|term| symmetric(term, SymmetricEffect::RequiredAntiAffinity)),
        );
        let preferred = pod_anti_affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        terms.extend(preferred.map(|weighted| {
            symmetric(
                &weighted.pod_affinity_term,
                SymmetricEffect::Weight(-i64::from(weighted.weight)),
            )
        }));
    }
    terms
}

fn spread_constraints(spec: &PodSpec, info: &PodInfo) -> Vec<SpreadConstraint> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    let honors = |policy: Option<&str>, default: &str| policy.unwrap_or(default) == "Honor";
    constraints
        .map(|constraint| {
            let selector = PodSelector::from_spread_constraint(
                constraint.label_selector.as_ref(),
                constraint.match_label_keys.as_deref().unwrap_or_default(),
                info.namespace(),
                &info.labels,
            );
            SpreadConstraint {
                term: TopologyTerm {
                    selector: Arc::new(selector),
                    topology_key: constraint.topology_key.as_str().into(),
                },
                max_skew: constraint.max_skew.into(),
                min_domains: constraint
                    .min_domains
                    .and_then(|domains| usize::try_from(domains).ok())
                    .unwrap_or(1),
                do_not_schedule: constraint.when_unsatisfiable == "DoNotSchedule",
                honors_node_affinity: honors(constraint.node_affinity_policy.as_deref(), "Honor"),
                honors_node_taints: honors(constraint.node_taints_policy.as_deref(), "Ignore"),
            }
        })
        .collect()
}

/// The names of the persistent volume claims of a pod. The claim of a generic ephemeral volume is
/// named after pod and volume.
fn volume_claims(pod: &Pod, spec: &PodSpec) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(
            |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name.clone()),
                (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
                (None, None) => None,
            },
        )
        .collect()
}
