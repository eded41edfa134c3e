//! Trial: what all nodes must be asked for one pod, worked out once.
//!
//! In: a pod without a node, the ledger. Out: whether a node takes it.
//! Holds: asking a node allocates nothing and looks at no single pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;

use super::ledger::{Ledger, NodeInfo, Topology};
use super::pod_info::{Effect, Pending, Spread, Term};
use super::refusal::{Refusal, is_short};
use super::terms::node_matches;
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, find_matching_toleration};

/// Members of a group by part of the cluster.
struct Place {
    topology: Arc<Topology>,
    members: Vec<u32>,
}

impl Place {
    fn of(ledger: &mut Ledger, term: &Term) -> Self {
        let topology = ledger.topology(&term.topology);
        let members = topology.sums(ledger.counts(&term.group).iter().copied());
        Self { topology, members }
    }

    /// Members in the same part as a slot; `None` if that is in none.
    fn beside(&self, slot: usize) -> Option<u32> {
        self.topology.domain_of[slot].map(|domain| self.members[domain])
    }
}

struct Balance {
    place: Place,
    /// The most members a part may have for one more to be fine there.
    members_max: i64,
}

/// A pod's questions to every node.
pub(crate) struct Trial<'a> {
    pending: &'a Pending,
    affinity: Vec<Place>,
    /// Nobody matches the pod's affinity, and the pod itself does: it may be the first.
    is_first: bool,
    anti_affinity: Vec<Place>,
    forbidden: Vec<Place>,
    balances: Vec<Balance>,
    /// Where its volumes can be reached.
    volumes: &'a [NodeSelector],
}

impl<'a> Trial<'a> {
    pub(crate) fn new(
        ledger: &mut Ledger,
        pending: &'a Pending,
        volumes: &'a [NodeSelector],
    ) -> Self {
        let affinity: Vec<_> = pending
            .affinity
            .iter()
            .map(|term| Place::of(ledger, term))
            .collect();
        let alone = affinity
            .iter()
            .all(|place| place.members.iter().all(|members| *members == 0));
        let is_first = alone
            && pending
                .affinity
                .iter()
                .all(|term| ledger.contains(&term.group, &pending.info));
        let anti_affinity = pending
            .anti_affinity
            .iter()
            .map(|term| Place::of(ledger, term))
            .collect();
        let forbidden = forbidden(ledger, pending);
        let balances = balances(ledger, pending);
        Self {
            pending,
            affinity,
            is_first,
            anti_affinity,
            forbidden,
            balances,
            volumes,
        }
    }

    /// Whether its answers depend on pods beyond the node that is asked.
    pub(crate) fn looks_beyond(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.forbidden.is_empty()
            && self.balances.is_empty())
    }

    /// Why a node does not take the pod; [`Refusal::NONE`] if it does. The first kind of reason counts.
    pub(crate) fn ask(&self, slot: usize, node: &NodeInfo) -> Refusal {
        let checks = [
            Self::schedulable,
            Self::taints,
            Self::node_affinity,
            Self::ports,
            Self::room,
            Self::volumes,
        ];
        for check in checks {
            let refusal = check(self, node);
            if !refusal.is_none() {
                return refusal;
            }
        }
        let spread = self.spread(slot);
        if spread.is_none() {
            self.neighbours(slot)
        } else {
            spread
        }
    }

    fn schedulable(&self, node: &NodeInfo) -> Refusal {
        let taint = || k8s_openapi::api::core::v1::Taint {
            key: UNSCHEDULABLE.into(),
            effect: NO_SCHEDULE.into(),
            ..Default::default()
        };
        let refuses = node.is_unschedulable()
            && find_matching_toleration(&self.pending.tolerations, &taint()).is_none();
        if refuses {
            Refusal::UNSCHEDULABLE
        } else {
            Refusal::NONE
        }
    }

    fn taints(&self, node: &NodeInfo) -> Refusal {
        if tolerates_all(self.pending, node) {
            Refusal::NONE
        } else {
            Refusal::TAINTS
        }
    }

    fn node_affinity(&self, node: &NodeInfo) -> Refusal {
        if matches_node(self.pending, node) {
            Refusal::NONE
        } else {
            Refusal::NODE_AFFINITY
        }
    }

    fn ports(&self, node: &NodeInfo) -> Refusal {
        let taken = self
            .pending
            .info
            .ports
            .iter()
            .any(|port| node.ports.iter().any(|other| other.collides(port)));
        if taken { Refusal::PORTS } else { Refusal::NONE }
    }

    fn room(&self, node: &NodeInfo) -> Refusal {
        let (asked, all, used) = (
            &self.pending.info.requests,
            &node.allocatable,
            &node.requested,
        );
        let mut refusal = Refusal::NONE;
        if used.pods + 1 > all.pods {
            refusal = refusal.and(Refusal::TOO_MANY_PODS);
        }
        for (asked, all, used, reason) in [
            (asked.cpu, all.cpu, used.cpu, Refusal::CPU),
            (asked.memory, all.memory, used.memory, Refusal::MEMORY),
            (
                asked.ephemeral,
                all.ephemeral,
                used.ephemeral,
                Refusal::EPHEMERAL,
            ),
        ] {
            if asked > 0 && asked > all - used {
                refusal = refusal.and(reason).and(if asked > all {
                    Refusal::OVERSIZED
                } else {
                    Refusal::NONE
                });
            }
        }
        for (name, asked) in &asked.extended {
            if is_short(node, name, *asked) {
                let oversized = if *asked > all.extended(name) {
                    Refusal::OVERSIZED
                } else {
                    Refusal::NONE
                };
                refusal = refusal.and(Refusal::EXTENDED).and(oversized);
            }
        }
        refusal
    }

    fn volumes(&self, node: &NodeInfo) -> Refusal {
        let reachable = self
            .volumes
            .iter()
            .all(|selector| node_matches(selector, &node.name, node.labels()));
        if reachable {
            Refusal::NONE
        } else {
            Refusal::VOLUME_AFFINITY
        }
    }

    fn spread(&self, slot: usize) -> Refusal {
        for balance in &self.balances {
            match balance.place.beside(slot) {
                None => return Refusal::SPREAD_LABEL,
                Some(members) if i64::from(members) > balance.members_max => {
                    return Refusal::SPREAD;
                }
                Some(_) => {}
            }
        }
        Refusal::NONE
    }

    fn neighbours(&self, slot: usize) -> Refusal {
        let beside = |place: &Place| place.beside(slot);
        let welcome = self
            .affinity
            .iter()
            .all(|place| beside(place).is_some_and(|members| members > 0 || self.is_first));
        if !welcome {
            return Refusal::AFFINITY;
        }
        if self
            .anti_affinity
            .iter()
            .any(|place| beside(place).is_some_and(|members| members > 0))
        {
            return Refusal::ANTI_AFFINITY;
        }
        if self
            .forbidden
            .iter()
            .any(|place| beside(place).is_some_and(|members| members > 0))
        {
            return Refusal::EXISTING_ANTI_AFFINITY;
        }
        Refusal::NONE
    }
}

