//! List functions.
//! In: lists. Out: sums, minimum and maximum, indexes, and lists in another order or with other
//! items.
//! Guarantees: the size of a result is charged before it is allocated.

use std::cmp::Ordering;

use crate::value::equality::{compare, equal};
use crate::{
    cost_model::{CostModel, LIST},
    eval::{Failure, Meter},
    function::Functions,
    types::Type,
    value::Value,
};

use super::{a, int, items, list, made_list};

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Bytes, Double, Duration, Int, String, Timestamp, Uint};
    // The names of overloads by type, in the order of `types`.
    let types = [Int, Uint, Double, Bool, Duration, Timestamp, String, Bytes];
    for (t, ids) in types.into_iter().zip(ORDERED) {
        let of = Type::list(t.clone());
        f.member(
            "isSorted",
            ids[0],
            std::slice::from_ref(&of),
            Bool,
            CostModel::EveryItem,
            is_sorted,
        );
        f.member(
            "max",
            ids[1],
            std::slice::from_ref(&of),
            t.clone(),
            CostModel::EveryItem,
            |_, a| best(a, Ordering::Greater, "max"),
        );
        f.member(
            "min",
            ids[2],
            std::slice::from_ref(&of),
            t.clone(),
            CostModel::EveryItem,
            |_, a| best(a, Ordering::Less, "min"),
        );
        let texts = matches!(t, String | Bytes);
        f.member(
            "sort",
            ids[3],
            std::slice::from_ref(&of),
            of.clone(),
            CostModel::AllPairs { of: 0, texts },
            |m, a| sort(m, a, 0),
        );
        let any = Type::list(Type::param("T"));
        let by_key = CostModel::AllPairs { of: 1, texts };
        f.member(
            "@sortByAssociatedKeys",
            ids[4],
            &[any.clone(), of],
            any,
            by_key,
            |m, a| sort(m, a, 1),
        );
    }
    for (t, id, zero) in [
        (Int, "list_int_sum_int", sum_int as crate::function::Run),
        (Uint, "list_uint_sum_uint", sum_uint),
        (Double, "list_double_sum_double", sum_double),
        (Duration, "list_duration_sum_duration", sum_duration),
    ] {
        f.member(
            "sum",
            id,
            &[Type::list(t.clone())],
            t,
            CostModel::EveryItem,
            zero,
        );
    }
    let any = || Type::list(a());
    f.member(
        "indexOf",
        "list_a_index_of_int",
        &[any(), a()],
        Int,
        CostModel::EveryItem,
        |_, args| find(args, false),
    );
    f.member(
        "lastIndexOf",
        "list_a_last_index_of_int",
        &[any(), a()],
        Int,
        CostModel::EveryItem,
        |_, args| find(args, true),
    );
    f.member(
        "slice",
        "list_slice",
        &[any(), Int, Int],
        any(),
        CostModel::Slice,
        slice,
    );
    f.member(
        "flatten",
        "list_flatten",
        &[Type::list(any())],
        any(),
        CostModel::Flatten,
        flatten,
    );
    f.member(
        "flatten",
        "list_flatten_int",
        &[Type::list(Type::Dyn), Int],
        Type::list(Type::Dyn),
        CostModel::Flatten,
        flatten,
    );
    f.member(
        "reverse",
        "list_reverse",
        &[any()],
        any(),
        CostModel::Reorder,
        |meter, args| {
            let reversed = items(args, 0)?.into_iter().rev().collect();
            made_list(meter, reversed)
        },
    );
    f.member(
        "distinct",
        "list_distinct",
        &[any()],
        any(),
        CostModel::AllPairs {
            of: 0,
            texts: false,
        },
        distinct,
    );
    f.global(
        "lists.range",
        "lists_range",
        &[Int],
        Type::list(Int),
        CostModel::Count,
        range,
    );
}

/// For each ordered type: `isSorted`, `max`, `min`, `sort` and sorting by keys.
const ORDERED: [[&str; 5]; 8] = [
    [
        "list_int_is_sorted_bool",
        "list_int_max_int",
        "list_int_min_int",
        "list_int_sort",
        "list_int_sortByAssociatedKeys",
    ],
    [
        "list_uint_is_sorted_bool",
        "list_uint_max_uint",
        "list_uint_min_uint",
        "list_uint_sort",
        "list_uint_sortByAssociatedKeys",
    ],
    [
        "list_double_is_sorted_bool",
        "list_double_max_double",
        "list_double_min_double",
        "list_double_sort",
        "list_double_sortByAssociatedKeys",
    ],
    [
        "list_bool_is_sorted_bool",
        "list_bool_max_bool",
        "list_bool_min_bool",
        "list_bool_sort",
        "list_bool_sortByAssociatedKeys",
    ],
    [
        "list_duration_is_sorted_bool",
        "list_duration_max_duration",
        "list_duration_min_duration",
        "list_google.protobuf.Duration_sort",
        "list_google.protobuf.Duration_sortByAssociatedKeys",
    ],
    [
        "list_timestamp_is_sorted_bool",
        "list_timestamp_max_timestamp",
        "list_timestamp_min_timestamp",
        "list_google.protobuf.Timestamp_sort",
        "list_google.protobuf.Timestamp_sortByAssociatedKeys",
    ],
    [
        "list_string_is_sorted_bool",
        "list_string_max_string",
        "list_string_min_string",
        "list_string_sort",
        "list_string_sortByAssociatedKeys",
    ],
    [
        "list_bytes_is_sorted_bool",
        "list_bytes_max_bytes",
        "list_bytes_min_bytes",
        "list_bytes_sort",
        "list_bytes_sortByAssociatedKeys",
    ],
];

