//! Snapshots as byte streams: for members that lag, and for backups.
//!
//! A snapshot is a magic text and frames with length and CRC-32: a header with the metadata of the
//! state, chunks of records, and a footer with counts and the SHA-256 of everything before it. So a
//! snapshot can be verified from the file alone.
//!
//! Guarantees: all records are of one revision; a snapshot without a valid footer is never used.

mod read;
mod write;

use std::io;

use crate::{
    api::{ClusterId, Revision},
    codec::Writer,
    state::Meta,
};
pub(crate) use read::Decoder;
pub use read::verify;
pub use write::SnapshotReader;

const MAGIC: &[u8; 8] = b"BLRSNAP1";
const FRAME_HEADER_BYTES: usize = 8;

/// A frame is at most one record beyond this size.
const CHUNK_BYTES: usize = 256 * 1024;

/// The largest frame that a reader accepts: a chunk and one record of the largest key and value.
const FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;

const HEADER: u8 = 1;
const RECORDS: u8 = 2;
const FOOTER: u8 = 3;

/// The footer of a snapshot: counts and checksums of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) keys: u64,
    pub(crate) events: u64,
    /// SHA-256 of everything before the footer.
    pub(crate) checksum: [u8; 32],
}

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The cluster that it was taken from.
    pub cluster_id: ClusterId,
    /// The format level of the data.
    pub format_level: u32,
    /// The index of the last entry in it.
    pub index: u64,
    /// The revision of the data.
    pub revision: Revision,
    /// Keys in it.
    pub keys: u64,
    /// SHA-256 of the content, in hexadecimal.
    pub checksum: String,
}

impl SnapshotHeader {
    fn new(meta: &Meta, footer: &Footer) -> Self {
        Self {
            cluster_id: meta.cluster.clone(),
            format_level: meta.format_level,
            index: meta.last_applied.map_or(0, |id| id.index),
            revision: meta.revision,
            keys: footer.keys,
            checksum: hexadecimal(&footer.checksum),
        }
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all text");
        text
    })
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = Writer(Vec::with_capacity(FRAME_HEADER_BYTES + payload.len()));
    frame.u32(u32::try_from(payload.len()).expect("frames are below 2 MiB"));
    frame.u32(crc32fast::hash(payload));
    frame.0.extend_from_slice(payload);
    frame.0
}

fn corrupt(problem: &str) -> io::Error {
    let message = format!("the snapshot {problem}; take or transfer it again");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests;
