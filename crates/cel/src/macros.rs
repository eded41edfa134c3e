//! Macros: calls that become loops and tests before anything is checked.
//! In: the target and arguments of a call. Out: the tree that stands for it.
//! Holds: a macro never evaluates anything; what it makes is ordinary syntax, checked and priced as such.

use crate::{
    ast::{ACCUMULATOR, ACCUMULATOR_OF_OLD, Call, Expr, Fold, Kind, Literal, Select, operator},
    parser::{Maker, Stop},
};

/// Makes the tree for a call.
pub(crate) type Expand =
    for<'a, 'p> fn(&mut Maker<'a, 'p>, Option<Expr>, Vec<Expr>) -> Result<Expr, Stop>;

/// The macro for a call, if it is that of one.
pub(crate) fn find(function: &str, has_target: bool, args: usize) -> Option<Expand> {
    if !has_target {
        return (function == "has" && args == 1).then_some(has as Expand);
    }
    Some(match (function, args) {
        ("all", 2) => {
            |make, range, args| quantifier(make, Quantifier::All, range, args, Variables::One)
        }
        ("exists", 2) => {
            |make, range, args| quantifier(make, Quantifier::Exists, range, args, Variables::One)
        }
        ("exists_one", 2) => {
            |make, range, args| quantifier(make, Quantifier::One, range, args, Variables::One)
        }
        ("all", 3) => {
            |make, range, args| quantifier(make, Quantifier::All, range, args, Variables::Two)
        }
        ("exists", 3) => {
            |make, range, args| quantifier(make, Quantifier::Exists, range, args, Variables::Two)
        }
        ("exists_one" | "existsOne", 3) => {
            |make, range, args| quantifier(make, Quantifier::One, range, args, Variables::Two)
        }
        ("map", 2 | 3) => map,
        ("filter", 2) => filter,
        ("transformList", 3 | 4) => {
            |make, range, args| transform(make, Transform::List, range, args)
        }
        ("transformMap", 3 | 4) => |make, range, args| transform(make, Transform::Map, range, args),
        ("transformMapEntry", 3 | 4) => {
            |make, range, args| transform(make, Transform::Entry, range, args)
        }
        ("optMap", 2) => |make, target, args| with_value(make, target, args, Wrap::Yes),
        ("optFlatMap", 2) => |make, target, args| with_value(make, target, args, Wrap::No),
        ("sortBy", 2) => sort_by,
        _ => return None,
    })
}

/// How many variables a loop has.
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

