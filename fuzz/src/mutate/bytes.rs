//! Mutation of any input: bytes, ranges, and texts that parsers treat in a special way.

use rand::{RngExt as _, rngs::StdRng, seq::IndexedRandom as _};

/// Texts that parsers treat in a special way.
const TOKENS: &[&str] = &[
    "/",
    "..",
    "%2e",
    "%2f",
    "%00",
    "%ff",
    "%",
    "\0",
    "{",
    "}",
    "[",
    "]",
    "{\"a\":",
    "[[[[[[[[",
    "\"",
    "\\",
    "\\ud800",
    "\\u0000",
    ":",
    ": ",
    ",",
    ";q=0.5",
    "-",
    "- ",
    "\n",
    "\r\n",
    "  ",
    "\t",
    "&a ",
    "*a",
    "<<: ",
    "!!",
    "---\n",
    "|",
    ">",
    "1e999",
    "-0",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551616",
    "0x",
    "~1",
    "~0",
    "null",
    "true",
    "=",
    "!=",
    "!",
    " in ",
    " notin ",
    "(",
    ")",
    "é",
    "\u{feff}",
    "\u{1f980}",
    "\u{202e}",
    "$ref",
    "$patch",
    "f:",
    "k:{",
    "v:",
    "i:0",
    "\"default\":",
    "\"type\":\"object\"",
    "\"items\":",
    "\"x-kubernetes-int-or-string\":true",
    "\"pattern\":\"(a{99}){99}\"",
    "\"not\":",
    "\"nullable\":true",
    "self.",
    "oldSelf",
    ".all(x, ",
    ".map(x, x + x)",
    "9999-12-31T23:59:59Z",
    "-9999-01-01T00:00:00Z",
    "1Ei",
    "system:masters",
    "impersonate-extra-",
];

/// The longest range that one mutation removes or repeats, in bytes.
const RANGE_MAX_BYTES: usize = 40;

/// Changes an input in one place. `other` is another input to take a part of.
pub(super) fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let end = random.random_range(at..=input.len().min(at + RANGE_MAX_BYTES));
    match random.random_range(0..8) {
        0 if at < input.len() => input[at] = random.random(),
        1 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        2 => drop(input.drain(at..end)),
        3 => {
            let repeated = input[at..end].repeat(random.random_range(1..20));
            input.splice(at..at, repeated);
        }
        4 => {
            let from = random.random_range(0..=other.len());
            input.splice(at..end, other[from..].iter().copied());
        }
        5 => replace_number(input, random),
        _ => {
            let token = TOKENS.choose(random).expect("the table has entries");
            input.splice(at..at, token.bytes());
        }
    }
}

/// Replaces a run of digits by another number.
fn replace_number(input: &mut Vec<u8>, random: &mut StdRng) {
    let from = random.random_range(0..=input.len());
    let Some(start) = input[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = from + start;
    let length = input[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let number = match random.random_range(0..4) {
        0 => random.random::<i64>().to_string(),
        1 => random.random_range(-2..300).to_string(),
        2 => (1_u64 << random.random_range(0..64)).to_string(),
        _ => "9".repeat(random.random_range(1..40)),
    };
    input.splice(start..start + length, number.bytes());
}

/// Repeats a part of the input until it has `size` bytes, or fills it with one character.
pub(super) fn grow(input: &mut Vec<u8>, size: usize, random: &mut StdRng) {
    let Some(missing) = size.checked_sub(input.len()) else {
        return;
    };
    let at = random.random_range(0..=input.len());
    let part = match random.random_range(0..3) {
        0 => line_at(input, at),
        1 => {
            let end = random.random_range(at..=input.len().min(at + RANGE_MAX_BYTES));
            input[at..end].to_vec()
        }
        _ => TOKENS
            .choose(random)
            .expect("the table has entries")
            .as_bytes()
            .to_vec(),
    };
    if part.is_empty() {
        input.splice(at..at, std::iter::repeat_n(b'a', missing));
        return;
    }
    let repeated = part.repeat(missing / part.len());
    let at = line_start(input, at);
    input.splice(at..at, repeated);
}

/// The line around a position, with its line end.
fn line_at(input: &[u8], at: usize) -> Vec<u8> {
    let start = line_start(input, at);
    let end = input[at..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(input.len(), |length| at + length + 1);
    input[start..end].to_vec()
}

fn line_start(input: &[u8], at: usize) -> usize {
    input[..at]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1)
}
