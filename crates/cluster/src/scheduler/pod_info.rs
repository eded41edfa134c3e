//! Pod info: what the scheduler needs of a pod, read once.
//!
//! In: a Pod. Out: numbers, terms and ports; the object itself is let go.
//! Holds: what only matters while a pod has no node is dropped once it has one.

use std::sync::Arc;

use bellerophon::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    NodeSelector, Pod, PodAffinityTerm, PodSpec, PreferredSchedulingTerm, Toleration,
    WeightedPodAffinityTerm,
};

use super::resources::{Resources, requests, weight};
use super::terms::{Candidate, Group, Labels};

/// The scheduler whose pods these are.
pub(crate) const SCHEDULER: &str = "default-scheduler";

/// A port of the node that a pod wants for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    protocol: String,
    ip: String,
    port: i32,
}

impl HostPort {
    /// Whether both cannot be on one node.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        let anywhere = |ip: &str| matches!(ip, "" | "0.0.0.0" | "::");
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || anywhere(&self.ip) || anywhere(&other.ip))
    }
}

/// Pods, and the part of the cluster that counts as one place.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) group: Arc<Group>,
    pub(crate) topology: Arc<str>,
}

/// How pods of a group are to be spread.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) term: Term,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: usize,
    /// Whether it is a demand, or only a wish.
    pub(crate) demanded: bool,
    /// Whether nodes that the pod's node affinity excludes do not count.
    pub(crate) honours_affinity: bool,
    /// Whether nodes with taints that the pod does not bear do not count.
    pub(crate) honours_taints: bool,
}

/// What a pod says about where other pods may be, or where it wants to be with them.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) term: Term,
    pub(crate) effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No pod of the group may come into the same place.
    Forbids,
    /// Pods of the group are welcome in the same place, or unwelcome if negative.
    Weighs(i64),
}

/// What matters of a pod once it has a node.
#[derive(Clone, Debug)]
pub(crate) struct PodInfo {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) controller: Option<String>,
    pub(crate) priority: i32,
    pub(crate) requests: Resources,
    /// Milli-CPUs and bytes it counts for in scores.
    pub(crate) weight: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
    pub(crate) declared: Vec<Declared>,
    pub(crate) started: Option<Timestamp>,
    /// It is being deleted.
    pub(crate) going: bool,
    /// It is being deleted to make room for another.
    pub(crate) preempted: bool,
}

/// A pod without a node, and everything it asks of one.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) info: Arc<PodInfo>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) node_selector: Labels,
    pub(crate) required: Option<NodeSelector>,
    pub(crate) preferred: Vec<PreferredSchedulingTerm>,
    pub(crate) affinity: Vec<Term>,
    pub(crate) anti_affinity: Vec<Term>,
    pub(crate) wishes: Vec<(i64, Term)>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) claims: Vec<String>,
    pub(crate) gated: bool,
    pub(crate) may_preempt: bool,
    pub(crate) nominated: Option<String>,
}

impl PodInfo {
    pub(crate) fn of(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let (meta, spec) = (&pod.metadata, pod.spec.as_ref().unwrap_or(&empty));
        let (namespace, labels) = (
            meta.namespace.clone().unwrap_or_default(),
            meta.labels.clone().unwrap_or_default(),
        );
        let status = pod.status.as_ref();
        let disrupted = |pod: &Pod| {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten();
            conditions.into_iter().any(|c| {
                c.type_ == "DisruptionTarget"
                    && c.reason.as_deref() == Some("PreemptionByScheduler")
            })
        };
        let controller = meta
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        let mut requests = requests(spec);
        requests.pods = 1;
        Self {
            key: ObjectKey::of(pod),
            uid: meta.uid.clone().unwrap_or_default(),
            declared: declared(spec, &namespace, &labels),
            labels,
            controller: controller.map(|owner| owner.uid.clone()),
            priority: spec.priority.unwrap_or_default(),
            requests,
            weight: weight(spec),
            ports: ports(spec),
            started: status
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0),
            going: meta.deletion_timestamp.is_some(),
            preempted: meta.deletion_timestamp.is_some() && disrupted(pod),
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.namespace().unwrap_or_default()
    }

    pub(crate) fn candidate(&self) -> Candidate<'_> {
        Candidate {
            namespace: self.namespace(),
            labels: &self.labels,
            controller: self.controller.as_deref(),
            going: self.going,
        }
    }
}

