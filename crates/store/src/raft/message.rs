//! Messages between members: a version byte and a binary payload.
//!
//! Guarantees: a message is complete or refused; an unknown version or kind is refused with a
//! reason, so members of different programs do not misread each other.

use std::collections::BTreeSet;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::{
    reply,
    types::{RaftLogId, RaftVote, Types, entry, log_id, raft_entry, raft_log_id, raft_vote, vote},
};
use crate::{
    api::{FormatLevels, MemberId, StoreError, WriteResult},
    codec::{Malformed, Reader, Writer},
    entry::{Command, Entry, LogId, StoredMembers, Vote},
};

const VERSION: u8 = 1;

/// A request of one member to another.
pub(super) enum Message {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Transfer(TransferLeaderRequest<Types>),
    /// The snapshot itself follows as a stream.
    Snapshot(SnapshotOffer),
    Forward(Forward),
    /// Which format levels does the member support?
    FormatLevels,
}

/// What a snapshot is, before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotOffer {
    pub(super) vote: Vote,
    pub(super) last: Option<LogId>,
    pub(super) members: StoredMembers,
}

/// A request of a client, for the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Forward {
    Write(Command),
    /// Up to which entry must a read wait?
    ReadIndex,
    AddLearner {
        id: MemberId,
        address: String,
    },
    ChangeMembership {
        voters: BTreeSet<MemberId>,
        learners: BTreeSet<MemberId>,
        expected_index: u64,
    },
    TransferLeader(MemberId),
    RaiseFormatLevel(u32),
}

/// The leader's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    Done,
    Written(WriteResult),
    Allocated(MemberId),
    ReadIndex(u64),
}

/// A response of one member to another.
pub(super) enum Reply {
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    Transfer(openraft::raft::TransferLeaderResponse<Types>),
    Snapshot(RaftVote),
    Forward(Result<Forwarded, StoreError>),
    FormatLevels(FormatLevels),
}

const APPEND: u8 = 1;
const VOTE: u8 = 2;
const PRE_VOTE: u8 = 3;
const TRANSFER: u8 = 4;
const SNAPSHOT: u8 = 5;
const FORWARD: u8 = 6;
const FORMAT_LEVELS: u8 = 7;

pub(super) fn write_vote(to: &mut Writer, raft: &RaftVote) {
    vote(raft).encode(to);
}

pub(super) fn read_vote(from: &mut Reader) -> Result<RaftVote, Malformed> {
    Vote::decode(from).map(raft_vote)
}

pub(super) fn write_log_id(to: &mut Writer, id: Option<&RaftLogId>) {
    to.option(id, |to, id| log_id(id).encode(to));
}

pub(super) fn read_log_id(from: &mut Reader) -> Result<Option<RaftLogId>, Malformed> {
    Ok(from.option(LogId::decode)?.map(raft_log_id))
}

impl Message {
    pub(super) fn encode(self) -> Bytes {
        let mut to = Writer::default();
        to.u8(VERSION);
        match self {
            Self::Append(request) => encode_append(&mut to, request),
            Self::Vote(request) => {
                to.u8(VOTE);
                encode_vote(&mut to, &request);
            }
            Self::PreVote(request) => {
                to.u8(PRE_VOTE);
                encode_vote(&mut to, &request);
            }
            Self::Transfer(request) => {
                to.u8(TRANSFER);
                write_vote(&mut to, request.from_leader());
                to.u64(*request.to_node_id());
                write_log_id(&mut to, request.last_log_id());
            }
            Self::Snapshot(offer) => {
                to.u8(SNAPSHOT);
                offer.vote.encode(&mut to);
                to.option(offer.last, |to, id| id.encode(to));
                offer.members.encode(&mut to);
            }
            Self::Forward(forward) => {
                to.u8(FORWARD);
                forward.encode(&mut to);
            }
            Self::FormatLevels => to.u8(FORMAT_LEVELS),
        }
        to.0.into()
    }

