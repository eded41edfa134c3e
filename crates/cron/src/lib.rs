//! Cron schedules: five fields, descriptors, or a fixed interval, in a time zone.
//!
//! Input: text such as `*/5 9-17 * * MON-FRI`, `@daily`, `@every 90m`. Output: the next time after
//! a given one. Rules, as `robfig/cron`: a local time skipped by daylight saving is skipped, a
//! repeated one occurs twice; a schedule that never occurs (`0 0 31 2 *`) has no next time; if day
//! of month and day of week are both restricted, either matches.

use std::time::Duration;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
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

/// One field: its name, bounds and value names.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &[
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MINUTE: Field = Field {
    name: "minute",
    min: 0,
    max: 59,
    names: &[],
};
const HOUR: Field = Field {
    name: "hour",
    min: 0,
    max: 23,
    names: &[],
};
const DAY: Field = Field {
    name: "day of month",
    min: 1,
    max: 31,
    names: &[],
};
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: MONTHS,
};
const WEEKDAY: Field = Field {
    name: "day of week",
    min: 0,
    max: 6,
    names: WEEKDAYS,
};

impl Schedule {
    /// Parses a schedule; a prefix `TZ=` or `CRON_TZ=` overrides the zone.
    ///
    /// # Errors
    /// The schedule is malformed.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
        let (zone, text) = match text
            .strip_prefix("CRON_TZ=")
            .or_else(|| text.strip_prefix("TZ="))
        {
            None => (zone, text),
            Some(rest) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let zone = TimeZone::get(name)
                    .map_err(|_| ScheduleError(format!("provided bad location {name}")))?;
                (zone, rest.trim())
            }
        };
        if let Some(interval) = text.strip_prefix("@every ") {
            return Ok(Self(Kind::Every(parse_interval(interval.trim())?)));
        }
        let fields = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => {
                return invalid(format!("unrecognized descriptor: {other}"));
            }
            other => other,
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

impl Fields {
    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts[..] else {
            return invalid(format!(
                "expected exactly 5 fields, found {}: [{text}]",
                parts.len()
            ));
        };
        let (days, any) = DAY.parse(day)?;
        let (weekdays, any_weekday) = WEEKDAY.parse(weekday)?;
        Ok(Self {
            minutes: MINUTE.parse(minute)?.0,
            hours: HOUR.parse(hour)?.0,
            days,
            months: MONTH.parse(month)?.0,
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
        for part in text.split(',') {
            let (part_bits, part_is_any) = self.range(part)?;
            bits |= part_bits;
            is_any |= part_is_any;
        }
        Ok((bits, is_any))
    }

    /// `*`, `?`, `n`, `a-b`, each with `/step`.
    fn range(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let (range, step) = text
            .split_once('/')
            .map_or((text, None), |(range, step)| (range, Some(step)));
        let is_any = matches!(range, "*" | "?");
        let (first, last) = match range.split_once('-') {
            _ if is_any => (self.min, self.max),
            Some((first, last)) => (self.value(first)?, self.value(last)?),
            None => {
                let first = self.value(range)?;
                // `n/step` is `n-max/step`.
                (first, if step.is_some() { self.max } else { first })
            }
        };
        let step = match step {
            None => 1,
            Some(step) => step
                .parse::<u32>()
                .map_err(|_| ScheduleError(format!("failed to parse int from {step}: {text}")))?,
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
        if let Some(position) = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text))
        {
            return Ok(self.min + u32::try_from(position).unwrap_or(0));
        }
        text.parse().map_err(|_| {
            ScheduleError(format!(
                "failed to parse int from {text} in the {}",
                self.name
            ))
        })
    }
}

/// Parses a Go duration: `1h30m`, `90s`, `1.5h`. The minimum is one second.
fn parse_interval(text: &str) -> Result<Duration, ScheduleError> {
    let malformed = || ScheduleError(format!("failed to parse duration @every {text}"));
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .ok_or_else(malformed)?;
        let (number, unit_and_rest) = rest.split_at(digits);
        let unit = unit_and_rest
            .find(|letter: char| letter.is_ascii_digit())
            .unwrap_or(unit_and_rest.len());
        let (unit, left) = unit_and_rest.split_at(unit);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(malformed()),
        };
        seconds += number.parse::<f64>().map_err(|_| malformed())? * factor;
        rest = left;
    }
    if text.is_empty() {
        return Err(malformed());
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
    fn malformed_schedules_are_rejected() {
        for schedule in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 7",
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "@often",
            "@every soon",
            "@every ",
            "TZ=Mars/Base * * * * *",
        ] {
            assert!(
                Schedule::parse(schedule, TimeZone::UTC).is_err(),
                "{schedule:?}"
            );
        }
    }
}
