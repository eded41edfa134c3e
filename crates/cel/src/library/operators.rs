//! Arithmetic, order, membership and size.
//! In: numbers, strings, lists and times. Out: the results of the operators.
//! Guarantees: integers never wrap around; overflow is an error.

use std::cmp::Ordering;

use crate::value::equality::{compare, equal};
use crate::{
    ast::operator::{
        self, ADD, DIVIDE, GREATER, GREATER_EQUALS, IN, INDEX, LESS, LESS_EQUALS, MODULO, MULTIPLY,
        NEGATE, NOT, SUBTRACT,
    },
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    shape::ListOrder,
    types::Type,
    value::{List, Map, Value},
};

use super::{a, b, made};

/// The names of the overloads of an order, in the order of its pairs of types.
macro_rules! order_ids {
    ($name:literal) => {
        [
            concat!($name, "_bool"),
            concat!($name, "_int64"),
            concat!($name, "_int64_double"),
            concat!($name, "_int64_uint64"),
            concat!($name, "_uint64"),
            concat!($name, "_uint64_double"),
            concat!($name, "_uint64_int64"),
            concat!($name, "_double"),
            concat!($name, "_double_int64"),
            concat!($name, "_double_uint64"),
            concat!($name, "_string"),
            concat!($name, "_bytes"),
            concat!($name, "_timestamp"),
            concat!($name, "_duration"),
        ]
    };
}

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Bytes, Double, Duration, Int, String, Timestamp, Uint};
    f.global(
        operator::CONDITIONAL,
        "conditional",
        &[Bool, a(), a()],
        a(),
        CostModel::Unit,
        unplanned,
    );
    f.global(
        operator::AND,
        "logical_and",
        &[Bool, Bool],
        Bool,
        CostModel::Unit,
        unplanned,
    );
    f.global(
        operator::OR,
        "logical_or",
        &[Bool, Bool],
        Bool,
        CostModel::Unit,
        unplanned,
    );
    f.global(
        operator::NOT_STRICTLY_FALSE,
        "not_strictly_false",
        &[Bool],
        Bool,
        CostModel::Unit,
        unplanned,
    );
    f.global(
        operator::EQUALS,
        "equals",
        &[a(), a()],
        Bool,
        CostModel::Compare,
        unplanned,
    );
    f.global(
        operator::NOT_EQUALS,
        "not_equals",
        &[a(), a()],
        Bool,
        CostModel::Compare,
        unplanned,
    );
    let key = || Type::param("K");
    let value = || Type::param("V");
    let map = || Type::map(key(), value());
    f.global(
        operator::MAP_INSERT,
        "@mapInsert_map_key_value",
        &[map(), key(), value()],
        map(),
        CostModel::Unit,
        unplanned,
    );
    f.global(
        operator::MAP_INSERT,
        "@mapInsert_map_map",
        &[map(), map()],
        map(),
        CostModel::Unit,
        unplanned,
    );
    f.global(NOT, "logical_not", &[Bool], Bool, CostModel::Unit, not);
    for (id, l, r, out, cost_model) in [
        ("add_bytes", Bytes, Bytes, Bytes, CostModel::Concat),
        ("add_double", Double, Double, Double, CostModel::Unit),
        (
            "add_duration_duration",
            Duration,
            Duration,
            Duration,
            CostModel::Unit,
        ),
        (
            "add_duration_timestamp",
            Duration,
            Timestamp,
            Timestamp,
            CostModel::Unit,
        ),
        (
            "add_timestamp_duration",
            Timestamp,
            Duration,
            Timestamp,
            CostModel::Unit,
        ),
        ("add_int64", Int, Int, Int, CostModel::Unit),
        (
            "add_list",
            Type::list(a()),
            Type::list(a()),
            Type::list(a()),
            CostModel::Append,
        ),
        ("add_string", String, String, String, CostModel::Concat),
        ("add_uint64", Uint, Uint, Uint, CostModel::Unit),
    ] {
        f.global(ADD, id, &[l, r], out, cost_model, add);
    }
    for (id, l, r, out) in [
        ("subtract_double", Double, Double, Double),
        ("subtract_duration_duration", Duration, Duration, Duration),
        ("subtract_int64", Int, Int, Int),
        (
            "subtract_timestamp_duration",
            Timestamp,
            Duration,
            Timestamp,
        ),
        (
            "subtract_timestamp_timestamp",
            Timestamp,
            Timestamp,
            Duration,
        ),
        ("subtract_uint64", Uint, Uint, Uint),
    ] {
        f.global(SUBTRACT, id, &[l, r], out, CostModel::Unit, subtract);
    }
    for (name, ids, run) in [
        (
            MULTIPLY,
            ["multiply_double", "multiply_int64", "multiply_uint64"],
            multiply as Run,
        ),
        (
            DIVIDE,
            ["divide_double", "divide_int64", "divide_uint64"],
            divide,
        ),
    ] {
        for (id, t) in ids.into_iter().zip([Double, Int, Uint]) {
            f.global(name, id, &[t.clone(), t.clone()], t, CostModel::Unit, run);
        }
    }
    f.global(
        MODULO,
        "modulo_int64",
        &[Int, Int],
        Int,
        CostModel::Unit,
        modulo,
    );
    f.global(
        MODULO,
        "modulo_uint64",
        &[Uint, Uint],
        Uint,
        CostModel::Unit,
        modulo,
    );
    f.global(
        NEGATE,
        "negate_double",
        &[Double],
        Double,
        CostModel::Unit,
        negate,
    );
    f.global(NEGATE, "negate_int64", &[Int], Int, CostModel::Unit, negate);
    declare_order(f);
    f.global(
        INDEX,
        "index_list",
        &[Type::list(a()), Int],
        a(),
        CostModel::Unit,
        unplanned,
    );
    f.global(
        INDEX,
        "index_map",
        &[Type::map(a(), b()), a()],
        b(),
        CostModel::Unit,
        unplanned,
    );
    f.global(
        IN,
        "in_list",
        &[a(), Type::list(a())],
        Bool,
        CostModel::InList,
        contains,
    );
    f.global(
        IN,
        "in_map",
        &[a(), Type::map(a(), b())],
        Bool,
        CostModel::Unit,
        contains,
    );
    let sized = [
        ("size_bytes", "bytes_size", Bytes),
        ("size_list", "list_size", Type::list(a())),
        ("size_map", "map_size", Type::map(a(), b())),
        ("size_string", "string_size", String),
    ];
    for (id, member_id, t) in sized {
        f.global(
            "size",
            id,
            std::slice::from_ref(&t),
            Int,
            CostModel::Unit,
            size,
        );
        f.member("size", member_id, &[t], Int, CostModel::Unit, size);
    }
}

