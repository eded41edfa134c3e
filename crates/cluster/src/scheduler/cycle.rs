//! Cycle: where one pod goes, decided on the ledger as it is now.
//!
//! In: a pod without a node, the ledger, what its volumes and the disruption budgets demand. Out: a node; or why there is
//! none, and whom to end to make room.
//! Holds: no more nodes are asked than needed to choose well; equal nodes are chosen from by the seed.

use std::sync::Arc;

use bellerophon::Entropy;
use k8s_openapi::api::core::v1::NodeSelector;

use super::budget::Budgets;
use super::ledger::Ledger;
use super::pod_info::{Pending, PodInfo};
use super::preempt;
use super::refusal::{Refusal, histogram};
use super::score::scores;
use super::trial::Trial;

/// With fewer nodes than this all are asked, and never fewer than this are wanted.
const WANTED_MIN: usize = 100;
/// Never fewer than this share of the nodes are wanted, in percent.
const WANTED_PERCENT_MIN: usize = 5;

/// What a pod depends on beside nodes and pods.
pub(crate) struct Circumstances<'a> {
    /// Where its volumes can be reached, or why they cannot.
    pub(crate) volumes: Result<Vec<NodeSelector>, String>,
    pub(crate) budgets: &'a dyn Budgets,
    pub(crate) entropy: &'a Entropy,
}

/// What becomes of a pod.
#[derive(Debug)]
pub(crate) enum Decision {
    Bind { node: String },
    Refuse(Refused),
}

/// Why a pod has no node.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) message: String,
    /// What stands in the way on one node or another.
    pub(crate) blockers: Refusal,
    pub(crate) preemption: Option<Preemption>,
}

impl Refused {
    /// Whether the node that the pod waits for is still worth waiting for: its victims are on their way out.
    pub(crate) fn keeps_nomination(&self) -> bool {
        self.message.ends_with(preempt::VICTIMS_ARE_GOING)
    }
}

/// Whom to end, and where, to make room.
#[derive(Debug)]
pub(crate) struct Preemption {
    pub(crate) node: String,
    pub(crate) victims: Vec<Arc<PodInfo>>,
}

/// How many nodes that take the pod are enough to choose from.
fn wanted(nodes: usize) -> usize {
    let percent = 50_usize.saturating_sub(nodes / 125).max(WANTED_PERCENT_MIN);
    if nodes < WANTED_MIN {
        nodes
    } else {
        (nodes * percent / 100).max(WANTED_MIN)
    }
}

/// Decides where a pod goes.
pub(crate) fn decide(
    ledger: &mut Ledger,
    pending: &Pending,
    circumstances: &Circumstances<'_>,
) -> Decision {
    if ledger.len() == 0 {
        let message = "no nodes available to schedule pods".to_owned();
        return Decision::Refuse(Refused {
            message,
            blockers: Refusal::ANY,
            preemption: None,
        });
    }
    let volumes = match &circumstances.volumes {
        Ok(volumes) => volumes,
        Err(why) => return unready_volumes(ledger.len(), why),
    };
    let trial = Trial::new(ledger, pending, volumes);
    if let Some(slot) = pending
        .nominated
        .as_deref()
        .and_then(|name| ledger.slot_of(name))
        && ask(ledger, &trial, pending, volumes, slot).is_none()
    {
        return bind(ledger, slot);
    }
    let (feasible, refusals) = search(ledger, &trial, pending, volumes);
    match feasible.as_slice() {
        [] => {
            let blockers = refusals
                .iter()
                .fold(Refusal::NONE, |all, (_, refusal)| all.and(*refusal));
            let sentences = refusals.iter().flat_map(|(slot, refusal)| {
                ledger
                    .node(*slot)
                    .map(|node| refusal.sentences(&pending.info, node))
                    .unwrap_or_default()
            });
            let mut message = histogram(ledger.len(), sentences);
            let preempted =
                preempt::preempt(ledger, &trial, pending, volumes, &refusals, circumstances);
            let preemption = preempted.unwrap_or_else(|why| {
                message.push_str(&format!(" preemption: {why}"));
                None
            });
            Decision::Refuse(Refused {
                message,
                blockers,
                preemption,
            })
        }
        [only] => bind(ledger, *only),
        several => {
            let scores = scores(ledger, pending, several);
            bind(ledger, best(several, &scores, circumstances.entropy))
        }
    }
}

