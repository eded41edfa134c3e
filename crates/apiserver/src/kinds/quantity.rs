//! Amounts such as `500m`, `2` and `1Gi`, exact enough to be compared.
//! Holds: two texts of the same amount are equal; nothing is lost down to a billionth.

use std::fmt;

use serde_json::Value;

/// An amount in billionths of its unit, with the text it was read from.
#[derive(Clone, Debug)]
pub(crate) struct Quantity {
    nanos: i128,
    text: String,
}

const NANOS: i128 = 1_000_000_000;
/// Amounts beyond this are cut, as Kubernetes cuts at 2^63 - 1.
const NANOS_MAX: i128 = i64::MAX as i128 * NANOS;

impl Quantity {
    /// Reads an amount: a number with an optional sign and fraction, then `m`, `k`, `Ki`, `e3` and the like.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (sign, digits) = match number.as_bytes().first()? {
            b'-' => (-1, &number[1..]),
            b'+' => (1, &number[1..]),
            _ => (1, number),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() == 0 || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit()) {
            return None;
        }
        let (multiplier, divisor) = scale(suffix)?;
        // 18 digits of a fraction keep more than the billionths that are kept in the end.
        let fraction = &fraction[..fraction.len().min(18)];
        let mantissa: i128 = format!("0{whole}{fraction}").parse().unwrap_or(i128::MAX);
        let denominator = 10_i128.pow(u32::try_from(fraction.len()).expect("cut to 18 above")) * divisor;
        let nanos = mantissa.checked_mul(multiplier).map_or(NANOS_MAX, |n| n.div_euclid(denominator) + i128::from(n % denominator != 0));
        Some(Self { nanos: sign * nanos.min(NANOS_MAX), text: text.to_owned() })
    }

    /// Reads an amount written as a string or a number.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(s) => Self::parse(s),
            Value::Number(n) => Self::parse(&n.to_string()),
            _ => None,
        }
    }

    /// The amount rounded up to whole units.
    pub(crate) fn value(&self) -> i64 {
        let up = self.nanos.div_euclid(NANOS) + i128::from(self.nanos.rem_euclid(NANOS) != 0);
        i64::try_from(up).unwrap_or(if up > 0 { i64::MAX } else { i64::MIN })
    }

    /// The amount rounded up to thousandths.
    pub(crate) fn milli_value(&self) -> i64 {
        let unit = NANOS / 1000;
        let up = self.nanos.div_euclid(unit) + i128::from(self.nanos.rem_euclid(unit) != 0);
        i64::try_from(up).unwrap_or(if up > 0 { i64::MAX } else { i64::MIN })
    }

    /// -1, 0 or 1.
    pub(crate) fn sign(&self) -> i8 {
        self.nanos.signum() as i8
    }

    /// Whether the amount is a whole number of units.
    pub(crate) fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0
    }
}

/// What a suffix multiplies by, counted in billionths: a numerator and a denominator.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |exponent: i32| -> Option<(i128, i128)> {
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        Some(if exponent < 0 { (NANOS, power) } else { (NANOS.checked_mul(power)?, 1) })
    };
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => {
            let step = "KMGTPE".find(&suffix[..1]).expect("one of these letters");
            Some((NANOS << (10 * (step + 1)), 1))
        }
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Quantity {
        Quantity::parse(text).expect(text)
    }

    #[test]
    fn amounts_compare_whatever_their_unit() {
        for (a, b) in
            [("1", "1000m"), ("1Ki", "1024"), ("1e3", "1k"), ("0.5", "500m"), ("1.5Gi", "1536Mi"), ("100n", "0.1u"), (".5", "0.5")]
        {
            assert_eq!(amount(a), amount(b), "{a} {b}");
        }
        assert!(amount("1Gi") > amount("1G") && amount("-1") < amount("0") && amount("1E") < amount("1Ei"));
    }

    #[test]
    fn fractions_round_up() {
        assert_eq!((amount("1500m").value(), amount("1500m").is_whole(), amount("2500u").milli_value()), (2, false, 3));
        assert_eq!(amount("-1Gi").value(), -1_073_741_824);
        assert_eq!(amount("99999999999999999999E").value(), i64::MAX);
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "m", "1x", "1.2.3", "1 Gi", "--1", "1e", "Ki"] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
    }
}
