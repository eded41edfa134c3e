//! Regular expressions.
//! In: a string and a pattern in Go's syntax. Out: whether and where it matches.
//! Guarantees: matching takes time linear in the string; compiled patterns that are not constants
//! are charged to the memory limit, which limits their number.

use ::regex::Regex;

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::Functions,
    pattern,
    types::Type,
    value::{Text, Value},
};

use super::{int, made, made_list, text};

/// The size limit of a compiled pattern that is no constant, which is charged in full: an
/// evaluation can compile some hundred of them.
const DYNAMIC_BYTES: usize = 128 << 10;

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Int, String};
    f.global(
        "matches",
        "matches",
        &[String, String],
        Bool,
        CostModel::Unit,
        |meter, args| dynamic("matches", args, meter),
    );
    f.member(
        "matches",
        "matches_string",
        &[String, String],
        Bool,
        CostModel::Match,
        |meter, args| dynamic("matches", args, meter),
    );
    f.member(
        "find",
        "string_find_string",
        &[String, String],
        String,
        CostModel::Find,
        |meter, args| dynamic("find", args, meter),
    );
    let texts = || Type::list(String);
    f.member(
        "findAll",
        "string_find_all_string",
        &[String, String],
        texts(),
        CostModel::Find,
        |meter, args| dynamic("findAll", args, meter),
    );
    f.member(
        "findAll",
        "string_find_all_string_int",
        &[String, String, Int],
        texts(),
        CostModel::Find,
        |meter, args| dynamic("findAll", args, meter),
    );
}

/// Compiles a pattern.
///
/// # Errors
/// Its errors, with the messages of Go.
pub(crate) fn compile(source: &str) -> Result<Regex, String> {
    pattern::compile(source)
}

fn dynamic<'a>(name: &str, args: &[Value<'a>], meter: &mut Meter) -> Result<Value<'a>, Failure> {
    let source = text(args, 1)?;
    meter.allocate(DYNAMIC_BYTES)?;
    let compile_error = |problem| {
        Failure::new(if name == "matches" {
            problem
        } else {
            format!("Illegal regex: {problem}")
        })
    };
    let regex = pattern::compile_within(source, DYNAMIC_BYTES).map_err(compile_error)?;
    run(name, &regex, args, meter)
}

/// Runs one of the three functions with a compiled pattern.
pub(crate) fn run<'a>(
    name: &str,
    regex: &Regex,
    args: &[Value<'a>],
    meter: &mut Meter,
) -> Result<Value<'a>, Failure> {
    let subject = text(args, 0)?;
    match name {
        "matches" => Ok(Value::Bool(regex.is_match(subject))),
        "find" => made(
            meter,
            regex.find(subject).map_or("", |found| found.as_str()),
        ),
        _ => {
            let limit = if args.len() > 2 {
                usize::try_from(int(args, 2)?).unwrap_or(usize::MAX)
            } else {
                usize::MAX
            };
            let mut found = Vec::new();
            for one in regex.find_iter(subject).take(limit) {
                meter.allocate(one.len())?;
                found.push(Value::String(Text::Made(one.as_str().into())));
            }
            made_list(meter, found)
        }
    }
}
