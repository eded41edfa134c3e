//! Bytes in JSON.
//! In: base64 text. Out: the same bytes in canonical base64, or the error of Go's decoder.

use ::base64::{Engine as _, engine::general_purpose::STANDARD};

/// Decodes and encodes again: line breaks go, padding is checked, stray last bits are cleared.
///
/// # Errors
/// `illegal base64 data at input byte N`.
pub(super) fn canonical(text: &str) -> Result<String, String> {
    let bytes =
        decode(text.as_bytes()).map_err(|at| format!("illegal base64 data at input byte {at}"))?;
    Ok(encode(&bytes))
}

/// Canonical base64.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of canonical base64; empty for other text.
pub fn decode_or_empty(text: &str) -> Vec<u8> {
    decode(text.as_bytes()).unwrap_or_default()
}

/// The bytes, or the position of the first invalid one as Go counts it.
fn decode(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let mut group = [0_u8; 4];
    let mut have = 0;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        at += 1;
        if let Some(sextet) = sextet(byte) {
            group[have] = sextet;
            have += 1;
            if have == 4 {
                out.extend(bytes_of(group));
                have = 0;
            }
        } else if byte == b'=' {
            end_of_padding(text, at, have)?;
            out.extend_from_slice(&bytes_of(group)[..have - 1]);
            return Ok(out);
        } else if !is_break(byte) {
            return Err(at - 1);
        }
    }
    if have == 0 {
        Ok(out)
    } else {
        Err(text.len() - have)
    }
}

/// Validates what follows the first `=`, which is before `at` and after `have` characters of its
/// group.
fn end_of_padding(text: &[u8], at: usize, have: usize) -> Result<(), usize> {
    let skip_breaks = |from: usize| {
        (from..text.len())
            .find(|i| !is_break(text[*i]))
            .unwrap_or(text.len())
    };
    let mut at = match have {
        0 | 1 => return Err(at - 1),
        3 => at,
        _ => {
            let second = skip_breaks(at);
            match text.get(second) {
                None => return Err(text.len()),
                Some(b'=') => second + 1,
                Some(_) => return Err(second - 1),
            }
        }
    };
    at = skip_breaks(at);
    if at < text.len() { Err(at) } else { Ok(()) }
}

const fn is_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

const fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

const fn bytes_of([a, b, c, d]: [u8; 4]) -> [u8; 3] {
    [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_checked_as_go_does() {
        let cases = [
            ("", Ok("")),
            ("aGVsbG8=", Ok("aGVsbG8=")),
            ("aGVs\nbG8=\n", Ok("aGVsbG8=")),
            ("aR==", Ok("aQ==")),
            ("a", Err(0)),
            ("abc", Err(0)),
            ("aGVsbG8", Err(4)),
            ("!x", Err(0)),
            ("abc!", Err(3)),
            ("not base64", Err(3)),
            ("ab=", Err(3)),
            ("ab=c", Err(2)),
            ("ab==cd", Err(4)),
            ("=abc", Err(0)),
        ];
        for (text, expected) in cases {
            let expected = expected
                .map(str::to_owned)
                .map_err(|at| format!("illegal base64 data at input byte {at}"));
            assert_eq!(canonical(text), expected, "{text:?}");
        }
    }
}
