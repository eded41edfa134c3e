//! Frames: what one sync of the log covers, with a checksum.
//!
//! A frame is a magic number, the length of its payload, the complement of the length, the CRC-32
//! of the payload, the payload (a version byte and operations), and a last byte. A frame is written
//! and synced as a whole before the next one is written, so only the last frame of the last segment
//! can be torn. What was not written reads as zeros, so a frame that is damaged but has no zeros
//! where there must be none was complete once: that is damage, as in etcd's WAL.

use bytes::Bytes;

use crate::{
    codec::{Malformed, Reader, Writer},
    entry::{Entry, LogId, Vote},
};

const MAGIC: u32 = 0xbe11_10f1;
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;

/// The last byte: not zero, so that it shows that a frame was written to its end.
const LAST_BYTE: u8 = 0xa5;

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
    let mut frame = Vec::with_capacity(HEADER_BYTES + operations.len() + 2);
    frame.extend_from_slice(&MAGIC.to_le_bytes());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&(!length).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.push(VERSION);
    frame.extend_from_slice(operations);
    let crc = crc32fast::hash(&frame[HEADER_BYTES..]);
    frame[12..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    frame.push(LAST_BYTE);
    frame
}

/// The bytes at an offset of a segment.
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
    if rest.len() < HEADER_BYTES || is_zero(&rest[HEADER_BYTES..]) {
        return Scanned::Torn;
    }
    let Some(header) = Header::decode(rest) else {
        return torn_header_or_corrupt(rest, offset);
    };
    let end = HEADER_BYTES + header.length + 1;
    if end > rest.len() {
        return torn_or_corrupt(rest, offset, rest.len() + 1, "is longer than its file");
    }
    let payload = &rest[HEADER_BYTES..end - 1];
    if crc32fast::hash(payload) != header.crc || rest[end - 1] != LAST_BYTE {
        return torn_or_corrupt(rest, offset, end, "has a wrong checksum");
    }
    if payload[0] != VERSION {
        return Scanned::Corrupt("has an unknown version; use a newer program");
    }
    let operations = segment.slice(offset + HEADER_BYTES + 1..offset + end - 1);
    match decode_operations(operations) {
        Ok(operations) => Scanned::Frame {
            operations,
            end: offset + end,
        },
        Err(_) => Scanned::Corrupt("has a malformed operation"),
    }
}

struct Header {
    length: usize,
    crc: u32,
}

impl Header {
    /// The header at the beginning, if it is consistent.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        };
        let length = word(4)?;
        let is_consistent = word(0)? == MAGIC && word(8)? == !length && length > 0;
        is_consistent.then_some(Self {
            length: length as usize,
            crc: word(12)?,
        })
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn decode_operations(payload: Bytes) -> Result<Vec<Operation>, Malformed> {
    let mut reader = Reader::new(payload, "log operation");
    let mut operations = Vec::new();
    while !reader.is_empty() {
        operations.push(Operation::decode(&mut reader)?);
    }
    Ok(operations)
}

/// Whether a damaged header is in two sectors, of which one was never written.
fn torn_header_or_corrupt(rest: &[u8], offset: usize) -> Scanned {
    let first = (SECTOR_BYTES - offset % SECTOR_BYTES).min(HEADER_BYTES);
    let (head, tail) = rest[..HEADER_BYTES].split_at(first);
    let is_torn = is_zero(head) || !tail.is_empty() && is_zero(tail);
    if is_torn && !has_frame_after(rest) {
        Scanned::Torn
    } else {
        Scanned::Corrupt("has no frame header")
    }
}

/// Whether a damaged frame with this end was never complete: it ends after the file, its last byte
/// is missing, or one of its sectors was never written.
fn torn_or_corrupt(rest: &[u8], offset: usize, end: usize, problem: &'static str) -> Scanned {
    if has_frame_after(rest) {
        return Scanned::Corrupt(problem);
    }
    let Some(frame) = rest.get(..end) else {
        return Scanned::Torn;
    };
    let first = (SECTOR_BYTES - offset % SECTOR_BYTES).min(end);
    let (head, tail) = frame.split_at(first);
    if frame.ends_with(&[0]) || is_zero(head) || tail.chunks(SECTOR_BYTES).any(is_zero) {
        Scanned::Torn
    } else {
        Scanned::Corrupt(problem)
    }
}

/// Whether a complete frame begins somewhere after the first byte: then what precedes it was synced
/// once.
fn has_frame_after(rest: &[u8]) -> bool {
    (1..rest.len()).any(|at| {
        let rest = &rest[at..];
        let Some(header) = Header::decode(rest) else {
            return false;
        };
        let payload = rest.get(HEADER_BYTES..HEADER_BYTES + header.length);
        payload.is_some_and(|payload| crc32fast::hash(payload) == header.crc)
    })
}
