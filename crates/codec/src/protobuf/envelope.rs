//! The envelope around a message: `runtime.Unknown`.
//! In: the bytes of a body. Out: apiVersion, kind and the message, and the reverse.

use super::{
    reader::Reader,
    writer::{Writer, put_bytes_prefix},
};

/// The bytes that every envelope begins with.
const MAGIC: [u8; 4] = *b"k8s\0";

/// An opened envelope.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// As written; empty when missing.
    pub(crate) api_version: String,
    /// As written; empty when missing.
    pub(crate) kind: String,
    /// The message, not yet read.
    pub(crate) message: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Opens an envelope.
    ///
    /// # Errors
    /// Bytes that are no envelope, with the messages of the server's decoder.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("empty data".to_owned());
        }
        let content = bytes.strip_prefix(&MAGIC).ok_or_else(|| {
            format!(
                "provided data does not appear to be a protobuf message, expected prefix {}",
                go_bytes(&MAGIC)
            )
        })?;
        if content.is_empty() {
            return Err("empty body".to_owned());
        }
        let mut envelope = Self::default();
        let mut reader = Reader::new("Unknown", content);
        while let Some(tag) = reader.tag()? {
            match tag.number {
                1 => envelope.read_kind(reader.bytes(tag, "typeMeta")?)?,
                2 => envelope.message = reader.bytes(tag, "raw")?,
                _ => reader.skip(tag)?,
            }
        }
        Ok(envelope)
    }

    fn read_kind(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut reader = Reader::new("TypeMeta", bytes);
        while let Some(tag) = reader.tag()? {
            match tag.number {
                1 => self.api_version = reader.text(tag, "apiVersion")?.into_owned(),
                2 => self.kind = reader.text(tag, "kind")?.into_owned(),
                _ => reader.skip(tag)?,
            }
        }
        Ok(())
    }
}

/// Encoding and content type after a message, which are empty and written nevertheless.
const AFTER_MESSAGE: &[u8] = b"\x1a\x00\x22\x00";

/// Puts a message into an envelope.
pub fn seal(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let (mut bytes, after) = envelope_around(api_version, kind, message.len());
    bytes.reserve_exact(message.len() + after.len());
    bytes.extend(message);
    bytes.extend(after);
    bytes
}

/// The bytes of an envelope before and after a message of this size.
pub fn envelope_around(
    api_version: &str,
    kind: &str,
    message_bytes: usize,
) -> (Vec<u8>, &'static [u8]) {
    let mut writer = Writer::default();
    writer.message(1, |writer| {
        writer.bytes(2, kind.as_bytes());
        writer.bytes(1, api_version.as_bytes());
    });
    let mut before = [MAGIC.as_slice(), &writer.finish()].concat();
    put_bytes_prefix(2, message_bytes, &mut before);
    (before, AFTER_MESSAGE)
}

/// Bytes as Go prints a slice of them: `[107 56 115 0]`.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_names_the_kind_of_its_message() {
        let bytes = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x03abc\x1a\x00\x22\x00";
        let envelope = Envelope::open(bytes).expect("a good envelope");
        assert_eq!(
            envelope,
            Envelope {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                message: b"abc"
            }
        );
        assert_eq!(seal("v1", "ConfigMap", b"abc"), bytes);
    }

    #[test]
    fn body_without_envelope_has_the_message_of_the_server() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "empty data"),
            (
                b"{}",
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            ),
            (b"k8s\0", "empty body"),
            (b"k8s\0\x12\x05abc", "unexpected EOF"),
            (
                b"k8s\0\x08\x01",
                "proto: wrong wireType = 0 for field TypeMeta",
            ),
        ];
        for (bytes, why) in cases {
            assert_eq!(Envelope::open(bytes).expect_err(why), why);
        }
    }
}
