//! Scores: which of the nodes that take a pod is best.
//!
//! In: a pod, nodes that take it, the ledger. Out: a number for each node; the highest is best.
//! Holds: weights and scales as upstream: taints 3, node affinity 2, spread 2, neighbours 2, room 1, balance 1.

use std::sync::Arc;

use super::ledger::{Ledger, NodeInfo, Topology};
use super::pod_info::{Effect, Pending, Term};
use super::terms::{Group, term_matches};
use crate::taints::{PREFER_NO_SCHEDULE, find_matching_toleration};

/// The best a node can get for one thing.
const BEST: i64 = 100;

/// How pods of one controller are spread when their pod says nothing: by which label, how much skew is fine.
const SPREAD_DEFAULT: [(&str, i64); 2] = [
    ("topology.kubernetes.io/zone", 3),
    ("kubernetes.io/hostname", 5),
];

/// The score of each of the nodes.
pub(crate) fn scores(ledger: &mut Ledger, pending: &Pending, slots: &[usize]) -> Vec<i64> {
    let neighbours = neighbours(ledger, pending, slots);
    let spread = spread(ledger, pending, slots);
    let nodes: Vec<_> = slots
        .iter()
        .map(|slot| {
            ledger
                .node(*slot)
                .expect("a node that took the pod is there")
        })
        .collect();
    let mut all: Vec<i64> = nodes
        .iter()
        .map(|node| room(pending, node) + balance(pending, node))
        .collect();
    add(&mut all, 3, taints(pending, &nodes));
    add(&mut all, 2, affinity(pending, &nodes));
    add(&mut all, 2, spread);
    add(&mut all, 2, neighbours);
    all
}

fn add(all: &mut [i64], weight: i64, scores: Option<Vec<i64>>) {
    for (sum, score) in all.iter_mut().zip(scores.into_iter().flatten()) {
        *sum += weight * score;
    }
}

/// More for nodes with more left.
fn room(pending: &Pending, node: &NodeInfo) -> i64 {
    let left = |all: i64, used: i64| {
        if all == 0 || used > all {
            0
        } else {
            (all - used) * BEST / all
        }
    };
    let (cpu, memory) = pending.info.weight;
    let (all, used) = (&node.allocatable, node.weight);
    (left(all.cpu, used.0 + cpu) + left(all.memory, used.1 + memory)) / 2
}

/// More for nodes whose resources are used evenly, or become so by this pod.
fn balance(pending: &Pending, node: &NodeInfo) -> i64 {
    let (asked, all, used) = (&pending.info.requests, &node.allocatable, &node.requested);
    if (asked.cpu == 0 && asked.memory == 0) || all.cpu == 0 || all.memory == 0 {
        return 0;
    }
    let even = |cpu: i64, memory: i64| {
        let (cpu, memory) = (
            (cpu as f64 / all.cpu as f64).min(1.0),
            (memory as f64 / all.memory as f64).min(1.0),
        );
        ((1.0 - (cpu - memory).abs() / 2.0) * BEST as f64) as i64
    };
    let (with, without) = (
        even(used.cpu + asked.cpu, used.memory + asked.memory),
        even(used.cpu, used.memory),
    );
    BEST / 2 + (BEST / 2 + with - without) / 2
}

/// Less for nodes that would rather not have it; `None` if none minds.
fn taints(pending: &Pending, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
    let minds = |node: &&NodeInfo| {
        let soft = node
            .taints()
            .iter()
            .filter(|taint| taint.effect == PREFER_NO_SCHEDULE);
        i64::try_from(
            soft.filter(|taint| find_matching_toleration(&pending.tolerations, taint).is_none())
                .count(),
        )
        .unwrap_or(i64::MAX)
    };
    if nodes.iter().all(|node| node.taints().is_empty()) {
        return None;
    }
    let counts: Vec<_> = nodes.iter().map(minds).collect();
    let most = counts.iter().copied().max().filter(|most| *most > 0)?;
    Some(
        counts
            .into_iter()
            .map(|count| BEST - count * BEST / most)
            .collect(),
    )
}

/// More for nodes the pod would like; `None` if it likes none more.
fn affinity(pending: &Pending, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
    if pending.preferred.is_empty() {
        return None;
    }
    let liked = |node: &&NodeInfo| -> i64 {
        let terms = pending
            .preferred
            .iter()
            .filter(|term| term_matches(&term.preference, &node.name, node.labels()));
        terms.map(|term| i64::from(term.weight)).sum()
    };
    let sums: Vec<_> = nodes.iter().map(liked).collect();
    let most = sums.iter().copied().max().filter(|most| *most > 0)?;
    Some(sums.into_iter().map(|sum| sum * BEST / most).collect())
}

