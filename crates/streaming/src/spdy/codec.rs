//! Control frames to bytes and back.
//!
//! Guarantees: what [`Encoder`] writes, [`Decoder`] reads as the same frame, in the same order. Any
//! other bytes are a frame or an error. After an error the decoder cannot be used, since the state of
//! the compression is lost.

use bytes::{BufMut, BytesMut};

use super::{
    frame::{Control, FLAG_FIN, FrameHeader, ProtocolError, kind},
    headers::{Compressor, Decompressor, Headers},
};

/// Writes the control frames of one direction of a connection.
pub(super) struct Encoder(Compressor);

impl Encoder {
    pub(super) fn new() -> Self {
        Self(Compressor::new())
    }

    /// Appends a frame.
    pub(super) fn encode(
        &mut self,
        control: &Control,
        out: &mut BytesMut,
    ) -> Result<(), ProtocolError> {
        let mut body = BytesMut::new();
        let mut flags = 0;
        let kind = match control {
            Control::SynStream { id, headers, fin } => {
                body.put_u32(*id);
                // The associated stream, the priority and the slot, all unused.
                body.put_bytes(0, 6);
                body.put_slice(&self.0.compress(headers)?);
                flags = flag(*fin);
                kind::SYN_STREAM
            }
            Control::SynReply { id, headers, fin } => {
                body.put_u32(*id);
                body.put_slice(&self.0.compress(headers)?);
                flags = flag(*fin);
                kind::SYN_REPLY
            }
            Control::RstStream { id, status } => {
                body.put_u32(*id);
                body.put_u32(*status);
                kind::RST_STREAM
            }
            Control::Ping(id) => {
                body.put_u32(*id);
                kind::PING
            }
            Control::GoAway { last_id, status } => {
                body.put_u32(*last_id);
                body.put_u32(*status);
                kind::GOAWAY
            }
            Control::Headers { id, fin } => {
                body.put_u32(*id);
                body.put_slice(&self.0.compress(&Headers::default())?);
                flags = flag(*fin);
                kind::HEADERS
            }
            Control::Ignored => return Ok(()),
        };
        out.put_slice(&FrameHeader::control(kind, flags, body.len()));
        out.put_slice(&body);
        Ok(())
    }
}

fn flag(fin: bool) -> u8 {
    if fin { FLAG_FIN } else { 0 }
}

/// Reads the control frames of one direction of a connection.
pub(super) struct Decoder(Decompressor);

impl Decoder {
    pub(super) fn new() -> Self {
        Self(Decompressor::new())
    }

    /// The frame with this type, these flags and this body.
    pub(super) fn decode(
        &mut self,
        kind: u16,
        flags: u8,
        mut body: &[u8],
    ) -> Result<Control, ProtocolError> {
        let fin = flags & FLAG_FIN != 0;
        let body = &mut body;
        let control = match kind {
            kind::SYN_STREAM => {
                let id = take_id(body)?;
                *body = body.get(6..).ok_or(TOO_SHORT)?;
                let headers = self.0.decompress(std::mem::take(body))?;
                Control::SynStream { id, headers, fin }
            }
            kind::SYN_REPLY => {
                let id = take_id(body)?;
                let headers = self.0.decompress(std::mem::take(body))?;
                Control::SynReply { id, headers, fin }
            }
            kind::RST_STREAM => Control::RstStream {
                id: take_id(body)?,
                status: take_u32(body)?,
            },
            kind::PING => Control::Ping(take_u32(body)?),
            kind::GOAWAY => Control::GoAway {
                last_id: take_u32(body)? & ID_MASK,
                status: take_u32(body)?,
            },
            kind::HEADERS => {
                let id = take_id(body)?;
                // Inflated although nothing reads it: later blocks refer to it.
                self.0.decompress(std::mem::take(body))?;
                Control::Headers { id, fin }
            }
            _ => return Ok(Control::Ignored),
        };
        if !body.is_empty() {
            return Err(ProtocolError("a control frame is too long"));
        }
        Ok(control)
    }
}

const TOO_SHORT: ProtocolError = ProtocolError("a control frame is too short");

/// Stream IDs have 31 bits; the first bit is reserved.
const ID_MASK: u32 = 0x7fff_ffff;

fn take_u32(body: &mut &[u8]) -> Result<u32, ProtocolError> {
    let (value, rest) = body.split_first_chunk().ok_or(TOO_SHORT)?;
    *body = rest;
    Ok(u32::from_be_bytes(*value))
}

fn take_id(body: &mut &[u8]) -> Result<u32, ProtocolError> {
    let id = take_u32(body)? & ID_MASK;
    if id == 0 {
        return Err(ProtocolError("a control frame has no stream"));
    }
    Ok(id)
}
