//! Plan: what an agent does next, decided from its Node, the kernel's boot id, the ledger and the time.
//!
//! Holds: an agent acts only for a grant that the ledger has, for this very Node and this very boot, so that neither a
//! forged nor a repeated order reboots anything; after a crash at any line the next step is found again from what is there.

use jiff::{SignedDuration, Timestamp};

use crate::{
    ledger::{Grant, RebootLedger},
    notes::{Fate, GrantId, Progress, Stage},
    policy::{DrainMode, OnTimeout},
    state::NodeState,
};

/// What an agent does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing.
    Rest,
    /// The kubelet has not told of this boot yet.
    AwaitKubelet,
    /// The order has no grant behind it.
    Discard,
    /// Somebody took or spoiled our notes.
    Tidy,
    /// Take the order.
    Claim(GrantId),
    /// Empty the node, once over.
    Drain {
        progress: Progress,
        grant: Box<Grant>,
    },
    /// Tell the machine.
    Reboot(Progress),
    /// The grant is over; what was asked for is asked again if it came to nothing.
    End {
        id: GrantId,
        fate: Fate,
        request: String,
    },
}

/// Whether the next step depends on the ledger.
pub(crate) fn needs_ledger(node: &NodeState) -> bool {
    node.has_order() || node.is_busy()
}

/// The next step on a machine that has this boot id. The ledger was read after the Node; `None` if there is none.
pub(crate) fn step(
    node: &NodeState,
    boot: &str,
    ledger: Option<&RebootLedger>,
    now: Timestamp,
) -> Step {
    let told = node.boot_id.as_deref() == Some(boot);
    let grant_of = |id: &GrantId| {
        let grant = ledger?.grant(id)?;
        (grant.node == node.name && grant.node_uid == node.uid).then_some(grant)
    };
    let end = |id: &GrantId, fate: Fate| {
        let request = grant_of(id)
            .map(|grant| grant.reason.clone())
            .unwrap_or_default();
        Step::End {
            id: id.clone(),
            fate,
            request,
        }
    };
    if node.going {
        return Step::Rest;
    }
    if let Some(progress) = node.in_progress() {
        let grant = grant_of(&progress.id);
        let before = grant.map_or(&progress.boot, |grant| &grant.boot_id);
        return match grant {
            _ if before != boot && !told => Step::AwaitKubelet,
            _ if before != boot => end(&progress.id, Fate::Done),
            None => end(&progress.id, Fate::Revoked),
            Some(_) if progress.stage == Stage::Rebooting => Step::Reboot(progress.clone()),
            Some(grant) if now >= grant.expires_at.0 => end(&progress.id, Fate::Expired),
            Some(grant) => Step::Drain {
                progress: progress.clone(),
                grant: Box::new(grant.clone()),
            },
        };
    }
    if node.is_busy() {
        return Step::Tidy;
    }
    if node.has_order() {
        let order = node.now().filter(|order| !node.has_ended(&order.id));
        return match order.and_then(|order| grant_of(&order.id)).zip(order) {
            None => Step::Discard,
            Some((grant, _)) if grant.boot_id != boot && !told => Step::AwaitKubelet,
            Some((grant, order)) if grant.boot_id != boot => end(&order.id, Fate::Done),
            Some((grant, order)) if now >= grant.expires_at.0 || now >= order.expires => {
                end(&order.id, Fate::Expired)
            }
            Some((_, order)) => Step::Claim(order.id.clone()),
        };
    }
    if node.is_cordoned_by_us() {
        Step::Tidy
    } else {
        Step::Rest
    }
}

/// What follows a pass of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterDrain {
    /// Look again soon.
    Again,
    /// The node is empty enough.
    Commit,
    /// Give the slot back.
    GiveUp,
}

/// Judges a drain that has left so many pods.
pub(crate) fn after_drain(
    progress: &Progress,
    grant: &Grant,
    left: usize,
    now: Timestamp,
) -> AfterDrain {
    let late = now.duration_since(progress.since)
        >= SignedDuration::from_secs(grant.drain.timeout_seconds);
    match (grant.drain.mode, grant.drain.on_timeout) {
        (DrainMode::None, _) => AfterDrain::Commit,
        _ if left == 0 => AfterDrain::Commit,
        (_, OnTimeout::Reboot) if late => AfterDrain::Commit,
        (_, OnTimeout::GiveUp) if late => AfterDrain::GiveUp,
        _ => AfterDrain::Again,
    }
}
