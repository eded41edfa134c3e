//! Cron schedules: five fields, descriptors, or a fixed interval, in a time zone.
//!
//! Input: text such as `*/5 9-17 * * MON-FRI`, `@daily`, `@every 90m`. Output: the next time after
//! a given one. Rules, as `robfig/cron`: a local time skipped by daylight saving is skipped, a
//! repeated one occurs twice; a schedule that never occurs (`0 0 31 2 *`) has no next time; if day
//! of month and day of week are both restricted, either matches.

use std::{sync::LazyLock, time::Duration};

use jiff::civil::Weekday;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan};

/// Number of days searched for the next time: 5 years, as upstream.
const SEARCH_DAYS_MAX: usize = 5 * 366;

/// Why a schedule cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

fn invalid<T>(message: impl Into<String>) -> Result<T, ScheduleError> {
    Err(ScheduleError(message.into()))
}

/// A parsed schedule.
#[derive(Clone, Debug)]
pub struct Schedule(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fields { fields: Box<Fields>, zone: TimeZone },
    Every(Duration),
}

/// Bit sets of the matching minutes, hours, days, months and weekdays.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether day of month or day of week is `*`, so that only the other one restricts.
    any_day: bool,
}

/// One field: its bounds and the names of its values.
struct Field {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field {
    min: 0,
    max: 59,
    names: &[],
};
const HOUR: Field = Field {
    min: 0,
    max: 23,
    names: &[],
};
const DAY: Field = Field {
    min: 1,
    max: 31,
    names: &[],
};
const MONTH: Field = Field {
    min: 1,
    max: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
const WEEKDAY: Field = Field {
    min: 0,
    max: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

impl Schedule {
    /// Parses a schedule; a prefix `TZ=` or `CRON_TZ=` overrides the zone.
    ///
    /// # Errors
    /// The schedule is malformed, with the message of `robfig/cron`.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
        let (zone, text) = split_zone(text, zone)?;
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => match other.strip_prefix("@every ") {
                Some(interval) => {
                    let interval = parse_interval(interval).map_err(|why| {
                        ScheduleError(format!("failed to parse duration {other}: {why}"))
                    })?;
                    return Ok(Self(Kind::Every(interval)));
                }
                None if other.starts_with('@') => {
                    return invalid(format!("unrecognized descriptor: {other}"));
                }
                None => other,
            },
        };
        Ok(Self(Kind::Fields {
            fields: Box::new(Fields::parse(fields)?),
            zone,
        }))
    }

    /// The first time after `after`; `None` if there is none within 5 years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Kind::Every(interval) => Timestamp::from_second(after.as_second())
                .ok()?
                .checked_add(SignedDuration::try_from(*interval).ok()?)
                .ok(),
            Kind::Fields { fields, zone } => fields.next(after, zone),
        }
    }
}

/// A time zone of the bundled IANA database. Names are case-sensitive, as `time.LoadLocation` reads
/// them.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
    ZONES
        .get(name)
        .ok()
        .filter(|zone| zone.iana_name() == Some(name))
}

/// Splits the prefix `TZ=` or `CRON_TZ=` off.
fn split_zone(text: &str, zone: TimeZone) -> Result<(TimeZone, &str), ScheduleError> {
    let Some(rest) = text
        .strip_prefix("CRON_TZ=")
        .or_else(|| text.strip_prefix("TZ="))
    else {
        return Ok((zone, text));
    };
    let Some((name, rest)) = rest.split_once(' ') else {
        return invalid("invalid schedule format: a time zone must be followed by a schedule");
    };
    let zone = if name.is_empty() {
        TimeZone::UTC
    } else {
        time_zone(name).ok_or_else(|| {
            ScheduleError(format!(
                "provided bad location {name}: unknown time zone {name}"
            ))
        })?
    };
    Ok((zone, rest.trim()))
}

impl Fields {
    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts[..] else {
            return invalid(format!(
                "expected exactly 5 fields, found {}: [{}]",
                parts.len(),
                parts.join(" ")
            ));
        };
        // In this order, since the first error is reported.
        let (minutes, _) = MINUTE.parse(minute)?;
        let (hours, _) = HOUR.parse(hour)?;
        let (days, any) = DAY.parse(day)?;
        let (months, _) = MONTH.parse(month)?;
        let (weekdays, any_weekday) = WEEKDAY.parse(weekday)?;
        Ok(Self {
            minutes,
            hours,
            days,
            months,
            weekdays,
            any_day: any || any_weekday,
        })
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minute = SignedDuration::from_mins(1);
        // The first full minute after `after`.
        let mut time = Timestamp::from_second((after.as_second().div_euclid(60) + 1) * 60).ok()?;
        for _ in 0..SEARCH_DAYS_MAX {
            let day = time.to_zoned(zone.clone()).date();
            // The walk is in absolute time and only reads the local clock. A local hour that
            // daylight saving skips is therefore never seen, and a repeated one is seen twice.
            while time.to_zoned(zone.clone()).date() == day && self.matches_day(day) {
                let local = time.to_zoned(zone.clone());
                if !contains(self.hours, local.hour()) {
                    time = time
                        .checked_add(minute * (60 - i32::from(local.minute())))
                        .ok()?;
                } else if contains(self.minutes, local.minute()) {
                    return Some(time);
                } else {
                    time = time.checked_add(minute).ok()?;
                }
            }
            if time.to_zoned(zone.clone()).date() == day {
                // Midnight does not exist in zones that change their clocks at that time;
                // `compatible` takes the first instant after the gap.
                let tomorrow = day.checked_add(1.day()).ok()?;
                time = zone
                    .to_ambiguous_zoned(tomorrow.at(0, 0, 0, 0))
                    .compatible()
                    .ok()?
                    .timestamp();
            }
        }
        None
    }

    fn matches_day(&self, date: jiff::civil::Date) -> bool {
        let weekday = if date.weekday() == Weekday::Sunday {
            0
        } else {
            date.weekday().to_monday_one_offset()
        };
        let day = contains(self.days, date.day());
        let weekday = contains(self.weekdays, weekday);
        contains(self.months, date.month())
            && if self.any_day {
                day && weekday
            } else {
                day || weekday
            }
    }
}

