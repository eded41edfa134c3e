//! The type of a plain scalar in YAML 1.1: string, number, boolean or null.
//! Guarantees: bodies are decoded and responses quoted by the same rules.

use std::borrow::Cow;

use super::Node;

/// The type of a plain scalar in YAML 1.1. Dates stay text.
pub(super) fn plain(text: Cow<'_, str>) -> Result<Node<'_>, String> {
    match text.as_ref() {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Node::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Node::Bool(false));
        }
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Node::Null),
        // JSON has no such numbers.
        ".nan" | ".NaN" | ".NAN" => return Err("json: unsupported value: NaN".to_owned()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Err("json: unsupported value: +Inf".to_owned());
        }
        "-.inf" | "-.Inf" | "-.INF" => return Err("json: unsupported value: -Inf".to_owned()),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Ok(Node::String(text));
    }
    let digits: Cow<'_, str> = if text.contains('_') {
        text.replace('_', "").into()
    } else {
        Cow::Borrowed(text.as_ref())
    };
    let number = integer(&digits)
        .map(|n| n.to_string())
        .or_else(|| float(&digits));
    Ok(match number {
        Some(number) => Node::Number(number.into()),
        None => Node::String(text),
    })
}

/// Whether plain text is read as a string by all YAML parsers: as no number,
/// boolean, null or date.
pub fn is_plain_text(text: &str) -> bool {
    matches!(plain(Cow::Borrowed(text)), Ok(Node::String(_)))
        && !is_moment(text)
        && !is_base_60(text)
}

/// A date, or a date and a time, in the formats of Go's library.
fn is_moment(text: &str) -> bool {
    let numbers = |text: &str, separator: char, lens: [std::ops::RangeInclusive<usize>; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        let fits = |(part, len): (&&str, &std::ops::RangeInclusive<usize>)| {
            len.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
        };
        parts.len() == 3 && parts.iter().zip(&lens).all(fits)
    };
    let (date, time) = text
        .split_once(['T', 't', ' '])
        .map_or((text, None), |(date, time)| (date, Some(time)));
    let is_time = |time: &str| {
        let zoned = time.find(['Z', '+', '-']).map_or(time, |at| &time[..at]);
        numbers(
            zoned.split('.').next().unwrap_or_default(),
            ':',
            [1..=2, 1..=2, 1..=2],
        )
    };
    numbers(date, '-', [4..=4, 1..=2, 1..=2]) && time.is_none_or(is_time)
}

/// A number in base 60, such as `1:30`, which is 90 in YAML 1.1.
fn is_base_60(text: &str) -> bool {
    let (whole, rest) = text.split_once(':').unwrap_or((text, ""));
    let whole = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    let starts = whole.starts_with(|c: char| c.is_ascii_digit())
        && whole.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let (sixties, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let sixty = |part: &str| {
        part.len() <= 2 && !part.is_empty() && part.parse::<u8>().is_ok_and(|n| n < 60)
    };
    starts
        && !rest.is_empty()
        && sixties.split(':').all(sixty)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// An integer in any base that Go reads: `0x1f`, `0b1`, `0o17`, and `017` in octal.
fn integer(text: &str) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, radix) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&unsigned[2..], 16),
        [b'0', b'b' | b'B', ..] => (&unsigned[2..], 2),
        [b'0', b'o' | b'O', ..] => (&unsigned[2..], 8),
        [b'0', _, ..] => (&unsigned[1..], 8),
        _ => (unsigned, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let number = if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    };
    (number >= i64::MIN.into()).then_some(number)
}

/// A float as JSON writes it.
fn float(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let numeric = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.contains(|c: char| c.is_ascii_digit());
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|number| numeric && number.is_finite())?;
    serde_json::Number::from_f64(number)
        .and_then(|number| super::whole_number(&number.to_string()))
        .map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strings_are_plain_scalars() {
        for text in [
            "v1",
            "a b",
            "1.2.3",
            "1Gi",
            "2026-01",
            "1:99",
            "10:",
            "T00:00",
            "2026-01-01x",
            "12h",
            "-a",
        ] {
            assert!(is_plain_text(text), "{text}");
        }
        for other in [
            "",
            "y",
            "No",
            "null",
            "1",
            "0o7",
            "1e3",
            ".inf",
            "1_000",
            "2026-01-01",
            "2026-1-1 1:2:3.5",
            "1:30",
            "-1:02:03.5",
        ] {
            assert!(!is_plain_text(other), "{other}");
        }
    }
}
