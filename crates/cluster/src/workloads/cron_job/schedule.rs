//! Schedules: five fields of cron, their shorthands, or a fixed interval, in a time zone.
//!
//! In: text such as `*/5 9-17 * * MON-FRI`, `@daily`, `@every 90m`. Out: the next time after another.
//! Holds: moments that the clock skips in spring are skipped, those it repeats in autumn come twice; a schedule that never
//! comes (`0 0 31 2 *`) has no next time. With both days restricted, either will do, as everywhere in cron.

use std::time::Duration;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

/// How many days ahead a time is looked for: five years, within which every date comes but a rare leap day's weekday.
const DAYS_MAX: usize = 5 * 366;

/// Why a schedule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ScheduleError(String);

fn wrong<T>(why: impl Into<String>) -> Result<T, ScheduleError> {
    Err(ScheduleError(why.into()))
}

/// When something is to happen again and again.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    Fields { fields: Box<Fields>, zone: TimeZone },
    Every(Duration),
}

/// Which minutes, hours, days, months and weekdays, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether days or weekdays are left open, so that the other one alone decides.
    any_day: bool,
}

/// One field: its name, its bounds, and names for its values.
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
    /// Reads a schedule; `TZ=` or `CRON_TZ=` before it overrules the zone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
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
            return Ok(Self::Every(interval_of(interval.trim())?));
        }
        let fields = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => {
                return wrong(format!("unrecognized descriptor: {other}"));
            }
            other => other,
        };
        Ok(Self::Fields {
            fields: Box::new(Fields::parse(fields)?),
            zone,
        })
    }

    /// The first time after `after`; `None` if there is none within five years.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => Timestamp::from_second(after.as_second())
                .ok()?
                .checked_add(SignedDuration::try_from(*interval).ok()?)
                .ok(),
            Self::Fields { fields, zone } => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts[..] else {
            return wrong(format!(
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
        // The first whole minute after it.
        let mut moment =
            Timestamp::from_second((after.as_second().div_euclid(60) + 1) * 60).ok()?;
        for _ in 0..DAYS_MAX {
            let day = moment.to_zoned(zone.clone()).date();
            while moment.to_zoned(zone.clone()).date() == day && self.has_day(day) {
                let local = moment.to_zoned(zone.clone());
                if !has(self.hours, local.hour()) {
                    moment = moment
                        .checked_add(minute * (60 - i32::from(local.minute())))
                        .ok()?;
                } else if has(self.minutes, local.minute()) {
                    return Some(moment);
                } else {
                    moment = moment.checked_add(minute).ok()?;
                }
            }
            if moment.to_zoned(zone.clone()).date() == day {
                let tomorrow = day.checked_add(1.day()).ok()?;
                moment = zone
                    .to_ambiguous_zoned(tomorrow.at(0, 0, 0, 0))
                    .compatible()
                    .ok()?
                    .timestamp();
            }
        }
        None
    }

    fn has_day(&self, date: jiff::civil::Date) -> bool {
        let weekday = if date.weekday() == Weekday::Sunday {
            0
        } else {
            date.weekday().to_monday_one_offset()
        };
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, weekday);
        has(self.months, date.month())
            && if self.any_day {
                day && weekday
            } else {
                day || weekday
            }
    }
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits & (1 << value) != 0)
}

impl Field {
    /// The bits of a list of ranges, and whether it leaves everything open.
    fn parse(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let mut bits = 0;
        let mut open = false;
        for part in text.split(',') {
            let (part_bits, part_open) = self.range(part)?;
            bits |= part_bits;
            open |= part_open;
        }
        Ok((bits, open))
    }

    /// `*`, `?`, `n`, `a-b`, each with `/step`.
    fn range(&self, text: &str) -> Result<(u64, bool), ScheduleError> {
        let (range, step) = text
            .split_once('/')
            .map_or((text, None), |(range, step)| (range, Some(step)));
        let open = matches!(range, "*" | "?");
        let (first, last) = match range.split_once('-') {
            _ if open => (self.min, self.max),
            Some((first, last)) => (self.value(first)?, self.value(last)?),
            None => {
                let first = self.value(range)?;
                // `n/step` goes on to the end.
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
            return wrong(format!(
                "beginning of range ({first}) below minimum ({}): {text}",
                self.min
            ));
        }
        if last > self.max {
            return wrong(format!(
                "end of range ({last}) above maximum ({}): {text}",
                self.max
            ));
        }
        if first > last {
            return wrong(format!(
                "beginning of range ({first}) beyond end of range ({last}): {text}"
            ));
        }
        if step == 0 {
            return wrong(format!("step of range should be a positive number: {text}"));
        }
        let bits = (first..=last)
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .fold(0, |bits, value| bits | 1 << value);
        Ok((bits, open && step == 1))
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

/// Reads an interval as Go writes them: `1h30m`, `90s`, `1.5h`. Less than a second is a second.
fn interval_of(text: &str) -> Result<Duration, ScheduleError> {
    let bad = || ScheduleError(format!("failed to parse duration @every {text}"));
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .ok_or_else(bad)?;
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
            _ => return Err(bad()),
        };
        seconds += number.parse::<f64>().map_err(|_| bad())? * factor;
        rest = left;
    }
    if text.is_empty() {
        return Err(bad());
    }
    let interval = Duration::try_from_secs_f64(seconds).map_err(|_| bad())?;
    Ok(Duration::from_secs(interval.as_secs().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let zone = TimeZone::get(zone).unwrap();
        let schedule = Schedule::parse(schedule, zone.clone()).unwrap();
        let mut moment: Timestamp = after.parse().unwrap();
        let mut times = Vec::new();
        while times.len() < count {
            let Some(next) = schedule.next(moment) else {
                break;
            };
            times.push(
                next.to_zoned(zone.clone())
                    .strftime("%Y-%m-%d %H:%M %Z")
                    .to_string(),
            );
            moment = next;
        }
        times
    }

    #[test]
    fn next_times_are_those_of_cron() {
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
    fn zone_decides_and_daylight_saving_counts() {
        assert_eq!(
            times("0 2 * * *", "Europe/Berlin", "2026-01-01T00:00:00Z", 1),
            ["2026-01-01 02:00 CET"]
        );
        // On 2026-03-29 the clock goes from 02:00 to 03:00: half past two does not come that day.
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", 2),
            ["2026-03-30 02:30 CEST", "2026-03-31 02:30 CEST"]
        );
        // On 2026-10-25 it goes from 03:00 to 02:00: half past two comes twice.
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
    fn mistakes_are_named() {
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
