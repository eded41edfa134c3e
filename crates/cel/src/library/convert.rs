//! Conversions between types.
//! In: a value of one type. Out: the equal value of another type, or a failure.
//! Guarantees: numbers out of range are errors; numbers are formatted and parsed as Go does.

use std::sync::Arc;

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    types::Type,
    value::Value,
};

use super::{a, made, net, text};
use crate::time;

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Bytes, Double, Duration, Int, String, Timestamp, Uint};
    let same: Run = |_, args| args.first().cloned().ok_or_else(Failure::no_such_overload);
    f.global(
        "type",
        "type",
        &[a()],
        Type::Type(Some(Arc::new(a()))),
        CostModel::Unit,
        |_, args| match args {
            [value] => Ok(Value::Type(value.type_of())),
            _ => Err(Failure::no_such_overload()),
        },
    );
    f.global("dyn", "to_dyn", &[a()], Type::Dyn, CostModel::Unit, same);
    f.global("bool", "bool_to_bool", &[Bool], Bool, CostModel::Unit, same);
    f.global(
        "bool",
        "string_to_bool",
        &[String],
        Bool,
        CostModel::Unit,
        |_, args| match &**text(args, 0)? {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(Failure::conversion("string", "bool")),
        },
    );
    f.global(
        "bytes",
        "bytes_to_bytes",
        &[Bytes],
        Bytes,
        CostModel::Unit,
        same,
    );
    f.global(
        "bytes",
        "string_to_bytes",
        &[String],
        Bytes,
        CostModel::ToBytes,
        |meter, args| {
            let text = text(args, 0)?;
            meter.allocate(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        },
    );
    for (id, from) in [
        ("double_to_double", Double),
        ("int64_to_double", Int),
        ("string_to_double", String),
        ("uint64_to_double", Uint),
    ] {
        f.global("double", id, &[from], Double, CostModel::Unit, to_double);
    }
    f.global(
        "duration",
        "duration_to_duration",
        &[Duration],
        Duration,
        CostModel::Unit,
        same,
    );
    f.global(
        "duration",
        "int64_to_duration",
        &[Int],
        Duration,
        CostModel::Unit,
        |_, _| Err(Failure::conversion("int", "google.protobuf.Duration")),
    );
    f.global(
        "duration",
        "string_to_duration",
        &[String],
        Duration,
        CostModel::Unit,
        |_, args| {
            time::parse_duration(text(args, 0)?)
                .map(Value::Duration)
                .ok_or_else(|| Failure::conversion("string", "google.protobuf.Duration"))
        },
    );
    for (id, from) in [
        ("int64_to_int64", Int),
        ("double_to_int64", Double),
        ("duration_to_int64", Duration),
        ("string_to_int64", String),
        ("timestamp_to_int64", Timestamp),
        ("uint64_to_int64", Uint),
    ] {
        f.global("int", id, &[from], Int, CostModel::Unit, to_int);
    }
    for (id, from, cost_model) in [
        ("string_to_string", String, CostModel::Unit),
        ("bool_to_string", Bool, CostModel::Unit),
        ("bytes_to_string", Bytes, CostModel::ToText),
        ("double_to_string", Double, CostModel::Unit),
        ("duration_to_string", Duration, CostModel::Unit),
        ("int64_to_string", Int, CostModel::Unit),
        ("timestamp_to_string", Timestamp, CostModel::Unit),
        ("uint64_to_string", Uint, CostModel::Unit),
        ("ip_to_string", net::ip_type(), CostModel::Unit),
        ("cidr_to_string", net::cidr_type(), CostModel::Unit),
    ] {
        f.global("string", id, &[from], String, cost_model, to_text);
    }
    f.global(
        "timestamp",
        "timestamp_to_timestamp",
        &[Timestamp],
        Timestamp,
        CostModel::Unit,
        same,
    );
    f.global(
        "timestamp",
        "int64_to_timestamp",
        &[Int],
        Timestamp,
        CostModel::Unit,
        |_, args| {
            let nanos = i128::from(super::int(args, 0)?) * 1_000_000_000;
            if time::is_moment(nanos) {
                Ok(Value::Timestamp(nanos))
            } else {
                Err(Failure::new("timestamp overflow"))
            }
        },
    );
    f.global(
        "timestamp",
        "string_to_timestamp",
        &[String],
        Timestamp,
        CostModel::Unit,
        |_, args| time::parse_timestamp(text(args, 0)?).map(Value::Timestamp),
    );
    for (id, from) in [
        ("uint64_to_uint64", Uint),
        ("double_to_uint64", Double),
        ("int64_to_uint64", Int),
        ("string_to_uint64", String),
    ] {
        f.global("uint", id, &[from], Uint, CostModel::Unit, to_uint);
    }
}

