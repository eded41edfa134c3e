//! Times of objects.
//! In: RFC 3339 text. Out: the same time in UTC, or the error of Go's parser.

use bellerophon_apimachinery::field::go_quote;
use jiff::{
    SignedDuration,
    civil::{Date, DateTime, Time as Clock},
};

/// How much of a second is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// None of it.
    Seconds,
    /// Always six digits.
    Micros,
}

impl Precision {
    /// The format as Go spells it.
    const fn layout(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// The time in UTC; `None` for Go's zero time.
///
/// # Errors
/// The errors of the text, with the messages of Go's parser.
pub(super) fn canonical(text: &str, precision: Precision) -> Result<Option<String>, String> {
    let moment = parse(text, precision).map_err(|error| match error {
        ParseError::Element { rest, element } => {
            let layout = go_quote(precision.layout());
            format!(
                "parsing time {} as {layout}: cannot parse {} as {}",
                go_quote(text),
                go_quote(rest),
                go_quote(element)
            )
        }
        ParseError::Range(what) => format!("parsing time {}: {what} out of range", go_quote(text)),
        ParseError::Extra(rest) => format!(
            "parsing time {}: extra text: {}",
            go_quote(text),
            go_quote(rest)
        ),
    })?;
    let zero = DateTime::constant(1, 1, 1, 0, 0, 0, 0);
    Ok((moment != zero).then(|| match precision {
        Precision::Seconds => moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        Precision::Micros => moment.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
    }))
}

enum ParseError<'t> {
    /// This rest of the text does not start with this element of the layout.
    Element {
        rest: &'t str,
        element: &'static str,
    },
    Range(&'static str),
    Extra(&'t str),
}

/// The elements are parsed in order, and the first invalid one is reported.
fn parse(text: &str, precision: Precision) -> Result<DateTime, ParseError<'_>> {
    let mut reader = Reader { rest: text };
    let year = reader.digits(4, "2006")?;
    reader.separator("-")?;
    let month = reader.in_range("01", 1..=12, "month")?;
    reader.separator("-")?;
    let day = reader.two_digits("02")?;
    reader.separator("T")?;
    let hour = reader.hour()?;
    reader.separator(":")?;
    let minute = reader.in_range("04", 0..=59, "minute")?;
    reader.separator(":")?;
    let second = reader.in_range("05", 0..=59, "second")?;
    let nanosecond = match precision {
        Precision::Seconds => reader.optional_fraction(),
        Precision::Micros => reader.six_digit_fraction()?,
    };
    let offset_seconds = reader.offset()?;
    if !reader.rest.is_empty() {
        return Err(ParseError::Extra(reader.rest));
    }
    let small = |n: i32| i8::try_from(n).expect("two digits fit");
    let date = Date::new(
        i16::try_from(year).expect("four digits fit"),
        small(month),
        small(day),
    )
    .map_err(|_| ParseError::Range("day"))?;
    let clock = Clock::constant(small(hour), small(minute), small(second), nanosecond);
    date.to_datetime(clock)
        .checked_sub(SignedDuration::from_secs(offset_seconds.into()))
        .ok()
        // Four digits cannot write the years before and after, which an offset reaches.
        .filter(|moment| moment.year() >= 0)
        .ok_or(ParseError::Range("year"))
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn separator(&mut self, separator: &'static str) -> Result<(), ParseError<'t>> {
        self.rest = self
            .rest
            .strip_prefix(separator)
            .ok_or(ParseError::Element {
                rest: self.rest,
                element: separator,
            })?;
        Ok(())
    }

    /// Exactly `count` digits.
    fn digits(&mut self, count: usize, element: &'static str) -> Result<i32, ParseError<'t>> {
        let error = ParseError::Element {
            rest: self.rest,
            element,
        };
        let Some((digits, rest)) = self.rest.split_at_checked(count) else {
            return Err(error);
        };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error);
        }
        self.rest = rest;
        Ok(digits.parse().expect("a few digits are a number"))
    }

    fn two_digits(&mut self, element: &'static str) -> Result<i32, ParseError<'t>> {
        self.digits(2, element)
    }

    fn in_range(
        &mut self,
        element: &'static str,
        range: std::ops::RangeInclusive<i32>,
        name: &'static str,
    ) -> Result<i32, ParseError<'t>> {
        let number = self.two_digits(element)?;
        if range.contains(&number) {
            Ok(number)
        } else {
            Err(ParseError::Range(name))
        }
    }

    /// One or two digits: Go is lenient here.
    fn hour(&mut self) -> Result<i32, ParseError<'t>> {
        let count = self
            .rest
            .bytes()
            .take(2)
            .take_while(u8::is_ascii_digit)
            .count();
        let hour = self.digits(count.max(1), "15")?;
        if hour < 24 {
            Ok(hour)
        } else {
            Err(ParseError::Range("hour"))
        }
    }

    fn optional_fraction(&mut self) -> i32 {
        let Some(digits) = self.rest.strip_prefix(['.', ',']) else {
            return 0;
        };
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return 0;
        }
        let nanosecond = nanoseconds(&digits[..count.min(9)]);
        self.rest = &digits[count..];
        nanosecond
    }