impl Pending {
    pub(crate) fn of(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let (info, spec) = (PodInfo::of(pod), pod.spec.as_ref().unwrap_or(&empty));
        let affinity = spec.affinity.as_ref();
        let of_node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let to_pods = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let from_pods = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let term = |term: &PodAffinityTerm| self::term(term, info.namespace(), &info.labels);
        let terms =
            |terms: Option<&Vec<PodAffinityTerm>>| terms.into_iter().flatten().map(term).collect();
        let wish = |wishes: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<_> {
            wishes
                .into_iter()
                .flatten()
                .map(|wish| (sign * i64::from(wish.weight), term(&wish.pod_affinity_term)))
                .collect()
        };
        let mut wishes = wish(
            to_pods.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            }),
            1,
        );
        wishes.extend(wish(
            from_pods.and_then(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            }),
            -1,
        ));
        Self {
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            required: of_node.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .clone()
            }),
            preferred: of_node
                .and_then(|a| {
                    a.preferred_during_scheduling_ignored_during_execution
                        .clone()
                })
                .unwrap_or_default(),
            affinity: terms(to_pods.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            anti_affinity: terms(from_pods.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            wishes,
            spread: spread(spec, &info),
            claims: claims(pod, spec),
            gated: spec
                .scheduling_gates
                .as_ref()
                .is_some_and(|gates| !gates.is_empty()),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            nominated: pod
                .status
                .as_ref()
                .and_then(|status| status.nominated_node_name.clone())
                .filter(|name| !name.is_empty()),
            info: Arc::new(info),
        }
    }
}

fn term(term: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Term {
    Term {
        group: Arc::new(Group::of_term(term, namespace, labels)),
        topology: term.topology_key.as_str().into(),
    }
}

/// What a pod that has a node says about others.
fn declared(spec: &PodSpec, namespace: &str, labels: &Labels) -> Vec<Declared> {
    let Some(affinity) = &spec.affinity else {
        return Vec::new();
    };
    let declare = |one: &PodAffinityTerm, effect| Declared {
        term: term(one, namespace, labels),
        effect,
    };
    let mut all = Vec::new();
    if let Some(pods) = &affinity.pod_affinity {
        // A pod that must be with others weighs a little for those who come later.
        all.extend(
            pods.required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|one| declare(one, Effect::Weighs(1))),
        );
        let wished = pods
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        all.extend(
            wished.map(|wish| declare(&wish.pod_affinity_term, Effect::Weighs(wish.weight.into()))),
        );
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        all.extend(
            pods.required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|one| declare(one, Effect::Forbids)),
        );
        let wished = pods
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        all.extend(wished.map(|wish| {
            declare(
                &wish.pod_affinity_term,
                Effect::Weighs(-i64::from(wish.weight)),
            )
        }));
    }
    all
}

fn spread(spec: &PodSpec, info: &PodInfo) -> Vec<Spread> {
    let constraints = spec.topology_spread_constraints.iter().flatten();
    let honours = |policy: Option<&str>, default: &str| policy.unwrap_or(default) == "Honor";
    constraints
        .map(|constraint| {
            let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
            let group = Group::of_spread(
                constraint.label_selector.as_ref(),
                keys,
                info.namespace(),
                &info.labels,
            );
            Spread {
                term: Term {
                    group: Arc::new(group),
                    topology: constraint.topology_key.as_str().into(),
                },
                max_skew: constraint.max_skew.into(),
                min_domains: constraint
                    .min_domains
                    .and_then(|domains| usize::try_from(domains).ok())
                    .unwrap_or(1),
                demanded: constraint.when_unsatisfiable == "DoNotSchedule",
                honours_affinity: honours(constraint.node_affinity_policy.as_deref(), "Honor"),
                honours_taints: honours(constraint.node_taints_policy.as_deref(), "Ignore"),
            }
        })
        .collect()
}

fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let containers = spec.containers.iter().chain(
        spec.init_containers
            .iter()
            .flatten()
            .filter(|container| container.restart_policy.as_deref() == Some("Always")),
    );
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some(HostPort {
                protocol,
                ip: port.host_ip.clone().unwrap_or_default(),
                port: number,
            })
        })
        .collect()
}

/// The names of the volume claims a pod needs.
fn claims(pod: &Pod, spec: &PodSpec) -> Vec<String> {
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
