//! Amounts of resources: `250m`, `1.5Gi`, `1e9`.
//! In: the text or number of a field. Out: something to compare and add, and the one spelling Kubernetes stores.
//! Holds: exact to a billionth, rounded up beyond that; never more than 2^63-1.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

/// Parts of one unit that an amount can be told to.
const NANOS: i128 = 1_000_000_000;
const MILLI: i128 = NANOS / 1000;
/// Amounts are cut off here, as Kubernetes does.
const MAX: i128 = (i64::MAX as i128) * NANOS;

/// How an amount was written, which is how it is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// `1500m`, `2k`.
    Decimal,
    /// `1Mi`.
    Binary,
    /// `1e3`.
    Exponent,
}

/// An amount of some resource. Equal amounts are equal however they are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    nanos: i128,
    style: Style,
}

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// None of it.
    pub(crate) const ZERO: Self = Self { nanos: 0, style: Style::Decimal };

    /// Reads a field: a string or a bare number.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(s) => Self::parse(s),
            Value::Number(n) => Self::parse(&n.to_string()),
            _ => None,
        }
    }

    /// Reads the text of an amount.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (style, factor) = unit(suffix)?;
        let nanos = scaled(whole, fraction, factor);
        Some(Self { nanos: if negative { -nanos } else { nanos }, style })
    }

    /// Rounded up to the next thousandth.
    pub(crate) fn rounded_up_to_milli(self) -> Self {
        Self { nanos: ceil_div(self.nanos, MILLI) * MILLI, ..self }
    }

    /// Whether it is a whole number of units, told to the thousandth.
    pub(crate) fn is_whole(self) -> bool {
        ceil_div(self.nanos, MILLI) % 1000 == 0
    }

    /// Rounded up to whole units.
    pub(crate) fn value(self) -> i64 {
        whole(ceil_div(self.nanos, NANOS))
    }

    /// Rounded up to thousandths.
    pub(crate) fn milli_value(self) -> i64 {
        whole(ceil_div(self.nanos, MILLI))
    }

    /// -1, 0 or 1.
    pub(crate) fn sign(self) -> i8 {
        match self.nanos.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { nanos: (self.nanos + other.nanos).clamp(-MAX, MAX), ..self }
    }

    /// Whether this is a multiple of `other`, which is not zero.
    pub(crate) fn is_multiple_of(self, other: Self) -> bool {
        other.nanos != 0 && self.nanos % other.nanos == 0
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    /// The shortest spelling that keeps the way it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let small = self.nanos.abs() < 1024 * NANOS;
        match self.style {
            Style::Binary if !small => {
                let (mut amount, mut power) = (ceil_div(self.nanos, NANOS), 0);
                while amount % 1024 == 0 && power + 1 < BINARY.len() {
                    amount /= 1024;
                    power += 1;
                }
                write!(f, "{amount}{}", BINARY[power])
            }
            style => {
                let (mut amount, mut power) = (self.nanos, 0);
                while amount != 0 && amount % 1000 == 0 && power + 1 < DECIMAL.len() {
                    amount /= 1000;
                    power += 1;
                }
                let (suffix, exponent) = DECIMAL[power];
                match (style, exponent) {
                    _ if amount == 0 => f.write_str("0"),
                    (Style::Exponent, 0) => write!(f, "{amount}"),
                    (Style::Exponent, _) => write!(f, "{amount}e{exponent}"),
                    _ => write!(f, "{amount}{suffix}"),
                }
            }
        }
    }
}

/// What a suffix stands for: its style, and the factor as ten to a power or 1024 to a power.
fn unit(suffix: &str) -> Option<(Style, Factor)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some((Style::Decimal, Factor::Ten(*exponent)));
    }
    if let Some(power) = BINARY.iter().position(|s| *s == suffix) {
        return Some((Style::Binary, Factor::Kibi(u32::try_from(power).ok()?)));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Style::Exponent, Factor::Ten(exponent.parse().ok()?)))
}

