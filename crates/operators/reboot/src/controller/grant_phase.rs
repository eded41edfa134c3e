//! The phase of one grant, derived from its Node.
//!
//! Inputs: a grant, its Node, the time. Output: what the controller has to do about it.
//!
//! Guarantees: a grant ends on its Node before its slot is released; a slot is released only after
//! the node rebooted, has been Ready for the settle time and is uncordoned, or its agent gave up
//! before its commit, or the Node was deleted. Annotations alone do not release the slot of a
//! machine that is about to reboot.

use jiff::{SignedDuration, Timestamp};

use crate::{
    annotations::{GrantId, RebootResult},
    ledger::Grant,
    state::NodeState,
};

/// How long an agent has to claim an order. After that, none runs on the node or it cannot write.
pub(crate) const CLAIM_TIMEOUT: SignedDuration = SignedDuration::from_secs(300);

/// The phase of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantPhase {
    /// The order is to be written to the Node.
    Announce,
    /// The order is on the Node, and the agent has not claimed it.
    Announced,
    /// The agent drains or reboots the node.
    InProgress,
    /// The grant is to be ended on the Node.
    End(RebootResult),
    /// The grant ended; the node has been Ready since then.
    Settling { since: Timestamp },
    /// The grant ended, and the node is not Ready, has its former boot ID or is still cordoned.
    Recovering,
    /// The slot can be released.
    Complete,
}

/// The phase of a grant. `ready_since` is when its node was first observed to be Ready after the
/// grant ended; `settle` is how long it has to be.
pub(crate) fn grant_phase(
    grant: &Grant,
    node: Option<&NodeState>,
    ready_since: Option<Timestamp>,
    settle: SignedDuration,
    now: Timestamp,
) -> GrantPhase {
    // A recreated Node of the same name has no part in the grant.
    let Some(node) = node.filter(|node| node.uid == grant.node_uid) else {
        return GrantPhase::Complete;
    };
    // An invalid ID was not written by the controller, and no agent acts on it.
    let Some(id) = grant.id() else {
        return GrantPhase::Complete;
    };
    // Before everything else: the result on the Node is final, whatever its other annotations.
    if let Some(last) = node.last().filter(|last| last.id == id) {
        let since = ready_since.unwrap_or(now);
        return phase_after_end(grant, node, last.result, since, settle, now);
    }
    // The agent has claimed the order, and from now on only it or an administrator ends the grant:
    // a timeout here would free the slot of a node that may reboot at any time.
    if node.is_in_progress() || (node.has_committed(&id) && !has_rebooted(grant, node)) {
        return GrantPhase::InProgress;
    }
    let is_late =
        now >= grant.expires_at.0 || now.duration_since(grant.granted_at.0) >= CLAIM_TIMEOUT;
    if is_announced(node, &id) {
        return if is_late {
            GrantPhase::End(RebootResult::NotClaimed)
        } else {
            GrantPhase::Announced
        };
    }
    // The order was not written. Without a request, or after another boot, there is no need to.
    let is_stale = node.needed().is_none()
        || node.boot_id.as_ref() != Some(&grant.boot_id)
        || node.is_terminating;
    if is_stale || is_late {
        GrantPhase::End(RebootResult::Withdrawn)
    } else {
        GrantPhase::Announce
    }
}

/// Whether the kubelet reported another boot ID than that of the grant.
fn has_rebooted(grant: &Grant, node: &NodeState) -> bool {
    let boot_id = node.boot_id.as_ref();
    boot_id.is_some_and(|boot_id| *boot_id != grant.boot_id)
}

fn is_announced(node: &NodeState, id: &GrantId) -> bool {
    node.order().is_some_and(|order| order.id == *id)
}

fn phase_after_end(
    grant: &Grant,
    node: &NodeState,
    result: RebootResult,
    since: Timestamp,
    settle: SignedDuration,
    now: Timestamp,
) -> GrantPhase {
    // The end removes both annotations. If they are there, another client wrote them.
    if node.is_in_progress() || node.is_cordoned_by_us() {
        return GrantPhase::Recovering;
    }
    // The result is an annotation, which any user can write; the commit is not.
    let is_committed = grant.id().is_some_and(|id| node.has_committed(&id));
    if result != RebootResult::Done && !is_committed {
        return GrantPhase::Complete;
    }
    if !has_rebooted(grant, node) || !node.ready {
        return GrantPhase::Recovering;
    }
    if now.duration_since(since) >= settle {
        GrantPhase::Complete
    } else {
        GrantPhase::Settling { since }
    }
}