fn contains(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits & (1 << value) != 0)
}

impl Field {
    /// The bits of a list of ranges, and whether it is `*`.
    fn parse(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let mut bits = 0;
        let mut is_any = false;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (part_bits, part_is_any) = self.range(part)?;
            bits |= part_bits;
            is_any |= part_is_any;
        }
        Ok((bits, is_any))
    }

    /// `*`, `?`, `n`, `a-b`, each with `/step`.
    fn range(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let parts: Vec<&str> = text.split('/').collect();
        let ends: Vec<&str> = parts[0].split('-').collect();
        let is_any = matches!(ends[0], "*" | "?");
        let (first, mut last) = match ends[..] {
            _ if is_any => (self.min, self.max),
            [only] => (self.value(only)?, self.value(only)?),
            [first, last] => (self.value(first)?, self.value(last)?),
            _ => return invalid(format!("too many hyphens: {text}")),
        };
        let step = match parts[..] {
            [_] => 1,
            [_, step] => {
                // `n/step` is `n-max/step`.
                if ends.len() == 1 {
                    last = self.max;
                }
                number(step)?
            }
            _ => return invalid(format!("too many slashes: {text}")),
        };
        if first < self.min {
            return invalid(format!(
                "beginning of range ({first}) below minimum ({}): {text}",
                self.min
            ));
        }
        if last > self.max {
            return invalid(format!(
                "end of range ({last}) above maximum ({}): {text}",
                self.max
            ));
        }
        if first > last {
            return invalid(format!(
                "beginning of range ({first}) beyond end of range ({last}): {text}"
            ));
        }
        if step == 0 {
            return invalid(format!("step of range should be a positive number: {text}"));
        }
        let bits = (first..=last)
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .fold(0, |bits, value| bits | 1 << value);
        // As in robfig/cron, `*/2` restricts a field: only `*` and `*/1` leave the decision to the
        // other day field.
        Ok((bits, is_any && step == 1))
    }

    fn value(&self, text: &str) -> Result<u32, ScheduleError> {
        let named = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text))
            .and_then(|position| u32::try_from(position).ok());
        named.map_or_else(|| number(text), |position| Ok(self.min + position))
    }
}

fn number(text: &str) -> Result<u32, ScheduleError> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => {
            invalid(format!("negative number ({number}) not allowed: {text}"))
        }
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => invalid(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        )),
    }
}

