//! Quantities: parsing, rounding and the canonical form.
//!
//! In: the text of a `resource.Quantity`. Out: integers in base units or parts of them, and back.
//! Guarantees: values are rounded up, as `Quantity.Value` and `Quantity.MilliValue` do; a quantity
//! that cannot be parsed counts as zero.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A quantity in base units, rounded up. Mirrors `Quantity.Value`.
pub(crate) fn value(quantity: &Quantity) -> i64 {
    scaled_value(quantity, 1)
}

/// A quantity in thousandths, rounded up. Mirrors `Quantity.MilliValue`.
pub(crate) fn milli_value(quantity: &Quantity) -> i64 {
    scaled_value(quantity, 1000)
}

/// A quantity in billionths, rounded up.
pub(crate) fn nano_value(quantity: &Quantity) -> i64 {
    scaled_value(quantity, 1_000_000_000)
}

/// A quantity as a floating point number. Mirrors `Quantity.AsApproximateFloat64`.
pub(crate) fn approximate_value(quantity: &Quantity) -> f64 {
    parse(&quantity.0).map_or(0.0, |(mantissa, scale)| {
        let (numerator, denominator) = scale.fraction(mantissa);
        numerator as f64 / denominator as f64
    })
}

/// Whether a text is a quantity that is not negative.
pub(crate) fn is_non_negative(text: &str) -> bool {
    parse(text).is_some_and(|(mantissa, _)| mantissa >= 0)
}

/// The canonical form of an amount in billionths, in the format `DecimalSI`.
pub(crate) fn from_nanos(nanos: i64) -> Quantity {
    decimal_si(nanos, -9)
}

/// The canonical form of an amount in thousandths, in the format `DecimalSI`.
pub(crate) fn from_millis(millis: i64) -> Quantity {
    decimal_si(millis, -3)
}

/// The canonical form of an amount in thousandths, in the format `BinarySI`. Mirrors
/// `CanonicalizeBytes`: amounts of 1024 and more are rounded up to integers, smaller ones have the
/// format `DecimalSI`.
pub(crate) fn binary_from_millis(millis: i64) -> Quantity {
    let units = millis.div_euclid(1000) + i64::from(millis.rem_euclid(1000) != 0);
    if millis.abs() < 1024 * 1000 {
        return from_millis(millis);
    }
    let mut amount = units;
    let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while amount % 1024 == 0 {
        let Some(larger) = suffixes.next() else {
            break;
        };
        amount /= 1024;
        suffix = larger;
    }
    Quantity(format!("{amount}{suffix}"))
}

/// The canonical form of a number of bytes, in the format `BinarySI`.
pub(crate) fn from_bytes(bytes: i64) -> Quantity {
    match bytes.checked_mul(1000) {
        Some(millis) => binary_from_millis(millis),
        None => Quantity(bytes.to_string()),
    }
}

/// The integer with the largest suffix that needs no fraction.
fn decimal_si(amount: i64, exponent: i32) -> Quantity {
    if amount == 0 {
        return Quantity("0".to_owned());
    }
    let mut amount = amount;
    let mut exponent = exponent;
    while amount % 1000 == 0 && exponent < 18 {
        amount /= 1000;
        exponent += 3;
    }
    let suffix = match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    };
    Quantity(format!("{amount}{suffix}"))
}

fn scaled_value(quantity: &Quantity, parts_per_unit: i128) -> i64 {
    parse(&quantity.0).map_or(0, |(mantissa, scale)| {
        let (numerator, denominator) = scale.fraction(mantissa * parts_per_unit);
        let rounded =
            numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0);
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    })
}

/// The scale of a quantity's suffix: 10 to the power of `tens`, times 2 to the power of `twos`.
#[derive(Clone, Copy, Debug)]
struct Scale {
    tens: i32,
    twos: u32,
}

impl Scale {
    /// The scaled mantissa as numerator and denominator.
    fn fraction(self, mantissa: i128) -> (i128, i128) {
        let power = |exponent: u32| 10_i128.checked_pow(exponent).unwrap_or(i128::MAX);
        // Quantities above the range saturate instead of wrapping.
        let mantissa = mantissa.saturating_mul(1 << self.twos);
        match u32::try_from(self.tens) {
            Ok(tens) => (mantissa.saturating_mul(power(tens)), 1),
            Err(_) => (mantissa, power(self.tens.unsigned_abs())),
        }
    }
}

/// Splits a quantity into its digits as one integer and its scale.
fn parse(text: &str) -> Option<(i128, Scale)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let fraction = i32::try_from(fraction.len()).ok()?;
    let decimal = |tens: i32| Scale {
        tens: tens - fraction,
        twos: 0,
    };
    let binary = |twos: u32| Scale {
        tens: -fraction,
        twos,
    };
    let scale = match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
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
        // A decimal exponent, such as 1e3. Exponents beyond 30 are rejected.
        _ => decimal(
            suffix
                .strip_prefix(['e', 'E'])?
                .parse()
                .ok()
                .filter(|tens: &i32| tens.abs() <= 30)?,
        ),
    };
    Some((mantissa, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_and_rounded_up() {
        for (text, expected_milli, expected) in [
            ("0", 0, 0),
            ("1", 1000, 1),
            ("100m", 100, 1),
            ("1.5", 1500, 2),
            ("0.0001", 1, 1),
            ("2k", 2_000_000, 2000),
            ("1e3", 1_000_000, 1000),
            ("1E", i64::MAX, 1_000_000_000_000_000_000),
            ("1Ki", 1_024_000, 1024),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("100n", 1, 1),
            ("-1", -1000, -1),
            ("many", 0, 0),
            ("9999999999E", i64::MAX, i64::MAX),
        ] {
            let quantity = Quantity(text.into());
            assert_eq!(
                milli_value(&quantity),
                expected_milli,
                "milli value of {text}"
            );
            assert_eq!(value(&quantity), expected, "value of {text}");
        }
    }

    #[test]
    fn amounts_have_the_canonical_form() {
        for (quantity, expected) in [
            (from_nanos(0), "0"),
            (from_nanos(1_500_000_000), "1500m"),
            (from_nanos(250_000_000), "250m"),
            (from_nanos(12_345_678), "12345678n"),
            (from_nanos(2_000_000_000_000), "2k"),
            (from_millis(100), "100m"),
            (from_millis(10_000_000), "10k"),
            (from_bytes(1023), "1023"),
            (from_bytes(1000), "1k"),
            (from_bytes(200 << 20), "200Mi"),
            (from_bytes((200 << 20) + 1), "209715201"),
            (binary_from_millis(1_048_576_500), "1048577"),
            (binary_from_millis(1500), "1500m"),
        ] {
            assert_eq!(quantity.0, expected);
        }
    }

    #[test]
    fn tolerance_is_a_fraction() {
        assert_eq!(approximate_value(&Quantity("50m".into())), 0.05);
        assert_eq!(approximate_value(&Quantity("0.1".into())), 0.1);
    }
}