    fn six_digit_fraction(&mut self) -> Result<i32, ParseError<'t>> {
        let error = ParseError::Element {
            rest: self.rest,
            element: ".000000",
        };
        let Some((fraction, rest)) = self.rest.split_at_checked(7) else {
            return Err(error);
        };
        match fraction.strip_prefix(['.', ',']) {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                self.rest = rest;
                Ok(nanoseconds(digits))
            }
            _ => Err(error),
        }
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Result<i32, ParseError<'t>> {
        const ELEMENT: &str = "Z07:00";
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let start = self.rest;
        let error = || ParseError::Element {
            rest: start,
            element: ELEMENT,
        };
        let sign = match start.as_bytes().first() {
            _ if start.as_bytes().get(3) != Some(&b':') => return Err(error()),
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(error()),
        };
        self.rest = &start[1..];
        let hours = self.two_digits(ELEMENT).map_err(|_| error())?;
        self.separator(":").map_err(|_| error())?;
        let minutes = self.two_digits(ELEMENT).map_err(|_| error())?;
        match (hours, minutes) {
            (25.., _) => Err(ParseError::Range("time zone offset hour")),
            (_, 61..) => Err(ParseError::Range("time zone offset minute")),
            _ => Ok(sign * (hours * 60 + minutes) * 60),
        }
    }
}

/// The number of nanoseconds that up to nine digits after the point are.
fn nanoseconds(digits: &str) -> i32 {
    let missing = 9 - u32::try_from(digits.len()).expect("at most nine digits");
    digits.parse::<i32>().expect("at most nine digits fit") * 10_i32.pow(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        let cases = [
            (
                "2024-05-01T10:20:30Z",
                Precision::Seconds,
                Some("2024-05-01T10:20:30Z"),
            ),
            (
                "2024-05-01T10:20:30.987Z",
                Precision::Seconds,
                Some("2024-05-01T10:20:30Z"),
            ),
            (
                "2024-05-01T01:20:30+02:00",
                Precision::Seconds,
                Some("2024-04-30T23:20:30Z"),
            ),
            (
                "2024-05-01T10:20:30.123456-01:30",
                Precision::Micros,
                Some("2024-05-01T11:50:30.123456Z"),
            ),
            ("0001-01-01T00:00:00Z", Precision::Seconds, None),
        ];
        for (text, precision, expected) in cases {
            assert_eq!(
                canonical(text, precision),
                Ok(expected.map(str::to_owned)),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_times_have_the_messages_of_go() {
        let layout = r#"as "2006-01-02T15:04:05Z07:00": cannot parse"#;
        let micros = r#"as "2006-01-02T15:04:05.000000Z07:00": cannot parse"#;
        let cases = [
            (
                "yesterday",
                Precision::Seconds,
                format!(r#"parsing time "yesterday" {layout} "yesterday" as "2006""#),
            ),
            (
                "2024-05-01",
                Precision::Seconds,
                format!(r#"parsing time "2024-05-01" {layout} "" as "T""#),
            ),
            (
                "2024-05-01T10:20:30",
                Precision::Seconds,
                format!(r#"parsing time "2024-05-01T10:20:30" {layout} "" as "Z07:00""#),
            ),
            (
                "2024-13-01T10:20:30Z",
                Precision::Seconds,
                r#"parsing time "2024-13-01T10:20:30Z": month out of range"#.to_owned(),
            ),
            (
                "0000-01-01T00:00:00+01:00",
                Precision::Seconds,
                r#"parsing time "0000-01-01T00:00:00+01:00": year out of range"#.to_owned(),
            ),
            (
                "9999-12-31T23:59:59-01:00",
                Precision::Seconds,
                r#"parsing time "9999-12-31T23:59:59-01:00": year out of range"#.to_owned(),
            ),
            (
                "2024-02-30T10:20:30Z",
                Precision::Seconds,
                r#"parsing time "2024-02-30T10:20:30Z": day out of range"#.to_owned(),
            ),
            (
                "2024-05-01T10:20:30Zx",
                Precision::Seconds,
                r#"parsing time "2024-05-01T10:20:30Zx": extra text: "x""#.to_owned(),
            ),
            (
                "2024-05-01T10:20:30Z",
                Precision::Micros,
                format!(r#"parsing time "2024-05-01T10:20:30Z" {micros} "Z" as ".000000""#),
            ),
        ];
        for (text, precision, expected) in cases {
            assert_eq!(canonical(text, precision), Err(expected), "{text}");
        }
    }
}
