//! The next step of an agent: a pure function of its Node, the boot ID, the ledger and the time.
//!
//! Guarantees: an agent acts only for a grant that is in the ledger with the UID of its Node and
//! the current boot ID, so that neither a forged nor a repeated order reboots the machine; a
//! machine is rebooted only after the agent's own commit, which is not an annotation; after a crash
//! at any point, the next step follows from the stored state.

use jiff::{SignedDuration, Timestamp};

use crate::{
    annotations::{GrantId, RebootProgress, RebootResult},
    ledger::{Grant, RebootLedger},
    policy::{DrainMode, OnTimeout},
    state::NodeState,
};

/// The next step of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AgentStep {
    /// There is nothing to do.
    Idle,
    /// The kubelet has not reported the current boot ID yet.
    AwaitKubelet,
    /// Remove an order without a grant.
    RemoveOrder,
    /// Remove invalid or incomplete annotations.
    CleanUp,
    /// Claim the order.
    Claim(GrantId),
    /// Evict pods.
    Drain {
        progress: RebootProgress,
        grant: Box<Grant>,
    },
    /// Reboot the machine.
    Reboot(GrantId),
    /// End the grant. After a failure, `request` is requested again.
    End {
        id: GrantId,
        result: RebootResult,
        request: String,
    },
}

/// Whether the next step depends on the ledger.
pub(crate) fn needs_ledger(node: &NodeState) -> bool {
    node.has_order() || node.is_in_progress() || node.committed.is_some()
}

/// The next step on a machine with this boot ID. The ledger must have been read after the Node;
/// `None` if it does not exist.
pub(crate) fn next_step(
    node: &NodeState,
    boot: &str,
    ledger: Option<&RebootLedger>,
    now: Timestamp,
) -> AgentStep {
    let is_reported = node.boot_id.as_deref() == Some(boot);
    let grant_of = |id: &GrantId| {
        let grant = ledger?.grant(id)?;
        (grant.node == node.name && grant.node_uid == node.uid).then_some(grant)
    };
    let end = |id: &GrantId, result: RebootResult| {
        let request = grant_of(id).map(|grant| grant.reason.clone());
        AgentStep::End {
            id: id.clone(),
            result,
            request: request.unwrap_or_default(),
        }
    };
    // The Node is about to be deleted, and its grant with it.
    if node.is_terminating {
        return AgentStep::Idle;
    }
    // Annotations, which any user can write or remove, do not change a commit.
    if let Some(id) = &node.committed
        && grant_of(id).is_some_and(|grant| grant.boot_id == boot)
    {
        return AgentStep::Reboot(id.clone());
    }
    if let Some(progress) = node.progress() {
        let grant = grant_of(&progress.id);
        // The ledger is trusted more than the annotation, which any user can write.
        let former_boot = grant.map_or(&progress.boot, |grant| &grant.boot_id);
        let has_rebooted = former_boot != boot;
        return match grant {
            // The controller takes the end of the grant and the boot ID from the Node. Without this
            // step it would see an ended grant with the former boot ID.
            _ if has_rebooted && !is_reported => AgentStep::AwaitKubelet,
            _ if has_rebooted => end(&progress.id, RebootResult::Done),
            // Without a grant there is no slot, which another node may have by now.
            None => end(&progress.id, RebootResult::Revoked),
            Some(grant) if now >= grant.expires_at.0 => end(&progress.id, RebootResult::Expired),
            Some(grant) => AgentStep::Drain {
                progress: progress.clone(),
                grant: Box::new(grant.clone()),
            },
        };
    }
    // An annotation that does not parse: no agent can act on it, and it would hold the slot.
    if node.is_in_progress() {
        return AgentStep::CleanUp;
    }
    if node.has_order() {
        // An order that a stale controller wrote again after its grant ended.
        let order = node.order().filter(|order| !node.has_ended(&order.id));
        let Some((grant, order)) = order.and_then(|order| grant_of(&order.id)).zip(order) else {
            return AgentStep::RemoveOrder;
        };
        let has_rebooted = grant.boot_id != boot;
        return if has_rebooted && !is_reported {
            AgentStep::AwaitKubelet
        } else if has_rebooted {
            end(&order.id, RebootResult::Done)
        } else if now >= grant.expires_at.0 || now >= order.expires {
            end(&order.id, RebootResult::Expired)
        } else {
            AgentStep::Claim(order.id.clone())
        };
    }
    // Neither order nor progress: another client removed them. The node must not stay cordoned.
    if node.is_cordoned_by_us() {
        AgentStep::CleanUp
    } else {
        AgentStep::Idle
    }
}

/// What follows an attempt to drain the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainDecision {
    /// Try again later.
    Retry,
    /// Reboot the machine.
    Commit,
    /// End the grant without a reboot.
    GiveUp,
}

/// Decides after an attempt that left this number of pods.
pub(crate) fn after_drain(
    progress: &RebootProgress,
    grant: &Grant,
    remaining: usize,
    now: Timestamp,
) -> DrainDecision {
    let timeout = SignedDuration::from_secs(grant.drain.timeout_seconds);
    // The annotation may be forged, but no drain begins before its grant.
    let since = progress.since.max(grant.granted_at.0);
    let is_late = now.duration_since(since) >= timeout;
    match (grant.drain.mode, grant.drain.on_timeout) {
        (DrainMode::None, _) => DrainDecision::Commit,
        _ if remaining == 0 => DrainDecision::Commit,
        (_, OnTimeout::Reboot) if is_late => DrainDecision::Commit,
        (_, OnTimeout::GiveUp) if is_late => DrainDecision::GiveUp,
        _ => DrainDecision::Retry,
    }
}
