//! Quantities of resources, such as `500m`, `1.5Gi`, `2e3`.
//! In: the text of a `resource.Quantity`. Out: a number to compare and add, and its canonical form.
//! Guarantees: a quantity is a whole number of billionths; what is finer is rounded away from zero,
//! what is larger than the type saturates; equal quantities are equal however they are written.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

use crate::field::Shown;

const FORMAT_ERROR: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const SUFFIX_ERROR: &str = "unable to parse quantity's suffix";

const NANOS: i128 = 1_000_000_000;
const MILLI: i128 = NANOS / 1000;
/// Amounts with a binary suffix are no larger than a 64-bit number.
const BINARY_MAX: i128 = i64::MAX as i128 * NANOS;
/// Digits up to which Kubernetes keeps the text of an amount that is canonical already.
const DIGITS_MAX: usize = 18;

/// How an amount is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `1k`, `1M`, `1m`.
    Decimal,
    /// `1Ki`, `1Mi`.
    Binary,
    /// `1e3`.
    Exponent,
}

/// An amount of a resource, which prints in its canonical form.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// In billionths. At most [`Quantity::MAX_NANOS`], and at least as much below zero.
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// None of it.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::Decimal,
    };

    /// One unit.
    pub const ONE: Self = Self {
        nanos: NANOS,
        format: Format::Decimal,
    };

    /// Larger quantities saturate to this one. A whole number of units, so that rounding it up
    /// changes nothing.
    const MAX_NANOS: i128 = i128::MAX / NANOS * NANOS;

    /// Parses the text of a quantity. Mirrors `resource.ParseQuantity`.
    ///
    /// # Errors
    /// A text that is no quantity, with the message of Kubernetes.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let parts = Parts::split(text)?;
        let suffix = Suffix::parse(parts.suffix).ok_or(SUFFIX_ERROR)?;
        Ok(Self::of_parts(&parts, suffix))
    }

    /// A field of an object: a string or a bare number; `None` for anything else.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text).ok(),
            Value::Number(number) => Self::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    /// An amount in billionths, in the format `DecimalSI`.
    pub fn decimal_from_nanos(nanos: i128) -> Self {
        Self::ZERO.with(nanos)
    }

    /// An amount in billionths, in the format `BinarySI`. Mirrors `CanonicalizeBytes`: amounts of
    /// 1024 and more are rounded up to integers, smaller ones have the format `DecimalSI`.
    pub fn binary_from_nanos(nanos: i128) -> Self {
        let nanos = if nanos.abs() < 1024 * NANOS {
            nanos
        } else {
            ceil_div(nanos, NANOS).saturating_mul(NANOS)
        };
        let binary = Self {
            nanos: 0,
            format: Format::Binary,
        };
        binary.with(nanos)
    }

    fn of_parts(parts: &Parts<'_>, suffix: Suffix) -> Self {
        let magnitude = parts.nanos(suffix);
        let cut = suffix.format == Format::Binary;
        let nanos = if cut {
            magnitude.min(BINARY_MAX)
        } else {
            magnitude
        };
        let tiny = nanos > 0 && nanos < NANOS;
        let format = if cut && tiny {
            Format::Decimal
        } else {
            suffix.format
        };
        Self {
            nanos: if parts.negative { -nanos } else { nanos },
            format,
        }
    }

    /// Rounded up to the next thousandth.
    pub fn rounded_up_to_milli(self) -> Self {
        self.with(ceil_div(self.nanos, MILLI).saturating_mul(MILLI))
    }

    /// Whether it is a whole number of units, printed in thousandths.
    pub fn is_whole(self) -> bool {
        ceil_div(self.nanos, MILLI) % 1000 == 0
    }

    /// Rounded up to whole units. Mirrors `Quantity.Value`.
    pub fn value(self) -> i64 {
        whole(ceil_div(self.nanos, NANOS))
    }

    /// Rounded up to thousandths. Mirrors `Quantity.MilliValue`.
    pub fn milli_value(self) -> i64 {
        whole(ceil_div(self.nanos, MILLI))
    }

    /// In billionths, exactly.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// In billionths, saturating.
    pub fn nano_value(self) -> i64 {
        whole(self.nanos)
    }

    /// As a floating point number. Mirrors `Quantity.AsApproximateFloat64`.
    pub fn approximate_value(self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }

    /// -1, 0 or 1.
    pub fn sign(self) -> i8 {
        match self.nanos.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        let written = if self.nanos == 0 { other } else { self };
        written.with(self.nanos.saturating_add(other.nanos))
    }

    /// The difference.
    pub fn minus(self, other: Self) -> Self {
        self.with(self.nanos.saturating_sub(other.nanos))
    }

    /// That many units.
    pub fn count(units: usize) -> Self {
        let units = i128::try_from(units).unwrap_or(i128::MAX);
        Self::ZERO.with(units.saturating_mul(NANOS))
    }

    /// Rounded up to whole units.
    pub fn rounded_up(self) -> Self {
        self.with(ceil_div(self.nanos, NANOS).saturating_mul(NANOS))
    }

    /// Whether this is a multiple of `other`, which is not zero.
    pub fn is_multiple_of(self, other: Self) -> bool {
        other.nanos != 0 && self.nanos % other.nanos == 0
    }

    /// This amount or the largest there is, in the same format.
    fn with(mut self, nanos: i128) -> Self {
        self.nanos = nanos.clamp(-Self::MAX_NANOS, Self::MAX_NANOS);
        self
    }
}

