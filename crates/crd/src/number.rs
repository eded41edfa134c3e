//! JSON numbers as Go sees them: integers where they fit, floating point otherwise.
//! In: numbers of objects and bounds of schemas. Out: comparisons and the text of messages.

use std::fmt;

use serde_json::{Number, Value};

/// A number of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Num {
    /// Written without fraction or exponent, and within 64 bits.
    Int(i64),
    /// Any other number.
    Float(f64),
}

/// The largest integer that JSON numbers carry exactly everywhere.
const SAFE_INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// How far a quotient may be from an integer.
const EPSILON: f64 = 1e-9;

impl Num {
    pub(crate) fn of(number: &Number) -> Self {
        number.as_i64().map_or_else(
            || Self::Float(number.as_f64().unwrap_or(f64::INFINITY)),
            Self::Int,
        )
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "Go compares integers with floating-point bounds the same way"
    )]
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    /// The value without its fraction.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "Go converts bounds of integers the same way"
    )]
    pub(crate) fn truncated(self) -> i64 {
        match self {
            Self::Int(i) => i,
            Self::Float(f) => f as i64,
        }
    }

    /// Whether the value is written as an integer of at most `bits` bits.
    pub(crate) fn is_integer_of(self, bits: u32) -> bool {
        let limit = 2f64.powi(i32::try_from(bits).unwrap_or(64) - 1);
        match self {
            Self::Int(i) => bits >= 64 || i32::try_from(i).is_ok(),
            Self::Float(f) => f.fract() == 0.0 && f >= -limit && f < limit,
        }
    }
}

/// Turns every whole number written with a fraction or an exponent into an integer, as writing it
/// in Go and reading it again does.
pub(crate) fn make_whole(value: &mut Value) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(map) => open.extend(map.values_mut()),
            Value::Array(list) => open.extend(list),
            Value::Number(n) if n.is_f64() && Num::of(n).is_integer_of(64) => {
                *value = Num::of(n).truncated().into()
            }
            _ => {}
        }
    }
}

/// Whether a floating-point value counts as an integer in JSON.
pub(crate) fn is_json_integer(f: f64) -> bool {
    if !f.is_finite() || f.abs() > SAFE_INTEGER_MAX {
        return false;
    }
    let whole = f.trunc();
    f == whole || (whole != 0.0 && (f - whole).abs() / (f.abs() + whole.abs()) < EPSILON)
}

/// Shown as Go's `%v` shows numbers: `1e+06` from a million on.
impl fmt::Display for Num {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(i) => i.fmt(out),
            Self::Float(f) => go_float(*f, out),
        }
    }
}

fn go_float(f: f64, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let scientific = format!("{f:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return out.write_str(&scientific);
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..EXPONENT_MAX).contains(&exponent) {
        return write!(out, "{f}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    write!(out, "{mantissa}e{sign}{:02}", exponent.abs())
}

/// From this power of ten on Go writes an exponent.
const EXPONENT_MAX: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_go() {
        for (f, text) in [
            (1e6, "1e+06"),
            (1e20, "1e+20"),
            (123_456_789.0, "1.23456789e+08"),
            (1e-5, "1e-05"),
            (1e5, "100000"),
            (2.5, "2.5"),
            (-0.25, "-0.25"),
            (0.0, "0"),
        ] {
            assert_eq!(Num::Float(f).to_string(), text);
        }
    }

    #[test]
    fn integers_are_distinguished_from_fractions() {
        assert!(
            is_json_integer(3.0)
                && is_json_integer(-3.0)
                && !is_json_integer(3.5)
                && !is_json_integer(1e300)
        );
        assert!(
            Num::Float(2_147_483_647.0).is_integer_of(32)
                && !Num::Float(2_147_483_648.0).is_integer_of(32)
        );
        assert!(!Num::Int(1 << 40).is_integer_of(32) && Num::Int(1 << 40).is_integer_of(64));
    }
}