#[derive(Clone, Copy)]
enum Factor {
    Ten(i32),
    Kibi(u32),
}

/// `whole.fraction × factor` in nanos, rounded up, at most [`MAX`].
fn scaled(whole: &str, fraction: &str, factor: Factor) -> i128 {
    let (exponent, kibi) = match factor {
        Factor::Ten(exponent) => (exponent, 1),
        Factor::Kibi(power) => (0, 1024_i128.pow(power)),
    };
    // The digit at place p counts 10^p; a nano is at place -9.
    let top = i32::try_from(whole.len()).unwrap_or(i32::MAX).saturating_sub(1).saturating_add(exponent);
    let mut nanos: i128 = 0;
    let mut beyond = false;
    for (i, digit) in whole.chars().chain(fraction.chars()).enumerate() {
        let value = i128::from(digit.to_digit(10).unwrap_or_default()) * kibi;
        let place = top.saturating_sub(i32::try_from(i).unwrap_or(i32::MAX)).saturating_add(9);
        match u32::try_from(place) {
            _ if value == 0 => {}
            Ok(place) => {
                let part = 10_i128.checked_pow(place).and_then(|p| p.checked_mul(value)).unwrap_or(MAX);
                nanos = nanos.saturating_add(part).min(MAX);
            }
            // Binary units reach below a nano before they are multiplied out: keep what still counts.
            Err(_) => match 10_i128.checked_pow(place.unsigned_abs()) {
                Some(divisor) => {
                    nanos += value / divisor;
                    beyond |= value % divisor != 0;
                }
                None => beyond = true,
            },
        }
    }
    (nanos + i128::from(beyond)).min(MAX)
}

/// Amounts fit by [`MAX`]; thousandths of large ones are cut.
fn whole(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount > 0 { i64::MAX } else { i64::MIN })
}

fn ceil_div(a: i128, b: i128) -> i128 {
    let quotient = a / b;
    if a % b != 0 && a > 0 { quotient + 1 } else { quotient }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_stored_in_their_shortest_spelling() {
        let cases = [
            (json!("1000m"), "1"),
            (json!("1024Mi"), "1Gi"),
            (json!(0.5), "500m"),
            (json!("1.5Gi"), "1536Mi"),
            (json!("128974848000m"), "128974848"),
            (json!("1e9"), "1e9"),
            (json!("134217728"), "134217728"),
            (json!("1000"), "1k"),
            (json!("1000Ki"), "1000Ki"),
            (json!("100Mi"), "100Mi"),
            (json!("0.5Ki"), "512"),
            (json!(-1), "-1"),
            (json!("0"), "0"),
            (json!("+2"), "2"),
            (json!("1E"), "1E"),
            (json!("0.0000000001"), "1n"),
            (json!("12e1"), "120"),
            (json!("99999999999999999999999"), "9223372036854775807"),
        ];
        for (written, stored) in cases {
            assert_eq!(Quantity::of(&written).map(|q| q.to_string()).as_deref(), Some(stored), "{written}");
        }
    }

    #[test]
    fn text_that_is_no_amount_is_refused() {
        for text in ["", "m", "--1", "1e", "ten", "1 Gi", "1.2.3", "5GB", "-", "1ee3", "Ki"] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn amounts_compare_by_value() {
        let q = |s| Quantity::parse(s).expect("an amount");
        assert_eq!(q("2"), q("2000m"));
        assert!(q("1Gi") > q("1G") && q("999m") < q("1"));
        assert!(q("2").is_whole() && !q("1500m").is_whole());
        assert_eq!(q("1.0001").rounded_up_to_milli(), q("1001m"));
        assert_eq!(q("1500m").plus(q("1500m")), q("3"));
        assert_eq!((q("1500m").value(), q("2500u").milli_value(), q("-1Gi").value()), (2, 3, -1_073_741_824));
        assert_eq!((q("99999999999999999999E").value(), q("-1").sign()), (i64::MAX, -1));
    }
}
