//! The wire format: tags, numbers and lengths.
//! In: bytes. Out: one field after another.
//! Guarantees: no read beyond the end; malformed input is rejected with the messages of Go's
//! generated decoders.

use std::borrow::Cow;

/// Groups, which are deprecated, are skipped up to this depth.
const GROUPS_MAX: usize = 32;

/// How a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Length,
    Group,
    GroupEnd,
    Fixed32,
    /// No such type.
    Unknown(u8),
}

impl WireType {
    const fn of(tag: u64) -> Self {
        match (tag & 7) as u8 {
            0 => Self::Varint,
            1 => Self::Fixed64,
            2 => Self::Length,
            3 => Self::Group,
            4 => Self::GroupEnd,
            5 => Self::Fixed32,
            other => Self::Unknown(other),
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Varint => 0,
            Self::Fixed64 => 1,
            Self::Length => 2,
            Self::Group => 3,
            Self::GroupEnd => 4,
            Self::Fixed32 => 5,
            Self::Unknown(number) => number,
        }
    }
}

/// One field: its number, and how it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub(super) number: u32,
    pub(super) wire: WireType,
}

/// Reads the fields of one message.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// The message as errors name it.
    message: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            message,
        }
    }

    /// The tag of the next field; `None` at the end.
    pub(super) fn tag(&mut self) -> Result<Option<Tag>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = WireType::of(tag);
        if wire == WireType::GroupEnd {
            return Err(format!(
                "proto: {}: wiretype end group for non-group",
                self.message
            ));
        }
        // Go truncates the number to 32 bits first.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "so that the same input is refused"
        )]
        let number = (tag >> 3) as i32;
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(Some(Tag { number, wire })),
            _ => Err(format!(
                "proto: {}: illegal tag {number} (wire type {tag})",
                self.message
            )),
        }
    }

    /// The number of a field that is one.
    pub(super) fn number(&mut self, tag: Tag, field: &str) -> Result<u64, String> {
        expect(tag, WireType::Varint, field)?;
        self.varint()
    }

    /// The number of a field that is a double.
    pub(super) fn double(&mut self, tag: Tag, field: &str) -> Result<f64, String> {
        expect(tag, WireType::Fixed64, field)?;
        self.fixed64()
    }

    /// The content of a field that is text, bytes or a message.
    pub(super) fn bytes(&mut self, tag: Tag, field: &str) -> Result<&'a [u8], String> {
        expect(tag, WireType::Length, field)?;
        self.delimited()
    }

    /// The content of a string field. Invalid UTF-8 is replaced, as when Go encodes JSON.
    pub(super) fn text(&mut self, tag: Tag, field: &str) -> Result<Cow<'a, str>, String> {
        Ok(String::from_utf8_lossy(self.bytes(tag, field)?))
    }

    /// Skips an unknown field.
    pub(super) fn skip(&mut self, tag: Tag) -> Result<(), String> {
        let mut groups = 0_usize;
        let mut wire = tag.wire;
        loop {
            match wire {
                WireType::Varint => drop(self.varint()?),
                WireType::Fixed64 => drop(self.take(8)?),
                WireType::Length => drop(self.delimited()?),
                WireType::Fixed32 => drop(self.take(4)?),
                WireType::Group if groups == GROUPS_MAX => {
                    return Err("proto: groups are nested too deeply".to_owned());
                }
                WireType::Group => groups += 1,
                WireType::GroupEnd if groups == 0 => {
                    return Err("proto: unexpected end of group".to_owned());
                }
                WireType::GroupEnd => groups -= 1,
                WireType::Unknown(number) => {
                    return Err(format!("proto: illegal wireType {number}"));
                }
            }
            if groups == 0 {
                return Ok(());
            }
            wire = WireType::of(self.varint()?);
        }
    }

    /// Whether everything was read.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or_else(cut_off)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok(value);
            }
        }
        Err("proto: integer overflow".to_owned())
    }

    pub(super) fn fixed64(&mut self) -> Result<f64, String> {
        let bytes = self.take(8)?.try_into().expect("eight bytes were taken");
        Ok(f64::from_bits(u64::from_le_bytes(bytes)))
    }

    fn delimited(&mut self) -> Result<&'a [u8], String> {
        let length = self.varint()?;
        if length > i64::MAX as u64 {
            return Err("proto: negative length found during unmarshaling".to_owned());
        }
        self.take(usize::try_from(length).map_err(|_| cut_off())?)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn expect(tag: Tag, wire: WireType, field: &str) -> Result<(), String> {
    if tag.wire == wire {
        Ok(())
    } else {
        Err(wire_type_error(tag, field))
    }
}

/// The error of a field whose wire type does not match its type.
pub(super) fn wire_type_error(tag: Tag, field: &str) -> String {
    let mut letters = field.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let name: String = first.into_iter().chain(letters).collect();
    format!(
        "proto: wrong wireType = {} for field {name}",
        tag.wire.number()
    )
}

fn cut_off() -> String {
    "unexpected EOF".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads field 1 as text and passes over the rest.
    fn read(bytes: &[u8]) -> Result<String, String> {
        let mut reader = Reader::new("Thing", bytes);
        let mut text = String::new();
        while let Some(tag) = reader.tag()? {
            match tag.number {
                1 => text = reader.text(tag, "name")?.into_owned(),
                _ => reader.skip(tag)?,
            }
        }
        Ok(text)
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let cases: [&[u8]; 6] = [
            b"\x0a\x02hi",
            b"\x10\x96\x01\x0a\x02hi",
            b"\x11abcdefgh\x0a\x02hi",
            b"\x12\x03abc\x0a\x02hi",
            b"\x15abcd\x0a\x02hi",
            b"\x13\x13\x10\x01\x14\x14\x0a\x02hi",
        ];
        for bytes in cases {
            assert_eq!(read(bytes).as_deref(), Ok("hi"), "{bytes:?}");
        }
    }

    #[test]
    fn malformed_messages_have_the_messages_of_go() {
        let cases: [(&[u8], &str); 11] = [
            (b"\x0a", "unexpected EOF"),
            (b"\x0a\x05hi", "unexpected EOF"),
            (b"\x0a\x80", "unexpected EOF"),
            (b"\x11abc", "unexpected EOF"),
            (
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                "proto: negative length found during unmarshaling",
            ),
            (
                b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                "proto: integer overflow",
            ),
            (b"\x08\x01", "proto: wrong wireType = 0 for field Name"),
            (b"\x02\x00", "proto: Thing: illegal tag 0 (wire type 2)"),
            (b"\x14", "proto: Thing: wiretype end group for non-group"),
            (b"\x16", "proto: illegal wireType 6"),
            (b"\x13\x10\x01", "unexpected EOF"),
        ];
        for (bytes, why) in cases {
            assert_eq!(read(bytes).expect_err(why), why, "{bytes:?}");
        }
        assert_eq!(
            read(&[0x13; 4096]).expect_err("deep groups"),
            "proto: groups are nested too deeply"
        );
    }
}
