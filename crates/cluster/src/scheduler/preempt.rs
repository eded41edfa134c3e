//! Preemption: whom to end so that a more important pod has room.
//!
//! In: a pod that no node takes, why each refused. Out: a node and its victims, or why there are none.
//! Holds: only less important pods are victims, and no more than needed; budgets are broken only if no other choice is
//! left; the ledger is as before when this returns.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;

use super::budget::{Budgets, violations};
use super::cycle::{Circumstances, Preemption, ask};
use super::ledger::Ledger;
use super::pod_info::{Pending, PodInfo};
use super::refusal::{Refusal, histogram};
use super::trial::Trial;

/// What is said of a node where ending pods changes nothing.
pub(super) const UNHELPFUL: &str = "Preemption is not helpful for scheduling";
/// Why nobody else is ended for a pod that waits for its victims to go.
pub(super) const VICTIMS_ARE_GOING: &str =
    "not eligible due to a terminating pod on the nominated node.";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// So many nodes are enough to choose from: at least this many, and this share of all, in percent.
const CANDIDATES_MIN: usize = 100;
const CANDIDATES_PERCENT: usize = 10;

/// A node, and whom to end there.
struct Candidate {
    slot: usize,
    victims: Vec<Arc<PodInfo>>,
    violations: usize,
}

impl Candidate {
    /// Smaller is better: broken budgets, the most important victim, all victims, how many, how long they ran.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
        let highest = self
            .victims
            .iter()
            .map(|pod| pod.priority)
            .max()
            .unwrap_or(i32::MIN);
        let sum = self
            .victims
            .iter()
            .map(|pod| i64::from(pod.priority) + (1 << 31))
            .sum();
        let important = self.victims.iter().filter(|pod| pod.priority == highest);
        let earliest = important
            .filter_map(|pod| pod.started)
            .min()
            .unwrap_or(Timestamp::MAX);
        (
            self.violations,
            highest,
            sum,
            self.victims.len(),
            Reverse(earliest),
        )
    }
}

/// Whom to end for the pod.
///
/// # Errors
/// Why nobody is, in words.
pub(crate) fn preempt(
    ledger: &mut Ledger,
    trial: &Trial<'_>,
    pending: &Pending,
    volumes: &[NodeSelector],
    refusals: &[(usize, Refusal)],
    circumstances: &Circumstances<'_>,
) -> Result<Option<Preemption>, String> {
    eligible(ledger, pending, refusals)?;
    let resolvable: Vec<_> = refusals
        .iter()
        .filter(|(_, refusal)| refusal.is_resolvable())
        .map(|(slot, _)| *slot)
        .collect();
    let enough = (resolvable.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES_MIN);
    let offset =
        usize::try_from(circumstances.entropy.below(resolvable.len() as u64)).unwrap_or_default();
    let (mut candidates, mut sentences) = (Vec::new(), Vec::new());
    for slot in resolvable
        .iter()
        .cycle()
        .skip(offset)
        .take(resolvable.len())
        .copied()
    {
        match victims(ledger, trial, pending, volumes, slot, circumstances.budgets) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => sentences.extend(why),
        }
        if candidates.len() >= enough {
            break;
        }
    }
    let Some(best) = candidates.into_iter().min_by_key(Candidate::cost) else {
        sentences.extend((resolvable.len()..ledger.len()).map(|_| UNHELPFUL.to_owned()));
        return Err(histogram(ledger.len(), sentences));
    };
    let node = ledger
        .node(best.slot)
        .map(|node| node.name.clone())
        .unwrap_or_default();
    Ok(Some(Preemption {
        node,
        victims: best.victims,
    }))
}

fn eligible(
    ledger: &Ledger,
    pending: &Pending,
    refusals: &[(usize, Refusal)],
) -> Result<(), String> {
    if !pending.may_preempt {
        return Err("not eligible due to preemptionPolicy=Never.".into());
    }
    let nominated = pending
        .nominated
        .as_deref()
        .and_then(|name| ledger.slot_of(name));
    let still = nominated.filter(|slot| {
        refusals
            .iter()
            .all(|(refused, why)| refused != slot || why.is_resolvable())
    });
    let waits = still
        .and_then(|slot| ledger.node(slot))
        .is_some_and(|node| {
            node.pods
                .iter()
                .any(|pod| pod.preempted && pod.priority < pending.info.priority)
        });
    if waits {
        Err(VICTIMS_ARE_GOING.into())
    } else {
        Ok(())
    }
}

/// The fewest and least important pods of a node without which it takes the pod.
fn victims(
    ledger: &mut Ledger,
    trial: &Trial<'_>,
    pending: &Pending,
    volumes: &[NodeSelector],
    slot: usize,
    budgets: &dyn Budgets,
) -> Result<Candidate, Vec<String>> {
    let node = ledger.node(slot).ok_or_else(Vec::new)?;
    let mut less: Vec<_> = node
        .pods
        .iter()
        .filter(|pod| pod.priority < pending.info.priority)
        .cloned()
        .collect();
    if less.is_empty() {
        return Err(vec![NO_VICTIMS.to_owned()]);
    }
    less.sort_by_key(|pod| (Reverse(pod.priority), pod.started, pod.uid.clone()));
    less.iter().for_each(|pod| _ = ledger.take(slot, &pod.uid));
    let takes = |ledger: &mut Ledger| {
        if trial.looks_beyond() {
            let trial = Trial::new(ledger, pending, volumes);
            ask(ledger, &trial, pending, volumes, slot)
        } else {
            ask(ledger, trial, pending, volumes, slot)
        }
    };
    let refusal = takes(ledger);
    if !refusal.is_none() {
        let why = ledger
            .node(slot)
            .map(|node| refusal.sentences(&pending.info, node))
            .unwrap_or_default();
        less.iter().for_each(|pod| ledger.put(slot, pod));
        return Err(why);
    }
    let violating = violations(&less, budgets);
    let of = |wanted: bool| {
        less.iter()
            .zip(&violating)
            .filter(move |(_, violates)| **violates == wanted)
            .map(|(pod, _)| pod.clone())
    };
    let (mut victims, mut broken) = (Vec::new(), 0);
    for (pod, violates) in of(true)
        .map(|pod| (pod, true))
        .chain(of(false).map(|pod| (pod, false)))
        .collect::<Vec<_>>()
    {
        ledger.put(slot, &pod);
        if !takes(ledger).is_none() {
            ledger.take(slot, &pod.uid);
            broken += usize::from(violates);
            victims.push(pod);
        }
    }
    victims.iter().for_each(|pod| ledger.put(slot, pod));
    victims.sort_by_key(|pod| (Reverse(pod.priority), pod.started, pod.uid.clone()));
    Ok(Candidate {
        slot,
        victims,
        violations: broken,
    })
}
