//! Mutation of protobuf messages in the envelope of Kubernetes: `PATH LF "k8s" NUL MESSAGE`.
//!
//! Fields are copied, removed and changed at any depth, and the lengths around them are corrected,
//! so that mutations reach the code behind the envelope.

use rand::{RngExt as _, rngs::StdRng};

const MAGIC: &[u8] = b"k8s\0";

/// The deepest message that is parsed; what is deeper stays bytes.
const DEPTH_MAX: usize = 12;

/// A field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    number: u64,
    value: FieldValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldValue {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
    /// Bytes that are a message, as far as can be seen without a schema.
    Message(Vec<Field>),
}

/// Changes one field. Returns `false` if the input is not a message in the envelope.
pub(super) fn mutate(input: &mut Vec<u8>, random: &mut StdRng) -> bool {
    edit(input, random, |fields, random| {
        let message = pick(fields, random);
        if message.is_empty() {
            message.push(Field {
                number: random.random_range(1..20),
                value: FieldValue::Bytes(Vec::new()),
            });
            return;
        }
        let index = random.random_range(0..message.len());
        match random.random_range(0..5) {
            0 => drop(message.remove(index)),
            1 => {
                let copy = message[index].clone();
                let at = random.random_range(0..=message.len());
                message.insert(at, copy);
            }
            2 => message[index].number = random.random_range(1..30),
            _ => change(&mut message[index].value, random),
        }
    })
}

/// Repeats a field, or lengthens it, until the message has about `size` bytes. Returns `false` if
/// the input is not a message in the envelope.
pub(super) fn grow(input: &mut Vec<u8>, size: usize, random: &mut StdRng) -> bool {
    let Some(missing) = size.checked_sub(input.len()) else {
        return true;
    };
    edit(input, random, |fields, random| {
        let message = pick(fields, random);
        if message.is_empty() {
            return;
        }
        let index = random.random_range(0..message.len());
        if let FieldValue::Bytes(bytes) = &mut message[index].value
            && random.random_ratio(1, 3)
        {
            bytes.resize(bytes.len() + missing, b'a');
            return;
        }
        let field = message[index].clone();
        let field_bytes = encode(std::slice::from_ref(&field)).len();
        message.extend(std::iter::repeat_n(field, missing / field_bytes));
    })
}

fn edit(
    input: &mut Vec<u8>,
    random: &mut StdRng,
    change: impl FnOnce(&mut Vec<Field>, &mut StdRng),
) -> bool {
    let Some(start) = input.iter().position(|byte| *byte == b'\n') else {
        return false;
    };
    let Some(bytes) = input[start + 1..].strip_prefix(MAGIC) else {
        return false;
    };
    let Some(mut fields) = parse(bytes, 0) else {
        return false;
    };
    change(&mut fields, random);
    input.truncate(start + 1 + MAGIC.len());
    input.extend(encode(&fields));
    true
}

/// A random message: this one or one in it.
fn pick<'a>(fields: &'a mut Vec<Field>, random: &mut StdRng) -> &'a mut Vec<Field> {
    let is_message = |field: &Field| matches!(field.value, FieldValue::Message(_));
    let messages: Vec<usize> = (0..fields.len())
        .filter(|index| is_message(&fields[*index]))
        .collect();
    if messages.is_empty() || random.random_ratio(1, 5) {
        return fields;
    }
    let index = messages[random.random_range(0..messages.len())];
    match &mut fields[index].value {
        FieldValue::Message(inner) => pick(inner, random),
        _ => unreachable!("only messages were collected"),
    }
}

fn change(value: &mut FieldValue, random: &mut StdRng) {
    match value {
        FieldValue::Varint(number) => {
            *number = match random.random_range(0..3) {
                0 => random.random(),
                1 => random.random_range(0..4),
                _ => 1 << random.random_range(0..64),
            }
        }
        FieldValue::Bytes(bytes) => super::bytes::mutate(bytes, b"", random),
        FieldValue::Fixed64(bytes) => *bytes = random.random(),
        FieldValue::Fixed32(bytes) => *bytes = random.random(),
        FieldValue::Message(fields) => {
            // The message in itself, which makes it deeper.
            let inner = fields.clone();
            if let Some(field) = fields.last_mut() {
                field.value = FieldValue::Message(inner);
            }
        }
    }
}

fn parse(mut bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = parse_varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => FieldValue::Varint(parse_varint(&mut bytes)?),
            1 => FieldValue::Fixed64(*split(&mut bytes, 8)?.first_chunk()?),
            5 => FieldValue::Fixed32(*split(&mut bytes, 4)?.first_chunk()?),
            2 => {
                let length = usize::try_from(parse_varint(&mut bytes)?).ok()?;
                let inner = split(&mut bytes, length)?;
                let message = (depth < DEPTH_MAX && !inner.is_empty())
                    .then(|| parse(inner, depth + 1))
                    .flatten();
                message.map_or_else(|| FieldValue::Bytes(inner.to_vec()), FieldValue::Message)
            }
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        fields.push(Field {
            number: tag >> 3,
            value,
        });
    }
    Some(fields)
}

fn split<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(length)?;
    *bytes = tail;
    Some(head)
}

fn parse_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *split(bytes, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        let tag = field.number << 3;
        match &field.value {
            FieldValue::Varint(number) => {
                push_varint(&mut bytes, tag);
                push_varint(&mut bytes, *number);
            }
            FieldValue::Fixed64(fixed) => {
                push_varint(&mut bytes, tag | 1);
                bytes.extend(fixed);
            }
            FieldValue::Fixed32(fixed) => {
                push_varint(&mut bytes, tag | 5);
                bytes.extend(fixed);
            }
            FieldValue::Bytes(inner) => push_bytes(&mut bytes, tag, inner),
            FieldValue::Message(fields) => push_bytes(&mut bytes, tag, &encode(fields)),
        }
    }
    bytes
}

fn push_bytes(bytes: &mut Vec<u8>, tag: u64, inner: &[u8]) {
    push_varint(bytes, tag | 2);
    push_varint(bytes, inner.len() as u64);
    bytes.extend(inner);
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn encoded_messages_parse_to_themselves() {
        let text = |text: &str| FieldValue::Bytes(text.as_bytes().to_vec());
        let field = |number, value| Field { number, value };
        let fields = vec![
            field(1, FieldValue::Varint(u64::MAX)),
            field(
                2,
                FieldValue::Message(vec![field(15, text("\u{ff}\u{ff}name"))]),
            ),
            field(16, FieldValue::Fixed64([7; 8])),
            field(17, FieldValue::Fixed32([7; 4])),
        ];
        assert_eq!(parse(&encode(&fields), 0), Some(fields));
    }

    #[test]
    fn mutated_messages_keep_their_envelope() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..1_000 {
            let mut input = b"/api/v1/pods\nk8s\0\x0a\x04\x0a\x02v1\x12\x03\x0a\x01a".to_vec();
            assert!(mutate(&mut input, &mut random));
            let message = input
                .strip_prefix(b"/api/v1/pods\nk8s\0")
                .expect("path and envelope");
            assert!(parse(message, 0).is_some(), "{message:?}");
        }
    }
}
