//! Header blocks of SPDY streams, deflated with the dictionary of SPDY/3.
//!
//! Guarantees: a block that inflates to more than 64 KiB, or is not exactly one list of distinct
//! lower-case names and UTF-8 values, is an error. No allocation exceeds these bounds.

use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateError, InflateFlush, Status};

use super::{
    dictionary::{CHECKSUM, DICTIONARY},
    frame::ProtocolError,
};

/// The size of the largest block after inflation, in bytes.
pub(super) const BLOCK_BYTES_MAX: usize = 64 << 10;

/// The most headers in a block, as in spdystream.
const COUNT_MAX: u32 = 1000;

/// The window of zlib, as a power of two.
const WINDOW_BITS: u8 = 15;

/// The headers of a stream, in the order in which they were sent. Names are lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header; the first one if it has several.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name))?;
        found.1.split('\0').next()
    }

    /// Sets a header, replacing its value.
    pub fn insert(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        self.0.retain(|(n, _)| *n != name);
        self.0.push((name, value.to_owned()));
    }

    fn to_block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        put_length(&mut block, self.0.len());
        for (name, value) in &self.0 {
            put_length(&mut block, name.len());
            block.extend(name.as_bytes());
            put_length(&mut block, value.len());
            block.extend(value.as_bytes());
        }
        block
    }

    fn from_block(mut block: &[u8]) -> Result<Self, ProtocolError> {
        let count = take_u32(&mut block)?;
        if count > COUNT_MAX {
            return Err(ProtocolError("a header block has too many headers"));
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        for _ in 0..count {
            let name = take_string(&mut block)?;
            let value = take_string(&mut block)?;
            if name.is_empty() || name.bytes().any(|b| b.is_ascii_uppercase()) {
                return Err(ProtocolError("a header name is empty or not lower case"));
            }
            if headers.iter().any(|(n, _)| *n == name) {
                return Err(ProtocolError("a header is repeated"));
            }
            headers.push((name, value));
        }
        if !block.is_empty() {
            return Err(ProtocolError("a header block is followed by other bytes"));
        }
        Ok(Self(headers))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut headers = Self::default();
        for (name, value) in pairs {
            headers.insert(name, value);
        }
        headers
    }
}

fn put_length(block: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    block.extend(length.to_be_bytes());
}

fn take_u32(block: &mut &[u8]) -> Result<u32, ProtocolError> {
    let (value, rest) = block.split_first_chunk().ok_or(TOO_SHORT)?;
    *block = rest;
    Ok(u32::from_be_bytes(*value))
}

fn take_string(block: &mut &[u8]) -> Result<String, ProtocolError> {
    let length = usize::try_from(take_u32(block)?).map_err(|_| TOO_SHORT)?;
    let (value, rest) = block.split_at_checked(length).ok_or(TOO_SHORT)?;
    *block = rest;
    let value = std::str::from_utf8(value);
    let value = value.map_err(|_| ProtocolError("a header is not UTF-8"))?;
    Ok(value.to_owned())
}

const TOO_SHORT: ProtocolError = ProtocolError("a header block is too short");

/// Deflates the header blocks of one direction of a connection.
pub(super) struct Compressor(Deflate);

impl Compressor {
    pub(super) fn new() -> Self {
        let mut deflate = Deflate::new(9, true, WINDOW_BITS);
        deflate
            .set_dictionary(&DICTIONARY)
            .expect("a new deflate stream accepts a dictionary");
        Self(deflate)
    }

    pub(super) fn compress(&mut self, headers: &Headers) -> Result<Vec<u8>, ProtocolError> {
        let block = headers.to_block();
        if block.len() > BLOCK_BYTES_MAX {
            return Err(ProtocolError("a header block is too large"));
        }
        let mut rest = block.as_slice();
        let mut compressed = Vec::new();
        let mut buffer = [0; 1024];
        loop {
            let before_in = self.0.total_in();
            let before_out = self.0.total_out();
            let result = self.0.compress(rest, &mut buffer, DeflateFlush::SyncFlush);
            result.map_err(|_| ProtocolError("a header block cannot be deflated"))?;
            rest = &rest[difference(self.0.total_in(), before_in)..];
            let written = difference(self.0.total_out(), before_out);
            compressed.extend(&buffer[..written]);
            if rest.is_empty() && written < buffer.len() {
                return Ok(compressed);
            }
        }
    }
}

/// Inflates the header blocks of one direction of a connection.
pub(super) struct Decompressor(Inflate);

impl Decompressor {
    pub(super) fn new() -> Self {
        Self(Inflate::new(true, WINDOW_BITS))
    }

    pub(super) fn decompress(&mut self, mut block: &[u8]) -> Result<Headers, ProtocolError> {
        let mut inflated = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let before_in = self.0.total_in();
            let before_out = self.0.total_out();
            let result = self
                .0
                .decompress(block, &mut buffer, InflateFlush::SyncFlush);
            block = &block[difference(self.0.total_in(), before_in)..];
            let written = difference(self.0.total_out(), before_out);
            inflated.extend(&buffer[..written]);
            if inflated.len() > BLOCK_BYTES_MAX {
                return Err(ProtocolError("a header block is too large"));
            }
            match result {
                Err(InflateError::NeedDict { dict_id: CHECKSUM }) => {
                    let set = self.0.set_dictionary(&DICTIONARY);
                    set.map_err(|_| CANNOT_INFLATE)?;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(CANNOT_INFLATE),
                Ok(_) if written == buffer.len() => {}
                Ok(_) if block.is_empty() => return Headers::from_block(&inflated),
                Ok(Status::BufError) => return Err(CANNOT_INFLATE),
                Ok(Status::Ok) => {}
            }
        }
    }
}

const CANNOT_INFLATE: ProtocolError = ProtocolError("a header block cannot be inflated");

/// How far a counter of zlib moved; never more than a buffer holds.
fn difference(after: u64, before: u64) -> usize {
    usize::try_from(after - before).expect("no buffer exceeds the address space")
}