/// Parses a Go duration: `1h30m`, `90s`, `1.5h`. The minimum is one second.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let malformed = || format!("time: invalid duration {text:?}");
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned.is_empty() {
        return Err(malformed());
    }
    let mut rest = if unsigned == "0" { "" } else { unsigned };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(rest.len());
        let (number, unit_and_rest) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| malformed())?;
        let unit = unit_and_rest
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(unit_and_rest.len());
        let (unit, left) = unit_and_rest.split_at(unit);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            other => return Err(format!("time: unknown unit {other:?} in duration {text:?}")),
        };
        seconds += number * factor;
        rest = left;
    }
    if text.starts_with('-') {
        seconds = 0.0;
    }
    let interval = Duration::try_from_secs_f64(seconds).map_err(|_| malformed())?;
    Ok(Duration::from_secs(interval.as_secs().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let zone = TimeZone::get(zone).unwrap();
        let schedule = Schedule::parse(schedule, zone.clone()).unwrap();
        let mut time: Timestamp = after.parse().unwrap();
        let mut times = Vec::new();
        while times.len() < count {
            let Some(next) = schedule.next(time) else {
                break;
            };
            times.push(
                next.to_zoned(zone.clone())
                    .strftime("%Y-%m-%d %H:%M %Z")
                    .to_string(),
            );
            time = next;
        }
        times
    }

    #[test]
    fn next_times_match_the_cron_fields() {
        for (schedule, after, expected) in [
            (
                "*/15 * * * *",
                "2026-01-01T00:07:30Z",
                &["2026-01-01 00:15 UTC", "2026-01-01 00:30 UTC"][..],
            ),
            (
                "0 9-17/4 * * *",
                "2026-01-01T12:00:00Z",
                &[
                    "2026-01-01 13:00 UTC",
                    "2026-01-01 17:00 UTC",
                    "2026-01-02 09:00 UTC",
                ],
            ),
            (
                "30 6 * * MON-FRI",
                "2026-01-02T07:00:00Z",
                &["2026-01-05 06:30 UTC", "2026-01-06 06:30 UTC"],
            ),
            (
                "0 0 1,15 * 1",
                "2026-01-01T00:00:00Z",
                &[
                    "2026-01-05 00:00 UTC",
                    "2026-01-12 00:00 UTC",
                    "2026-01-15 00:00 UTC",
                ],
            ),
            (
                "0 0 */2 * 1",
                "2026-01-01T00:00:00Z",
                &["2026-01-03 00:00 UTC", "2026-01-05 00:00 UTC"],
            ),
            (
                "0 0 29 feb ?",
                "2026-01-01T00:00:00Z",
                &["2028-02-29 00:00 UTC"],
            ),
            ("0 0 31 2 *", "2026-01-01T00:00:00Z", &[]),
            (
                "59 23 31 12 *",
                "2026-12-31T23:59:00Z",
                &["2027-12-31 23:59 UTC"],
            ),
            (
                "@weekly",
                "2026-01-01T00:00:00Z",
                &["2026-01-04 00:00 UTC", "2026-01-11 00:00 UTC"],
            ),
            ("@hourly", "2026-01-01T00:59:59Z", &["2026-01-01 01:00 UTC"]),
            (
                "@every 1h30m",
                "2026-01-01T00:00:10Z",
                &["2026-01-01 01:30 UTC", "2026-01-01 03:00 UTC"],
            ),
            (
                "5/20 * * * *",
                "2026-01-01T00:00:00Z",
                &[
                    "2026-01-01 00:05 UTC",
                    "2026-01-01 00:25 UTC",
                    "2026-01-01 00:45 UTC",
                ],
            ),
        ] {
            assert_eq!(
                times(schedule, "UTC", after, expected.len().max(1)),
                expected,
                "{schedule}"
            );
        }
    }

    #[test]
    fn time_zone_and_daylight_saving_are_applied() {
        assert_eq!(
            times("0 2 * * *", "Europe/Berlin", "2026-01-01T00:00:00Z", 1),
            ["2026-01-01 02:00 CET"]
        );
        // On 2026-03-29 the clock jumps from 02:00 to 03:00: 02:30 does not occur.
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", 2),
            ["2026-03-30 02:30 CEST", "2026-03-31 02:30 CEST"]
        );
        // On 2026-10-25 it jumps from 03:00 to 02:00: 02:30 occurs twice.
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 3),
            [
                "2026-10-25 02:30 CEST",
                "2026-10-25 02:30 CET",
                "2026-10-26 02:30 CET"
            ]
        );
        assert_eq!(
            times("TZ=Asia/Tokyo 0 9 * * *", "UTC", "2026-01-01T00:00:00Z", 1),
            ["2026-01-02 00:00 UTC"]
        );
    }

    #[test]
    fn schedules_are_parsed_with_the_messages_of_robfig_cron() {
        for good in [
            "* * * * *",
            "0 3 * * *",
            "*/5 0-6 1,15 JAN-mar sun",
            "@hourly",
            "@every 1h30m",
            "? ? ? ? ?",
            "TZ=UTC 0 0 * * *",
            "5/15 * * * *",
        ] {
            assert!(Schedule::parse(good, TimeZone::UTC).is_ok(), "{good}");
        }
        let cases = [
            ("", "expected exactly 5 fields, found 0: []"),
            (
                "* * * * * *",
                "expected exactly 5 fields, found 6: [* * * * * *]",
            ),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("* * * 13 *", "end of range (13) above maximum (12): 13"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            (
                "@every ",
                "failed to parse duration @every : time: invalid duration \"\"",
            ),
            ("61 * * * *", "end of range (61) above maximum (59): 61"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-2 * * * *",
                "beginning of range (5) beyond end of range (2): 5-2",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            (
                "a * * * *",
                "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
            (
                "@every x",
                "failed to parse duration @every x: time: invalid duration \"x\"",
            ),
            (
                "TZ=Mars/Olympus 0 0 * * *",
                "provided bad location Mars/Olympus: unknown time zone Mars/Olympus",
            ),
        ];
        for (schedule, why) in cases {
            let error = Schedule::parse(schedule, TimeZone::UTC).expect_err(schedule);
            assert_eq!(error.to_string(), why, "{schedule}");
        }
    }

    #[test]
    fn names_of_time_zones_are_case_sensitive() {
        assert!(time_zone("Europe/Berlin").is_some() && time_zone("UTC").is_some());
        assert!(time_zone("europe/berlin").is_none() && time_zone("Mars/Olympus").is_none());
        assert!(
            TimeZoneDatabase::bundled()
                .available()
                .all(|name| time_zone(name.as_str()).is_some())
        );
    }
}
