//! Amounts of resources: `500m`, `1.5Gi`, `2e3`.
//! In: the text of an object. Out: the text Kubernetes writes for it.
//! Guarantees: an amount is a whole number of billionths; what is finer is rounded away from zero,
//! what is larger than the type is cut.

use std::fmt;

const FORMAT_ERROR: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const SUFFIX_ERROR: &str = "unable to parse quantity's suffix";

const NANOS: i128 = 1_000_000_000;
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
pub(crate) struct Amount {
    /// In billionths. At most [`Amount::MAX_NANOS`], and at least as much below zero.
    pub(crate) nanos: i128,
    format: Format,
}

impl Amount {
    /// None of it.
    pub(crate) const ZERO: Self = Self {
        nanos: 0,
        format: Format::Decimal,
    };

    /// Larger amounts count as this one. A whole number of units, so that rounding it up changes
    /// nothing.
    pub(crate) const MAX_NANOS: i128 = i128::MAX / NANOS * NANOS;
}

/// An amount as an object has it, which prints as Kubernetes writes it.
#[derive(Clone, Debug)]
pub(crate) struct Quantity {
    amount: Amount,
    /// The text it was read from, where that is canonical.
    text: Option<String>,
}

impl Quantity {
    /// Reads an amount.
    ///
    /// # Errors
    /// Its errors, with the messages of Kubernetes.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let parts = Parts::split(text)?;
        let suffix = Suffix::parse(parts.suffix).ok_or(SUFFIX_ERROR)?;
        let magnitude = parts.nanos(suffix);
        let cut = suffix.format == Format::Binary;
        let nanos = if cut {
            magnitude.min(BINARY_MAX)
        } else {
            magnitude
        };
        let kept = parts.is_canonical(suffix) || text == "0";
        let tiny = nanos > 0 && nanos < NANOS;
        let format = if cut && tiny {
            Format::Decimal
        } else {
            suffix.format
        };
        let amount = Amount {
            nanos: if parts.negative { -nanos } else { nanos },
            format,
        };
        Ok(Self {
            amount,
            text: kept.then(|| text.to_owned()),
        })
    }

    /// How much it is, without the text.
    pub(crate) fn amount(&self) -> Amount {
        self.amount
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => self.amount.fmt(f),
        }
    }
}

impl fmt::Display for Amount {
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

/// Divides as often as it goes without a rest.
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

    /// Whether Kubernetes keeps the text as it is: it does so for short texts that look canonical,
    /// without making sure.
    fn is_canonical(&self, suffix: Suffix) -> bool {
        if suffix.format == Format::Binary {
            // A rough measure of the digits that the suffix stands for.
            let room = 14 - suffix.exponent * 3 / 10;
            let short = self.fraction.is_empty()
                && i32::try_from(self.whole.len()).is_ok_and(|digits| digits <= room);
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
            .map_or(Amount::MAX_NANOS, |nanos| nanos.min(Amount::MAX_NANOS))
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(
                Quantity::parse(text).map(|q| q.to_string()),
                Ok(expected.to_owned()),
                "{text}"
            );
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
            assert_eq!(
                Quantity::parse(text).map(|q| q.to_string()),
                Err(why),
                "{text}"
            );
        }
    }
}
