//! `format`: string formatting.
//! In: a format string with verbs such as `%s` and `%.2f`, and arguments. Out: the formatted
//! string.
//! Guarantees: a literal format string is validated against its arguments at compile time, with the
//! same messages.

use crate::{
    ast::Id,
    eval::{Failure, Meter},
    types::Type,
    value::{List, Value},
};

use super::convert::{go_double, written};

/// The default precision.
const PRECISION: usize = 6;

/// A hole in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    Text,
    Decimal,
    Fixed(Option<usize>),
    Scientific,
    Binary,
    Hex { upper: bool },
    Octal,
}

/// The accepted types of one clause, as types and as text.
impl Clause {
    fn takes(self, t: &Type) -> bool {
        use Type::{
            Bool, Bytes, Double, Duration, Dyn, Int, List, Map, Null, String, Timestamp, Uint,
        };
        matches!(t, Dyn)
            || match self {
                Self::Text => matches!(
                    t,
                    List(_)
                        | Map(_)
                        | Int
                        | Uint
                        | Double
                        | Bool
                        | String
                        | Timestamp
                        | Bytes
                        | Duration
                        | Type::Type(_)
                        | Null
                ),
                Self::Decimal | Self::Octal => matches!(t, Int | Uint),
                Self::Fixed(_) | Self::Scientific => matches!(t, Double | String),
                Self::Binary => matches!(t, Int | Uint | Bool),
                Self::Hex { .. } => matches!(t, Int | Uint | String | Bytes),
            }
    }

    fn refusal(self, given: &str) -> String {
        let only = match self {
            Self::Text => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed(_) => "fixed-point clause can only be used on doubles",
            Self::Scientific => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Hex { .. } => "only integers, byte buffers, and strings can be formatted as hex",
            Self::Octal => "octal clause can only be used on integers",
        };
        format!("error during formatting: {only}, was given {given}")
    }
}

/// A piece of a text: plain, or a hole.
enum Piece<'t> {
    Plain(&'t str),
    Hole(Clause),
}

/// Takes the next piece off a text.
fn next_piece(text: &str) -> Result<(Piece<'_>, &str), String> {
    let at = text.find('%').unwrap_or(text.len());
    if at > 0 {
        return Ok((Piece::Plain(&text[..at]), &text[at..]));
    }
    if let Some(after) = text.strip_prefix("%%") {
        return Ok((Piece::Plain("%"), after));
    }
    let mut rest = &text[1..];
    if rest.is_empty() {
        return Err("unexpected end of string".into());
    }
    let mut precision = None;
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit());
        let problem = |text: &str| {
            format!("could not parse formatting clause: error while parsing precision: {text}")
        };
        let end = end.ok_or_else(|| problem("could not find end of precision specifier"))?;
        let invalid = |_| {
            problem(&format!(
                "error while converting precision to integer: strconv.Atoi: parsing \"{}\": invalid syntax",
                &after[..end]
            ))
        };
        precision = Some(after[..end].parse::<usize>().map_err(invalid)?);
        rest = &after[end..];
    }
    let letter = rest.chars().next().ok_or("unexpected end of string")?;
    let clause = match letter {
        's' => Clause::Text,
        'd' => Clause::Decimal,
        'f' => Clause::Fixed(precision),
        'e' => Clause::Scientific,
        'b' => Clause::Binary,
        'x' | 'X' => Clause::Hex {
            upper: letter == 'X',
        },
        'o' => Clause::Octal,
        other => {
            return Err(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{other}\""
            ));
        }
    };
    Ok((Piece::Hole(clause), &rest[letter.len_utf8()..]))
}

/// Checks a literal text against the types of the arguments it will be filled with.
pub(crate) fn check(
    text: &str,
    call: Id,
    args: &[(Id, &Type)],
    report: &mut dyn FnMut(Id, String),
) {
    let mut rest = text;
    let mut used = 0;
    while !rest.is_empty() {
        let (piece, after) = match next_piece(rest) {
            Ok(found) => found,
            Err(problem) => return report(call, problem),
        };
        rest = after;
        let Piece::Hole(clause) = piece else { continue };
        let Some((id, ty)) = args.get(used) else {
            return report(call, format!("index {used} out of range"));
        };
        if !clause.takes(ty) {
            return report(*id, clause.refusal(ty.name()));
        }
        used += 1;
    }
    if args.len() > used {
        report(
            call,
            format!(
                "too many arguments supplied to string.format (expected {used}, got {})",
                args.len()
            ),
        );
    }
}

/// Fills a text.
pub(crate) fn fill(text: &str, args: &List<'_>, meter: &mut Meter) -> Result<String, Failure> {
    let mut rest = text;
    let mut used = 0;
    let mut filled = String::new();
    while !rest.is_empty() {
        let (piece, after) = next_piece(rest).map_err(Failure::new)?;
        rest = after;
        match piece {
            Piece::Plain(plain) => filled.push_str(plain),
            Piece::Hole(clause) => {
                if used >= args.len() {
                    return Err(Failure::new(format!("index {used} out of range")));
                }
                let value = args.get(used)?;
                let part = one(clause, &value, meter)?;
                meter.allocate(part.len())?;
                filled.push_str(&part);
                used += 1;
            }
        }
    }
    Ok(filled)
}

