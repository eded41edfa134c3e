//! String functions.
//! In: strings, indexed by code points. Out: substrings, indexes and changed copies.
//! Guarantees: the size of a result is charged before it is allocated.

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::Functions,
    types::Type,
    value::{Text, Value},
};

use super::{format, int, list, made, made_list, text};

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Int, String};
    let texts = || Type::list(String);
    f.member(
        "contains",
        "contains_string",
        &[String, String],
        Bool,
        CostModel::Contains,
        |_, a| test(a, |s, t| s.contains(t)),
    );
    f.member(
        "endsWith",
        "ends_with_string",
        &[String, String],
        Bool,
        CostModel::Affix,
        |_, a| test(a, |s, t| s.ends_with(t)),
    );
    f.member(
        "startsWith",
        "starts_with_string",
        &[String, String],
        Bool,
        CostModel::Affix,
        |_, a| test(a, |s, t| s.starts_with(t)),
    );
    f.member(
        "charAt",
        "string_char_at_int",
        &[String, Int],
        String,
        CostModel::Unit,
        char_at,
    );
    f.member(
        "indexOf",
        "string_index_of_string",
        &[String, String],
        Int,
        CostModel::EveryItem,
        index_of,
    );
    f.member(
        "indexOf",
        "string_index_of_string_int",
        &[String, String, Int],
        Int,
        CostModel::EveryItem,
        index_of,
    );
    f.member(
        "lastIndexOf",
        "string_last_index_of_string",
        &[String, String],
        Int,
        CostModel::EveryItem,
        last_index_of,
    );
    f.member(
        "lastIndexOf",
        "string_last_index_of_string_int",
        &[String, String, Int],
        Int,
        CostModel::EveryItem,
        last_index_of,
    );
    f.member(
        "lowerAscii",
        "string_lower_ascii",
        &[String],
        String,
        CostModel::PassAlong,
        |m, a| made(m, text(a, 0)?.to_ascii_lowercase()),
    );
    f.member(
        "upperAscii",
        "string_upper_ascii",
        &[String],
        String,
        CostModel::PassAlong,
        |m, a| made(m, text(a, 0)?.to_ascii_uppercase()),
    );
    f.member(
        "trim",
        "string_trim",
        &[String],
        String,
        CostModel::PassAlong,
        |m, a| made(m, text(a, 0)?.trim_matches(is_space)),
    );
    f.member(
        "replace",
        "string_replace_string_string",
        &[String, String, String],
        String,
        CostModel::Replace,
        replace,
    );
    f.member(
        "replace",
        "string_replace_string_string_int",
        &[String, String, String, Int],
        String,
        CostModel::Replace,
        replace,
    );
    f.member(
        "split",
        "string_split_string",
        &[String, String],
        texts(),
        CostModel::Split,
        split,
    );
    f.member(
        "split",
        "string_split_string_int",
        &[String, String, Int],
        texts(),
        CostModel::Split,
        split,
    );
    f.member(
        "substring",
        "string_substring_int",
        &[String, Int],
        String,
        CostModel::PassAlong,
        substring,
    );
    f.member(
        "substring",
        "string_substring_int_int",
        &[String, Int, Int],
        String,
        CostModel::PassAlong,
        substring,
    );
    f.member(
        "join",
        "list_join",
        &[texts()],
        String,
        CostModel::Join,
        join,
    );
    f.member(
        "join",
        "list_join_string",
        &[texts(), String],
        String,
        CostModel::Join,
        join,
    );
    f.member(
        "format",
        "string_format",
        &[String, Type::list(Type::Dyn)],
        String,
        CostModel::Pass,
        |meter, args| {
            let text = format::fill(text(args, 0)?, list(args, 1)?, meter)?;
            made(meter, text)
        },
    );
    f.global(
        "strings.quote",
        "strings_quote",
        &[String],
        String,
        CostModel::Quote,
        |meter, args| made(meter, quote(text(args, 0)?)),
    );
}

fn test<'a>(args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Result<Value<'a>, Failure> {
    Ok(Value::Bool(holds(text(args, 0)?, text(args, 1)?)))
}

/// White space as Unicode has it, which is what Go trims.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

fn out_of_range(at: i64) -> Failure {
    Failure::new(format!("index out of range: {at}"))
}