/// The text that Kubernetes writes for the text of a quantity: short texts that look canonical are
/// kept.
///
/// # Errors
/// A text that is no quantity, with the message of Kubernetes.
pub fn canonical(text: &str) -> Result<String, &'static str> {
    let parts = Parts::split(text)?;
    let suffix = Suffix::parse(parts.suffix).ok_or(SUFFIX_ERROR)?;
    if text == "0" || parts.is_canonical(suffix) {
        return Ok(text.to_owned());
    }
    Ok(Quantity::of_parts(&parts, suffix).to_string())
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANOS == 0;
        let small = self.nanos.abs() < 1024 * NANOS;
        match self.format {
            Format::Binary if whole && !small => {
                let (number, times) = without_factors(self.nanos / NANOS, 1024);
                let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
                    .get(times)
                    .copied()
                    .unwrap_or_default();
                write!(f, "{number}{suffix}")
            }
            format => {
                let (mut number, times) = without_factors(self.nanos, 10);
                let mut exponent =
                    i32::try_from(times).expect("an i128 has fewer than 40 digits") - 9;
                while exponent % 3 != 0 {
                    number *= 10;
                    exponent -= 1;
                }
                match (format, exponent) {
                    (_, 0) => write!(f, "{number}"),
                    (Format::Exponent, _) => write!(f, "{number}e{exponent}"),
                    _ => write!(f, "{number}{}", decimal_suffix(exponent)),
                }
            }
        }
    }
}

/// Errors show quantities as strings.
impl Shown for &Quantity {
    fn shown(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

/// Saturates at the limits of the type.
fn whole(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount > 0 { i64::MAX } else { i64::MIN })
}

fn ceil_div(a: i128, b: i128) -> i128 {
    let quotient = a / b;
    if a % b != 0 && a > 0 {
        quotient + 1
    } else {
        quotient
    }
}

/// Divides as often as there is no remainder.
const fn without_factors(mut number: i128, base: i128) -> (i128, usize) {
    let mut times = 0;
    while number.abs() >= base && number % base == 0 {
        number /= base;
        times += 1;
    }
    (number, times)
}

const fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        // Kubernetes has no suffix beyond and writes none.
        _ => "",
    }
}

#[derive(Clone, Copy)]
struct Suffix {
    format: Format,
    /// Power of two for [`Format::Binary`], of ten otherwise.
    exponent: i32,
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        let decimal = |exponent| {
            Some(Self {
                format: Format::Decimal,
                exponent,
            })
        };
        let binary = |exponent| {
            Some(Self {
                format: Format::Binary,
                exponent,
            })
        };
        match text {
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
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            other => {
                let exponent = other.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
                let exponent = exponent.clamp(i32::MIN.into(), i32::MAX.into());
                Some(Self {
                    format: Format::Exponent,
                    exponent: i32::try_from(exponent).expect("clamped to the range"),
                })
            }
        }
    }
}

/// The text of an amount, taken apart.
struct Parts<'t> {
    negative: bool,
    /// Digits before the point, without leading zeros but never none.
    whole: &'t str,
    /// Digits after the point.
    fraction: &'t str,
    suffix: &'t str,
}

