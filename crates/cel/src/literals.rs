//! Errors in literals that type checking does not find.
//! In: a checked expression. Out: durations, timestamps and patterns that cannot be parsed, and
//! lists of mixed types.
//! Guarantees: a literal that passes here does not fail at run time.

use std::collections::HashSet;

use crate::{
    ast::{Expr, Id, Kind, Literal},
    check::{Checked, Meaning},
    library::{format, regex},
    source::Issues,
    time,
    types::Type,
};

/// Checks the literals of an expression.
///
/// # Errors
/// The errors with them.
pub(crate) fn check(checked: &Checked) -> Result<(), Issues> {
    let mut issues = checked.parsed.issues();
    let exempt = inside_format(checked);
    checked.parsed.expr.walk(&mut |expr| {
        let mut report = |id: Id, message: String| issues.report(checked.parsed.place(id), message);
        match &expr.kind {
            Kind::Call(call) => check_call(
                checked,
                expr,
                &call.args,
                call.target.as_deref(),
                &mut report,
            ),
            Kind::List(items) if !exempt.contains(&expr.id) => {
                let types = items.iter().map(|item| {
                    (
                        item.value.id,
                        plain(checked.type_of(item.value.id), item.optional),
                    )
                });
                alike(types, &mut report, Mixed::StopAtFirst);
            }
            Kind::Map(entries) if !exempt.contains(&expr.id) => {
                alike(
                    entries
                        .iter()
                        .map(|e| (e.key.id, checked.type_of(e.key.id))),
                    &mut report,
                    Mixed::TellAll,
                );
                alike(
                    entries
                        .iter()
                        .map(|e| (e.value.id, plain(checked.type_of(e.value.id), e.optional))),
                    &mut report,
                    Mixed::TellAll,
                );
            }
            _ => {}
        }
    });
    if issues.is_empty() {
        Ok(())
    } else {
        Err(issues)
    }
}

/// Everything inside calls of `format`, whose arguments may be of any types.
fn inside_format(checked: &Checked) -> HashSet<Id> {
    let mut inside = HashSet::new();
    checked.parsed.expr.walk(&mut |expr| {
        if matches!(
            checked.meaning(expr.id),
            Meaning::Function { name: "format", .. }
        ) && !inside.contains(&expr.id)
        {
            expr.walk(&mut |below| {
                inside.insert(below.id);
            });
        }
    });
    inside
}

fn check_call(
    checked: &Checked,
    expr: &Expr,
    args: &[Expr],
    target: Option<&Expr>,
    report: &mut dyn FnMut(Id, String),
) {
    let Meaning::Function { name, .. } = checked.meaning(expr.id) else {
        return;
    };
    let text = |expr: &Expr| match &expr.kind {
        Kind::Literal(Literal::String(text)) => Some(text.clone()),
        _ => None,
    };
    let literal = args.first().and_then(text);
    let is_invalid = match (*name, literal) {
        ("duration", Some(text)) => time::parse_duration(&text).is_none(),
        ("duration", None) => matches!(
            args,
            [Expr {
                kind: Kind::Literal(_),
                ..
            }]
        ),
        ("timestamp", Some(text)) => time::parse_timestamp(&text).is_err(),
        ("matches", Some(text)) => regex::compile(&text).is_err(),
        ("format", _) => {
            if let (
                Some(target),
                Some(Expr {
                    kind: Kind::List(items),
                    ..
                }),
            ) = (target, args.first())
                && let Some(text) = text(target)
            {
                let types: Vec<(Id, &Type)> = items
                    .iter()
                    .map(|i| (i.value.id, checked.type_of(i.value.id)))
                    .collect();
                format::check(&text, expr.id, &types, report);
            }
            false
        }
        _ => false,
    };
    if is_invalid {
        report(args[0].id, format!("invalid {name} argument"));
    }
}

fn plain(t: &Type, optional: bool) -> &Type {
    t.unwrapped().filter(|_| optional).unwrap_or(t)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mixed {
    StopAtFirst,
    TellAll,
}

/// Whether all types are the same. The type checker has rejected types that cannot be mixed; this
/// rejects `dyn` next to a known type.
fn alike<'a>(
    types: impl Iterator<Item = (Id, &'a Type)>,
    report: &mut dyn FnMut(Id, String),
    mixed: Mixed,
) {
    let mut first = None;
    for (id, ty) in types {
        let first = *first.get_or_insert(ty);
        if !same(first, ty) {
            report(id, format!("expected type '{first}' but found '{ty}'"));
            if mixed == Mixed::StopAtFirst {
                return;
            }
        }
    }
}

/// All types of types are equal.
fn same(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Type(_), Type::Type(_)) => true,
        (Type::List(a), Type::List(b)) => same(a, b),
        (Type::Map(a), Type::Map(b)) => same(&a.0, &b.0) && same(&a.1, &b.1),
        (Type::Opaque(a, a_params), Type::Opaque(b, b_params)) => {
            a == b
                && a_params
                    .iter()
                    .zip(b_params.iter())
                    .all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}
