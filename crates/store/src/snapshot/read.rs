//! A stream of bytes as a snapshot.
//!
//! Guarantees: memory is bounded by one frame; [`Decoder`] ends with an error unless the footer
//! matches everything before it.

use std::io::{self, Read};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    FOOTER, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, Footer, HEADER, MAGIC, RECORDS, SnapshotHeader,
    corrupt,
};
use crate::{
    codec::Reader,
    state::{Meta, Row},
};

/// Verifies a whole snapshot, for example a backup.
///
/// # Errors
///
/// `InvalidData` if it is not a complete snapshot, or damaged.
pub fn verify(source: impl Read) -> io::Result<SnapshotHeader> {
    let mut decoder = Decoder::new(source)?;
    for record in decoder.by_ref() {
        record?;
    }
    let footer = decoder.footer()?;
    Ok(SnapshotHeader::new(decoder.meta(), footer))
}

/// Reads a snapshot record by record.
pub(crate) struct Decoder<R> {
    source: R,
    meta: Meta,
    hash: Sha256,
    chunk: Reader,
    keys: u64,
    events: u64,
    footer: Option<Footer>,
    is_broken: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads the header.
    pub(crate) fn new(mut source: R) -> io::Result<Self> {
        let mut magic = [0; MAGIC.len()];
        read_exact(&mut source, &mut magic)?;
        if magic != *MAGIC {
            return Err(corrupt("does not begin as one"));
        }
        let mut hash = Sha256::new();
        hash.update(magic);
        let (kind, mut payload) = read_frame(&mut source, &mut hash)?;
        if kind != HEADER {
            return Err(corrupt("has no header"));
        }
        let meta = Meta::decode(&mut payload)?;
        Ok(Self {
            source,
            meta,
            hash,
            chunk: Reader::new(Bytes::new(), "snapshot record"),
            keys: 0,
            events: 0,
            footer: None,
            is_broken: false,
        })
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The footer, after all records.
    pub(crate) fn footer(&self) -> io::Result<&Footer> {
        self.footer.as_ref().ok_or_else(|| corrupt("has no footer"))
    }

    fn next_record(&mut self) -> io::Result<Option<Row>> {
        while self.chunk.is_empty() {
            if self.footer.is_some() {
                return Ok(None);
            }
            let before: [u8; 32] = self.hash.clone().finalize().into();
            let (kind, payload) = read_frame(&mut self.source, &mut self.hash)?;
            match kind {
                RECORDS => self.chunk = payload,
                FOOTER => self.footer = Some(self.check_footer(payload, before)?),
                _ => return Err(corrupt("has an unknown frame")),
            }
        }
        let row = Row::decode(&mut self.chunk)?;
        match row {
            Row::Key { .. } => self.keys += 1,
            Row::Event { .. } => self.events += 1,
        }
        Ok(Some(row))
    }

    fn check_footer(&mut self, mut payload: Reader, checksum: [u8; 32]) -> io::Result<Footer> {
        let counts = [payload.u64()?, payload.u64()?];
        let mut expected = [0; 32];
        for byte in &mut expected {
            *byte = payload.u8()?;
        }
        payload.finish()?;
        if counts != [self.keys, self.events] || expected != checksum {
            return Err(corrupt("does not have the checksum of its footer"));
        }
        if self.source.read(&mut [0])? != 0 {
            return Err(corrupt("has data after its footer"));
        }
        Ok(Footer {
            keys: self.keys,
            events: self.events,
            checksum,
        })
    }
}

impl<R: Read> Iterator for Decoder<R> {
    type Item = io::Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_broken {
            return None;
        }
        let next = self.next_record();
        self.is_broken = next.is_err();
        next.transpose()
    }
}

fn read_frame(source: &mut impl Read, hash: &mut Sha256) -> io::Result<(u8, Reader)> {
    let mut head = [0; FRAME_HEADER_BYTES];
    read_exact(source, &mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = word(0) as usize;
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(corrupt("has a frame of an impossible length"));
    }
    let mut payload = vec![0; length];
    read_exact(source, &mut payload)?;
    if crc32fast::hash(&payload) != word(4) {
        return Err(corrupt("has a frame with a wrong checksum"));
    }
    hash.update(head);
    hash.update(&payload);
    let payload = Bytes::from(payload);
    Ok((
        payload[0],
        Reader::new(payload.slice(1..), "snapshot record"),
    ))
}

fn read_exact(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<()> {
    source
        .read_exact(buffer)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => corrupt("is not complete"),
            _ => error,
        })
}