impl<'t> Parts<'t> {
    fn split(text: &'t str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err(FORMAT_ERROR);
        }
        let digits =
            |text: &'t str| text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, rest) = digits(unsigned.trim_start_matches('0'));
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
        let after_letters =
            suffix.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
        let exponent = if after_letters.is_empty() {
            ""
        } else {
            after_letters
                .strip_prefix(['+', '-'])
                .unwrap_or(after_letters)
        };
        if !exponent.bytes().all(|b| b.is_ascii_digit()) {
            return Err(FORMAT_ERROR);
        }
        Ok(Self {
            negative: text.starts_with('-'),
            whole: if whole.is_empty() { "0" } else { whole },
            fraction,
            suffix,
        })
    }

    /// Whether Kubernetes keeps the text: it does so for short texts that look canonical, without
    /// validation.
    fn is_canonical(&self, suffix: Suffix) -> bool {
        if suffix.format == Format::Binary {
            // An estimate of the digits that the suffix adds.
            let digits_max = 14 - suffix.exponent * 3 / 10;
            let short = self.fraction.is_empty()
                && i32::try_from(self.whole.len()).is_ok_and(|digits| digits <= digits_max);
            return short
                && self.whole.parse::<i64>().is_ok_and(|number| {
                    number & 7 != 0 && number.checked_mul(1 << suffix.exponent).is_some()
                });
        }
        let digits = format!("{}{}", self.whole, self.fraction);
        let scale =
            i64::from(suffix.exponent) - i64::try_from(self.fraction.len()).unwrap_or(i64::MAX);
        digits.len() <= DIGITS_MAX
            && scale >= -9
            && scale % 3 == 0
            && !digits.ends_with("000")
            && !digits.starts_with('0')
    }

    /// The amount without its sign, in billionths, rounded up.
    fn nanos(&self, suffix: Suffix) -> i128 {
        // Digits beyond these only decide whether there is something to round up.
        const FRACTION_MAX: usize = 20;
        let (kept, cut) = self
            .fraction
            .split_at(self.fraction.len().min(FRACTION_MAX));
        let mut rest = cut.bytes().any(|b| b != b'0');
        let digits = self.whole.bytes().chain(kept.bytes());
        let mut number = digits.fold(0_u128, |n, b| {
            n.saturating_mul(10).saturating_add((b - b'0').into())
        });
        let mut exponent = 9 - i32::try_from(kept.len()).expect("cut above");
        match suffix.format {
            Format::Binary => number = number.saturating_mul(1 << suffix.exponent),
            _ => exponent = exponent.saturating_add(suffix.exponent),
        }
        if number == 0 && !rest {
            return 0;
        }
        let power = 10_u128.checked_pow(exponent.unsigned_abs());
        if exponent >= 0 {
            number = power.map_or(u128::MAX, |power| number.saturating_mul(power));
        } else {
            rest |= power.is_none_or(|power| number % power != 0);
            number = power.map_or(0, |power| number / power);
        }
        i128::try_from(number.saturating_add(rest.into()))
            .map_or(Quantity::MAX_NANOS, |nanos| nanos.min(Quantity::MAX_NANOS))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_written_canonically() {
        let cases = [
            ("0", "0"),
            ("0.0", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1.500", "1.500"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("0.1m", "100u"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("2Gi", "2Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1e3", "1e3"),
            ("10e3", "10e3"),
            ("1000e3", "1e6"),
            ("1E", "1E"),
            ("-1.5", "-1500m"),
            ("+5", "+5"),
            ("007", "007"),
            ("1.", "1."),
            ("16Ei", "9223372036854775807"),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(text), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for (text, why) in [
            ("", FORMAT_ERROR),
            ("abc", FORMAT_ERROR),
            ("1 Gi", FORMAT_ERROR),
            ("1.2.3", FORMAT_ERROR),
            ("1KK", SUFFIX_ERROR),
            ("1e", SUFFIX_ERROR),
        ] {
            assert_eq!(canonical(text), Err(why), "{text}");
        }
    }

    #[test]
    fn quantities_are_printed_in_canonical_form() {
        let cases = [
            (json!("1000m"), "1"),
            (json!("1.5Gi"), "1536Mi"),
            (json!(0.5), "500m"),
            (json!("1e9"), "1e9"),
            (json!("1000"), "1k"),
            (json!("0.5Ki"), "512"),
            (json!(-1), "-1"),
            (json!("+2"), "2"),
            (json!("1.500"), "1500m"),
        ];
        for (written, printed) in cases {
            assert_eq!(
                Quantity::of(&written).map(|q| q.to_string()).as_deref(),
                Some(printed),
                "{written}"
            );
        }
        assert!(
            [json!("ten"), json!(""), json!(true), json!(null)]
                .iter()
                .all(|value| Quantity::of(value).is_none())
        );
    }

    #[test]
    fn amounts_compare_by_value() {
        let q = |s| Quantity::parse(s).expect("an amount");
        assert_eq!(q("2"), q("2000m"));
        assert!(q("1Gi") > q("1G") && q("999m") < q("1"));
        assert!(q("2").is_whole() && !q("1500m").is_whole());
        assert_eq!(q("1.0001").rounded_up_to_milli(), q("1001m"));
        assert_eq!(q("1500m").plus(q("1500m")), q("3"));
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("2500u").milli_value(), 3);
        assert_eq!(q("-1Gi").value(), -1_073_741_824);
        assert_eq!(q("99999999999999999999E").value(), i64::MAX);
        assert_eq!(q("-1").sign(), -1);
    }

    /// Rounding used to overflow, and a message showed a negative amount.
    #[test]
    fn amounts_beyond_the_largest_are_the_largest() {
        let q = |s| Quantity::parse(s).expect("an amount");
        let most = q("9223372036854775807E");
        assert_eq!(most, q("99999999999999999999E"));
        assert_eq!(most.rounded_up_to_milli(), most);
        assert_eq!(most.plus(most), most);
        assert_eq!(most.sign(), 1);
        assert_eq!(most.value(), i64::MAX);
        assert_eq!(most.to_string(), "170141183460469231731687303715");
        let least = q("-9223372036854775807E");
        assert_eq!(least.plus(least), least);
        assert_eq!(
            least.rounded_up_to_milli().to_string(),
            "-170141183460469231731687303715"
        );
    }
}
