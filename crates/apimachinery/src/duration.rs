//! Durations: as in the columns of tables, and in Go's format.

use std::time::Duration;

use crate::time::Time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

// Thresholds of coarser units.
const TWO_MINUTES: i64 = 2 * MINUTE;
const TEN_MINUTES: i64 = 10 * MINUTE;
const THREE_HOURS: i64 = 3 * HOUR;
const EIGHT_HOURS: i64 = 8 * HOUR;
const TWO_DAYS: i64 = 2 * DAY;
const EIGHT_DAYS: i64 = 8 * DAY;
const TWO_YEARS: i64 = 2 * YEAR;
const EIGHT_YEARS: i64 = 8 * YEAR;

/// How long ago `then` was; `<unknown>` when it never was.
pub fn since(then: Option<Time>, now: Time) -> String {
    then.map_or_else(
        || "<unknown>".into(),
        |then| human_duration(now.as_second() - then.as_second()),
    )
}

/// A duration for tables: the longer it is, the coarser. A second in the future still counts as
/// now, because clocks differ.
pub fn human_duration(seconds: i64) -> String {
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..TWO_MINUTES => format!("{seconds}s"),
        TWO_MINUTES..TEN_MINUTES => two_units(seconds, (MINUTE, 'm'), (1, 's')),
        TEN_MINUTES..THREE_HOURS => format!("{}m", seconds / MINUTE),
        THREE_HOURS..EIGHT_HOURS => two_units(seconds, (HOUR, 'h'), (MINUTE, 'm')),
        EIGHT_HOURS..TWO_DAYS => format!("{}h", seconds / HOUR),
        TWO_DAYS..EIGHT_DAYS => two_units(seconds, (DAY, 'd'), (HOUR, 'h')),
        EIGHT_DAYS..TWO_YEARS => format!("{}d", seconds / DAY),
        TWO_YEARS..EIGHT_YEARS => two_units(seconds, (YEAR, 'y'), (DAY, 'd')),
        EIGHT_YEARS.. => format!("{}y", seconds / YEAR),
    }
}

/// `3m20s`, or `3m` when the smaller unit is zero.
fn two_units(
    seconds: i64,
    (large, large_name): (i64, char),
    (small, small_name): (i64, char),
) -> String {
    match seconds % large / small {
        0 => format!("{}{large_name}", seconds / large),
        rest => format!("{}{large_name}{rest}{small_name}", seconds / large),
    }
}

/// A duration in Go's format, such as `1m30s` or `300ms`; zero for a negative one. Mirrors
/// `time.ParseDuration`.
///
/// # Errors
/// A text that is no duration, with Go's message.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let end = after.find(is_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit {
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            unit => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    // Go counts nanoseconds in 64 bits.
    if total.as_nanos() > i64::MAX as u128 {
        return Err(invalid());
    }
    Ok(if is_negative { Duration::ZERO } else { total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        for (text, expected) in [
            ("1s", Ok(Duration::from_secs(1))),
            ("1m30s", Ok(Duration::from_secs(90))),
            (".5h", Ok(Duration::from_secs(1800))),
            ("+300ms", Ok(Duration::from_millis(300))),
            ("-5s", Ok(Duration::ZERO)),
            ("0", Ok(Duration::ZERO)),
            ("", Err("time: invalid duration \"\"")),
            ("abc", Err("time: invalid duration \"abc\"")),
            ("5", Err("time: missing unit in duration \"5\"")),
            ("5x", Err("time: unknown unit \"x\" in duration \"5x\"")),
            ("9999999h", Err("time: invalid duration \"9999999h\"")),
        ] {
            assert_eq!(
                parse_duration(text),
                expected.map_err(str::to_owned),
                "{text}"
            );
        }
    }

    #[test]
    fn spans_get_coarser_as_they_grow() {
        for (seconds, words) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (7 * HOUR + 59 * MINUTE + 59, "7h59m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (48 * HOUR, "2d"),
            (2 * DAY + 5 * HOUR, "2d5h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + 30 * DAY, "2y30d"),
            (8 * YEAR, "8y"),
            (20 * YEAR + 300 * DAY, "20y"),
        ] {
            assert_eq!(human_duration(seconds), words, "{seconds}");
        }
    }

    #[test]
    fn missing_time_has_an_unknown_age() {
        let now = Time::parse("2026-01-02T03:04:05Z").unwrap();
        assert_eq!(since(None, now), "<unknown>");
        assert_eq!(since(Some(now.plus_seconds(-5)), now), "5s");
    }
}