fn unready_volumes(nodes: usize, why: &str) -> Decision {
    let unhelpful = histogram(nodes, (0..nodes).map(|_| preempt::UNHELPFUL.to_owned()));
    let message = format!("0/{nodes} nodes are available: {why}. preemption: {unhelpful}");
    Decision::Refuse(Refused {
        message,
        blockers: Refusal::VOLUMES,
        preemption: None,
    })
}

fn bind(ledger: &Ledger, slot: usize) -> Decision {
    Decision::Bind {
        node: ledger
            .node(slot)
            .map(|node| node.name.clone())
            .unwrap_or_default(),
    }
}

/// Asks nodes in turn until enough take the pod; returns those, and why the others do not.
fn search(
    ledger: &mut Ledger,
    trial: &Trial<'_>,
    pending: &Pending,
    volumes: &[NodeSelector],
) -> (Vec<usize>, Vec<(usize, Refusal)>) {
    let (slots, enough) = (ledger.slots(), wanted(ledger.len()));
    let (mut feasible, mut refusals) = (Vec::with_capacity(enough), Vec::new());
    let (mut asked, start) = (0, ledger.cursor);
    while asked < slots && feasible.len() < enough {
        let slot = (start + asked) % slots;
        asked += 1;
        if ledger.node(slot).is_none() {
            continue;
        }
        let refusal = ask(ledger, trial, pending, volumes, slot);
        if refusal.is_none() {
            feasible.push(slot);
        } else {
            refusals.push((slot, refusal));
        }
    }
    ledger.cursor = (start + asked) % slots.max(1);
    (feasible, refusals)
}

/// Asks one node, which must also have room for pods that wait for it and go first.
pub(super) fn ask(
    ledger: &mut Ledger,
    trial: &Trial<'_>,
    pending: &Pending,
    volumes: &[NodeSelector],
    slot: usize,
) -> Refusal {
    let ask = |ledger: &Ledger, trial: &Trial<'_>| {
        ledger
            .node(slot)
            .map_or(Refusal::ANY, |node| trial.ask(slot, node))
    };
    let waiting = if ledger.anybody_waits() {
        let name = ledger
            .node(slot)
            .map(|node| node.name.as_str())
            .unwrap_or_default();
        ledger.going_before(name, &pending.info.uid, pending.info.priority)
    } else {
        Vec::new()
    };
    if waiting.is_empty() {
        return ask(ledger, trial);
    }
    waiting.iter().for_each(|pod| ledger.put(slot, pod));
    let with_them = if trial.looks_beyond() {
        let trial = Trial::new(ledger, pending, volumes);
        ask(ledger, &trial)
    } else {
        ask(ledger, trial)
    };
    waiting
        .iter()
        .for_each(|pod| _ = ledger.take(slot, &pod.uid));
    // They may never come, so the node must also take the pod without them.
    if with_them.is_none() {
        ask(ledger, trial)
    } else {
        with_them
    }
}

/// One of the best, by the seed.
fn best(slots: &[usize], scores: &[i64], entropy: &Entropy) -> usize {
    let highest = scores.iter().copied().max().unwrap_or_default();
    let equal = || {
        slots
            .iter()
            .zip(scores)
            .filter(|(_, score)| **score == highest)
            .map(|(slot, _)| *slot)
    };
    let chosen = entropy.below(equal().count() as u64);
    equal()
        .nth(usize::try_from(chosen).unwrap_or_default())
        .unwrap_or(slots[0])
}
