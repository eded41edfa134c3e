//! Timestamps and durations as text.
//! In: texts in the formats of Go and RFC 3339. Out: nanoseconds, and back.
//! Guarantees: timestamps are in the years 1 to 9999.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use crate::eval::Failure;

pub(crate) const SECOND: i128 = 1_000_000_000;
/// The first second of the year 1 and the last of the year 9999.
const FIRST: i128 = -62_135_596_800 * SECOND;
const LAST: i128 = 253_402_300_799 * SECOND + 999_999_999;

/// Whether this many nanoseconds since 1970 are within the range of timestamps.
pub(crate) fn is_moment(nanos: i128) -> bool {
    (FIRST..=LAST).contains(&nanos)
}

/// Parses a timestamp in the format of RFC 3339.
///
/// # Errors
/// It is no timestamp, or out of range.
pub(crate) fn parse_timestamp(text: &str) -> Result<i128, Failure> {
    let nanos =
        rfc3339(text).ok_or_else(|| Failure::conversion("string", "google.protobuf.Timestamp"))?;
    if is_moment(nanos) {
        Ok(nanos)
    } else {
        Err(Failure::new("timestamp overflow"))
    }
}

/// `2006-01-02T15:04:05.999Z` or with an offset from UTC; only the fraction is optional.
fn rfc3339(text: &str) -> Option<i128> {
    let bytes = text.as_bytes();
    let fixed = b"dddd-dd-ddTdd:dd:dd";
    let fits = |(b, form): (&u8, &u8)| {
        if *form == b'd' {
            b.is_ascii_digit()
        } else {
            b == form
        }
    };
    if bytes.len() < fixed.len() || !bytes.iter().zip(fixed).all(fits) {
        return None;
    }
    let (date, mut rest) = text.split_at(fixed.len());
    let mut fraction = 0;
    if let Some(after) = rest.strip_prefix(['.', ',']) {
        let digits = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        let kept = &after[..digits.min(9)];
        fraction = kept.parse::<i128>().ok()? * 10i128.pow(9 - u32::try_from(kept.len()).ok()?);
        rest = &after[digits..];
    }
    let offset = match rest.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2]
            if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) =>
        {
            let number = |a: &u8, b: &u8| i128::from(a - b'0') * 10 + i128::from(b - b'0');
            let hours = number(h1, h2);
            let minutes = number(m1, m2);
            if hours > 24 || minutes > 60 {
                return None;
            }
            (hours * 60 + minutes) * 60 * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let local: DateTime = date.parse().ok()?;
    if date.ends_with("60") {
        return None;
    }
    let utc = TimeZone::UTC.to_timestamp(local).ok()?;
    Some(utc.as_nanosecond() + fraction - offset * SECOND)
}

/// Formats a timestamp as in RFC 3339, in UTC and without trailing zeros.
pub(crate) fn write_timestamp(nanos: i128) -> String {
    let date = Timestamp::from_nanosecond(nanos)
        .map(|at| TimeZone::UTC.to_datetime(at))
        .unwrap_or_default();
    let fraction = nanos.rem_euclid(SECOND);
    let fraction = if fraction == 0 {
        String::new()
    } else {
        format!(".{fraction:09}").trim_end_matches('0').to_owned()
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}Z",
        date.year(),
        date.month(),
        date.day(),
        date.hour(),
        date.minute(),
        date.second()
    )
}

/// A day, as the format `date` of a schema has it.
pub(crate) fn parse_date(text: &str) -> Option<i128> {
    if text.len() != 10 {
        return None;
    }
    rfc3339(&format!("{text}T00:00:00Z"))
}

/// A timestamp in the format `date-time` of a schema; letters may be lower-case.
pub(crate) fn parse_datetime(text: &str) -> Option<i128> {
    rfc3339(&text.to_uppercase().replacen(' ', "T", 1))
}

/// A duration in Go's format: `1h30m`, `-1.5s`, `300ms`.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        total = total.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = after;
    }
    let signed = if negative { -total } else { total };
    i64::try_from(signed).ok()
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3600 * SECOND,
        _ => return None,
    })
}

/// A decimal number of units; what is finer than a nanosecond is cut.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut nanos = if whole.is_empty() {
        0
    } else {
        whole.parse::<i128>().ok()?.checked_mul(unit)?
    };
    let mut place = unit;
    for digit in fraction.bytes().take(19) {
        nanos += i128::from(digit - b'0') * place / 10;
        place /= 10;
    }
    Some(nanos)
}

/// A duration in the format `duration` of a schema: Go's format, or numbers with names of units.
pub(crate) fn parse_openapi_duration(text: &str) -> Option<i64> {
    if let Some(nanos) = parse_duration(text) {
        return Some(nanos);
    }
    let mut total: i128 = 0;
    let mut rest = text.trim();
    let mut found = false;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        total = total.checked_add(
            number
                .parse::<i128>()
                .ok()?
                .checked_mul(word_nanos(unit)?)?,
        )?;
        (rest, found) = (after.trim_start(), true);
    }
    if found {
        i64::try_from(total).ok()
    } else {
        None
    }
}

fn word_nanos(unit: &str) -> Option<i128> {
    let lower = unit.to_lowercase();
    Some(match lower.as_str() {
        "ns" | "nano" | "nanos" => 1,
        "us" | "µs" | "micro" | "micros" => 1_000,
        "ms" | "milli" | "millis" => 1_000_000,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hr" | "hour" | "hours" => 3600 * SECOND,
        "d" | "day" | "days" => 24 * 3600 * SECOND,
        "w" | "wk" | "week" | "weeks" => 7 * 24 * 3600 * SECOND,
        _ => return None,
    })
}