/// The byte at which the code point `at` begins; the end of the text is a place too.
fn byte_at(text: &str, at: i64) -> Result<usize, Failure> {
    let wanted = usize::try_from(at).map_err(|_| out_of_range(at))?;
    text.char_indices()
        .map(|(byte, _)| byte)
        .chain([text.len()])
        .nth(wanted)
        .ok_or_else(|| out_of_range(at))
}

fn char_at<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let text = text(args, 0)?;
    let at = int(args, 1)?;
    let byte = byte_at(text, at)?;
    let found: String = text[byte..].chars().take(1).collect();
    made(meter, found)
}

fn place<'a>(at: usize) -> Result<Value<'a>, Failure> {
    Ok(Value::Int(i64::try_from(at).unwrap_or(i64::MAX)))
}

fn index_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let part = text(args, 1)?;
    let text = text(args, 0)?;
    let from = if args.len() > 2 { int(args, 2)? } else { 0 };
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    if from < 0 {
        return Err(out_of_range(from));
    }
    let Ok(byte) = byte_at(text, from) else {
        return Ok(Value::Int(-1));
    };
    match text[byte..].find(&**part) {
        None => Ok(Value::Int(-1)),
        Some(found) => place(text[..byte + found].chars().count()),
    }
}

fn last_index_of<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let part = text(args, 1)?;
    let text = text(args, 0)?;
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if part.is_empty() {
        return Ok(Value::Int(if args.len() > 2 {
            int(args, 2)?
        } else {
            length
        }));
    }
    let mut from = length - 1;
    if args.len() > 2 {
        from = int(args, 2)?;
        if from < 0 {
            return Err(out_of_range(from));
        }
        if from >= length {
            return Ok(Value::Int(-1));
        }
    }
    let last = length - i64::try_from(part.chars().count()).unwrap_or(i64::MAX);
    let from = from.min(last);
    if from < 0 {
        return Ok(Value::Int(-1));
    }
    let end = byte_at(text, from)? + part.len();
    match text
        .get(..end.min(text.len()))
        .unwrap_or(text)
        .rfind(&**part)
    {
        None => Ok(Value::Int(-1)),
        Some(found) => place(text[..found].chars().count()),
    }
}

/// The number of repetitions: at most `limit`, and unlimited if that is negative.
fn times(args: &[Value<'_>], at: usize) -> Result<usize, Failure> {
    if args.len() <= at {
        return Ok(usize::MAX);
    }
    Ok(usize::try_from(int(args, at)?).unwrap_or(usize::MAX))
}

fn replace<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let old = text(args, 1)?;
    let new = text(args, 2)?;
    let text = text(args, 0)?;
    let limit = times(args, 3)?;
    let count = text.matches(&**old).take(limit).count();
    meter.allocate(count.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(Value::text(text.replacen(&**old, new, count)))
}

fn split<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let separator = text(args, 1)?;
    let text = text(args, 0)?;
    let limit = times(args, 2)?;
    if limit == 0 {
        return made_list(meter, Vec::new());
    }
    let mut parts: Vec<&str> = Vec::new();
    if separator.is_empty() {
        meter.allocate_values(text.chars().count().min(limit))?;
        let ends = text.char_indices().map(|(at, c)| (at, at + c.len_utf8()));
        for (begin, end) in ends {
            if parts.len() + 1 == limit {
                parts.push(&text[begin..]);
                break;
            }
            parts.push(&text[begin..end]);
        }
    } else {
        meter.allocate_values(text.matches(&**separator).take(limit).count() + 1)?;
        parts.extend(text.splitn(limit, &**separator));
    }
    meter.allocate(text.len())?;
    Ok(Value::list(parts.into_iter().map(Value::text).collect()))
}

fn substring<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let text = text(args, 0)?;
    let begin = int(args, 1)?;
    if args.len() == 2 {
        return made(meter, &text[byte_at(text, begin)?..]);
    }
    let end = int(args, 2)?;
    if begin > end {
        return Err(Failure::new(format!(
            "invalid substring range. start: {begin}, end: {end}"
        )));
    }
    made(meter, &text[byte_at(text, begin)?..byte_at(text, end)?])
}

fn join<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let list = list(args, 0)?;
    let separator = if args.len() > 1 {
        &**text(args, 1)?
    } else {
        ""
    };
    let mut joined = String::new();
    for i in 0..list.len() {
        let Value::String(item) = list.get(i)? else {
            return Err(Failure::new("join: invalid input"));
        };
        meter.allocate(separator.len() + item.len())?;
        if i > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&item);
    }
    Ok(Value::String(Text::Made(joined.into())))
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
