//! Timestamps: seconds and nanoseconds in protobuf, text in JSON.
//! Guarantees: JSON has whole seconds of a Time and microseconds of a MicroTime.

use jiff::{SignedDuration, Timestamp, fmt::strtime, tz::Offset};

use super::{reader::Reader, writer::Writer};

/// How much of a second counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Seconds,
    Micros,
}

/// Decodes a timestamp; `None` for the zero time.
///
/// # Errors
/// A malformed message, or a year that JSON cannot represent.
pub(super) fn read(bytes: &[u8], precision: Precision) -> Result<Option<String>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut seconds = 0;
    let mut nanos = 0;
    let mut reader = Reader::new("Timestamp", bytes);
    while let Some(tag) = reader.tag()? {
        match tag.number {
            1 => seconds = reader.number(tag, "seconds")?.cast_signed(),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "Go cuts it in the same way"
            )]
            2 => nanos = reader.number(tag, "nanos")? as i32,
            _ => reader.skip(tag)?,
        }
    }
    text(seconds, nanos, precision)
        .map(Some)
        .ok_or_else(|| "Time.MarshalJSON: year outside of range [0,9999]".to_owned())
}

/// Encodes a timestamp; nothing for an invalid one.
pub(super) fn write(text: &str, precision: Precision, writer: &mut Writer) {
    let Ok(moment) = text.parse::<Timestamp>() else {
        return;
    };
    let nanos = moment.as_nanosecond().rem_euclid(1_000_000_000);
    let micros = if precision == Precision::Micros {
        nanos / 1000
    } else {
        0
    };
    writer.number(2, u64::try_from(micros * 1000).expect("less than a second"));
    writer.number(
        1,
        moment
            .as_nanosecond()
            .div_euclid(1_000_000_000)
            .try_into()
            .map_or(0, i64::cast_unsigned),
    );
}

fn text(seconds: i64, nanos: i32, precision: Precision) -> Option<String> {
    let whole = Timestamp::from_second(seconds).ok()?;
    let (moment, format) = match precision {
        Precision::Seconds => (whole, "%Y-%m-%dT%H:%M:%SZ"),
        Precision::Micros => {
            let micros = SignedDuration::from_micros(i64::from(nanos / 1000));
            (whole.checked_add(micros).ok()?, "%Y-%m-%dT%H:%M:%S.%6fZ")
        }
    };
    let date = Offset::UTC.to_datetime(moment);
    if date.year() < 0 {
        return None;
    }
    strtime::format(format, date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_as_json_has_them() {
        let cases: [(&[u8], Precision, &str); 4] = [
            (
                b"\x08\x00\x10\x00",
                Precision::Seconds,
                "1970-01-01T00:00:00Z",
            ),
            (
                b"\x08\xee\xae\xc8\xb1\x06\x10\x07",
                Precision::Seconds,
                "2024-05-01T10:20:30Z",
            ),
            (
                b"\x08\xee\xae\xc8\xb1\x06\x10\xdc\x0b",
                Precision::Micros,
                "2024-05-01T10:20:30.000001Z",
            ),
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Precision::Seconds,
                "1969-12-31T23:59:59Z",
            ),
        ];
        for (bytes, precision, text) in cases {
            assert_eq!(
                read(bytes, precision),
                Ok(Some(text.to_owned())),
                "{bytes:?}"
            );
            let mut writer = Writer::default();
            write(text, precision, &mut writer);
            assert_eq!(read(&writer.finish(), precision), Ok(Some(text.to_owned())));
        }
        assert_eq!(read(b"", Precision::Seconds), Ok(None));
    }

    #[test]
    fn moments_that_json_cannot_show_are_refused() {
        let cases: [(&[u8], &str); 2] = [
            (
                b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
                "Time.MarshalJSON: year outside of range [0,9999]",
            ),
            (
                b"\x0d\x00\x00\x00\x00",
                "proto: wrong wireType = 5 for field Seconds",
            ),
        ];
        for (bytes, why) in cases {
            assert_eq!(
                read(bytes, Precision::Micros),
                Err(why.to_owned()),
                "{bytes:?}"
            );
        }
    }
}
