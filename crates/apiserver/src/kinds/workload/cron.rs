//! Cron schedules: five fields, or a name such as `@hourly`.
//! In: the text of a schedule. Out: its errors. Guarantees: the wording is that of the library
//! Kubernetes uses.
//! Mirrors `ParseStandard` of `robfig/cron`.

use super::cron_job::is_time_zone;

/// One field of a schedule: its lowest and highest value and the names its values have.
struct Field {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &[
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Field; 5] = [
    Field {
        low: 0,
        high: 59,
        names: &[],
    },
    Field {
        low: 0,
        high: 23,
        names: &[],
    },
    Field {
        low: 1,
        high: 31,
        names: &[],
    },
    Field {
        low: 1,
        high: 12,
        names: MONTHS,
    },
    Field {
        low: 0,
        high: 6,
        names: DAYS,
    },
];
const NAMED: [&str; 7] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
];

/// Whether the schedule can be followed.
///
/// # Errors
/// Why it cannot, in words.
pub(super) fn validate(schedule: &str) -> Result<(), String> {
    let schedule = without_zone(schedule)?;
    if let Some(descriptor) = schedule.strip_prefix('@') {
        return validate_descriptor(schedule, descriptor);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly {} fields, found {}: [{}]",
            FIELDS.len(),
            fields.len(),
            fields.join(" ")
        ));
    }
    for (text, field) in fields.iter().zip(&FIELDS) {
        for range in text.split(',').filter(|r| !r.is_empty()) {
            validate_range(range, field)?;
        }
    }
    Ok(())
}

/// A zone may stand in front, where it was never meant to.
fn without_zone(schedule: &str) -> Result<&str, String> {
    let Some(rest) = schedule
        .strip_prefix("CRON_TZ=")
        .or_else(|| schedule.strip_prefix("TZ="))
    else {
        return Ok(schedule);
    };
    let Some((zone, rest)) = rest.split_once(' ') else {
        return Err(
            "invalid schedule format: a time zone must be followed by a schedule".to_owned(),
        );
    };
    if zone.is_empty() || is_time_zone(zone) {
        Ok(rest.trim())
    } else {
        Err(format!(
            "provided bad location {zone}: unknown time zone {zone}"
        ))
    }
}

fn validate_descriptor(schedule: &str, descriptor: &str) -> Result<(), String> {
    if let Some(duration) = descriptor.strip_prefix("every ") {
        return validate_duration(duration)
            .map_err(|why| format!("failed to parse duration {schedule}: {why}"));
    }
    if NAMED.contains(&schedule) {
        Ok(())
    } else {
        Err(format!("unrecognized descriptor: {schedule}"))
    }
}

/// A duration such as `1h30m`.
fn validate_duration(text: &str) -> Result<(), String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        if !rest[..number].contains(|c: char| c.is_ascii_digit())
            || rest[..number].matches('.').count() > 1
        {
            return Err(invalid());
        }
        rest = &rest[number..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        match &rest[..unit] {
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h" => {}
            other => return Err(format!("time: unknown unit {other:?} in duration {text:?}")),
        }
        rest = &rest[unit..];
    }
    Ok(())
}

fn validate_range(range: &str, field: &Field) -> Result<(), String> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = match ends.as_slice() {
        ["*" | "?", ..] => (field.low, field.high),
        [one] => (value(one, field)?, value(one, field)?),
        [start, end] => (value(start, field)?, value(end, field)?),
        _ => return Err(format!("too many hyphens: {range}")),
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                end = field.high;
            }
            number(step)?
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    if start < field.low {
        return Err(format!(
            "beginning of range ({start}) below minimum ({}): {range}",
            field.low
        ));
    }
    if end > field.high {
        return Err(format!(
            "end of range ({end}) above maximum ({}): {range}",
            field.high
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {range}"
        ));
    }
    if step == 0 {
        return Err(format!(
            "step of range should be a positive number: {range}"
        ));
    }
    Ok(())
}

fn value(text: &str, field: &Field) -> Result<u32, String> {
    let named = field
        .names
        .iter()
        .position(|n| *n == text.to_lowercase())
        .and_then(|i| u32::try_from(i).ok());
    named.map_or_else(|| number(text), |i| Ok(i + field.low))
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_as_cron_reads_them() {
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
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        let cases = [
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
            assert_eq!(validate(schedule), Err(why.to_owned()), "{schedule}");
        }
    }
}
