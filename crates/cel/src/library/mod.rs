//! The functions of the language and those that Kubernetes adds.
//! Out: declarations with the cost and implementation of each function.
//! Guarantees: a function gets arguments of the types it declares; it never panics, and charges the
//! meter before it allocates a large result.

mod convert; // from one type to another
pub(crate) mod format; // string formatting
mod lists; // lists
mod net; // addresses and networks
mod operators; // arithmetic, order, membership
mod optional; // values that may be missing
mod quantity; // quantities
pub(crate) mod regex; // regular expressions
mod semver; // semantic versions
mod sets; // lists as sets
mod strings; // strings
mod timestamps; // timestamps and durations
mod url; // URLs

use std::sync::Arc;

use crate::{
    eval::{Failure, Meter},
    function::Functions,
    types::Type,
    value::{Text, Value},
};

/// All functions.
pub(crate) fn all() -> Functions {
    let mut functions = Functions::default();
    for declare in [
        operators::declare,
        convert::declare,
        timestamps::declare,
        strings::declare,
        lists::declare,
        sets::declare,
        optional::declare,
        regex::declare,
        url::declare,
        net::declare,
        semver::declare,
        quantity::declare,
    ] {
        declare(&mut functions);
    }
    functions
}

fn a() -> Type {
    Type::param("A")
}

fn b() -> Type {
    Type::param("B")
}

/// The text among the arguments at `at`.
fn text<'v, 'a>(args: &'v [Value<'a>], at: usize) -> Result<&'v Text<'a>, Failure> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(Failure::no_such_overload()),
    }
}

fn int(args: &[Value<'_>], at: usize) -> Result<i64, Failure> {
    match args.get(at) {
        Some(Value::Int(n)) => Ok(*n),
        _ => Err(Failure::no_such_overload()),
    }
}

fn list<'v, 'a>(args: &'v [Value<'a>], at: usize) -> Result<&'v crate::value::List<'a>, Failure> {
    match args.get(at) {
        Some(Value::List(list)) => Ok(list),
        _ => Err(Failure::no_such_overload()),
    }
}

/// All items of the list at `at`.
fn items<'a>(args: &[Value<'a>], at: usize) -> Result<Vec<Value<'a>>, Failure> {
    let list = list(args, at)?;
    (0..list.len()).map(|i| list.get(i)).collect()
}

/// A text that an expression made, counted.
fn made<'a>(meter: &mut Meter, text: impl Into<Arc<str>>) -> Result<Value<'a>, Failure> {
    let text = text.into();
    meter.allocate(text.len())?;
    Ok(Value::String(Text::Made(text)))
}

/// A list that an expression made, counted.
fn made_list<'a>(meter: &mut Meter, items: Vec<Value<'a>>) -> Result<Value<'a>, Failure> {
    meter.allocate_values(items.len())?;
    Ok(Value::list(items))
}
