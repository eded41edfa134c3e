//! Times of objects: RFC 3339 in whole seconds, as `metav1.Time` is written.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A time in whole seconds, printed as `2026-01-02T03:04:05Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Timestamp);

impl Time {
    /// The time of a timestamp, without its fraction of a second.
    pub fn from_timestamp(t: Timestamp) -> Self {
        Self(Timestamp::from_second(t.as_second()).expect("a timestamp's seconds are in range"))
    }

    /// Parses RFC 3339.
    ///
    /// # Errors
    /// A text that is no date and time with an offset.
    pub fn parse(text: &str) -> Result<Self, jiff::Error> {
        text.parse::<Timestamp>().map(Self::from_timestamp)
    }

    /// Seconds since 1970.
    pub fn as_second(self) -> i64 {
        self.0.as_second()
    }

    /// The time `seconds` later.
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(
            self.0
                .saturating_add(SignedDuration::from_secs(seconds))
                .expect("a signed duration has no calendar units"),
        )
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}