fn declare_order(f: &mut Functions) {
    use Type::{Bool, Bytes, Double, Duration, Int, String, Timestamp, Uint};
    let order: [(&'static str, Run, [&'static str; 14]); 4] = [
        (
            LESS,
            |_, args| ordered(args, Ordering::is_lt),
            order_ids!("less"),
        ),
        (
            LESS_EQUALS,
            |_, args| ordered(args, Ordering::is_le),
            order_ids!("less_equals"),
        ),
        (
            GREATER,
            |_, args| ordered(args, Ordering::is_gt),
            order_ids!("greater"),
        ),
        (
            GREATER_EQUALS,
            |_, args| ordered(args, Ordering::is_ge),
            order_ids!("greater_equals"),
        ),
    ];
    for (name, run, ids) in order {
        let pairs = [
            (Bool, Bool),
            (Int, Int),
            (Int, Double),
            (Int, Uint),
            (Uint, Uint),
            (Uint, Double),
            (Uint, Int),
            (Double, Double),
            (Double, Int),
            (Double, Uint),
            (String, String),
            (Bytes, Bytes),
            (Timestamp, Timestamp),
            (Duration, Duration),
        ];
        for (id, (l, r)) in ids.into_iter().zip(pairs) {
            let cost_model = if matches!(l, String | Bytes) {
                CostModel::Compare
            } else {
                CostModel::Unit
            };
            f.global(name, id, &[l, r], Bool, cost_model, run);
        }
    }
}

/// Operators that a plan runs itself, because not all of their operands may be evaluated.
fn unplanned<'a>(_: &mut Meter, _: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    Err(Failure::no_such_overload())
}

fn not<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Bool(b)] => Ok(Value::Bool(!b)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn ordered<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Double(a), Value::Double(b)] if a.is_nan() || b.is_nan() => {
            Err(Failure::new("NaN values cannot be ordered"))
        }
        [l, r] => compare(l, r)
            .map(|order| Value::Bool(holds(order)))
            .ok_or_else(Failure::no_such_overload),
        _ => Err(Failure::no_such_overload()),
    }
}

fn whole<'a>(n: Option<i64>) -> Result<Value<'a>, Failure> {
    n.map(Value::Int)
        .ok_or_else(|| Failure::new("integer overflow"))
}

fn unsigned<'a>(n: Option<u64>) -> Result<Value<'a>, Failure> {
    n.map(Value::Uint)
        .ok_or_else(|| Failure::new("unsigned integer overflow"))
}

fn span<'a>(n: Option<i64>) -> Result<Value<'a>, Failure> {
    n.map(Value::Duration)
        .ok_or_else(|| Failure::new("duration overflow"))
}

/// Timestamps are in the years 1 to 9999.
fn moment<'a>(nanos: Option<i128>) -> Result<Value<'a>, Failure> {
    nanos
        .filter(|n| crate::time::is_moment(*n))
        .map(Value::Timestamp)
        .ok_or_else(|| Failure::new("timestamp overflow"))
}