/// Whether a pod bears everything that keeps pods off a node.
pub(crate) fn tolerates_all(pending: &Pending, node: &NodeInfo) -> bool {
    let keeps_off = |effect: &str| effect == NO_SCHEDULE || effect == NO_EXECUTE;
    node.taints()
        .iter()
        .filter(|taint| keeps_off(&taint.effect))
        .all(|taint| find_matching_toleration(&pending.tolerations, taint).is_some())
}

/// Whether a node is one of those the pod names.
pub(crate) fn matches_node(pending: &Pending, node: &NodeInfo) -> bool {
    let labels = node.labels();
    pending
        .node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && pending
            .required
            .as_ref()
            .is_none_or(|selector| node_matches(selector, &node.name, labels))
}

/// Where pods that are there forbid this one.
fn forbidden(ledger: &mut Ledger, pending: &Pending) -> Vec<Place> {
    let forbid = ledger
        .standings()
        .filter(|standing| standing.declared.effect == Effect::Forbids);
    let forbid =
        forbid.filter(|standing| ledger.contains(&standing.declared.term.group, &pending.info));
    let found: Vec<_> = forbid
        .map(|standing| {
            (
                standing.declared.term.topology.clone(),
                standing.counts.clone(),
            )
        })
        .collect();
    let place = |(label, counts): (Arc<str>, Vec<u32>)| {
        let topology = ledger.topology(&label);
        let members = topology.sums(counts.into_iter());
        Place { topology, members }
    };
    found.into_iter().map(place).collect()
}

fn balances(ledger: &mut Ledger, pending: &Pending) -> Vec<Balance> {
    let demanded: Vec<_> = pending
        .spread
        .iter()
        .filter(|spread| spread.demanded)
        .collect();
    let topologies: Vec<_> = demanded
        .iter()
        .map(|spread| ledger.topology(&spread.term.topology))
        .collect();
    let balance = |(spread, topology): (&&Spread, &Arc<Topology>)| {
        let counts_there = |slot: usize| {
            ledger.node(slot).is_some_and(|node| {
                (!spread.honours_affinity || matches_node(pending, node))
                    && (!spread.honours_taints || tolerates_all(pending, node))
            }) && topologies
                .iter()
                .all(|topology| topology.domain_of[slot].is_some())
        };
        let eligible: Vec<bool> = (0..ledger.slots()).map(counts_there).collect();
        let counts = ledger.counts(&spread.term.group).to_vec();
        let members = topology.sums(
            counts
                .iter()
                .zip(&eligible)
                .map(|(count, eligible)| if *eligible { *count } else { 0 }),
        );
        let reachable = topology.sums(eligible.iter().map(|eligible| u32::from(*eligible)));
        let parts = || {
            members
                .iter()
                .zip(&reachable)
                .filter(|(_, nodes)| **nodes > 0)
                .map(|(members, _)| i64::from(*members))
        };
        let fewest = if parts().count() < spread.min_domains {
            0
        } else {
            parts().min().unwrap_or(0)
        };
        let itself = i64::from(ledger.contains(&spread.term.group, &pending.info));
        Balance {
            place: Place {
                topology: topology.clone(),
                members,
            },
            members_max: fewest + spread.max_skew - itself,
        }
    };
    demanded.iter().zip(&topologies).map(balance).collect()
}
