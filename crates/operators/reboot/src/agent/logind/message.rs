//! D-Bus messages: method calls are encoded, replies are decoded.
//!
//! Mirrors the chapter "Message Protocol" of the D-Bus specification. A message is a header of 16
//! bytes, an array of header fields padded to 8 bytes, and a body. Calls have at most one boolean
//! argument. Of a reply, only what distinguishes success from failure is decoded.

use super::bus::BusError;

/// The fixed part of a header, with the length of the array of fields.
pub(super) const HEAD_LEN: usize = 16;
/// The longest message that is read. The specification allows 128 MiB; replies to calls without
/// results take about 100 bytes.
const LEN_MAX: usize = 1 << 20;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// A method call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    pub(super) argument: Option<bool>,
}

impl Call<'_> {
    /// The message, in little-endian order and without flags.
    pub(super) fn encode(&self, serial: u32) -> Vec<u8> {
        let body = self.argument.map(|value| u32::from(value).to_le_bytes());
        let body: &[u8] = body.as_ref().map_or(&[], |bytes| bytes);
        // Byte order, message type, flags, protocol version.
        let mut message = vec![b'l', METHOD_CALL, 0, 1];
        push_u32(&mut message, body.len());
        message.extend(serial.to_le_bytes());
        // The length of the fields, known below.
        push_u32(&mut message, 0);
        self.push_fields(&mut message);
        let fields_len = message.len() - HEAD_LEN;
        message[HEAD_LEN - 4..HEAD_LEN].copy_from_slice(&length(fields_len));
        pad(&mut message, 8);
        message.extend(body);
        message
    }

    fn push_fields(&self, message: &mut Vec<u8>) {
        push_text(message, PATH, b'o', self.path);
        push_text(message, INTERFACE, b's', self.interface);
        push_text(message, MEMBER, b's', self.member);
        push_text(message, DESTINATION, b's', self.destination);
        if self.argument.is_some() {
            pad(message, 8);
            message.extend([SIGNATURE, 1, b'g', 0, 1, b'b', 0]);
        }
    }
}

/// A header field that is a string or an object path.
fn push_text(message: &mut Vec<u8>, field: u8, signature: u8, text: &str) {
    pad(message, 8);
    message.extend([field, 1, signature, 0]);
    push_u32(message, text.len());
    message.extend(text.as_bytes());
    message.push(0);
}

fn push_u32(message: &mut Vec<u8>, value: usize) {
    message.extend(length(value));
}

fn length(value: usize) -> [u8; 4] {
    let value = u32::try_from(value).expect("calls are shorter than 4 GiB");
    value.to_le_bytes()
}

fn pad(message: &mut Vec<u8>, alignment: usize) {
    message.resize(message.len().next_multiple_of(alignment), 0);
}

/// The fixed part of a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    big_endian: bool,
    kind: u8,
    fields_len: usize,
    body_len: usize,
}

impl Head {
    pub(super) fn decode(bytes: [u8; HEAD_LEN]) -> Result<Self, BusError> {
        let big_endian = match bytes[0] {
            b'l' => false,
            b'B' => true,
            _ => return Err(malformed("unknown byte order")),
        };
        let mut reader = Reader {
            bytes: &bytes,
            at: 4,
            big_endian,
        };
        let body_len = reader.length()?;
        let _serial = reader.u32()?;
        let head = Self {
            big_endian,
            kind: bytes[1],
            fields_len: reader.length()?,
            body_len,
        };
        if head.rest_len() > LEN_MAX {
            return Err(malformed("too long"));
        }
        Ok(head)
    }

    /// How many bytes follow.
    pub(super) fn rest_len(&self) -> usize {
        self.body_start().saturating_add(self.body_len)
    }

    /// Where the body begins in what follows. Alignment there and in the fields is relative to
    /// their begin, since both begin at a multiple of 8 bytes of the message.
    fn body_start(&self) -> usize {
        self.fields_len.next_multiple_of(8)
    }

    fn reader(self, bytes: &[u8]) -> Reader<'_> {
        Reader {
            bytes,
            at: 0,
            big_endian: self.big_endian,
        }
    }
}

/// What a message is to the client of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The call with this serial succeeded.
    Return { serial: u32 },
    /// The call with this serial failed.
    Error {
        serial: u32,
        name: String,
        /// The first argument, if it is a string; empty otherwise.
        text: String,
    },
    /// A signal or a call.
    Other,
}

impl Message {
    /// Decodes what follows the head.
    pub(super) fn decode(head: Head, rest: &[u8]) -> Result<Self, BusError> {
        let truncated = || malformed("truncated");
        let fields = rest.get(..head.fields_len).ok_or_else(truncated)?;
        let body = rest.get(head.body_start()..).ok_or_else(truncated)?;
        // The specification requires that messages of unknown types are ignored.
        if ![METHOD_RETURN, ERROR].contains(&head.kind) {
            return Ok(Self::Other);
        }
        let fields = Fields::decode(head.reader(fields))?;
        let serial = fields
            .reply_serial
            .ok_or_else(|| malformed("no reply serial"))?;
        if head.kind == METHOD_RETURN {
            return Ok(Self::Return { serial });
        }
        let text = if fields.signature.starts_with('s') {
            head.reader(body).text()?
        } else {
            String::new()
        };
        Ok(Self::Error {
            serial,
            name: fields.error_name,
            text,
        })
    }
}

/// The header fields that matter for a reply.
#[derive(Debug, Default)]
struct Fields {
    reply_serial: Option<u32>,
    error_name: String,
    signature: String,
}