/// More for nodes in parts of the cluster with fewer pods like this one; `None` if that does not matter.
fn spread(ledger: &mut Ledger, pending: &Pending, slots: &[usize]) -> Option<Vec<i64>> {
    let wished = wished_spread(pending);
    if wished.is_empty() {
        return None;
    }
    let mut crowds = vec![0.0_f64; slots.len()];
    let mut outside = vec![false; slots.len()];
    let says_so = !pending.spread.is_empty();
    for (term, max_skew) in &wished {
        let topology = ledger.topology(&term.topology);
        let members = topology.sums(ledger.counts(&term.group).iter().copied());
        let weight = ((parts_of(&topology, slots) + 2) as f64).ln();
        for ((crowd, outside), slot) in crowds.iter_mut().zip(&mut outside).zip(slots) {
            match topology.domain_of[*slot] {
                Some(domain) => {
                    *crowd += f64::from(members[domain]) * weight + (max_skew - 1) as f64
                }
                // A node outside of what the pod names itself is no place to spread to; without a zone it may be one.
                None => *outside |= says_so,
            }
        }
    }
    let crowds: Vec<_> = crowds
        .into_iter()
        .map(|crowd| crowd.round() as i64)
        .collect();
    let inside = || {
        crowds
            .iter()
            .zip(&outside)
            .filter(|(_, outside)| !**outside)
            .map(|(crowd, _)| *crowd)
    };
    let (least, most) = (inside().min().unwrap_or(0), inside().max().unwrap_or(0));
    let score = |(crowd, outside): (&i64, &bool)| match (outside, most) {
        (true, _) => 0,
        (false, 0) => BEST,
        (false, most) => BEST * (most + least - crowd) / most,
    };
    Some(crowds.iter().zip(&outside).map(score).collect())
}

/// What the pod wishes for, or what is usual for pods of a controller.
fn wished_spread(pending: &Pending) -> Vec<(Term, i64)> {
    if !pending.spread.is_empty() {
        return pending
            .spread
            .iter()
            .filter(|spread| !spread.demanded)
            .map(|spread| (spread.term.clone(), spread.max_skew))
            .collect();
    }
    let Some(controller) = &pending.info.controller else {
        return Vec::new();
    };
    let group = Arc::new(Group::of_controller(controller));
    SPREAD_DEFAULT
        .map(|(label, skew)| {
            (
                Term {
                    group: group.clone(),
                    topology: label.into(),
                },
                skew,
            )
        })
        .into()
}

/// In how many parts the nodes are.
fn parts_of(topology: &Topology, slots: &[usize]) -> usize {
    let mut seen = vec![false; topology.domains];
    slots
        .iter()
        .filter_map(|slot| topology.domain_of[*slot])
        .for_each(|domain| seen[domain] = true);
    seen.into_iter().filter(|seen| *seen).count()
}

/// More for nodes beside pods that it likes, or that like it; `None` if nobody cares.
fn neighbours(ledger: &mut Ledger, pending: &Pending, slots: &[usize]) -> Option<Vec<i64>> {
    let weighed = |effect: Effect| match effect {
        Effect::Weighs(weight) => Some(weight),
        Effect::Forbids => None,
    };
    let standing = ledger
        .standings()
        .filter_map(|standing| Some((standing, weighed(standing.declared.effect)?)));
    let about_it = standing
        .filter(|(standing, _)| ledger.contains(&standing.declared.term.group, &pending.info));
    let mut opinions: Vec<(Arc<str>, i64, Vec<u32>)> = about_it
        .map(|(standing, weight)| {
            (
                standing.declared.term.topology.clone(),
                weight,
                standing.counts.clone(),
            )
        })
        .collect();
    for (weight, term) in &pending.wishes {
        opinions.push((
            term.topology.clone(),
            *weight,
            ledger.counts(&term.group).to_vec(),
        ));
    }
    if opinions.is_empty() {
        return None;
    }
    let mut sums = vec![0_i64; slots.len()];
    for (label, weight, counts) in opinions {
        let topology = ledger.topology(&label);
        let members = topology.sums(counts.into_iter().map(i64::from));
        for (sum, slot) in sums.iter_mut().zip(slots) {
            *sum += topology.domain_of[*slot].map_or(0, |domain| members[domain] * weight);
        }
    }
    let (least, most) = (sums.iter().copied().min()?, sums.iter().copied().max()?);
    Some(
        sums.into_iter()
            .map(|sum| {
                if most == least {
                    0
                } else {
                    BEST * (sum - least) / (most - least)
                }
            })
            .collect(),
    )
}