fn add<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let [l, r] = args else {
        return Err(Failure::no_such_overload());
    };
    match (l, r) {
        (Value::Int(l), Value::Int(r)) => whole(l.checked_add(*r)),
        (Value::Uint(l), Value::Uint(r)) => unsigned(l.checked_add(*r)),
        (Value::Double(l), Value::Double(r)) => Ok(Value::Double(l + r)),
        (Value::String(l), Value::String(r)) => {
            let mut text = String::with_capacity(l.len() + r.len());
            text.push_str(l);
            text.push_str(r);
            made(meter, text)
        }
        (Value::Bytes(l), Value::Bytes(r)) => {
            meter.allocate(l.len() + r.len())?;
            Ok(Value::Bytes(l.iter().chain(r.iter()).copied().collect()))
        }
        (Value::Duration(l), Value::Duration(r)) => span(l.checked_add(*r)),
        (Value::Duration(span), Value::Timestamp(at))
        | (Value::Timestamp(at), Value::Duration(span)) => moment(at.checked_add((*span).into())),
        (Value::List(l), Value::List(r)) => join(meter, l, r),
        _ => Err(Failure::no_such_overload()),
    }
}

/// Two lists as one. Lists that are sets or have keys keep each item once.
fn join<'a>(meter: &mut Meter, l: &List<'a>, r: &List<'a>) -> Result<Value<'a>, Failure> {
    meter.allocate_values(l.len() + r.len())?;
    let mut all: Vec<Value<'a>> = (0..l.len()).map(|i| l.get(i)).collect::<Result<_, _>>()?;
    let order = match l {
        List::Data(data) => data.order,
        List::Made(_) => &ListOrder::Atomic,
    };
    let name = |value: &Value<'a>| match (order, value) {
        (ListOrder::Set, value) => crate::value::equality::scalar(value),
        (ListOrder::Keyed(keys), Value::Map(Map::Data(map))) => {
            let values: Vec<Option<&serde_json::Value>> =
                keys.iter().map(|key| map.entries.get(key)).collect();
            serde_json::to_string(&values).ok()
        }
        _ => None,
    };
    let mut places: std::collections::HashMap<String, usize> = all
        .iter()
        .enumerate()
        .filter_map(|(i, item)| Some((name(item)?, i)))
        .collect();
    for i in 0..r.len() {
        let item = r.get(i)?;
        match name(&item) {
            None => all.push(item),
            Some(name) => match places.get(&name) {
                Some(at) => all[*at] = item,
                None => {
                    places.insert(name, all.len());
                    all.push(item);
                }
            },
        }
    }
    Ok(Value::list(all))
}

fn subtract<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(l), Value::Int(r)] => whole(l.checked_sub(*r)),
        [Value::Uint(l), Value::Uint(r)] => unsigned(l.checked_sub(*r)),
        [Value::Double(l), Value::Double(r)] => Ok(Value::Double(l - r)),
        [Value::Duration(l), Value::Duration(r)] => span(l.checked_sub(*r)),
        [Value::Timestamp(at), Value::Duration(span)] => moment(at.checked_sub((*span).into())),
        [Value::Timestamp(l), Value::Timestamp(r)] => span(i64::try_from(l - r).ok()),
        _ => Err(Failure::no_such_overload()),
    }
}

fn multiply<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(l), Value::Int(r)] => whole(l.checked_mul(*r)),
        [Value::Uint(l), Value::Uint(r)] => unsigned(l.checked_mul(*r)),
        [Value::Double(l), Value::Double(r)] => Ok(Value::Double(l * r)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn divide<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(Failure::new("division by zero"))
        }
        [Value::Int(l), Value::Int(r)] => whole(l.checked_div(*r)),
        [Value::Uint(l), Value::Uint(r)] => unsigned(l.checked_div(*r)),
        [Value::Double(l), Value::Double(r)] => Ok(Value::Double(l / r)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn modulo<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(Failure::new("modulus by zero"))
        }
        [Value::Int(l), Value::Int(r)] => whole(l.checked_rem(*r)),
        [Value::Uint(l), Value::Uint(r)] => unsigned(l.checked_rem(*r)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn negate<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(n)] => whole(n.checked_neg()),
        [Value::Double(d)] => Ok(Value::Double(-d)),
        _ => Err(Failure::no_such_overload()),
    }
}

fn contains<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [value, Value::List(list)] => {
            for i in 0..list.len() {
                if equal(&list.get(i)?, value).unwrap_or(false) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        [key, Value::Map(map)] => Ok(Value::Bool(map.find(key)?.is_some())),
        _ => Err(Failure::no_such_overload()),
    }
}

fn size<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    match args {
        [value] => Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX))),
        _ => Err(Failure::no_such_overload()),
    }
}