    pub(super) fn decode(message: Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::new(message, "peer message");
        if from.u8()? != VERSION {
            return Err(Malformed("peer message of another version"));
        }
        let message = match from.u8()? {
            APPEND => Self::Append(decode_append(&mut from)?),
            VOTE => Self::Vote(decode_vote(&mut from)?),
            PRE_VOTE => Self::PreVote(decode_vote(&mut from)?),
            TRANSFER => {
                let leader = read_vote(&mut from)?;
                let target = from.u64()?;
                let last = read_log_id(&mut from)?;
                Self::Transfer(TransferLeaderRequest::new(leader, target, last))
            }
            SNAPSHOT => Self::Snapshot(SnapshotOffer {
                vote: Vote::decode(&mut from)?,
                last: from.option(LogId::decode)?,
                members: StoredMembers::decode(&mut from)?,
            }),
            FORWARD => Self::Forward(Forward::decode(&mut from)?),
            FORMAT_LEVELS => Self::FormatLevels,
            _ => return Err(from.malformed()),
        };
        from.finish()?;
        Ok(message)
    }
}

fn encode_append(to: &mut Writer, request: AppendEntriesRequest<Types>) {
    to.u8(APPEND);
    write_vote(to, &request.vote);
    write_log_id(to, request.prev_log_id.as_ref());
    write_log_id(to, request.leader_commit.as_ref());
    to.u32(u32::try_from(request.entries.len()).expect("messages have at most 4096 entries"));
    for raft in request.entries {
        entry(raft).encode(to);
    }
}

fn decode_append(from: &mut Reader) -> Result<AppendEntriesRequest<Types>, Malformed> {
    let vote = read_vote(from)?;
    let prev_log_id = read_log_id(from)?;
    let leader_commit = read_log_id(from)?;
    let count = from.u32()?;
    let entries = (0..count)
        .map(|_| Entry::decode(from).map(raft_entry))
        .collect::<Result<_, _>>()?;
    Ok(AppendEntriesRequest {
        vote,
        prev_log_id,
        entries,
        leader_commit,
    })
}

fn encode_vote(to: &mut Writer, request: &VoteRequest<Types>) {
    write_vote(to, &request.vote);
    write_log_id(to, request.last_log_id.as_ref());
    to.u8(u8::from(request.leadership_transfer));
}

fn decode_vote(from: &mut Reader) -> Result<VoteRequest<Types>, Malformed> {
    let mut request = VoteRequest::new(read_vote(from)?, read_log_id(from)?);
    request.leadership_transfer = from.flag()?;
    Ok(request)
}

const WRITE: u8 = 1;
const READ_INDEX: u8 = 2;
const ADD_LEARNER: u8 = 3;
const CHANGE_MEMBERSHIP: u8 = 4;
const TRANSFER_LEADER: u8 = 5;
const RAISE_FORMAT_LEVEL: u8 = 6;

impl Forward {
    fn encode(&self, to: &mut Writer) {
        match self {
            Self::Write(command) => {
                to.u8(WRITE);
                command.encode(to);
            }
            Self::ReadIndex => to.u8(READ_INDEX),
            Self::AddLearner { id, address } => {
                to.u8(ADD_LEARNER);
                to.u64(*id);
                to.text(address);
            }
            Self::ChangeMembership {
                voters,
                learners,
                expected_index,
            } => {
                to.u8(CHANGE_MEMBERSHIP);
                to.ids(voters);
                to.ids(learners);
                to.u64(*expected_index);
            }
            Self::TransferLeader(target) => {
                to.u8(TRANSFER_LEADER);
                to.u64(*target);
            }
            Self::RaiseFormatLevel(level) => {
                to.u8(RAISE_FORMAT_LEVEL);
                to.u32(*level);
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            WRITE => Self::Write(Command::decode(from)?),
            READ_INDEX => Self::ReadIndex,
            ADD_LEARNER => Self::AddLearner {
                id: from.u64()?,
                address: from.text()?,
            },
            CHANGE_MEMBERSHIP => Self::ChangeMembership {
                voters: from.ids()?,
                learners: from.ids()?,
                expected_index: from.u64()?,
            },
            TRANSFER_LEADER => Self::TransferLeader(from.u64()?),
            RAISE_FORMAT_LEVEL => Self::RaiseFormatLevel(from.u32()?),
            _ => return Err(from.malformed()),
        })
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Writer::default();
        to.u8(VERSION);
        reply::encode(self, &mut to);
        to.0.into()
    }

    pub(super) fn decode(message: Bytes) -> Result<Self, Malformed> {
        let mut from = Reader::new(message, "peer response");
        if from.u8()? != VERSION {
            return Err(Malformed("peer response of another version"));
        }
        let reply = reply::decode(&mut from)?;
        from.finish()?;
        Ok(reply)
    }
}
