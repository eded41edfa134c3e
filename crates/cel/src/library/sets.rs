//! Lists as sets.
//! In: two lists. Out: whether one contains the other, or intersects it.
//! Guarantees: the cost of all comparisons is charged before the first.

use crate::value::equality::equal;
use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::Functions,
    types::Type,
    value::Value,
};

use super::items;

pub(super) fn declare(f: &mut Functions) {
    let of = || Type::list(Type::param("T"));
    f.global(
        "sets.contains",
        "list_sets_contains_list",
        &[of(), of()],
        Type::Bool,
        CostModel::Sets(1),
        |meter, args| {
            let (all, part) = lists(meter, args)?;
            Ok(Value::Bool(part.iter().all(|item| holds(&all, item))))
        },
    );
    f.global(
        "sets.equivalent",
        "list_sets_equivalent_list",
        &[of(), of()],
        Type::Bool,
        CostModel::Sets(2),
        |meter, args| {
            let (a, b) = lists(meter, args)?;
            Ok(Value::Bool(
                b.iter().all(|item| holds(&a, item)) && a.iter().all(|item| holds(&b, item)),
            ))
        },
    );
    f.global(
        "sets.intersects",
        "list_sets_intersects_list",
        &[of(), of()],
        Type::Bool,
        CostModel::Sets(1),
        |meter, args| {
            let (a, b) = lists(meter, args)?;
            Ok(Value::Bool(a.iter().any(|item| holds(&b, item))))
        },
    );
}

fn lists<'a>(
    meter: &mut Meter,
    args: &[Value<'a>],
) -> Result<(Vec<Value<'a>>, Vec<Value<'a>>), Failure> {
    let a = items(args, 0)?;
    let b = items(args, 1)?;
    meter.afford((a.len() as u64).saturating_mul(b.len() as u64))?;
    Ok((a, b))
}

fn holds(list: &[Value<'_>], wanted: &Value<'_>) -> bool {
    list.iter().any(|item| equal(item, wanted).unwrap_or(false))
}
