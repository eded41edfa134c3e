//! Quantities of Kubernetes: `500m`, `1.5Gi`, `2e3`.
//! In: texts. Out: quantities that are compared and added exactly.
//! Mirrors `k8s.io/apiserver/pkg/cel/library/quantity.go`.

use std::{any::Any, cmp::Ordering};

use crate::{
    cost_model::CostModel,
    eval::Failure,
    function::{Functions, Run},
    types::Type,
    value::{Opaque, Value},
};

use super::{int, text};

const FORMAT_ERROR: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NANOS: i128 = 1_000_000_000;

/// An amount in billionths; what is finer is rounded away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(i128);

impl Opaque for Quantity {
    fn type_of(&self) -> Type {
        quantity_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn quantity_type() -> Type {
    Type::object("kubernetes.Quantity")
}

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Double, Int, String};
    let quantity = quantity_type();
    f.global(
        "quantity",
        "string_to_quantity",
        &[String],
        quantity.clone(),
        CostModel::Pass,
        |_, args| parse(text(args, 0)?).map(Value::of),
    );
    f.global(
        "isQuantity",
        "is_quantity_string",
        &[String],
        Bool,
        CostModel::Pass,
        |_, args| Ok(Value::Bool(parse(text(args, 0)?).is_ok())),
    );
    f.global(
        "sign",
        "quantity_sign",
        std::slice::from_ref(&quantity),
        Int,
        CostModel::Unit,
        |_, args| {
            let sign = i64::try_from(of(args, 0)?.0.signum()).unwrap_or_default();
            Ok(Value::Int(sign))
        },
    );
    let unary: [(&'static str, &'static str, Type, Run); 3] = [
        ("isInteger", "quantity_is_integer", Bool, |_, args| {
            Ok(Value::Bool(whole(of(args, 0)?).is_some()))
        }),
        ("asInteger", "quantity_get_int", Int, |_, args| {
            let whole = whole(of(args, 0)?);
            whole
                .map(Value::Int)
                .ok_or_else(|| Failure::new("cannot convert value to integer"))
        }),
        (
            "asApproximateFloat",
            "quantity_get_float",
            Double,
            |_, args| Ok(Value::Double(of(args, 0)?.0 as f64 / NANOS as f64)),
        ),
    ];
    for (name, id, result, run) in unary {
        let params = std::slice::from_ref(&quantity);
        f.member(name, id, params, result, CostModel::Unit, run);
    }
    let binary: [(&'static str, &'static str, Type, Run); 5] = [
        (
            "isGreaterThan",
            "quantity_is_greater_than",
            Bool,
            |_, args| Ok(Value::Bool(compare(args)? == Ordering::Greater)),
        ),
        ("isLessThan", "quantity_is_less_than", Bool, |_, args| {
            Ok(Value::Bool(compare(args)? == Ordering::Less))
        }),
        ("compareTo", "quantity_compare_to", Int, |_, args| {
            Ok(Value::Int(compare(args)? as i64))
        }),
        ("add", "quantity_add", quantity.clone(), |_, args| {
            let sum = of(args, 0)?.0.saturating_add(of(args, 1)?.0);
            Ok(Value::of(Quantity(sum)))
        }),
        ("sub", "quantity_sub", quantity.clone(), |_, args| {
            let rest = of(args, 0)?.0.saturating_sub(of(args, 1)?.0);
            Ok(Value::of(Quantity(rest)))
        }),
    ];
    for (name, id, result, run) in binary {
        let params = [quantity.clone(), quantity.clone()];
        f.member(name, id, &params, result, CostModel::Unit, run);
    }
    let with_int: [(&'static str, &'static str, Run); 2] = [
        ("add", "quantity_add_int", |_, args| add_int(args, 1)),
        ("sub", "quantity_sub_int", |_, args| add_int(args, -1)),
    ];
    for (name, id, run) in with_int {
        let params = [quantity.clone(), Int];
        f.member(name, id, &params, quantity.clone(), CostModel::Unit, run);
    }
}