fn to_double<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    Ok(Value::Double(match args {
        [Value::Double(d)] => *d,
        [Value::Int(n)] => *n as f64,
        [Value::Uint(n)] => *n as f64,
        [Value::String(text)] => text
            .parse()
            .map_err(|_| Failure::conversion("string", "double"))?,
        _ => return Err(Failure::no_such_overload()),
    }))
}

fn to_int<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let overflow = || Failure::new("integer overflow");
    Ok(Value::Int(match args {
        [Value::Int(n)] => *n,
        [Value::Uint(n)] => i64::try_from(*n).map_err(|_| overflow())?,
        // The last double below 2^63 and the first above -2^63 are the bounds.
        [Value::Double(d)] if d.is_finite() && *d > i64::MIN as f64 && *d < i64::MAX as f64 => {
            *d as i64
        }
        [Value::Double(_)] => return Err(overflow()),
        [Value::Duration(nanos)] => *nanos,
        [Value::Timestamp(nanos)] => {
            i64::try_from(nanos.div_euclid(1_000_000_000)).map_err(|_| overflow())?
        }
        [Value::String(text)] => text
            .parse()
            .map_err(|_| Failure::conversion("string", "int"))?,
        _ => return Err(Failure::no_such_overload()),
    }))
}

fn to_uint<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let overflow = || Failure::new("unsigned integer overflow");
    Ok(Value::Uint(match args {
        [Value::Uint(n)] => *n,
        [Value::Int(n)] => u64::try_from(*n).map_err(|_| overflow())?,
        [Value::Double(d)] if d.is_finite() && *d >= 0.0 && *d < u64::MAX as f64 => *d as u64,
        [Value::Double(_)] => return Err(overflow()),
        [Value::String(text)] => text
            .parse()
            .map_err(|_| Failure::conversion("string", "uint"))?,
        _ => return Err(Failure::no_such_overload()),
    }))
}

fn to_text<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let [value] = args else {
        return Err(Failure::no_such_overload());
    };
    if let Value::String(_) = value {
        return Ok(value.clone());
    }
    made(meter, written(value)?)
}

/// A value as text.
pub(super) fn written(value: &Value<'_>) -> Result<String, Failure> {
    Ok(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Double(d) => go_double(*d),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Failure::new("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Value::Duration(nanos) => format!("{}s", *nanos as f64 / 1e9),
        Value::Timestamp(nanos) => time::write_timestamp(*nanos),
        Value::Type(ty) => ty.name().to_owned(),
        other => match net::written(other) {
            Some(text) => text,
            None => return Err(Failure::conversion(other.type_of().name(), "string")),
        },
    })
}

/// A double as Go writes it: the shortest text that reads back, with an exponent below -4 and from
/// 6 on.
pub(crate) fn go_double(d: f64) -> String {
    if d.is_nan() {
        return "NaN".into();
    }
    if d.is_infinite() {
        return if d > 0.0 {
            "+Inf".into()
        } else {
            "-Inf".into()
        };
    }
    let scientific = format!("{d:e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("the format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the format writes a number");
    if (-4..6).contains(&exponent) {
        return format!("{d}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