fn has(make: &mut Maker<'_, '_>, _: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Stop> {
    let [argument] = <[Expr; 1]>::try_from(args).expect("found by its number of arguments");
    match argument.kind {
        Kind::Select(select) if !select.test => make.make(Kind::Select(Select {
            test: true,
            ..select
        })),
        _ => make.refuse(&argument, "invalid argument to has() macro"),
    }
}

/// The parts of a loop that differ between macros.
struct Parts {
    init: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

fn fold(
    make: &mut Maker<'_, '_>,
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
    make.make(Kind::Fold(Box::new(Fold {
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

/// The names of the loop variables among the first arguments, which are taken away.
fn variables(
    make: &mut Maker<'_, '_>,
    args: &mut Vec<Expr>,
    count: Variables,
    no_name: &str,
) -> Result<Result<(String, Option<String>), Expr>, Stop> {
    let first = args.remove(0);
    let Some(name) = name_of(&first) else {
        return Ok(Err(make.refuse(&first, no_name)?));
    };
    let mut names = (name.to_owned(), None);
    if count == Variables::Two {
        let second = args.remove(0);
        let Some(name) = name_of(&second) else {
            return Ok(Err(make.refuse(&second, no_name)?));
        };
        if name == names.0 {
            return Ok(Err(
                make.refuse(&second, format!("duplicate variable name: {name}"))?
            ));
        }
        if is_accumulator(name) {
            return Ok(Err(make.refuse(&second, OVERWRITES)?));
        }
        names.1 = Some(name.to_owned());
    }
    if is_accumulator(&names.0) {
        return Ok(Err(make.refuse(&first, OVERWRITES)?));
    }
    Ok(Ok(names))
}

fn quantifier(
    make: &mut Maker<'_, '_>,
    kind: Quantifier,
    range: Option<Expr>,
    mut args: Vec<Expr>,
    count: Variables,
) -> Result<Expr, Stop> {
    let names = match variables(make, &mut args, count, "argument must be a simple name")? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let test = args.remove(0);
    let (accumulator, so_far) = (make.accumulator()?, make.accumulator()?);
    let parts = match kind {
        Quantifier::All => Parts {
            init: make.literal(Literal::Bool(true))?,
            condition: make.call(operator::NOT_STRICTLY_FALSE, vec![so_far])?,
            step: make.call(operator::AND, vec![accumulator, test])?,
            result: make.accumulator()?,
        },
        Quantifier::Exists => {
            let not_yet = make.call(operator::NOT, vec![so_far])?;
            Parts {
                init: make.literal(Literal::Bool(false))?,
                condition: make.call(operator::NOT_STRICTLY_FALSE, vec![not_yet])?,
                step: make.call(operator::OR, vec![accumulator, test])?,
                result: make.accumulator()?,
            }
        }
        Quantifier::One => {
            let (one, single) = (
                make.literal(Literal::Int(1))?,
                make.literal(Literal::Int(1))?,
            );
            let more = make.call(operator::ADD, vec![so_far, one])?;
            let counted = make.accumulator()?;
            Parts {
                init: make.literal(Literal::Int(0))?,
                condition: make.literal(Literal::Bool(true))?,
                step: make.call(operator::CONDITIONAL, vec![test, more, accumulator])?,
                result: make.call(operator::EQUALS, vec![counted, single])?,
            }
        }
    };
    fold(make, range, names, parts)
}

/// `accumulator + [value]`, or the accumulator as it is where the filter says no.
fn append(make: &mut Maker<'_, '_>, value: Expr, filter: Option<Expr>) -> Result<Parts, Stop> {
    let accumulator = make.accumulator()?;
    let items = make.list(vec![value])?;
    let longer = make.call(operator::ADD, vec![accumulator, items])?;
    let init = make.list(Vec::new())?;
    gather(make, init, longer, filter)
}

fn gather(
    make: &mut Maker<'_, '_>,
    init: Expr,
    longer: Expr,
    filter: Option<Expr>,
) -> Result<Parts, Stop> {
    let step = match filter {
        None => longer,
        Some(filter) => {
            let same = make.accumulator()?;
            make.call(operator::CONDITIONAL, vec![filter, longer, same])?
        }
    };
    Ok(Parts {
        init,
        condition: make.literal(Literal::Bool(true))?,
        step,
        result: make.accumulator()?,
    })
}

fn map(make: &mut Maker<'_, '_>, range: Option<Expr>, mut args: Vec<Expr>) -> Result<Expr, Stop> {
    let names = match variables(
        make,
        &mut args,
        Variables::One,
        "argument is not an identifier",
    )? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let value = args.pop().expect("found by its number of arguments");
    let parts = append(make, value, args.pop())?;
    fold(make, range, names, parts)
}

fn filter(
    make: &mut Maker<'_, '_>,
    range: Option<Expr>,
    mut args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let item = args[0].clone();
    let names = match variables(
        make,
        &mut args,
        Variables::One,
        "argument is not an identifier",
    )? {
        Ok(names) => names,
        Err(refused) => return Ok(refused),
    };
    let parts = append(make, item, args.pop())?;
    fold(make, range, names, parts)
}

fn transform(
    make: &mut Maker<'_, '_>,
    kind: Transform,
    range: Option<Expr>,
    mut args: Vec<Expr>,
) -> Result<Expr, Stop> {
    let names = match variables(
        make,
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
        let parts = append(make, value, filter)?;
        return fold(make, range, names, parts);
    }
    let mut insert = vec![make.accumulator()?];
    if let Transform::Map = kind {
        insert.push(make.ident(&names.0)?);
    }
    insert.push(value);
    let longer = make.call(operator::MAP_INSERT, insert)?;
    let init = make.make(Kind::Map(Vec::new()))?;
    let parts = gather(make, init, longer, filter)?;
    fold(make, range, names, parts)
}

/// Names `value` inside `result`.
fn bind(make: &mut Maker<'_, '_>, name: &str, value: Expr, result: Expr) -> Result<Expr, Stop> {
    let range = make.list(Vec::new())?;
    let condition = make.literal(Literal::Bool(false))?;
    let step = make.ident(name)?;
    let (var, accumulator) = ("#unused".to_owned(), name.to_owned());
    make.make(Kind::Fold(Box::new(Fold {
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
    make: &mut Maker<'_, '_>,
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
        return make.refuse(
            &args[0],
            format!("{function}() variable name must be a simple identifier"),
        );
    };
    let result = args.pop().expect("found by its number of arguments");
    let again = make.copy(&target)?;
    let member = |function: &str, target| {
        Kind::Call(Call {
            function: function.into(),
            target: Some(Box::new(target)),
            args: Vec::new(),
        })
    };
    let test = make.make(member("hasValue", target))?;
    let value = make.make(member("value", again))?;
    let mut bound = bind(make, &name, value, result)?;
    if wrap == Wrap::Yes {
        bound = make.call("optional.of", vec![bound])?;
    }
    let none = make.call("optional.none", Vec::new())?;
    make.call(operator::CONDITIONAL, vec![test, bound, none])
}

/// Sorts a list by keys computed from its items.
fn sort_by(make: &mut Maker<'_, '_>, target: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Stop> {
    const INPUT: &str = "@__sortBy_input__";
    let target = target.expect("found by having a target");
    if matches!(
        target.kind,
        Kind::Literal(_) | Kind::Map(_) | Kind::Message(_)
    ) {
        return make.refuse(&target, "sortBy can only be applied to a list, identifier, comprehension, call or select expression");
    }
    let input = make.ident(INPUT)?;
    let keys = map(make, Some(input), args)?;
    let input = make.ident(INPUT)?;
    let sorted = make.make(Kind::Call(Call {
        function: "@sortByAssociatedKeys".into(),
        target: Some(Box::new(input)),
        args: vec![keys],
    }))?;
    bind(make, INPUT, target, sorted)
}
