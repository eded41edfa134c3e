//! The types that openraft is used with, and conversions from and to the store's own.

use openraft::{
    BasicNode, EntryPayload, StoredMembership, declare_raft_types, impls, vote::RaftLeaderId as _,
};

use super::runtime::Runtime;
use crate::entry::{Command, Entry, LogId, Members, Outcome, Payload, StoredMembers, Vote};

declare_raft_types!(
    /// The type configuration of the store.
    pub(crate) Types:
        D = Command,
        R = Outcome,
        AsyncRuntime = Runtime,
);

pub(super) type LeaderId = impls::leader_id_adv::LeaderId<u64, u64>;
pub(super) type RaftLogId = openraft::LogId<LeaderId>;
pub(super) type RaftVote = impls::Vote<LeaderId>;
pub(super) type RaftPayload = EntryPayload<Command, u64, BasicNode>;
pub(super) type RaftEntry = openraft::Entry<LeaderId, RaftPayload>;
pub(super) type RaftMembership = openraft::Membership<u64, BasicNode>;
pub(super) type RaftStoredMembership = StoredMembership<LeaderId, u64, BasicNode>;
pub(super) type RaftSnapshotMeta = openraft::SnapshotMeta<LeaderId, u64, BasicNode>;

pub(super) fn log_id(id: &RaftLogId) -> LogId {
    LogId {
        term: id.leader_id.term,
        leader: id.leader_id.node_id,
        index: id.index,
    }
}

pub(super) fn raft_log_id(id: LogId) -> RaftLogId {
    RaftLogId::new(LeaderId::new(id.term, id.leader), id.index)
}

pub(super) fn vote(vote: &RaftVote) -> Vote {
    Vote {
        term: vote.leader_id.term,
        candidate: vote.leader_id.node_id,
        committed: vote.committed,
    }
}

pub(super) fn raft_vote(vote: Vote) -> RaftVote {
    RaftVote {
        leader_id: LeaderId::new(vote.term, vote.candidate),
        committed: vote.committed,
    }
}

pub(super) fn members(membership: &RaftMembership) -> Members {
    Members {
        configs: membership.get_joint_config().clone(),
        addresses: membership
            .nodes()
            .map(|(id, node)| (*id, node.addr.clone()))
            .collect(),
    }
}

/// # Panics
///
/// Never for members that were a membership before.
pub(super) fn raft_membership(members: &Members) -> RaftMembership {
    if members.configs.is_empty() {
        return RaftMembership::default();
    }
    let nodes = members.addresses.iter();
    let nodes: std::collections::BTreeMap<_, _> = nodes
        .map(|(id, address)| (*id, BasicNode::new(address)))
        .collect();
    RaftMembership::new(members.configs.clone(), nodes)
        .expect("every voter of a stored membership has an address")
}

pub(super) fn stored_members(stored: &RaftStoredMembership) -> StoredMembers {
    StoredMembers {
        log_id: stored.log_id().as_ref().map(log_id),
        members: members(stored.membership()),
    }
}

pub(super) fn raft_stored_membership(stored: &StoredMembers) -> RaftStoredMembership {
    let membership = raft_membership(&stored.members);
    RaftStoredMembership::new(stored.log_id.map(raft_log_id), membership)
}

pub(super) fn entry(entry: RaftEntry) -> Entry {
    let payload = match entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(command) => Payload::Command(command),
        EntryPayload::Membership(membership) => Payload::Membership(members(&membership)),
    };
    Entry {
        log_id: log_id(&entry.log_id),
        payload,
    }
}

pub(super) fn raft_entry(entry: Entry) -> RaftEntry {
    let payload = match entry.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Command(command) => EntryPayload::Normal(command),
        Payload::Membership(members) => EntryPayload::Membership(raft_membership(&members)),
    };
    RaftEntry {
        log_id: raft_log_id(entry.log_id),
        payload,
    }
}
