//! Standing: how one grant stands, judged by its node.
//!
//! In: a grant, its Node, the time. Out: what the controller is to do about it.
//! Holds: a grant ends on its Node before its slot is free; a slot is free only when the node booted, is Ready for a while and
//! is as schedulable as before, or its agent gave up, or the Node is gone.

use jiff::{SignedDuration, Timestamp};

use crate::{
    ledger::Grant,
    notes::{Fate, GrantId},
    state::NodeState,
};

/// How long an agent has to take an order. After that there is none, or it cannot.
pub(crate) const CLAIM_TIME: SignedDuration = SignedDuration::from_secs(300);

/// How a grant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The node is to be told.
    Announce,
    /// The node was told, and its agent has not begun.
    Told,
    /// The agent is at it.
    Busy,
    /// The grant is to be ended on the node.
    End(Fate),
    /// It ended; the node has looked well since then.
    Settling { since: Timestamp },
    /// It ended, and the node is not well.
    Unwell,
    /// The slot is free.
    Free,
}

/// Judges a grant. `back` is since when the node has looked well after it ended; `settle` how long it has to.
pub(crate) fn standing(
    grant: &Grant,
    node: Option<&NodeState>,
    back: Option<Timestamp>,
    settle: SignedDuration,
    now: Timestamp,
) -> Standing {
    // Another Node of its name was made by a kubelet that knows nothing of the grant.
    let Some(node) = node.filter(|node| node.uid == grant.node_uid) else {
        return Standing::Free;
    };
    // An id that cannot be read was not written by us; nobody could act on it.
    let Some(id) = grant.id() else {
        return Standing::Free;
    };
    if let Some(last) = node.last().filter(|last| last.id == id) {
        return ended(grant, node, last.result, back.unwrap_or(now), settle, now);
    }
    if node.is_busy() {
        return Standing::Busy;
    }
    let is_late = now >= grant.expires_at.0 || now.duration_since(grant.granted_at.0) >= CLAIM_TIME;
    if is_told(node, &id) {
        return if is_late {
            Standing::End(Fate::NotClaimed)
        } else {
            Standing::Told
        };
    }
    match node.needed() {
        // The boot it was given for is over, or the request is: nobody was told, nothing happened.
        None => Standing::End(Fate::Withdrawn),
        Some(_) if node.boot_id.as_ref() != Some(&grant.boot_id) || node.going => {
            Standing::End(Fate::Withdrawn)
        }
        Some(_) if is_late => Standing::End(Fate::Withdrawn),
        Some(_) => Standing::Announce,
    }
}

fn is_told(node: &NodeState, id: &GrantId) -> bool {
    node.now().is_some_and(|order| order.id == *id)
}

fn ended(
    grant: &Grant,
    node: &NodeState,
    fate: Fate,
    since: Timestamp,
    settle: SignedDuration,
    now: Timestamp,
) -> Standing {
    // The end leaves neither; somebody put them there.
    if node.is_busy() || node.is_cordoned_by_us() {
        return Standing::Unwell;
    }
    if fate != Fate::Done {
        return Standing::Free;
    }
    let has_booted = node
        .boot_id
        .as_ref()
        .is_some_and(|boot| *boot != grant.boot_id);
    if !has_booted || !node.ready {
        return Standing::Unwell;
    }
    if now.duration_since(since) >= settle {
        Standing::Free
    } else {
        Standing::Settling { since }
    }
}
