//! Maintenance windows: when reboots may start.
//!
//! Inputs: days, times of day, a time zone, the current time. Output: whether a window is open, and
//! until when.
//!
//! Guarantees: a window belongs to the day on which it opens, also past midnight; a change to or
//! from daylight saving time changes only its length; an invalid window is never open.

use jiff::{Timestamp, ToSpan as _, civil::Time, tz::TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A daily time range in which reboots may start.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// The days on which it opens. Default: every day.
    #[serde(default)]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it opens, such as `22:00`.
    #[schemars(pattern(r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// When it closes: on the same day, or on the next day if that is not later than `start`.
    #[schemars(pattern(r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
    /// The IANA time zone of both times, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
}

fn utc() -> String {
    "UTC".into()
}

/// A day of the week.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

const WEEK: [Day; 7] = [
    Day::Monday,
    Day::Tuesday,
    Day::Wednesday,
    Day::Thursday,
    Day::Friday,
    Day::Saturday,
    Day::Sunday,
];

/// A parsed window.
#[derive(Clone, Debug)]
pub(crate) struct ParsedWindow {
    days: Vec<Day>,
    start: Time,
    end: Time,
    zone: TimeZone,
}

impl ParsedWindow {
    /// Parses a window.
    ///
    /// # Errors
    /// A time of day or the time zone is invalid.
    pub(crate) fn parse(window: &Window) -> Result<Self, String> {
        let parse_time = |text: &str| {
            Time::strptime("%H:%M", text)
                .map_err(|_| format!("{text:?} is not a time of day, such as 22:00"))
        };
        let zone = TimeZone::get(&window.time_zone)
            .map_err(|_| format!("there is no time zone {:?}", window.time_zone))?;
        Ok(Self {
            days: window.days.clone(),
            start: parse_time(&window.start)?,
            end: parse_time(&window.end)?,
            zone,
        })
    }

    /// When it closes, if it is open.
    pub(crate) fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let today = now.to_zoned(self.zone.clone()).date();
        // A window that opened yesterday can reach into today.
        [Some(today), today.yesterday().ok()]
            .into_iter()
            .flatten()
            .find_map(|day| {
                let weekday = day.weekday().to_monday_zero_offset().unsigned_abs();
                let opens_on = WEEK[usize::from(weekday)];
                if !self.days.is_empty() && !self.days.contains(&opens_on) {
                    return None;
                }
                // Calendar days, not 24 hours: these differ when daylight saving time begins or
                // ends.
                let closing_day = if self.end > self.start {
                    day
                } else {
                    day.checked_add(1.day()).ok()?
                };
                let timestamp = |day: jiff::civil::Date, time: Time| {
                    self.zone.to_timestamp(day.to_datetime(time)).ok()
                };
                let opens = timestamp(day, self.start)?;
                let closes = timestamp(closing_day, self.end)?;
                (opens <= now && now < closes).then_some(closes)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_open_and_close_in_their_time_zone() {
        use Day::{Friday, Monday, Saturday, Sunday};
        for (days, start, end, zone, now, expected) in [
            (
                &[][..],
                "02:00",
                "04:00",
                "UTC",
                "2026-11-16T03:00:00Z",
                Some("2026-11-16T04:00:00Z"),
            ),
            (&[], "02:00", "04:00", "UTC", "2026-11-16T04:00:00Z", None),
            (&[], "02:00", "04:00", "UTC", "2026-11-16T01:59:59Z", None),
            // Past midnight: it belongs to the day on which it opens. The 20th is a Friday.
            (
                &[Friday],
                "22:00",
                "04:00",
                "UTC",
                "2026-11-20T23:00:00Z",
                Some("2026-11-21T04:00:00Z"),
            ),
            (
                &[Friday],
                "22:00",
                "04:00",
                "UTC",
                "2026-11-21T03:00:00Z",
                Some("2026-11-21T04:00:00Z"),
            ),
            (
                &[Friday],
                "22:00",
                "04:00",
                "UTC",
                "2026-11-20T03:00:00Z",
                None,
            ),
            (
                &[Saturday],
                "22:00",
                "04:00",
                "UTC",
                "2026-11-21T03:00:00Z",
                None,
            ),
            // From Sunday to Monday.
            (
                &[Sunday],
                "23:00",
                "01:00",
                "UTC",
                "2026-11-16T00:30:00Z",
                Some("2026-11-16T01:00:00Z"),
            ),
            // A whole day.
            (
                &[Monday],
                "00:00",
                "00:00",
                "UTC",
                "2026-11-16T13:00:00Z",
                Some("2026-11-17T00:00:00Z"),
            ),
            (
                &[],
                "09:00",
                "09:00",
                "UTC",
                "2026-11-16T08:00:00Z",
                Some("2026-11-16T09:00:00Z"),
            ),
            // Midnight of the time zone: Berlin is an hour ahead in winter, two in summer.
            (
                &[Monday],
                "00:00",
                "01:00",
                "Europe/Berlin",
                "2026-11-15T23:30:00Z",
                Some("2026-11-16T00:00:00Z"),
            ),
            (
                &[Monday],
                "00:00",
                "01:00",
                "Europe/Berlin",
                "2026-07-12T22:30:00Z",
                Some("2026-07-12T23:00:00Z"),
            ),
            // Start of daylight saving time: 02:00 to 03:00 does not exist.
            (
                &[],
                "01:00",
                "04:00",
                "Europe/Berlin",
                "2026-03-29T00:30:00Z",
                Some("2026-03-29T02:00:00Z"),
            ),
            (
                &[],
                "01:00",
                "04:00",
                "Europe/Berlin",
                "2026-03-29T02:30:00Z",
                None,
            ),
        ] {
            let window = ParsedWindow::parse(&Window {
                days: days.to_vec(),
                start: start.into(),
                end: end.into(),
                time_zone: zone.into(),
            });
            let open_until = window
                .expect("a valid window")
                .open_until(now.parse().expect("a time"));
            let expected = expected.map(|expected| expected.parse().expect("a time"));
            assert_eq!(
                open_until, expected,
                "{days:?} {start} {end} {zone} at {now}"
            );
        }
    }

    #[test]
    fn invalid_times_and_zones_are_errors() {
        let window = |start: &str, zone: &str| Window {
            days: vec![],
            start: start.into(),
            end: "04:00".into(),
            time_zone: zone.into(),
        };
        assert_eq!(
            ParsedWindow::parse(&window("25:00", "UTC")).map(|_| ()),
            Err(r#""25:00" is not a time of day, such as 22:00"#.into())
        );
        assert_eq!(
            ParsedWindow::parse(&window("22:00", "Atlantis/Center")).map(|_| ()),
            Err(r#"there is no time zone "Atlantis/Center""#.into())
        );
    }
}
