//! Log entries, votes and memberships, and their encoding.
//!
//! These are the store's own types: the log, the state and snapshots are independent of the Raft
//! library, and their encoding does not change with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;

use crate::{
    api::{Key, MemberId, Revision, WriteResult},
    codec::{Malformed, Reader, Writer},
};

/// The position of an entry. Ordered by term, then leader, then index, as Raft compares logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogId {
    pub(crate) term: u64,
    pub(crate) leader: MemberId,
    pub(crate) index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}.{}", self.term, self.leader, self.index)
    }
}

/// A vote of this member, or the leader that it follows (`committed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vote {
    pub(crate) term: u64,
    pub(crate) candidate: MemberId,
    pub(crate) committed: bool,
}

/// A membership: one set of voters, or two during a change, and the addresses of all members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) configs: Vec<BTreeSet<MemberId>>,
    pub(crate) addresses: BTreeMap<MemberId, String>,
}

/// A membership and the entry that it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredMembers {
    pub(crate) log_id: Option<LogId>,
    pub(crate) members: Members,
}

/// A change of the state, as the log has it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Put {
        key: Key,
        value: Bytes,
        if_revision: Option<Revision>,
    },
    Delete {
        key: Key,
        if_revision: Option<Revision>,
    },
    /// Reserves the index of its entry as a member id.
    AllocateMemberId,
    RaiseFormatLevel(u32),
    /// Forgets the watch history up to a revision.
    Compact(Revision),
}

/// Values may be secret, so only their length is printed.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { key, value, .. } => write!(f, "put {key} ({} bytes)", value.len()),
            Self::Delete { key, .. } => write!(f, "delete {key}"),
            Self::AllocateMemberId => write!(f, "allocate member id"),
            Self::RaiseFormatLevel(level) => write!(f, "raise format level to {level}"),
            Self::Compact(revision) => write!(f, "compact to {revision}"),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an entry did to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The entry has no result.
    Done,
    Written(WriteResult),
    /// The key does not have the expected revision, but this one.
    ConditionFailed(Revision),
    Allocated(MemberId),
    /// The level in effect.
    FormatLevel(u32),
}

/// What an entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Blank,
    Command(Command),
    Membership(Members),
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) log_id: LogId,
    pub(crate) payload: Payload,
}

impl LogId {
    pub(crate) fn encode(self, to: &mut Writer) {
        to.u64(self.term);
        to.u64(self.leader);
        to.u64(self.index);
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self {
            term: from.u64()?,
            leader: from.u64()?,
            index: from.u64()?,
        })
    }
}

impl Vote {
    pub(crate) fn encode(self, to: &mut Writer) {
        to.u64(self.term);
        to.u64(self.candidate);
        to.u8(u8::from(self.committed));
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self {
            term: from.u64()?,
            candidate: from.u64()?,
            committed: from.flag()?,
        })
    }
}

impl Members {
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.u32(u32::try_from(self.configs.len()).expect("a membership has one or two sets"));
        for config in &self.configs {
            to.ids(config);
        }
        to.u32(u32::try_from(self.addresses.len()).expect("memberships are small"));
        for (id, address) in &self.addresses {
            to.u64(*id);
            to.text(address);
        }
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        let configs = from.u32()?;
        let configs = (0..configs).map(|_| from.ids()).collect::<Result<_, _>>()?;
        let count = from.u32()?;
        let addresses = (0..count)
            .map(|_| Ok((from.u64()?, from.text()?)))
            .collect::<Result<_, Malformed>>()?;
        Ok(Self { configs, addresses })
    }
}

impl StoredMembers {
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.option(self.log_id, |to, id| id.encode(to));
        self.members.encode(to);
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self {
            log_id: from.option(LogId::decode)?,
            members: Members::decode(from)?,
        })
    }
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const ALLOCATE: u8 = 3;
const RAISE: u8 = 4;
const COMPACT: u8 = 5;

fn decode_key(from: &mut Reader) -> Result<Key, Malformed> {
    let text = from.text()?;
    Key::try_from(text).map_err(|_| from.malformed())
}

impl Command {
    pub(crate) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Put {
                key,
                value,
                if_revision,
            } => {
                to.u8(PUT);
                to.text(key.as_str());
                to.bytes(value);
                to.option(*if_revision, Writer::u64);
            }
            Self::Delete { key, if_revision } => {
                to.u8(DELETE);
                to.text(key.as_str());
                to.option(*if_revision, Writer::u64);
            }
            Self::AllocateMemberId => to.u8(ALLOCATE),
            Self::RaiseFormatLevel(level) => {
                to.u8(RAISE);
                to.u32(*level);
            }
            Self::Compact(revision) => {
                to.u8(COMPACT);
                to.u64(*revision);
            }
        }
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            PUT => Self::Put {
                key: decode_key(from)?,
                value: from.bytes()?,
                if_revision: from.option(Reader::u64)?,
            },
            DELETE => Self::Delete {
                key: decode_key(from)?,
                if_revision: from.option(Reader::u64)?,
            },
            ALLOCATE => Self::AllocateMemberId,
            RAISE => Self::RaiseFormatLevel(from.u32()?),
            COMPACT => Self::Compact(from.u64()?),
            _ => return Err(from.malformed()),
        })
    }
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

impl Entry {
    pub(crate) fn encode(&self, to: &mut Writer) {
        self.log_id.encode(to);
        match &self.payload {
            Payload::Blank => to.u8(BLANK),
            Payload::Command(command) => {
                to.u8(COMMAND);
                command.encode(to);
            }
            Payload::Membership(members) => {
                to.u8(MEMBERSHIP);
                members.encode(to);
            }
        }
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        let log_id = LogId::decode(from)?;
        let payload = match from.u8()? {
            BLANK => Payload::Blank,
            COMMAND => Payload::Command(Command::decode(from)?),
            MEMBERSHIP => Payload::Membership(Members::decode(from)?),
            _ => return Err(from.malformed()),
        };
        Ok(Self { log_id, payload })
    }
}
