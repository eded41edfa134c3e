//! Frames: what one sync of the log covers, with a checksum.
//!
//! A frame is a magic number, the length and the CRC-32 of its payload, and the payload: a version
//! byte and operations. A frame is written and synced as a whole before the next one is written, so
//! only the last frame of the last segment can be torn.

use bytes::Bytes;

use crate::{
    codec::{Malformed, Reader, Writer},
    entry::{Entry, LogId, Vote},
};

const MAGIC: u32 = 0xbe11_10f1;
const VERSION: u8 = 1;
pub(super) const FRAME_HEADER_BYTES: usize = 12;

/// What a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

/// A change of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The first operation of a segment: the log at that point.
    Begin(Begin),
    Append(Entry),
    Vote(Vote),
    Committed(LogId),
    /// Removes the entries after this one, or all.
    Truncate(Option<LogId>),
    /// Removes the entries up to this one.
    Purge(LogId),
}

/// The log at the beginning of a segment, except for its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
}

const BEGIN: u8 = 1;
const APPEND: u8 = 2;
const VOTE: u8 = 3;
const COMMITTED: u8 = 4;
const TRUNCATE: u8 = 5;
const PURGE: u8 = 6;

impl Operation {
    pub(super) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Begin(begin) => {
                to.u8(BEGIN);
                to.option(begin.vote, |to, vote| vote.encode(to));
                for id in [begin.committed, begin.purged, begin.last] {
                    to.option(id, |to, id| id.encode(to));
                }
            }
            Self::Append(entry) => {
                to.u8(APPEND);
                entry.encode(to);
            }
            Self::Vote(vote) => {
                to.u8(VOTE);
                vote.encode(to);
            }
            Self::Committed(id) => {
                to.u8(COMMITTED);
                id.encode(to);
            }
            Self::Truncate(after) => {
                to.u8(TRUNCATE);
                to.option(*after, |to, id| id.encode(to));
            }
            Self::Purge(id) => {
                to.u8(PURGE);
                id.encode(to);
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            BEGIN => Self::Begin(Begin {
                vote: from.option(Vote::decode)?,
                committed: from.option(LogId::decode)?,
                purged: from.option(LogId::decode)?,
                last: from.option(LogId::decode)?,
            }),
            APPEND => Self::Append(Entry::decode(from)?),
            VOTE => Self::Vote(Vote::decode(from)?),
            COMMITTED => Self::Committed(LogId::decode(from)?),
            TRUNCATE => Self::Truncate(from.option(LogId::decode)?),
            PURGE => Self::Purge(LogId::decode(from)?),
            _ => return Err(from.malformed()),
        })
    }
}

/// A frame of encoded operations.
pub(super) fn encode_frame(operations: &[u8]) -> Vec<u8> {
    let length = u32::try_from(operations.len() + 1).expect("a batch is below 4 GiB");
    let mut payload = Vec::with_capacity(FRAME_HEADER_BYTES + operations.len() + 1);
    payload.extend_from_slice(&MAGIC.to_le_bytes());
    payload.extend_from_slice(&length.to_le_bytes());
    payload.extend_from_slice(&[0; 4]);
    payload.push(VERSION);
    payload.extend_from_slice(operations);
    let crc = crc32fast::hash(&payload[FRAME_HEADER_BYTES..]);
    payload[8..FRAME_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    payload
}

/// What stands at an offset of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    Frame {
        operations: Vec<Operation>,
        end: usize,
    },
    /// No frame was written here: the end of the segment.
    End,
    /// A frame that was not written completely.
    Torn,
    /// Something else.
    Corrupt(&'static str),
}

/// Reads the frame at an offset.
pub(super) fn scan(segment: &Bytes, offset: usize) -> Scanned {
    let rest = &segment[offset..];
    if rest.iter().all(|byte| *byte == 0) {
        return Scanned::End;
    }
    if rest.len() < FRAME_HEADER_BYTES {
        return Scanned::Torn;
    }
    let word = |at: usize| {
        let bytes: [u8; 4] = rest[at..at + 4].try_into().expect("the header is there");
        u32::from_le_bytes(bytes)
    };
    let length = word(4) as usize;
    let end = FRAME_HEADER_BYTES + length;
    if word(0) != MAGIC || length == 0 || end > rest.len() {
        return torn_or_corrupt(rest, offset, rest.len(), "has no frame header");
    }
    if crc32fast::hash(&rest[FRAME_HEADER_BYTES..end]) != word(8) {
        return torn_or_corrupt(rest, offset, end, "has a wrong checksum");
    }
    if rest[FRAME_HEADER_BYTES] != VERSION {
        return Scanned::Corrupt("has an unknown version; use a newer program");
    }
    let payload = segment.slice(offset + FRAME_HEADER_BYTES + 1..offset + end);
    match decode_operations(payload) {
        Ok(operations) => Scanned::Frame {
            operations,
            end: offset + end,
        },
        Err(_) => Scanned::Corrupt("has a malformed operation"),
    }
}

fn decode_operations(payload: Bytes) -> Result<Vec<Operation>, Malformed> {
    let mut reader = Reader::new(payload, "log operation");
    let mut operations = Vec::new();
    while !reader.is_empty() {
        operations.push(Operation::decode(&mut reader)?);
    }
    Ok(operations)
}

/// A torn write leaves a sector that was never written, which reads as zeros or is beyond the end
/// of the file. Anything else is damage to a frame that was complete, as in etcd's WAL.
fn torn_or_corrupt(rest: &[u8], offset: usize, end: usize, problem: &'static str) -> Scanned {
    if has_valid_frame_after(rest) {
        return Scanned::Corrupt(problem);
    }
    let claimed =
        FRAME_HEADER_BYTES + u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
    let is_cut_by_end_of_file = claimed > rest.len();
    let first = SECTOR_BYTES - offset % SECTOR_BYTES;
    let body = &rest[..end.min(rest.len())];
    let (head, tail) = body.split_at(first.min(body.len()));
    let is_zero = |sector: &[u8]| !sector.is_empty() && sector.iter().all(|byte| *byte == 0);
    if is_cut_by_end_of_file || is_zero(head) || tail.chunks(SECTOR_BYTES).any(is_zero) {
        Scanned::Torn
    } else {
        Scanned::Corrupt(problem)
    }
}

/// Whether a complete frame begins somewhere after the first byte: then what stands before it was
/// synced once.
fn has_valid_frame_after(rest: &[u8]) -> bool {
    let magic = MAGIC.to_le_bytes();
    (1..rest.len().saturating_sub(FRAME_HEADER_BYTES)).any(|at| {
        let rest = &rest[at..];
        if rest[..4] != magic {
            return false;
        }
        let length = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        let crc = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]);
        let body = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length);
        body.is_some_and(|body| crc32fast::hash(body) == crc)
    })
}
