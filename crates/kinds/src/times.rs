//! Times that `Timestamp` cannot express.
//!
//! Kubernetes accepts times up to the year 9999; `Timestamp` ends a day earlier, so that every time
//! zone can show it. Kubernetes also writes the zero time as null, which k8s-openapi accepts in
//! optional fields only. An object with such a time must be decoded all the same, or no controller
//! sees it.
//! In: JSON that was not decoded, and why. Out: the object, with later times as the latest one, and
//! null as the zero time where a time is required.

use std::ops::Range;

use k8s_openapi::jiff::Timestamp;
use serde_json::Error;

use crate::Object;

/// Decodes an object.
pub(crate) type Decode = fn(&[u8]) -> Result<Object, Error>;

/// The value of later times: the last second of `Timestamp`.
const LATEST: &[u8] = b"9999-12-30T22:00:00Z";

/// How every later time begins.
const PREFIX: &[u8] = b"\"9999-12-3";

/// Go's zero time.
const ZERO: &[u8] = b"\"0001-01-01T00:00:00Z\"";

/// Times that are replaced one by one, each after a failure to decode it. An object with more of
/// them is decoded with all strings replaced that are such times, in whatever field.
const FAILURES_MAX: usize = 8;

/// Decodes an object that was not decoded because of `error`.
///
/// # Errors
/// The error, if such times are not its cause.
#[cold]
pub(crate) fn decode(decode: Decode, json: &[u8], error: Error) -> Result<Object, Error> {
    let mut clamped = json.to_vec();
    let mut position = offset(&clamped, &error);
    let mut expects_time = is_about_time(&error);
    for _ in 0..FAILURES_MAX {
        let failed = |time: &Range<usize>| time.start < position && position <= time.end + 1;
        let late_time = late_times(&clamped).find(failed);
        if let Some(time) = late_time {
            clamped.splice(time, LATEST.iter().copied());
        } else if let Some(member) = null_member(&clamped, position).filter(|_| expects_time) {
            clamped = with_zero_times(&clamped, &member);
        } else {
            break;
        }
        match decode(&clamped) {
            Ok(object) => return Ok(object),
            Err(error) => {
                position = offset(&clamped, &error);
                expects_time = is_about_time(&error);
            }
        }
    }
    if late_times(&clamped).next().is_none() {
        return Err(error);
    }
    decode(&clamp_all(&clamped)).map_err(|_| error)
}

/// Whether the decoder expected a time.
fn is_about_time(error: &Error) -> bool {
    error.to_string().contains("expected a timestamp")
}

/// The member that ends at a position and is null: `"startTime":null`.
fn null_member(json: &[u8], position: usize) -> Option<Vec<u8>> {
    let before = json.get(..position)?;
    let key = before.strip_suffix(b"null")?.trim_ascii_end();
    let key = key.strip_suffix(b":")?.trim_ascii_end();
    let name = key.strip_suffix(b"\"")?;
    let start = name.iter().rposition(|byte| *byte == b'"')?;
    Some(before[start..].to_vec())
}

/// Every member that is equal to this one, with the zero time instead of null. The quotes of a member
/// inside a string are escaped, so it is another one.
fn with_zero_times(json: &[u8], member: &[u8]) -> Vec<u8> {
    let key = &member[..member.len() - b"null".len()];
    let mut replaced = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(start) = rest
        .windows(member.len())
        .position(|window| window == member)
    {
        replaced.extend_from_slice(&rest[..start]);
        replaced.extend_from_slice(key);
        replaced.extend_from_slice(ZERO);
        rest = &rest[start + member.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

fn clamp_all(json: &[u8]) -> Vec<u8> {
    let mut clamped = Vec::with_capacity(json.len());
    let mut copied = 0;
    for time in late_times(json) {
        clamped.extend_from_slice(&json[copied..time.start]);
        clamped.extend_from_slice(LATEST);
        copied = time.end;
    }
    clamped.extend_from_slice(&json[copied..]);
    clamped
}

/// Where the decoder was when it failed: right behind the string that it could not decode.
fn offset(json: &[u8], error: &Error) -> usize {
    let lines = json.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    before + error.column()
}

/// The strings that are later times, without their quotes. Keys are left out.
fn late_times(json: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let candidates = (0..json.len()).filter(|start| json[*start..].starts_with(PREFIX));
    candidates.filter_map(|quote| {
        let start = quote + 1;
        let length = json[start..].iter().position(|byte| *byte == b'"')?;
        let end = start + length;
        let behind = json[end + 1..].trim_ascii_start();
        let is_key = behind.starts_with(b":");
        (!is_key && is_late(&json[start..end])).then_some(start..end)
    })
}

/// Whether it would be a time in another year.
fn is_late(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let is_time = |text: &str| text.parse::<Timestamp>().is_ok();
    let Some(rest) = text.strip_prefix("9999") else {
        return false;
    };
    !is_time(text) && is_time(&format!("9998{rest}"))
}
