//! Windows: when reboots may begin.
//!
//! In: days, times of day, a time zone, the time. Out: whether a window is open, and until when.
//! Holds: a window belongs to the day on which it opens, also past midnight; clocks that are put forward or back move
//! nothing but its length; a window that cannot be read is never open.

use jiff::{Timestamp, ToSpan as _, civil::Time, tz::TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A time in which reboots may begin.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// On which days it opens; on all unless said.
    #[serde(default)]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it opens, such as `22:00`.
    #[schemars(pattern(r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// When it closes, on the same day or, if that is not later than `start`, on the next.
    #[schemars(pattern(r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
    /// Whose time that is, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
}

fn utc() -> String {
    "UTC".into()
}

/// A day of the week.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "their names say it")]
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

/// A window that was read.
#[derive(Clone, Debug)]
pub(crate) struct Hours {
    days: Vec<Day>,
    start: Time,
    end: Time,
    zone: TimeZone,
}

impl Hours {
    /// Reads a window.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(window: &Window) -> Result<Self, String> {
        let time = |text: &str| {
            Time::strptime("%H:%M", text)
                .map_err(|_| format!("{text:?} is not a time of day, such as 22:00"))
        };
        let zone = TimeZone::get(&window.time_zone)
            .map_err(|_| format!("there is no time zone {:?}", window.time_zone))?;
        Ok(Self {
            days: window.days.clone(),
            start: time(&window.start)?,
            end: time(&window.end)?,
            zone,
        })
    }

    /// Until when it is open, if it is.
    pub(crate) fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let today = now.to_zoned(self.zone.clone()).date();
        // The one of yesterday may reach into today.
        [Some(today), today.yesterday().ok()]
            .into_iter()
            .flatten()
            .find_map(|day| {
                let opens_on =
                    WEEK[usize::from(day.weekday().to_monday_zero_offset().unsigned_abs())];
                if !self.days.is_empty() && !self.days.contains(&opens_on) {
                    return None;
                }
                let last = if self.end > self.start {
                    day
                } else {
                    day.checked_add(1.day()).ok()?
                };
                let at = |day: jiff::civil::Date, time: Time| {
                    self.zone.to_timestamp(day.to_datetime(time)).ok()
                };
                let (opens, closes) = (at(day, self.start)?, at(last, self.end)?);
                (opens <= now && now < closes).then_some(closes)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_open_when_they_say() {
        use Day::{Friday, Monday, Saturday, Sunday};
        for (days, start, end, zone, now, until) in [
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
            // The week wraps too.
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
            // Whose midnight: Berlin is an hour ahead in winter, two in summer.
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
            // 2026-03-29: the clock jumps from 02:00 to 03:00, and the window is an hour shorter.
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
            let hours = Hours::read(&Window {
                days: days.to_vec(),
                start: start.into(),
                end: end.into(),
                time_zone: zone.into(),
            });
            let open = hours
                .expect("a window")
                .open_until(now.parse().expect("a time"));
            assert_eq!(
                open,
                until.map(|until| until.parse().expect("a time")),
                "{days:?} {start} {end} {zone} at {now}"
            );
        }
    }

    #[test]
    fn window_that_cannot_be_read_is_an_error() {
        let window = |start: &str, zone: &str| Window {
            days: vec![],
            start: start.into(),
            end: "04:00".into(),
            time_zone: zone.into(),
        };
        assert_eq!(
            Hours::read(&window("25:00", "UTC")).map(|_| ()),
            Err(r#""25:00" is not a time of day, such as 22:00"#.into())
        );
        assert_eq!(
            Hours::read(&window("22:00", "Atlantis/Center")).map(|_| ()),
            Err(r#"there is no time zone "Atlantis/Center""#.into())
        );
    }
}