impl Fields {
    fn decode(mut reader: Reader<'_>) -> Result<Self, BusError> {
        let mut fields = Self::default();
        while reader.at < reader.bytes.len() {
            reader.align(8)?;
            let field = reader.u8()?;
            match (field, &*reader.signature()?) {
                (REPLY_SERIAL, "u") => fields.reply_serial = Some(reader.u32()?),
                (ERROR_NAME, "s") => fields.error_name = reader.text()?,
                (SIGNATURE, "g") => fields.signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.u32()?),
                _ => return Err(malformed("unknown header field")),
            }
        }
        Ok(fields)
    }
}

/// Values one after another, each at a multiple of its alignment.
#[derive(Debug)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl<'a> Reader<'a> {
    fn align(&mut self, alignment: usize) -> Result<(), BusError> {
        let padding = self.at.next_multiple_of(alignment) - self.at;
        self.take(padding).map(drop)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], BusError> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        self.at = self.at.saturating_add(len);
        taken.ok_or_else(|| malformed("truncated"))
    }

    fn u8(&mut self) -> Result<u8, BusError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, BusError> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        Ok(if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    fn length(&mut self) -> Result<usize, BusError> {
        usize::try_from(self.u32()?).map_err(|_| malformed("too long"))
    }

    /// A string or an object path.
    fn text(&mut self) -> Result<String, BusError> {
        let len = self.length()?;
        self.terminated(len)
    }

    fn signature(&mut self) -> Result<String, BusError> {
        let len = self.u8()?.into();
        self.terminated(len)
    }

    fn terminated(&mut self, len: usize) -> Result<String, BusError> {
        let text = self.take(len)?.to_vec();
        self.u8()?;
        String::from_utf8(text).map_err(|_| malformed("text is not UTF-8"))
    }
}

fn malformed(problem: &str) -> BusError {
    BusError::Protocol(format!("malformed message: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Messages that zbus 5.19 wrote.
    const REBOOT: &str = "6c01000104000000010000007f00000001016f00170000002f6f72672f66726565\
        6465736b746f702f6c6f67696e3100020173001e0000006f72672e667265656465736b746f702e6c6f67696e\
        312e4d616e61676572000003017300060000005265626f6f74000006017300160000006f72672e6672656564\
        65736b746f702e6c6f67696e310000080167000162000000000000";
    const RETURN: &str = "6c020001000000000200000015000000050175000100000007017300040000003a312e\
        3700000000";
    const ACCESS_DENIED: &str = "6c03000129000000030000004f00000004017300270000006f72672e667265\
        656465736b746f702e444275732e4572726f722e41636365737344656e696564000501750001000000070173\
        00040000003a312e3700000000080167000173000024000000496e7465726163746976652061757468656e74\
        69636174696f6e2072657175697265642e00";
    const BIG_ENDIAN: &str = "4203000100000008000000040000003f04017300000000276f72672e6672656564\
        65736b746f702e444275732e4572726f722e41636365737344656e6965640005017500000000010801670001\
        730000000000034e6f2e00";
    const NAME_ACQUIRED: &str = "6c04000109000000050000007f00000001016f00150000002f6f72672f6672\
        65656465736b746f702f4442757300000002017300140000006f72672e667265656465736b746f702e444275\
        7300000000030173000c0000004e616d6541637175697265640000000007017300140000006f72672e667265\
        656465736b746f702e44427573000000000801670001730000040000003a312e3800";

    /// The bytes of hexadecimal digits.
    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    fn decode(message: &[u8]) -> Result<Message, BusError> {
        let (head, rest) = message
            .split_first_chunk()
            .ok_or_else(|| malformed("truncated"))?;
        let head = Head::decode(*head)?;
        let rest = rest.get(..head.rest_len());
        Message::decode(head, rest.ok_or_else(|| malformed("truncated"))?)
    }

    fn access_denied(text: &str) -> Message {
        Message::Error {
            serial: 1,
            name: "org.freedesktop.DBus.Error.AccessDenied".into(),
            text: text.into(),
        }
    }

    #[test]
    fn calls_are_encoded_as_zbus_encodes_them() {
        let call = Call {
            destination: "org.freedesktop.login1",
            path: "/org/freedesktop/login1",
            interface: "org.freedesktop.login1.Manager",
            member: "Reboot",
            argument: Some(false),
        };
        assert_eq!(call.encode(1), bytes(REBOOT));
    }

    #[test]
    fn replies_are_decoded() {
        let reply = |hex| decode(&bytes(hex)).expect("it is a message");
        assert_eq!(reply(RETURN), Message::Return { serial: 1 });
        let text = "Interactive authentication required.";
        assert_eq!(reply(ACCESS_DENIED), access_denied(text));
        assert_eq!(reply(BIG_ENDIAN), access_denied("No."));
        assert_eq!(reply(NAME_ACQUIRED), Message::Other);
        assert_eq!(reply(REBOOT), Message::Other);
    }

    #[test]
    fn truncated_messages_are_errors() {
        for message in [RETURN, ACCESS_DENIED, BIG_ENDIAN, NAME_ACQUIRED] {
            let message = bytes(message);
            for len in 0..message.len() {
                assert!(decode(&message[..len]).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn changed_bytes_never_panic() {
        let message = bytes(ACCESS_DENIED);
        for at in 0..message.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = message.clone();
                changed[at] = value;
                drop(decode(&changed));
            }
        }
    }
}
