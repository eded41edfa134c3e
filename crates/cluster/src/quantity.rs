//! Quantities of typed objects.
//!
//! In: the `resource.Quantity` of a field. Out: integers in base units or parts of them, and back.
//! Guarantees: values are rounded up, as `Quantity.Value` and `Quantity.MilliValue` do; a quantity
//! that cannot be parsed counts as zero.

use bellerophon_apimachinery::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = NANOS_PER_UNIT / 1000;

fn parse(quantity: &Quantity) -> quantity::Quantity {
    quantity::Quantity::parse(&quantity.0).unwrap_or(quantity::Quantity::ZERO)
}

/// A quantity in base units, rounded up.
pub(crate) fn value(quantity: &Quantity) -> i64 {
    parse(quantity).value()
}

/// A quantity in thousandths, rounded up.
pub(crate) fn milli_value(quantity: &Quantity) -> i64 {
    parse(quantity).milli_value()
}

/// A quantity in billionths, rounded up.
pub(crate) fn nano_value(quantity: &Quantity) -> i64 {
    parse(quantity).nano_value()
}

/// A quantity as a floating point number.
pub(crate) fn approximate_value(quantity: &Quantity) -> f64 {
    parse(quantity).approximate_value()
}

/// Whether a text is a quantity that is not negative.
pub(crate) fn is_non_negative(text: &str) -> bool {
    quantity::Quantity::parse(text).is_ok_and(|quantity| quantity >= quantity::Quantity::ZERO)
}

/// The canonical form of an amount in billionths, in the format `DecimalSI`.
pub(crate) fn from_nanos(nanos: i64) -> Quantity {
    Quantity(quantity::Quantity::decimal_from_nanos(nanos.into()).to_string())
}

/// The canonical form of an amount in thousandths, in the format `DecimalSI`.
pub(crate) fn from_millis(millis: i64) -> Quantity {
    let nanos = i128::from(millis) * NANOS_PER_MILLI;
    Quantity(quantity::Quantity::decimal_from_nanos(nanos).to_string())
}

/// The canonical form of an amount in thousandths, in the format `BinarySI`.
pub(crate) fn binary_from_millis(millis: i64) -> Quantity {
    let nanos = i128::from(millis) * NANOS_PER_MILLI;
    Quantity(quantity::Quantity::binary_from_nanos(nanos).to_string())
}

/// The canonical form of a number of bytes, in the format `BinarySI`.
pub(crate) fn from_bytes(bytes: i64) -> Quantity {
    let nanos = i128::from(bytes) * NANOS_PER_UNIT;
    Quantity(quantity::Quantity::binary_from_nanos(nanos).to_string())
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
