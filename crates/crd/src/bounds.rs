//! Minimum, maximum and multipleOf of numbers.
//! In: a number and its schema. Out: its errors.
//! Guarantees: integers are compared as integers and printed as such, everything else as floating
//! point.

use bellerophon_apimachinery::field::Path;

use super::{
    number::{Num, is_json_integer},
    problem::{Outcome, Problem},
    schema::Schema,
};

pub(super) fn validate_number(number: Num, schema: &Schema, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome::matched_unless(None);
    outcome.extend([out_of_range(number, schema, "Checked", path)]);
    if let Some(factor) = schema.multiple_of {
        outcome.extend([
            out_of_range(Num::Float(factor), schema, "MultipleOf", path),
            not_multiple(number, factor, schema, path),
        ]);
    }
    if let Some(min) = schema.minimum {
        outcome.extend([
            out_of_range(Num::Float(min), schema, "Minimum boundary", path),
            below(number, min, schema, path),
        ]);
    }
    if let Some(max) = schema.maximum {
        outcome.extend([
            out_of_range(Num::Float(max), schema, "Maximum boundary", path),
            above(number, max, schema, path),
        ]);
    }
    outcome
}

/// Whether a number, or a bound of it, is within its type and format. Int-or-string is not limited.
fn fits(number: Num, schema: &Schema) -> bool {
    match (schema.types().as_slice(), schema.format_in_force()) {
        (["integer"], "int32") => number.is_integer_of(32),
        (["integer"], _) => number.is_integer_of(64),
        (["number"], "float") => number.as_f64().abs() <= f64::from(f32::MAX),
        _ => true,
    }
}

fn out_of_range(number: Num, schema: &Schema, what: &str, path: &Path<'_>) -> Option<Problem> {
    let type_name = &schema.type_name;
    let format = schema.format_in_force();
    let shape = if format.is_empty() {
        "(default format)".to_owned()
    } else {
        format!("with format {format}")
    };
    (!fits(number, schema)).then(|| {
        Problem::composite(format!(
            "{what} value must be of type {type_name} {shape} in {path}"
        ))
    })
}

/// The bound that is compared with `number`: for an integer without its fraction, unless the bound
/// does not fit the type.
fn bound(number: Num, bound: f64, schema: &Schema) -> Num {
    let bound = Num::Float(bound);
    match number {
        Num::Int(_) if fits(bound, schema) => Num::Int(bound.truncated()),
        _ => bound,
    }
}

fn below(number: Num, min: f64, schema: &Schema, path: &Path<'_>) -> Option<Problem> {
    let low = bound(number, min, schema);
    let exclusive = schema.exclusive_minimum;
    let errs = match (number, low) {
        (Num::Int(n), Num::Int(low)) => n < low || (exclusive && n == low),
        (n, low) => n.as_f64() < low.as_f64() || (exclusive && n.as_f64() == low.as_f64()),
    };
    let words = if exclusive {
        "greater than"
    } else {
        "greater than or equal to"
    };
    errs.then(|| Problem::invalid(path, number, &format!("should be {words} {low}")))
}

fn above(number: Num, max: f64, schema: &Schema, path: &Path<'_>) -> Option<Problem> {
    let high = bound(number, max, schema);
    let exclusive = schema.exclusive_maximum;
    let errs = match (number, high) {
        (Num::Int(n), Num::Int(high)) => n > high || (exclusive && n == high),
        (n, high) => n.as_f64() > high.as_f64() || (exclusive && n.as_f64() == high.as_f64()),
    };
    let words = if exclusive {
        "less than"
    } else {
        "less than or equal to"
    };
    errs.then(|| Problem::invalid(path, number, &format!("should be {words} {high}")))
}

fn not_multiple(number: Num, factor: f64, schema: &Schema, path: &Path<'_>) -> Option<Problem> {
    let divisor = bound(number, factor, schema);
    if divisor.as_f64() <= 0.0 {
        return Some(Problem::bad_factor(path, divisor));
    }
    let divides = match (number, divisor) {
        (Num::Int(n), Num::Int(d)) => n % d == 0,
        (n, d) if d.as_f64() < 1.0 => is_json_integer(1.0 / d.as_f64() * n.as_f64()),
        (n, d) => is_json_integer(n.as_f64() / d.as_f64()),
    };
    (!divides)
        .then(|| Problem::invalid(path, number, &format!("should be a multiple of {divisor}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        for (schema, value, expected) in [
            (
                json!({"type": "integer", "minimum": 1}),
                json!(0),
                "n: Invalid value: 0: n in body should be greater than or equal to 1",
            ),
            (
                json!({"type": "integer", "maximum": 10}),
                json!(11),
                "n: Invalid value: 11: n in body should be less than or equal to 10",
            ),
            (
                json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true}),
                json!(0),
                "n: Invalid value: 0: n in body should be greater than 0",
            ),
            (
                json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}),
                json!(5),
                "n: Invalid value: 5: n in body should be less than 5",
            ),
            (
                json!({"type": "number", "minimum": 0.5}),
                json!(0.25),
                "n: Invalid value: 0.25: n in body should be greater than or equal to 0.5",
            ),
            (
                json!({"type": "integer", "multipleOf": 5}),
                json!(7),
                "n: Invalid value: 7: n in body should be a multiple of 5",
            ),
            (
                json!({"type": "number", "multipleOf": 0.25}),
                json!(0.3),
                "n: Invalid value: 0.3: n in body should be a multiple of 0.25",
            ),
            (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), ""),
            (
                json!({"type": "integer", "format": "int32"}),
                json!(2_147_483_648_i64),
                "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in n",
            ),
            (
                json!({"type": "number", "format": "float"}),
                json!(1e39),
                "<nil>: Invalid value: \"\": Checked value must be of type number with format float in n",
            ),
            (
                json!({"type": "integer", "format": "int64"}),
                json!(2_147_483_648_i64),
                "",
            ),
            (
                json!({"type": "integer", "multipleOf": 0}),
                json!(1),
                "n: Invalid value: 0: factor MultipleOf declared for n must be positive: 0",
            ),
            (json!({"type": "number", "maximum": 2.5}), json!(2), ""),
        ] {
            let parsed = Schema::parse(&schema).expect("a valid schema");
            let Value::Number(number) = &value else {
                unreachable!("all cases are numbers")
            };
            let outcome = validate_number(Num::of(number), &parsed, &Path::field("n"));
            let errors: Vec<String> = outcome
                .into_problems()
                .into_iter()
                .map(|p| p.into_error(None).to_string())
                .collect();
            assert_eq!(errors.join("; "), expected, "{value} under {schema}");
        }
    }
}
