//! Time spans in two or three figures, as people like to read them.

use crate::object::Time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

// Where the words get coarser.
const TWO_MINUTES: i64 = 2 * MINUTE;
const TEN_MINUTES: i64 = 10 * MINUTE;
const THREE_HOURS: i64 = 3 * HOUR;
const EIGHT_HOURS: i64 = 8 * HOUR;
const TWO_DAYS: i64 = 2 * DAY;
const EIGHT_DAYS: i64 = 8 * DAY;
const TWO_YEARS: i64 = 2 * YEAR;
const EIGHT_YEARS: i64 = 8 * YEAR;

/// How long ago `then` was; `<unknown>` when it never was.
pub(crate) fn since(then: Option<Time>, now: Time) -> String {
    then.map_or_else(
        || "<unknown>".into(),
        |then| human_duration(now.as_second() - then.as_second()),
    )
}

/// A span in words: the longer it is, the coarser. A second in the future still counts as now,
/// because clocks differ.
pub(crate) fn human_duration(seconds: i64) -> String {
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

/// `3m20s`, or `3m` when nothing of the smaller unit is left.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_never_was_has_an_unknown_age() {
        let now = Time::parse("2026-01-02T03:04:05Z").unwrap();
        assert_eq!(since(None, now), "<unknown>");
        assert_eq!(since(Some(now.plus_seconds(-5)), now), "5s");
    }
}
