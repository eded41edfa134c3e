//! Macros: calls that are expanded to comprehensions and presence tests before type checking.
//! In: the target and arguments of a call. Out: the expanded tree.
//! Guarantees: a macro never evaluates anything; its expansion is ordinary syntax, checked and
//! estimated as such.

use super::{AstBuilder, Stop};
use crate::ast::{
    ACCUMULATOR, ACCUMULATOR_OF_OLD, Call, Comprehension, Expr, Kind, Literal, Select, operator,
};

/// Makes the tree for a call.
pub(crate) type Expand =
    for<'a, 'p> fn(&mut AstBuilder<'a, 'p>, Option<Expr>, Vec<Expr>) -> Result<Expr, Stop>;

/// The macro for a call, if it is that of one.
pub(crate) fn find(function: &str, has_target: bool, args: usize) -> Option<Expand> {
    if !has_target {
        return (function == "has" && args == 1).then_some(has as Expand);
    }
    Some(match (function, args) {
        ("all", 2) => {
            |builder, range, args| quantifier(builder, Quantifier::All, range, args, Variables::One)
        }
        ("exists", 2) => |builder, range, args| {
            quantifier(builder, Quantifier::Exists, range, args, Variables::One)
        },
        ("exists_one", 2) => {
            |builder, range, args| quantifier(builder, Quantifier::One, range, args, Variables::One)
        }
        ("all", 3) => {
            |builder, range, args| quantifier(builder, Quantifier::All, range, args, Variables::Two)
        }
        ("exists", 3) => |builder, range, args| {
            quantifier(builder, Quantifier::Exists, range, args, Variables::Two)
        },
        ("exists_one" | "existsOne", 3) => {
            |builder, range, args| quantifier(builder, Quantifier::One, range, args, Variables::Two)
        }
        ("map", 2 | 3) => map,
        ("filter", 2) => filter,
        ("transformList", 3 | 4) => {
            |builder, range, args| transform(builder, Transform::List, range, args)
        }
        ("transformMap", 3 | 4) => {
            |builder, range, args| transform(builder, Transform::Map, range, args)
        }
        ("transformMapEntry", 3 | 4) => {
            |builder, range, args| transform(builder, Transform::Entry, range, args)
        }
        ("optMap", 2) => |builder, target, args| with_value(builder, target, args, Wrap::Yes),
        ("optFlatMap", 2) => |builder, target, args| with_value(builder, target, args, Wrap::No),
        ("sortBy", 2) => sort_by,
        _ => return None,
    })
}

/// The number of iteration variables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variables {
    One,
    Two,
}

#[derive(Clone, Copy)]
enum Quantifier {
    All,
    Exists,
    One,
}

#[derive(Clone, Copy)]
enum Transform {
    List,
    Map,
    Entry,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrap {
    Yes,
    No,
}

const OVERWRITES: &str = "iteration variable overwrites accumulator variable";

fn name_of(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        Kind::Ident(name) => Some(name),
        _ => None,
    }
}

fn is_accumulator(name: &str) -> bool {
    name == ACCUMULATOR || name == ACCUMULATOR_OF_OLD
}

