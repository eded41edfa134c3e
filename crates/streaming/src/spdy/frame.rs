//! Frames of SPDY/3.1, without their compression.

use super::headers::Headers;

/// The size of a frame header, in bytes.
pub(super) const HEADER_BYTES: usize = 8;

/// The size of the largest control frame accepted, without its header, in bytes.
pub(super) const CONTROL_BYTES_MAX: usize = 64 << 10;

/// The version in control frames. SPDY/3.1 has the frames of SPDY/3.
const VERSION: u16 = 3;

/// Ends one direction of a stream; in data frames, SYN_STREAM, SYN_REPLY and HEADERS.
pub(super) const FLAG_FIN: u8 = 1;

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("SPDY protocol error: {0}")]
pub(super) struct ProtocolError(pub(super) &'static str);

/// The reason of a RST_STREAM.
pub(super) mod reset {
    pub(in super::super) const PROTOCOL_ERROR: u32 = 1;
    pub(in super::super) const REFUSED_STREAM: u32 = 3;
    pub(in super::super) const CANCEL: u32 = 5;
}

/// The types of control frames.
pub(super) mod kind {
    pub(in super::super) const SYN_STREAM: u16 = 1;
    pub(in super::super) const SYN_REPLY: u16 = 2;
    pub(in super::super) const RST_STREAM: u16 = 3;
    pub(in super::super) const PING: u16 = 6;
    pub(in super::super) const GOAWAY: u16 = 7;
    pub(in super::super) const HEADERS: u16 = 8;
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    SynStream {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    SynReply {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    RstStream {
        id: u32,
        status: u32,
    },
    Ping(u32),
    GoAway {
        last_id: u32,
        status: u32,
    },
    /// More headers of a stream, which nothing in Kubernetes reads.
    Headers {
        id: u32,
        fin: bool,
    },
    /// SETTINGS, WINDOW_UPDATE, or a type that SPDY/3.1 does not have.
    Ignored,
}

/// The first eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameHeader {
    Data { id: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
}

impl FrameHeader {
    pub(super) fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let [a, b, c, d, flags, length @ ..] = bytes;
        let [x, y, z] = length.map(usize::from);
        let length = x << 16 | y << 8 | z;
        let word = u32::from_be_bytes([a, b, c, d]);
        if a & 0x80 == 0 {
            if word == 0 {
                return Err(ProtocolError("a data frame has no stream"));
            }
            let fin = flags & FLAG_FIN != 0;
            return Ok(Self::Data {
                id: word,
                fin,
                length,
            });
        }
        if u16::from_be_bytes([a & 0x7f, b]) != VERSION {
            return Err(ProtocolError("a control frame has another version"));
        }
        if length > CONTROL_BYTES_MAX {
            return Err(ProtocolError("a control frame is too large"));
        }
        let kind = u16::from_be_bytes([c, d]);
        Ok(Self::Control {
            kind,
            flags,
            length,
        })
    }

    /// The header of a data frame. `length` is at most 2²⁴ - 1.
    pub(super) fn data(id: u32, fin: bool, length: usize) -> [u8; HEADER_BYTES] {
        let flags = if fin { FLAG_FIN } else { 0 };
        Self::assemble(id, flags, length)
    }

    /// The header of a control frame. `length` is at most 2²⁴ - 1.
    pub(super) fn control(kind: u16, flags: u8, length: usize) -> [u8; HEADER_BYTES] {
        let word = 0x8000_0000 | u32::from(VERSION) << 16 | u32::from(kind);
        Self::assemble(word, flags, length)
    }

    fn assemble(word: u32, flags: u8, length: usize) -> [u8; HEADER_BYTES] {
        debug_assert!(length < 1 << 24);
        let [a, b, c, d] = word.to_be_bytes();
        let [.., x, y, z] = length.to_be_bytes();
        [a, b, c, d, flags, x, y, z]
    }
}
