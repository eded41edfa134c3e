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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spdy::{
        dictionary::{CHECKSUM, DICTIONARY},
        frame::HEADER_BYTES,
    };

    fn headers() -> impl Strategy<Value = Headers> {
        let pair = ("[a-z:-]{1,20}", any::<String>());
        prop::collection::vec(pair, 0..8).prop_map(|pairs| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            pairs.collect()
        })
    }

    fn controls() -> impl Strategy<Value = Control> {
        let id = 1..=ID_MASK;
        prop_oneof![
            (id.clone(), headers(), any::<bool>())
                .prop_map(|(id, headers, fin)| Control::SynStream { id, headers, fin }),
            (id.clone(), headers(), any::<bool>())
                .prop_map(|(id, headers, fin)| Control::SynReply { id, headers, fin }),
            (id.clone(), any::<u32>()).prop_map(|(id, status)| Control::RstStream { id, status }),
            any::<u32>().prop_map(Control::Ping),
            (0..=ID_MASK, any::<u32>())
                .prop_map(|(last_id, status)| Control::GoAway { last_id, status }),
            (id, any::<bool>()).prop_map(|(id, fin)| Control::Headers { id, fin }),
        ]
    }

    /// Decodes the next frame, and removes it.
    fn decode(decoder: &mut Decoder, bytes: &mut &[u8]) -> Control {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = FrameHeader::parse(*header).unwrap();
        let FrameHeader::Control {
            kind,
            flags,
            length,
        } = header
        else {
            panic!("{header:?} is not a control frame");
        };
        let (body, rest) = rest.split_at(length);
        *bytes = rest;
        decoder.decode(kind, flags, body).unwrap()
    }

    proptest! {
        #[test]
        fn frames_are_decoded_as_they_were_encoded(
            controls in prop::collection::vec(controls(), 0..20),
        ) {
            let mut encoder = Encoder::new();
            let mut bytes = BytesMut::new();
            for control in &controls {
                encoder.encode(control, &mut bytes).unwrap();
            }
            let mut decoder = Decoder::new();
            let mut rest = &bytes[..];
            for control in &controls {
                prop_assert_eq!(&decode(&mut decoder, &mut rest), control);
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_body_is_a_frame_or_an_error(
            frames in prop::collection::vec(
                (0u16..12, any::<u8>(), prop::collection::vec(any::<u8>(), 0..200)),
                0..8,
            ),
        ) {
            let mut decoder = Decoder::new();
            for (kind, flags, body) in frames {
                if decoder.decode(kind, flags, &body).is_err() {
                    break;
                }
            }
        }

        #[test]
        fn damaged_frame_is_a_frame_or_an_error(
            control in controls(),
            position in any::<prop::sample::Index>(),
            bits in 1u8..,
        ) {
            let mut bytes = BytesMut::new();
            Encoder::new().encode(&control, &mut bytes).unwrap();
            let position = position.index(bytes.len());
            bytes[position] ^= bits;
            let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
            if let Ok(FrameHeader::Control { kind, flags, .. }) = FrameHeader::parse(*header) {
                let _ = Decoder::new().decode(kind, flags, body);
            }
        }
    }

    #[test]
    fn dictionary_is_that_of_spdy_3() {
        assert_eq!(DICTIONARY.len(), 1423);
        let checksum = zlib_rs::adler32::adler32(1, &DICTIONARY);
        assert_eq!(checksum, CHECKSUM);
    }

    /// The bytes are those of spdystream for the error stream of a port-forward.
    #[test]
    fn stream_of_a_go_client_is_decoded() {
        let bytes = GO_SYN_STREAM;
        let mut rest = bytes;
        let control = decode(&mut Decoder::new(), &mut rest);
        let headers = [("streamtype", "error"), ("port", "80"), ("requestid", "0")];
        let Control::SynStream {
            id,
            headers: decoded,
            fin,
        } = control
        else {
            panic!("{control:?} is no SYN_STREAM");
        };
        assert_eq!(id, 1);
        assert!(!fin);
        for (name, value) in headers {
            assert_eq!(decoded.get(name), Some(value));
        }
    }

    const GO_SYN_STREAM: &[u8] = &[
        0x80, 0x03, 0x00, 0x01, 0x00, 0x00, 0x00, 0x3d, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x02, 0x25, 0x3a, 0x70, 0x3a, 0x2b,
        0x29, 0x4a, 0x4d, 0xcc, 0x85, 0x16, 0x25, 0xac, 0xa9, 0xa0, 0x80, 0x86, 0x14, 0xcb, 0x45,
        0xa0, 0x24, 0xcc, 0x64, 0x61, 0xc0, 0xc0, 0xc0, 0xc0, 0x59, 0x04, 0x89, 0xc4, 0x4c, 0x50,
        0xe2, 0x66, 0x34, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff,
    ];
}
