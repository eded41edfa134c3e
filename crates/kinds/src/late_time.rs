//! Times beyond the range of `Timestamp`.
//!
//! Kubernetes accepts times up to the year 9999; `Timestamp` ends a day earlier, so that every time
//! zone can show it. An object with a later time must be decoded all the same, or no controller
//! sees it.
//! In: JSON that was not decoded, and why. Out: the object, with such times as the latest one.

use std::ops::Range;

use k8s_openapi::jiff::Timestamp;
use serde_json::Error;

use crate::Object;
use crate::codec::Decode;

/// What later times are decoded as: the last second of `Timestamp`.
const LATEST: &[u8] = b"9999-12-30T22:00:00Z";

/// How every later time begins.
const PREFIX: &[u8] = b"\"9999-12-3";

/// Times that are replaced one by one, each after a failure to decode it. An object with more of
/// them is decoded with all strings replaced that are such times, in whatever field.
const FAILURES_MAX: usize = 8;

/// Decodes an object that was not decoded because of `error`.
///
/// # Errors
/// The error, if later times are not its cause.
#[cold]
pub(crate) fn decode(decode: Decode, json: &[u8], error: Error) -> Result<Object, Error> {
    if late_times(json).next().is_none() {
        return Err(error);
    }
    let mut clamped = json.to_vec();
    let mut position = offset(&clamped, &error);
    for _ in 0..FAILURES_MAX {
        let failed = |time: &Range<usize>| time.start < position && position <= time.end + 1;
        let Some(time) = late_times(&clamped).find(failed) else {
            break;
        };
        clamped.splice(time, LATEST.iter().copied());
        match decode(&clamped) {
            Ok(object) => return Ok(object),
            Err(error) => position = offset(&clamped, &error),
        }
    }
    decode(&clamp_all(&clamped)).map_err(|_| error)
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