fn is_sorted<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let list = list(args, 0)?;
    for i in 1..list.len() {
        if compare(&list.get(i - 1)?, &list.get(i)?) == Some(Ordering::Greater) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

/// The greatest or least item.
fn best<'a>(args: &[Value<'a>], wanted: Ordering, name: &str) -> Result<Value<'a>, Failure> {
    let mut found: Option<Value<'a>> = None;
    for item in items(args, 0)? {
        match &found {
            Some(best) if compare(&item, best).ok_or_else(Failure::no_such_overload)? != wanted => {
            }
            _ => found = Some(item),
        }
    }
    found.ok_or_else(|| Failure::new(format!("{name} called on empty list")))
}

fn sum_int<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let mut sum = 0i64;
    for item in items(args, 0)? {
        let Value::Int(n) = item else {
            return Err(Failure::no_such_overload());
        };
        sum = sum
            .checked_add(n)
            .ok_or_else(|| Failure::new("integer overflow"))?;
    }
    Ok(Value::Int(sum))
}

fn sum_uint<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let mut sum = 0u64;
    for item in items(args, 0)? {
        let Value::Uint(n) = item else {
            return Err(Failure::no_such_overload());
        };
        sum = sum
            .checked_add(n)
            .ok_or_else(|| Failure::new("unsigned integer overflow"))?;
    }
    Ok(Value::Uint(sum))
}

fn sum_double<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let mut sum = 0.0;
    for item in items(args, 0)? {
        let Value::Double(d) = item else {
            return Err(Failure::no_such_overload());
        };
        sum += d;
    }
    Ok(Value::Double(sum))
}

fn sum_duration<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let mut sum = 0i64;
    for item in items(args, 0)? {
        let Value::Duration(nanos) = item else {
            return Err(Failure::no_such_overload());
        };
        sum = sum
            .checked_add(nanos)
            .ok_or_else(|| Failure::new("duration overflow"))?;
    }
    Ok(Value::Duration(sum))
}

fn find<'a>(args: &[Value<'a>], last: bool) -> Result<Value<'a>, Failure> {
    let list = list(args, 0)?;
    let wanted = args.get(1).ok_or_else(Failure::no_such_overload)?;
    let is_it = |i: &usize| {
        list.get(*i)
            .is_ok_and(|item| equal(&item, wanted).unwrap_or(false))
    };
    let found = if last {
        (0..list.len()).rev().find(is_it)
    } else {
        (0..list.len()).find(is_it)
    };
    Ok(Value::Int(
        found.map_or(-1, |at| i64::try_from(at).unwrap_or(i64::MAX)),
    ))
}

/// The first list in the order of the list at `keys`.
fn sort<'a>(meter: &mut Meter, args: &[Value<'a>], keys: usize) -> Result<Value<'a>, Failure> {
    let all = items(args, 0)?;
    let keys = items(args, keys)?;
    if all.len() != keys.len() {
        let detail =
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list";
        return Err(Failure::new(format!(
            "{detail}, but got {} and {} elements respectively",
            all.len(),
            keys.len()
        )));
    }
    let first = keys.first().map(Value::type_of);
    if keys.iter().any(|key| Some(key.type_of()) != first) {
        return Err(Failure::new("list elements must have the same type"));
    }
    if keys
        .first()
        .is_some_and(|key| compare(key, key).is_none() && !matches!(key, Value::Double(_)))
    {
        return Err(Failure::new("list elements must be comparable"));
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| compare(&keys[*a], &keys[*b]).unwrap_or(Ordering::Equal));
    made_list(meter, order.into_iter().map(|at| all[at].clone()).collect())
}

fn slice<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let list = list(args, 0)?;
    let begin = int(args, 1)?;
    let end = int(args, 2)?;
    let refuse = |why: String| Err(Failure::new(format!("cannot slice({begin}, {end}), {why}")));
    let (Ok(first), Ok(last)) = (usize::try_from(begin), usize::try_from(end)) else {
        return refuse("negative indexes not supported".into());
    };
    if first > last {
        return refuse("start index must be less than or equal to end index".into());
    }
    if list.len() < last {
        return refuse(format!("list is length {}", list.len()));
    }
    let part = (first..last)
        .map(|i| list.get(i))
        .collect::<Result<_, _>>()?;
    made_list(meter, part)
}

fn flatten<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let depth = if args.len() > 1 { int(args, 1)? } else { 1 };
    if depth < 0 {
        return Err(Failure::new("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(meter, &args[0], depth, &mut flat)?;
    Ok(Value::list(flat))
}

/// Lists nest no deeper than the data and expression that made them.
fn flatten_into<'a>(
    meter: &mut Meter,
    value: &Value<'a>,
    depth: i64,
    flat: &mut Vec<Value<'a>>,
) -> Result<(), Failure> {
    let Value::List(list) = value else {
        return Err(Failure::no_such_overload());
    };
    for i in 0..list.len() {
        let item = list.get(i)?;
        if depth > 0 && matches!(item, Value::List(_)) {
            flatten_into(meter, &item, depth - 1, flat)?;
        } else {
            meter.allocate_values(1)?;
            flat.push(item);
        }
    }
    Ok(())
}

/// Every item once. The cost of all comparisons is charged before the first.
fn distinct<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let all = items(args, 0)?;
    meter.afford((all.len() as u64).saturating_mul(2 * all.len() as u64))?;
    let mut unique: Vec<Value<'a>> = Vec::new();
    for item in all {
        if !unique
            .iter()
            .any(|seen| equal(&item, seen).unwrap_or(false))
        {
            unique.push(item);
        }
    }
    made_list(meter, unique)
}

fn range<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let count = int(args, 0)?.max(0);
    meter.afford(count.unsigned_abs() + 1 + LIST)?;
    made_list(meter, (0..count).map(Value::Int).collect())
}
