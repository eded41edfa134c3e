//! Optional values.
//! In: values and optionals. Out: optionals, and their values.
//! Guarantees: `value()` of an empty optional is an error.

use crate::{
    ast::operator,
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    types::Type,
    value::Value,
};

use super::{items, list, made_list};

pub(super) fn declare(f: &mut Functions) {
    let k = || Type::param("K");
    let v = || Type::param("V");
    let of_v = || Type::optional(v());
    let list_v = || Type::list(v());
    let map_kv = || Type::map(k(), v());
    let planned: Run = |_, _| Err(Failure::no_such_overload());
    f.global(
        "optional.of",
        "optional_of",
        &[v()],
        of_v(),
        CostModel::Unit,
        |_, args| one(args).cloned().map(Value::some),
    );
    f.global(
        "optional.ofNonZeroValue",
        "optional_ofNonZeroValue",
        &[v()],
        of_v(),
        CostModel::Unit,
        |_, args| {
            let value = one(args)?;
            Ok(if is_zero(value) {
                Value::Optional(None)
            } else {
                Value::some(value.clone())
            })
        },
    );
    f.global(
        "optional.none",
        "optional_none",
        &[],
        of_v(),
        CostModel::Unit,
        |_, _| Ok(Value::Optional(None)),
    );
    f.member(
        "value",
        "optional_value",
        &[of_v()],
        v(),
        CostModel::Unit,
        |_, args| match one(args)? {
            Value::Optional(Some(value)) => Ok((**value).clone()),
            Value::Optional(None) => Err(Failure::new("optional.none() dereference")),
            _ => Err(Failure::no_such_overload()),
        },
    );
    f.member(
        "hasValue",
        "optional_hasValue",
        &[of_v()],
        Type::Bool,
        CostModel::Unit,
        |_, args| match one(args)? {
            Value::Optional(value) => Ok(Value::Bool(value.is_some())),
            _ => Err(Failure::no_such_overload()),
        },
    );
    f.member(
        "or",
        "optional_or_optional",
        &[of_v(), of_v()],
        of_v(),
        CostModel::Unit,
        planned,
    );
    f.member(
        "orValue",
        "optional_orValue_value",
        &[of_v(), v()],
        v(),
        CostModel::Unit,
        planned,
    );
    f.global(
        operator::OPTIONAL_SELECT,
        "select_optional_field",
        &[Type::Dyn, Type::String],
        of_v(),
        CostModel::Unit,
        planned,
    );
    for (name, [in_list, in_optional_list, in_map, in_optional_map]) in [
        (
            operator::OPTIONAL_INDEX,
            [
                Some("list_optindex_optional_int"),
                Some("optional_list_optindex_optional_int"),
                Some("map_optindex_optional_value"),
                Some("optional_map_optindex_optional_value"),
            ],
        ),
        (
            operator::INDEX,
            [
                None,
                Some("optional_list_index_int"),
                None,
                Some("optional_map_index_value"),
            ],
        ),
    ] {
        for (id, container, key) in [
            (in_list, list_v(), Type::Int),
            (in_optional_list, Type::optional(list_v()), Type::Int),
            (in_map, map_kv(), k()),
            (in_optional_map, Type::optional(map_kv()), k()),
        ] {
            if let Some(id) = id {
                f.global(
                    name,
                    id,
                    &[container, key],
                    of_v(),
                    CostModel::Unit,
                    planned,
                );
            }
        }
    }
    f.member(
        "first",
        "list_first",
        &[list_v()],
        of_v(),
        CostModel::Unit,
        |_, args| {
            let list = list(args, 0)?;
            if list.is_empty() {
                Ok(Value::Optional(None))
            } else {
                list.get(0).map(Value::some)
            }
        },
    );
    f.member(
        "last",
        "list_last",
        &[list_v()],
        of_v(),
        CostModel::Unit,
        |_, args| {
            let list = list(args, 0)?;
            if list.is_empty() {
                Ok(Value::Optional(None))
            } else {
                list.get(list.len() - 1).map(Value::some)
            }
        },
    );
    f.global(
        "optional.unwrap",
        "optional_unwrap",
        &[Type::list(of_v())],
        list_v(),
        CostModel::Unit,
        unwrap,
    );
    f.member(
        "unwrapOpt",
        "optional_unwrapOpt",
        &[Type::list(of_v())],
        list_v(),
        CostModel::Unit,
        unwrap,
    );
}

fn one<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Value<'a>, Failure> {
    args.first().ok_or_else(Failure::no_such_overload)
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(b) => !b,
        Value::Int(n) => *n == 0,
        Value::Uint(n) => *n == 0,
        Value::Double(d) => *d == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::Duration(nanos) => *nanos == 0,
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        _ => false,
    }
}

fn unwrap<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let mut there = Vec::new();
    for item in items(args, 0)? {
        match item {
            Value::Optional(value) => there.extend(value.map(|value| (*value).clone())),
            _ => return Err(Failure::new("value is not optional")),
        }
    }
    made_list(meter, there)
}