fn has(builder: &mut AstBuilder<'_, '_>, _: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Stop> {
    let [argument] = <[Expr; 1]>::try_from(args).expect("found by its number of arguments");
    match argument.kind {
        Kind::Select(select) if !select.test => builder.builder(Kind::Select(Select {
            test: true,
            ..select
        })),
        _ => builder.refuse(&argument, "invalid argument to has() macro"),
    }
}

/// The fields of a comprehension that differ between macros.
struct Parts {
    init: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

fn fold(
    builder: &mut AstBuilder<'_, '_>,
    range: Option<Expr>,
    (var, var2): (String, Option<String>),
    parts: Parts,
) -> Result<Expr, Stop> {
    let range = range.expect("found by having a target");
    let Parts {
        init,
        condition,
        step,
        result,
    } = parts;
    builder.builder(Kind::Comprehension(Box::new(Comprehension {
        range,
        var,
        var2,
        accumulator: ACCUMULATOR.into(),
        init,
        condition,
        step,
        result,
    })))
}

/// Takes the names of the iteration variables from the first arguments.
fn variables(
    builder: &mut AstBuilder<'_, '_>,
    args: &mut Vec<Expr>,
    count: Variables,
    no_name: &str,
) -> Result<Result<(String, Option<String>), Expr>, Stop> {
    let first = args.remove(0);
    let Some(name) = name_of(&first) else {
        return Ok(Err(builder.refuse(&first, no_name)?));
    };
    let mut names = (name.to_owned(), None);
    if count == Variables::Two {
        let second = args.remove(0);
        let Some(name) = name_of(&second) else {
            return Ok(Err(builder.refuse(&second, no_name)?));
        };
        if name == names.0 {
            return Ok(Err(
                builder.refuse(&second, format!("duplicate variable name: {name}"))?
            ));
        }
        if is_accumulator(name) {
            return Ok(Err(builder.refuse(&second, OVERWRITES)?));
        }
        names.1 = Some(name.to_owned());
    }
    if is_accumulator(&names.0) {
        return Ok(Err(builder.refuse(&first, OVERWRITES)?));
    }
    Ok(Ok(names))
}

fn quantifier(
    builder: &mut AstBuilder<'_, '_>,
    kind: Quantifier,
    range: Option<Expr>,
    mut args: Vec<Expr>,
    count: Variables,
) -> Result<Expr, Stop> {
    let names = match variables(builder, &mut args, count, "argument must be a simple name")? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let test = args.remove(0);
    let accumulator = builder.accumulator()?;
    let so_far = builder.accumulator()?;
    let parts = match kind {
        Quantifier::All => Parts {
            init: builder.literal(Literal::Bool(true))?,
            condition: builder.call(operator::NOT_STRICTLY_FALSE, vec![so_far])?,
            step: builder.call(operator::AND, vec![accumulator, test])?,
            result: builder.accumulator()?,
        },
        Quantifier::Exists => {
            let not_yet = builder.call(operator::NOT, vec![so_far])?;
            Parts {
                init: builder.literal(Literal::Bool(false))?,
                condition: builder.call(operator::NOT_STRICTLY_FALSE, vec![not_yet])?,
                step: builder.call(operator::OR, vec![accumulator, test])?,
                result: builder.accumulator()?,
            }
        }
        Quantifier::One => {
            let one = builder.literal(Literal::Int(1))?;
            let single = builder.literal(Literal::Int(1))?;
            let more = builder.call(operator::ADD, vec![so_far, one])?;
            let counted = builder.accumulator()?;
            Parts {
                init: builder.literal(Literal::Int(0))?,
                condition: builder.literal(Literal::Bool(true))?,
                step: builder.call(operator::CONDITIONAL, vec![test, more, accumulator])?,
                result: builder.call(operator::EQUALS, vec![counted, single])?,
            }
        }
    };
    fold(builder, range, names, parts)
}

/// `accumulator + [value]`, or the unchanged accumulator where the filter is false.
fn append(
    builder: &mut AstBuilder<'_, '_>,
    value: Expr,
    filter: Option<Expr>,
) -> Result<Parts, Stop> {
    let accumulator = builder.accumulator()?;
    let items = builder.list(vec![value])?;
    let longer = builder.call(operator::ADD, vec![accumulator, items])?;
    let init = builder.list(Vec::new())?;
    gather(builder, init, longer, filter)
}

fn gather(
    builder: &mut AstBuilder<'_, '_>,
    init: Expr,
    longer: Expr,
    filter: Option<Expr>,
) -> Result<Parts, Stop> {
    let step = match filter {
        None => longer,
        Some(filter) => {
            let same = builder.accumulator()?;
            builder.call(operator::CONDITIONAL, vec![filter, longer, same])?
        }
    };
    Ok(Parts {
        init,
        condition: builder.literal(Literal::Bool(true))?,
        step,
        result: builder.accumulator()?,
    })
}

fn map(
    builder: &mut AstBuilder<'_, '_>,
    range: Option<Expr>,
    mut args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let names = match variables(
        builder,
        &mut args,
        Variables::One,
        "argument is not an identifier",
    )? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let value = args.pop().expect("found by its number of arguments");
    let parts = append(builder, value, args.pop())?;
    fold(builder, range, names, parts)
}

fn filter(
    builder: &mut AstBuilder<'_, '_>,
    range: Option<Expr>,
    mut args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let item = args[0].clone();
    let names = match variables(
        builder,
        &mut args,
        Variables::One,
        "argument is not an identifier",
    )? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let parts = append(builder, item, args.pop())?;
    fold(builder, range, names, parts)
}

fn transform(
    builder: &mut AstBuilder<'_, '_>,
    kind: Transform,
    range: Option<Expr>,
    mut args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let names = match variables(
        builder,
        &mut args,
        Variables::Two,
        "argument must be a simple name",
    )? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let value = args.pop().expect("found by its number of arguments");
    let filter = args.pop();
    if let Transform::List = kind {
        let parts = append(builder, value, filter)?;
        return fold(builder, range, names, parts);
    }
    let mut insert = vec![builder.accumulator()?];
    if let Transform::Map = kind {
        insert.push(builder.ident(&names.0)?);
    }
    insert.push(value);
    let longer = builder.call(operator::MAP_INSERT, insert)?;
    let init = builder.builder(Kind::Map(Vec::new()))?;
    let parts = gather(builder, init, longer, filter)?;
    fold(builder, range, names, parts)
}

/// Names `value` inside `result`.
fn bind(
    builder: &mut AstBuilder<'_, '_>,
    name: &str,
    value: Expr,
    result: Expr,
) -> Result<Expr, Stop> {
    let range = builder.list(Vec::new())?;
    let condition = builder.literal(Literal::Bool(false))?;
    let step = builder.ident(name)?;
    let var = "#unused".to_owned();
    let accumulator = name.to_owned();
    builder.builder(Kind::Comprehension(Box::new(Comprehension {
        range,
        var,
        var2: None,
        accumulator,
        init: value,
        condition,
        step,
        result,
    })))
}

/// `target.hasValue() ? …target.value()… : optional.none()`.
fn with_value(
    builder: &mut AstBuilder<'_, '_>,
    target: Option<Expr>,
    mut args: Vec<Expr>,
    wrap: Wrap,
) -> Result<Expr, Stop> {
    let target = target.expect("found by having a target");
    let Some(name) = name_of(&args[0]).map(str::to_owned) else {
        let function = if wrap == Wrap::Yes {
            "optMap"
        } else {
            "optFlatMap"
        };
        return builder.refuse(
            &args[0],
            format!("{function}() variable name must be a simple identifier"),
        );
    };
    let result = args.pop().expect("found by its number of arguments");
    let again = builder.copy(&target)?;
    let member = |function: &str, target| {
        Kind::Call(Call {
            function: function.into(),
            target: Some(Box::new(target)),
            args: Vec::new(),
        })
    };
    let test = builder.builder(member("hasValue", target))?;
    let value = builder.builder(member("value", again))?;
    let mut bound = bind(builder, &name, value, result)?;
    if wrap == Wrap::Yes {
        bound = builder.call("optional.of", vec![bound])?;
    }
    let none = builder.call("optional.none", Vec::new())?;
    builder.call(operator::CONDITIONAL, vec![test, bound, none])
}

/// Sorts a list by keys computed from its items.
fn sort_by(
    builder: &mut AstBuilder<'_, '_>,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Result<Expr, Stop> {
    const INPUT: &str = "@__sortBy_input__";
    let target = target.expect("found by having a target");
    if matches!(
        target.kind,
        Kind::Literal(_) | Kind::Map(_) | Kind::Message(_)
    ) {
        return builder.refuse(&target, "sortBy can only be applied to a list, identifier, comprehension, call or select expression");
    }
    let input = builder.ident(INPUT)?;
    let keys = map(builder, Some(input), args)?;
    let input = builder.ident(INPUT)?;
    let sorted = builder.builder(Kind::Call(Call {
        function: "@sortByAssociatedKeys".into(),
        target: Some(Box::new(input)),
        args: vec![keys],
    }))?;
    bind(builder, INPUT, target, sorted)
}
