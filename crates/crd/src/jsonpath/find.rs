//! Evaluates a parsed path.

use std::{borrow::Cow, cmp::Ordering};

use bellerophon_apimachinery::field::go_type;
use serde_json::Value;

use super::{Filter, Slice, Step};
use crate::number::Num;

/// How deep `..` looks.
const DESCENT_DEPTH_MAX: usize = 128;

type Values<'a> = Vec<Cow<'a, Value>>;

/// Follows all steps from `values`.
pub(super) fn follow<'a>(values: Values<'a>, steps: &'a [Step]) -> Result<Values<'a>, String> {
    steps.iter().try_fold(values, take)
}

fn take<'a>(values: Values<'a>, step: &'a Step) -> Result<Values<'a>, String> {
    match step {
        Step::Field(name) => Ok(values
            .iter()
            .filter_map(|v| part(v, |v| v.get(name.as_str())))
            .collect()),
        Step::Wildcard => Ok(values.iter().flat_map(children).collect()),
        Step::Descent => Ok(values.iter().flat_map(|v| descend(v, 0)).collect()),
        Step::Slice(slice) => {
            values
                .iter()
                .filter(|v| !v.is_null())
                .try_fold(Vec::new(), |mut all, value| {
                    all.extend(items(value, slice)?);
                    Ok(all)
                })
        }
        Step::Union(parts) => parts.iter().try_fold(Vec::new(), |mut all, steps| {
            all.extend(follow(values.clone(), steps)?);
            Ok(all)
        }),
        Step::Filter(filter) => values.iter().try_fold(Vec::new(), |mut all, value| {
            all.extend(matching(value, filter)?);
            Ok(all)
        }),
        Step::Literal(literal) => Ok(values.iter().map(|_| Cow::Borrowed(literal)).collect()),
        Step::Word(word) => Err(format!("unrecognized identifier {word}")),
    }
}

/// A part of a value, borrowed whenever the value is.
fn part<'a>(
    value: &Cow<'a, Value>,
    of: impl Fn(&Value) -> Option<&Value>,
) -> Option<Cow<'a, Value>> {
    match value {
        Cow::Borrowed(value) => of(value).map(Cow::Borrowed),
        Cow::Owned(value) => of(value).cloned().map(Cow::Owned),
    }
}

fn children<'a>(value: &Cow<'a, Value>) -> Values<'a> {
    match &**value {
        Value::Object(map) => map
            .keys()
            .filter_map(|key| part(value, |v| v.get(key)))
            .collect(),
        Value::Array(list) => (0..list.len())
            .filter_map(|i| part(value, |v| v.get(i)))
            .collect(),
        _ => Vec::new(),
    }
}

/// The value and all below it that hold something, parents first.
fn descend<'a>(value: &Cow<'a, Value>, depth: usize) -> Values<'a> {
    let below = children(value);
    if below.is_empty() || depth >= DESCENT_DEPTH_MAX {
        return Vec::new();
    }
    let mut all = vec![value.clone()];
    all.extend(below.iter().flat_map(|v| descend(v, depth + 1)));
    all
}

fn items<'a>(value: &Cow<'a, Value>, slice: &Slice) -> Result<Values<'a>, String> {
    let Value::Array(list) = &**value else {
        return Err(format!(
            "{} is not array or slice",
            go_type(value).unwrap_or("nil")
        ));
    };
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    let from_end = |i: i64| if i < 0 { i.saturating_add(length) } else { i };
    let start = from_end(slice.start.unwrap_or(0));
    let end = match slice.end {
        None => length,
        Some(0) if slice.single => length,
        Some(end) => from_end(end),
    };
    if start == end {
        return Ok(Vec::new());
    }
    let out_of_bounds = |i: i64| {
        Err(format!(
            "array index out of bounds: index {i}, length {length}"
        ))
    };
    if start >= length || start < 0 {
        return out_of_bounds(start);
    }
    if end > length || end < 0 {
        return out_of_bounds(end.saturating_sub(1));
    }
    if start > end {
        return Err(format!(
            "starting index {start} is greater than ending index {end}"
        ));
    }
    let step = usize::try_from(slice.step.unwrap_or(1))
        .ok()
        .filter(|step| *step > 0)
        .ok_or("step must be > 0")?;
    let range = usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0);
    Ok(range
        .step_by(step)
        .filter_map(|i| part(value, |v| v.get(i)))
        .collect())
}

/// The items of a list that satisfy a filter.
fn matching<'a>(value: &Cow<'a, Value>, filter: &Filter) -> Result<Values<'a>, String> {
    let Value::Array(list) = &**value else {
        return Err("value is not array or slice and cannot be filtered".into());
    };
    let mut found = Vec::new();
    for (i, item) in list.iter().enumerate() {
        if satisfies(item, filter)? {
            found.extend(part(value, |v| v.get(i)));
        }
    }
    Ok(found)
}

fn satisfies(item: &Value, filter: &Filter) -> Result<bool, String> {
    let side = |steps| follow(vec![Cow::Borrowed(item)], steps);
    let Some((operator, right)) = &filter.compare else {
        // A path that cannot be evaluated counts as existing.
        return Ok(side(&filter.left).map_or(true, |found| !found.is_empty()));
    };
    let left = side(&filter.left)?;
    let right = side(right)?;
    match (left.as_slice(), right.as_slice()) {
        ([], _) | (_, []) => Ok(false),
        ([left], [right]) => compare(left, operator, right),
        _ => Err("can only compare one element at a time".into()),
    }
}

fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, String> {
    let equal = || is_equal(left, right);
    let order = || order(left, right);
    match operator {
        "==" => equal(),
        "!=" => Ok(!equal()?),
        "<" => Ok(order()? == Ordering::Less),
        "<=" => Ok(order()? != Ordering::Greater),
        ">" => Ok(order()? == Ordering::Greater),
        ">=" => Ok(order()? != Ordering::Less),
        other => Err(format!("unrecognized filter operator {other}")),
    }
}

fn is_equal(left: &Value, right: &Value) -> Result<bool, String> {
    match (left, right) {
        (Value::Bool(l), Value::Bool(r)) => Ok(l == r),
        _ => Ok(order(left, right)? == Ordering::Equal),
    }
}

/// Numbers compare with numbers of their type, strings with strings.
fn order(left: &Value, right: &Value) -> Result<Ordering, String> {
    let comparable = |v: &Value| matches!(v, Value::Number(_) | Value::String(_) | Value::Bool(_));
    if !comparable(left) || !comparable(right) {
        return Err("invalid type for comparison".into());
    }
    match (left, right) {
        (Value::String(l), Value::String(r)) => Ok(l.cmp(r)),
        (Value::Bool(_), Value::Bool(_)) => Err("invalid type for comparison".into()),
        (Value::Number(l), Value::Number(r)) => match (Num::of(l), Num::of(r)) {
            (Num::Int(l), Num::Int(r)) => Ok(l.cmp(&r)),
            (Num::Float(l), Num::Float(r)) => l
                .partial_cmp(&r)
                .ok_or_else(|| "invalid type for comparison".into()),
            _ => Err("incompatible types for comparison".into()),
        },
        _ => Err("incompatible types for comparison".into()),
    }
}