fn one(clause: Clause, value: &Value<'_>, meter: &mut Meter) -> Result<String, Failure> {
    let refused = || Failure::new(clause.refusal(value.type_of().name()));
    Ok(match (clause, value) {
        (Clause::Text, Value::List(_) | Value::Map(_)) => nested(value, meter)?,
        (Clause::Text, Value::Null) => "null".into(),
        (Clause::Text, Value::Opaque(_) | Value::Optional(_) | Value::Hidden(_)) => {
            return Err(refused());
        }
        (Clause::Text, value) => written(value)?,
        (Clause::Decimal, Value::Int(n)) => n.to_string(),
        (Clause::Decimal, Value::Uint(n)) => n.to_string(),
        (Clause::Fixed(precision), value) => fixed(
            number(value).ok_or_else(refused)?,
            precision.unwrap_or(PRECISION),
        ),
        (Clause::Scientific, value) => scientific(number(value).ok_or_else(refused)?),
        (Clause::Binary, Value::Bool(b)) => u8::from(*b).to_string(),
        (Clause::Binary, Value::Int(n)) => signed(*n, |n| format!("{n:b}")),
        (Clause::Binary, Value::Uint(n)) => format!("{n:b}"),
        (Clause::Octal, Value::Int(n)) => signed(*n, |n| format!("{n:o}")),
        (Clause::Octal, Value::Uint(n)) => format!("{n:o}"),
        (Clause::Hex { upper }, value) => {
            let hex = match value {
                Value::Int(n) => signed(*n, |n| format!("{n:x}")),
                Value::Uint(n) => format!("{n:x}"),
                Value::String(text) => hex(text.as_bytes()),
                Value::Bytes(bytes) => hex(bytes),
                _ => return Err(refused()),
            };
            if upper { hex.to_uppercase() } else { hex }
        }
        _ => return Err(refused()),
    })
}

fn signed(n: i64, write: fn(u64) -> String) -> String {
    format!(
        "{}{}",
        if n < 0 { "-" } else { "" },
        write(n.unsigned_abs())
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A number, or the text of one that is none.
fn number(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(d) => Some(*d),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn special(d: f64) -> Option<String> {
    if d.is_nan() {
        return Some("NaN".into());
    }
    d.is_infinite()
        .then(|| if d > 0.0 { "∞".into() } else { "-∞".into() })
}

/// With a comma between thousands, as American English has it.
fn fixed(d: f64, precision: usize) -> String {
    if let Some(text) = special(d) {
        return text;
    }
    // Digits beyond the precision of a double are zeros; the bound limits the size.
    let plain = format!("{:.*}", precision.min(1_100), d);
    let (sign, digits) = plain
        .strip_prefix('-')
        .map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        format!("{sign}{grouped}")
    } else {
        format!("{sign}{grouped}.{fraction}")
    }
}

/// With the exponent raised, as American English has it.
fn scientific(d: f64) -> String {
    if let Some(text) = special(d) {
        return text;
    }
    let plain = format!("{d:.6e}");
    let (mantissa, exponent) = plain
        .split_once('e')
        .expect("the format writes an exponent");
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(("", exponent), |rest| ("⁻", rest));
    let raised: String = format!("{digits:0>2}")
        .chars()
        .map(|c| {
            "⁰¹²³⁴⁵⁶⁷⁸⁹"
                .chars()
                .nth(c as usize - '0' as usize)
                .unwrap_or(c)
        })
        .collect();
    format!("{mantissa}×10{sign}{raised}")
}

/// A list or map, with what it holds written as in an expression.
fn nested(value: &Value<'_>, meter: &mut Meter) -> Result<String, Failure> {
    let text = match value {
        Value::List(list) => {
            let mut parts = Vec::new();
            for i in 0..list.len() {
                parts.push(nested(&list.get(i)?, meter)?);
            }
            format!("[{}]", parts.join(", "))
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            for key in map.keys() {
                if let Some(value) = map.find(&key)? {
                    parts.push((nested(&key, meter)?, nested(&value, meter)?));
                }
            }
            parts.sort();
            let parts: Vec<String> = parts
                .into_iter()
                .map(|(key, value)| format!("{key}:{value}"))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Null => "null".into(),
        Value::String(text) => go_quoted(text),
        Value::Bytes(bytes) => format!("b{}", go_quoted(&String::from_utf8_lossy(bytes))),
        Value::Double(d) if !d.is_finite() => go_quoted(&go_double(*d)),
        Value::Double(d) => format!("{d:.PRECISION$}"),
        Value::Duration(_) => format!("duration({})", go_quoted(&written(value)?)),
        Value::Timestamp(_) => format!("timestamp({})", go_quoted(&written(value)?)),
        Value::Optional(_) | Value::Opaque(_) | Value::Hidden(_) => {
            return Err(Failure::new(format!(
                "error during formatting: no formatting function for {}",
                value.type_of().name()
            )));
        }
        other => written(other)?,
    };
    meter.allocate(text.len())?;
    Ok(text)
}

fn go_quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string can be written")
}
