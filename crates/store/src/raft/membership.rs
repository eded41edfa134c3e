//! Changes of the membership and of leadership, at the leader.
//!
//! Guarantees: a change is based on the membership that the caller knows, or refused; a learner
//! becomes a voter only if it has almost all entries; a change returns when the final
//! configuration is committed.

use std::{collections::BTreeSet, time::Duration};

use openraft::{
    BasicNode, ChangeMembers, Precondition, ServerState, async_runtime::watch::WatchReceiver as _,
};
use tokio::time::timeout;

use super::{
    lead::{no_leader, unknown, write_error},
    message::Forwarded,
    node::Node,
    types::{RaftLogId, RaftStoredMembership},
};
use crate::api::{MemberId, Reason, StoreError};

/// How many election timeouts a transfer may take: the target's election, and its first entry.
const TRANSFER_ELECTIONS: u32 = 2;

impl Node {
    pub(super) async fn add_learner(
        &self,
        id: MemberId,
        address: String,
    ) -> Result<Forwarded, StoreError> {
        let membership = self.leader_membership()?;
        if let Some(node) = membership.get_node(&id) {
            if node.addr == address {
                return Ok(Forwarded::Done);
            }
            let message = format!(
                "member {id} has the address {}; remove it and allocate a new id",
                node.addr
            );
            return Err(StoreError::new(Reason::Invalid, message));
        }
        let nodes = [(id, BasicNode::new(address))].into();
        self.change(ChangeMembers::AddNodes(nodes), *membership.log_id())
            .await?;
        Ok(Forwarded::Done)
    }

    pub(super) async fn change_membership(
        &self,
        voters: BTreeSet<MemberId>,
        learners: BTreeSet<MemberId>,
        expected_index: u64,
    ) -> Result<(), StoreError> {
        let current = self.leader_membership()?;
        check_expected(&current, expected_index)?;
        check_members(&current, &voters, &learners)?;
        self.check_lag(&current, &voters)?;
        let mut position = *current.log_id();
        if current.membership().get_joint_config() != std::slice::from_ref(&voters) {
            let changes = ChangeMembers::ReplaceAllVoters(voters.clone());
            position = Some(self.change(changes, position).await?);
        }
        let known = current.nodes().map(|(id, _)| *id);
        let removed = known.filter(|id| !voters.contains(id) && !learners.contains(id));
        let removed: BTreeSet<MemberId> = removed.collect();
        if !removed.is_empty() {
            self.change(ChangeMembers::RemoveNodes(removed), position)
                .await?;
        }
        Ok(())
    }

    /// The membership in effect, if this member leads.
    fn leader_membership(&self) -> Result<RaftStoredMembership, StoreError> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return Err(no_leader());
        }
        Ok(RaftStoredMembership::clone(&metrics.membership_config))
    }

    /// Makes one change, based on a membership, and returns its position.
    async fn change(
        &self,
        changes: ChangeMembers<u64, BasicNode>,
        based_on: Option<RaftLogId>,
    ) -> Result<RaftLogId, StoreError> {
        let precondition = Precondition::LastMembershipLogId {
            last_membership_log_id: based_on,
        };
        // Voters that are replaced stay as learners until they are removed explicitly.
        let change = self
            .raft
            .change_membership_if(changes, true, [precondition]);
        match timeout(self.options.request_timeout, change).await {
            Err(_) => Err(unknown("no quorum acknowledged the membership in time")),
            Ok(Err(error)) => Err(write_error(&error)),
            Ok(Ok(response)) => Ok(response.log_id),
        }
    }

    /// Refuses voters that would make the quorum wait until they have caught up.
    fn check_lag(
        &self,
        current: &RaftStoredMembership,
        voters: &BTreeSet<MemberId>,
    ) -> Result<(), StoreError> {
        let metrics = self.metrics();
        let last = metrics.last_log_index.unwrap_or(0);
        let replication = metrics.replication.unwrap_or_default();
        let voting: BTreeSet<MemberId> = current.voter_ids().collect();
        for id in voters.difference(&voting) {
            let matched = replication.get(id).copied().flatten();
            let lag = last.saturating_sub(matched.map_or(0, |id| id.index));
            if matched.is_none() || lag > self.options.promotion_lag_max {
                let message = format!(
                    "member {id} lags by {lag} entries, more than {}; wait until it has caught up",
                    self.options.promotion_lag_max
                );
                return Err(StoreError::new(Reason::Busy, message));
            }
        }
        Ok(())
    }

    /// Makes another voter the leader and returns when it is.
    pub(super) async fn transfer_leader(&self, target: MemberId) -> Result<(), StoreError> {
        let membership = self.leader_membership()?;
        if target == self.id() {
            return Ok(());
        }
        if !membership.voter_ids().any(|id| id == target) {
            let message = format!("member {target} is not a voter; choose one of the voters");
            return Err(StoreError::new(Reason::Invalid, message));
        }
        if let Err(error) = self.raft.trigger().transfer_leader(target).await {
            return Err(unknown(&error.to_string()));
        }
        let mut metrics = self.raft.server_metrics();
        let wait = async {
            while metrics.borrow_watched().current_leader != Some(target) {
                if metrics.changed().await.is_err() {
                    break;
                }
            }
        };
        match timeout(self.transfer_timeout(), wait).await {
            Ok(()) => Ok(()),
            Err(_) => Err(StoreError::new(
                Reason::Busy,
                format!("member {target} did not become leader in time; read the status"),
            )),
        }
    }

    fn transfer_timeout(&self) -> Duration {
        self.options.election_max * TRANSFER_ELECTIONS
    }
}

fn check_expected(current: &RaftStoredMembership, expected: u64) -> Result<(), StoreError> {
    let index = current.log_id().as_ref().map_or(0, |id| id.index);
    if index == expected {
        return Ok(());
    }
    let message = format!(
        "the membership has the index {index}, not {expected}; read the status again and retry"
    );
    Err(StoreError::new(Reason::ConditionFailed, message).with_current(index))
}

fn check_members(
    current: &RaftStoredMembership,
    voters: &BTreeSet<MemberId>,
    learners: &BTreeSet<MemberId>,
) -> Result<(), StoreError> {
    let invalid = |message: String| Err(StoreError::new(Reason::Invalid, message));
    if voters.is_empty() {
        return invalid("a membership needs a voter".to_owned());
    }
    if let Some(id) = voters.intersection(learners).next() {
        return invalid(format!("member {id} is both voter and learner; choose one"));
    }
    for id in voters.union(learners) {
        if current.get_node(id).is_none() {
            return invalid(format!(
                "member {id} is not a member; add it as a learner first"
            ));
        }
    }
    Ok(())
}
