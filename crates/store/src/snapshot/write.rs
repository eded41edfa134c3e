//! The state as a stream of chunks.

use std::{
    io::{self, Read},
    ops::Bound,
};

use bytes::{Buf, Bytes};
use redb::ReadTransaction;
use sha2::{Digest, Sha256};

use super::{CHUNK_BYTES, FOOTER, Footer, HEADER, MAGIC, RECORDS, SnapshotHeader, frame};
use crate::{
    api::Revision,
    codec::Writer,
    state::{EVENTS, KEYS, Meta, Row, read_meta, redb_error},
};

/// A snapshot that is being read. It pins its revision of the state until it is dropped, so the
/// file of the state grows with the writes meanwhile.
pub struct SnapshotReader {
    view: ReadTransaction,
    meta: Meta,
    next: Next,
    hash: Sha256,
    keys: u64,
    events: u64,
    header: Option<SnapshotHeader>,
    /// What [`Read`] has not consumed yet.
    rest: Bytes,
}

enum Next {
    Header,
    Keys { after: Option<String> },
    Events { from: Revision },
    End,
}

impl SnapshotReader {
    pub(crate) fn new(view: ReadTransaction) -> io::Result<Self> {
        let meta = read_meta(&view)?;
        Ok(Self {
            view,
            meta,
            next: Next::Header,
            hash: Sha256::new(),
            keys: 0,
            events: 0,
            header: None,
            rest: Bytes::new(),
        })
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What the snapshot is of; known after the last chunk.
    pub fn header(&self) -> Option<&SnapshotHeader> {
        self.header.as_ref()
    }

    /// The next chunk, or nothing after the last one. Blocks on the disk.
    pub fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        let mut payload = Writer::default();
        match &self.next {
            Next::End => return Ok(None),
            Next::Header => {
                payload.u8(HEADER);
                self.meta.encode(&mut payload);
                self.next = Next::Keys { after: None };
                let mut first = MAGIC.to_vec();
                first.extend_from_slice(&frame(&payload.0));
                return Ok(Some(self.hashed(first)));
            }
            Next::Keys { after } => {
                let after = after.clone();
                payload.u8(RECORDS);
                self.next = self.key_records(after, &mut payload)?;
            }
            Next::Events { from } => {
                let from = *from;
                payload.u8(RECORDS);
                self.next = self.event_records(from, &mut payload)?;
            }
        }
        let mut chunk = frame(&payload.0);
        if matches!(self.next, Next::End) {
            self.hash.update(&chunk);
            chunk.extend_from_slice(&self.footer());
            return Ok(Some(chunk.into()));
        }
        Ok(Some(self.hashed(chunk)))
    }

    fn hashed(&mut self, chunk: Vec<u8>) -> Bytes {
        self.hash.update(&chunk);
        chunk.into()
    }

    fn key_records(&mut self, after: Option<String>, payload: &mut Writer) -> io::Result<Next> {
        let table = self.view.open_table(KEYS).map_err(redb_error)?;
        let start = match &after {
            None => Bound::Unbounded,
            Some(key) => Bound::Excluded(key.as_str()),
        };
        let range = table
            .range::<&str>((start, Bound::Unbounded))
            .map_err(redb_error)?;
        for pair in range {
            let (key, record) = pair.map_err(redb_error)?;
            let key = key.value().to_owned();
            let record = Bytes::copy_from_slice(record.value());
            let row = Row::Key { key, record };
            row.encode(payload);
            self.keys += 1;
            if payload.0.len() > CHUNK_BYTES {
                let Row::Key { key, .. } = row else {
                    unreachable!("the row was built above");
                };
                return Ok(Next::Keys { after: Some(key) });
            }
        }
        Ok(Next::Events { from: 0 })
    }

    fn event_records(&mut self, from: Revision, payload: &mut Writer) -> io::Result<Next> {
        let table = self.view.open_table(EVENTS).map_err(redb_error)?;
        for pair in table.range(from..).map_err(redb_error)? {
            let (revision, record) = pair.map_err(redb_error)?;
            let revision = revision.value();
            let record = Bytes::copy_from_slice(record.value());
            Row::Event { revision, record }.encode(payload);
            self.events += 1;
            if payload.0.len() > CHUNK_BYTES {
                return Ok(Next::Events { from: revision + 1 });
            }
        }
        Ok(Next::End)
    }

    fn footer(&mut self) -> Vec<u8> {
        let footer = Footer {
            keys: self.keys,
            events: self.events,
            checksum: self.hash.clone().finalize().into(),
        };
        self.header = Some(SnapshotHeader::new(&self.meta, &footer));
        let mut payload = Writer::default();
        payload.u8(FOOTER);
        payload.u64(footer.keys);
        payload.u64(footer.events);
        payload.0.extend_from_slice(&footer.checksum);
        frame(&payload.0)
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            match self.next_chunk()? {
                None => return Ok(0),
                Some(chunk) => self.rest = chunk,
            }
        }
        let count = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