fn of(args: &[Value<'_>], at: usize) -> Result<Quantity, Failure> {
    args.get(at)
        .and_then(Value::downcast::<Quantity>)
        .copied()
        .ok_or_else(Failure::no_such_overload)
}

fn compare(args: &[Value<'_>]) -> Result<Ordering, Failure> {
    Ok(of(args, 0)?.0.cmp(&of(args, 1)?.0))
}

fn add_int<'a>(args: &[Value<'a>], sign: i128) -> Result<Value<'a>, Failure> {
    let more = i128::from(int(args, 1)?) * NANOS * sign;
    Ok(Value::of(Quantity(of(args, 0)?.0.saturating_add(more))))
}

fn whole(quantity: Quantity) -> Option<i64> {
    let is_whole = quantity.0 % NANOS == 0;
    is_whole
        .then(|| i64::try_from(quantity.0 / NANOS).ok())
        .flatten()
}

/// Mirrors `resource.ParseQuantity`.
fn parse(text: &str) -> Result<Quantity, Failure> {
    let malformed = || Failure::new(FORMAT_ERROR);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() || fraction.contains('.') || number == "." {
        return Err(malformed());
    }
    let (tens, twos) = scale(suffix).ok_or_else(|| {
        let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
        let digits = letters.strip_prefix(['+', '-']).unwrap_or(letters);
        if digits.bytes().all(|b| b.is_ascii_digit()) {
            Failure::new("unable to parse quantity's suffix")
        } else {
            malformed()
        }
    })?;
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa
            .saturating_mul(10)
            .saturating_add(i128::from(digit - b'0'));
    }
    let fraction = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let exponent = tens.saturating_add(9).saturating_sub(fraction);
    let scaled = mantissa.saturating_mul(1_i128 << twos);
    let power = 10_i128
        .checked_pow(exponent.unsigned_abs())
        .unwrap_or(i128::MAX);
    let nanos = if exponent >= 0 {
        scaled.saturating_mul(power)
    } else {
        scaled / power + i128::from(scaled % power != 0)
    };
    let is_negative = text.starts_with('-');
    Ok(Quantity(if is_negative { -nanos } else { nanos }))
}

/// The powers of ten and of two of a suffix.
fn scale(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        other => (other.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
    })
}

#[cfg(test)]
mod tests {
    use crate::{Environment, Value};

    #[test]
    fn quantities_compare_and_add_by_value() {
        for (text, expected) in [
            ("quantity('1Gi').isGreaterThan(quantity('1G'))", true),
            (
                "quantity('500m').add(quantity('0.5')) == quantity('1')",
                true,
            ),
            ("quantity('2k').sub(1).asInteger() == 1999", true),
            ("quantity('1.5').isInteger()", false),
            ("sign(quantity('-3')) == -1", true),
            ("quantity('50M').compareTo(quantity('50Mi')) == -1", true),
            (
                "isQuantity('1e3') && !isQuantity('1 Gi') && !isQuantity('x')",
                true,
            ),
            ("quantity('1.5Ki').asApproximateFloat() == 1536.0", true),
        ] {
            let program = Environment::kubernetes().compile(text);
            let value = program
                .expect("a sound expression")
                .evaluate(&[], 100_000)
                .value;
            assert!(
                matches!(value, Ok(Value::Bool(found)) if found == expected),
                "{text}"
            );
        }
    }

    #[test]
    fn texts_that_are_no_quantities_fail() {
        for (text, expected) in [
            (
                "quantity('x')",
                "quantities must match the regular expression",
            ),
            ("quantity('1KK')", "unable to parse quantity's suffix"),
            (
                "quantity('1.5').asInteger()",
                "cannot convert value to integer",
            ),
        ] {
            let program = Environment::kubernetes().compile(text);
            let value = program
                .expect("a sound expression")
                .evaluate(&[], 100_000)
                .value;
            let why = value.expect_err("no value").to_string();
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }
}
