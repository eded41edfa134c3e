//! Bytes written from the end to the beginning, so that the length of a message is known before it
//! is written.
//! In: fields, the last one first. Out: the message.

use bytes::BufMut;

/// A message in the making.
#[derive(Debug, Default)]
pub struct Writer {
    /// The bytes so far, the last of the message first.
    reversed: Vec<u8>,
}

impl Writer {
    /// A field that is a number.
    pub fn number(&mut self, field: u16, value: u64) {
        self.varint(value);
        self.tag(field, 0);
    }

    /// A field that is a double.
    pub fn double(&mut self, field: u16, value: f64) {
        self.reversed.extend(value.to_bits().to_be_bytes());
        self.tag(field, 1);
    }

    /// A field that is text or bytes.
    pub fn bytes(&mut self, field: u16, bytes: &[u8]) {
        self.reversed.extend(bytes.iter().rev());
        self.length(bytes.len());
        self.tag(field, 2);
    }

    /// A field that is a message, which `write` writes.
    pub fn message(&mut self, field: u16, write: impl FnOnce(&mut Self)) {
        let before = self.reversed.len();
        write(self);
        self.length(self.reversed.len() - before);
        self.tag(field, 2);
    }

    /// The whole message.
    pub fn finish(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }

    fn tag(&mut self, field: u16, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    fn length(&mut self, length: usize) {
        self.varint(length as u64);
    }

    fn varint(&mut self, value: u64) {
        let groups = varint_size(value);
        for group in (0..groups).rev() {
            let more = if group + 1 == groups { 0 } else { 0x80 };
            self.reversed
                .push((value >> (7 * group) & 0x7f) as u8 | more);
        }
    }
}

/// Writes the tag and length of a field that is text or bytes, from beginning to end.
pub(super) fn put_bytes_prefix(field: u16, length: usize, out: &mut impl BufMut) {
    put_varint(u64::from(field) << 3 | 2, out);
    put_varint(length as u64, out);
}

/// The size of what [`put_bytes_prefix`] writes.
pub(super) fn bytes_prefix_size(field: u16, length: usize) -> usize {
    varint_size(u64::from(field) << 3) + varint_size(length as u64)
}

fn put_varint(mut value: u64, out: &mut impl BufMut) {
    while value > 0x7f {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::reader::Reader;

    #[test]
    fn written_values_can_be_read() {
        for number in [
            0,
            1,
            127,
            128,
            300,
            16_384,
            u64::from(u32::MAX),
            u64::MAX >> 1,
            u64::MAX,
        ] {
            let mut writer = Writer::default();
            writer.bytes(2, b"tail");
            writer.number(1, number);
            let bytes = writer.finish();
            let mut reader = Reader::new("Thing", &bytes);
            let tag = reader.tag().expect("a tag").expect("a field");
            assert_eq!(tag.number, 1);
            assert_eq!(reader.number(tag, "number"), Ok(number));
            let tag = reader.tag().expect("a tag").expect("a field");
            assert_eq!(tag.number, 2);
            assert_eq!(reader.text(tag, "text"), Ok("tail".into()));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn messages_know_their_length() {
        let mut writer = Writer::default();
        writer.message(3, |writer| {
            writer.double(2, 1.5);
            writer.message(1, |_| {});
        });
        assert_eq!(
            writer.finish(),
            b"\x1a\x0b\x0a\x00\x11\x00\x00\x00\x00\x00\x00\xf8\x3f"
        );
    }
}
