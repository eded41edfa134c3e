//! Encoding of responses between members.

use openraft::raft::{
    AppendEntriesResponse, TransferLeaderError, TransferLeaderResponse, VoteResponse,
};

use super::{
    message::{Forwarded, Reply, read_log_id, read_vote, write_log_id, write_vote},
    types::Types,
};
use crate::{
    api::{FormatLevels, Reason, StoreError, WriteResult},
    codec::{Malformed, Reader, Writer},
};

const APPEND_SUCCESS: u8 = 1;
const APPEND_PARTIAL: u8 = 2;
const APPEND_CONFLICT: u8 = 3;
const APPEND_HIGHER_VOTE: u8 = 4;
const VOTE: u8 = 5;
const TRANSFER_ACCEPTED: u8 = 6;
const TRANSFER_VOTE_CHANGED: u8 = 7;
const TRANSFER_NOT_FLUSHED: u8 = 8;
const SNAPSHOT: u8 = 9;
const FORWARD_DONE: u8 = 10;
const FORWARD_WRITTEN: u8 = 11;
const FORWARD_ALLOCATED: u8 = 12;
const FORWARD_READ_INDEX: u8 = 13;
const FORWARD_ERROR: u8 = 14;
const FORMAT_LEVELS: u8 = 15;

pub(super) fn encode(reply: &Reply, to: &mut Writer) {
    match reply {
        Reply::Append(response) => encode_append(response, to),
        Reply::Vote(response) => {
            to.u8(VOTE);
            write_vote(to, &response.vote);
            to.u8(u8::from(response.vote_granted));
            write_log_id(to, response.last_log_id.as_ref());
        }
        Reply::Transfer(response) => encode_transfer(response, to),
        Reply::Snapshot(vote) => {
            to.u8(SNAPSHOT);
            write_vote(to, vote);
        }
        Reply::Forward(result) => encode_forwarded(result, to),
        Reply::FormatLevels(levels) => {
            to.u8(FORMAT_LEVELS);
            to.u32(levels.min);
            to.u32(levels.max);
        }
    }
}

fn encode_append(response: &AppendEntriesResponse<Types>, to: &mut Writer) {
    match response {
        AppendEntriesResponse::Success => to.u8(APPEND_SUCCESS),
        AppendEntriesResponse::PartialSuccess(id) => {
            to.u8(APPEND_PARTIAL);
            write_log_id(to, id.as_ref());
        }
        AppendEntriesResponse::Conflict => to.u8(APPEND_CONFLICT),
        AppendEntriesResponse::HigherVote(vote) => {
            to.u8(APPEND_HIGHER_VOTE);
            write_vote(to, vote);
        }
    }
}

fn encode_transfer(response: &TransferLeaderResponse<Types>, to: &mut Writer) {
    match response {
        Ok(()) => to.u8(TRANSFER_ACCEPTED),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            to.u8(TRANSFER_VOTE_CHANGED);
            write_vote(to, expected);
            write_vote(to, actual);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            to.u8(TRANSFER_NOT_FLUSHED);
            write_log_id(to, expected.as_ref());
            write_log_id(to, actual.as_ref());
        }
    }
}

fn encode_forwarded(result: &Result<Forwarded, StoreError>, to: &mut Writer) {
    match result {
        Ok(Forwarded::Done) => to.u8(FORWARD_DONE),
        Ok(Forwarded::Written(result)) => {
            to.u8(FORWARD_WRITTEN);
            to.u64(result.revision);
            to.u64(result.create_revision);
            to.u64(result.mod_revision);
            to.u64(result.version);
            to.u8(u8::from(result.deleted));
        }
        Ok(Forwarded::Allocated(id)) => {
            to.u8(FORWARD_ALLOCATED);
            to.u64(*id);
        }
        Ok(Forwarded::ReadIndex(index)) => {
            to.u8(FORWARD_READ_INDEX);
            to.u64(*index);
        }
        Err(error) => {
            to.u8(FORWARD_ERROR);
            to.u8(reason_code(error.reason()));
            to.text(&error.0.message);
            to.option(error.0.current, Writer::u64);
        }
    }
}

pub(super) fn decode(from: &mut Reader) -> Result<Reply, Malformed> {
    Ok(match from.u8()? {
        APPEND_SUCCESS => Reply::Append(AppendEntriesResponse::Success),
        APPEND_PARTIAL => Reply::Append(AppendEntriesResponse::PartialSuccess(read_log_id(from)?)),
        APPEND_CONFLICT => Reply::Append(AppendEntriesResponse::Conflict),
        APPEND_HIGHER_VOTE => Reply::Append(AppendEntriesResponse::HigherVote(read_vote(from)?)),
        VOTE => {
            let vote = read_vote(from)?;
            let is_granted = from.flag()?;
            Reply::Vote(VoteResponse::new(vote, read_log_id(from)?, is_granted))
        }
        TRANSFER_ACCEPTED => Reply::Transfer(Ok(())),
        TRANSFER_VOTE_CHANGED => Reply::Transfer(Err(TransferLeaderError::VoteChanged {
            expected: read_vote(from)?,
            actual: read_vote(from)?,
        })),
        TRANSFER_NOT_FLUSHED => Reply::Transfer(Err(TransferLeaderError::LogNotFlushed {
            expected: read_log_id(from)?,
            actual: read_log_id(from)?,
        })),
        SNAPSHOT => Reply::Snapshot(read_vote(from)?),
        FORWARD_DONE => Reply::Forward(Ok(Forwarded::Done)),
        FORWARD_WRITTEN => Reply::Forward(Ok(Forwarded::Written(WriteResult {
            revision: from.u64()?,
            create_revision: from.u64()?,
            mod_revision: from.u64()?,
            version: from.u64()?,
            deleted: from.flag()?,
        }))),
        FORWARD_ALLOCATED => Reply::Forward(Ok(Forwarded::Allocated(from.u64()?))),
        FORWARD_READ_INDEX => Reply::Forward(Ok(Forwarded::ReadIndex(from.u64()?))),
        FORWARD_ERROR => {
            let reason = reason_of(from.u8()?);
            let mut error = StoreError::new(reason, from.text()?);
            error.0.current = from.option(Reader::u64)?;
            Reply::Forward(Err(error))
        }
        FORMAT_LEVELS => Reply::FormatLevels(FormatLevels {
            min: from.u32()?,
            max: from.u32()?,
        }),
        _ => return Err(from.malformed()),
    })
}

/// Codes of reasons. A code is never used again for another reason.
const REASONS: &[(u8, Reason)] = &[
    (1, Reason::NotFound),
    (2, Reason::ConditionFailed),
    (3, Reason::Compacted),
    (4, Reason::NotReady),
    (5, Reason::NoLeader),
    (6, Reason::Unknown),
    (7, Reason::TooLarge),
    (8, Reason::Invalid),
    (9, Reason::Unauthorized),
    (10, Reason::Forbidden),
    (11, Reason::AlreadyFormatted),
    (12, Reason::WrongCluster),
    (13, Reason::Unformatted),
    (14, Reason::Busy),
    (15, Reason::StorageFailed),
    (0, Reason::Other),
];

fn reason_code(reason: Reason) -> u8 {
    let row = REASONS.iter().find(|(_, other)| *other == reason);
    row.map_or(0, |(code, _)| *code)
}

fn reason_of(code: u8) -> Reason {
    let row = REASONS.iter().find(|(other, _)| *other == code);
    row.map_or(Reason::Other, |(_, reason)| *reason)
}
