//! Parses a path.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::{Filter, Slice, Step};

static KEY: LazyLock<Regex> = LazyLock::new(|| constant("^'([^']*)'$"));
static SLICE: LazyLock<Regex> = LazyLock::new(|| constant("^(-?[0-9]*)(:-?[0-9]*)?(:-?[0-9]*)?$"));
static COMPARISON: LazyLock<Regex> = LazyLock::new(|| constant("^([^!<>=]+)([!<>=]+)((?s:.+?))$"));

fn constant(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant of this file")
}

/// The steps of a path. Parsing of unions, keys and filters starts again on a part of the text,
/// which is always shorter.
pub(super) fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut parser = Parser {
        text,
        at: 0,
        steps: Vec::new(),
    };
    while parser.step()? {}
    Ok(parser.steps)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    steps: Vec<Step>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Takes what satisfies `wanted`.
    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Reads one step; false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let rest = self.rest();
        if rest.is_empty() {
            return Ok(false);
        }
        if let Some(after) = rest.strip_prefix("[?(") {
            self.at += rest.len() - after.len();
            self.filter()?;
        } else if rest.starts_with("..") {
            self.descent()?;
        } else {
            match self.next() {
                Some(' ' | '@' | '$') | None => {}
                Some('[') => self.brackets()?,
                Some(quote @ ('"' | '\'')) => self.quoted(quote)?,
                Some('.') => self.field(),
                Some('\r' | '\n') => return Err("unclosed action".into()),
                Some(c) if c == '+' || c == '-' || c.is_ascii_digit() => self.number(c)?,
                Some(c) if is_word(c) => self.word(c),
                Some(c) => {
                    return Err(format!(
                        "unrecognized character in action: U+{:04X} '{c}'",
                        u32::from(c)
                    ));
                }
            }
        }
        Ok(true)
    }

    fn descent(&mut self) -> Result<(), String> {
        if self.steps.last() == Some(&Step::Descent) {
            return Err("invalid multiple recursive descent".into());
        }
        self.at += 2;
        self.steps.push(Step::Descent);
        if self.rest().starts_with(is_word) {
            self.field();
        }
        Ok(())
    }

    /// A name up to the next delimiter; a backslash takes the delimiter's meaning away.
    fn field(&mut self) {
        let mut name = String::new();
        while let Some(c) = self.rest().chars().next().filter(|c| !is_terminator(*c)) {
            self.at += c.len_utf8();
            match c {
                '\\' => name.extend(self.next()),
                c => name.push(c),
            }
        }
        self.steps.push(if name == "*" {
            Step::Wildcard
        } else {
            Step::Field(name)
        });
    }

    fn brackets(&mut self) -> Result<(), String> {
        let inside = self
            .rest()
            .split_once(']')
            .map(|(inside, _)| inside)
            .filter(|i| !i.contains('\n'))
            .ok_or("unterminated array")?;
        self.at += inside.len() + 1;
        let inside = if inside == "*" { ":" } else { inside };
        if inside.contains(',') {
            let parts: Result<_, String> = inside
                .split(',')
                .map(|part| steps(&format!("[{}]", part.trim_matches(' '))))
                .collect();
            self.steps.push(Step::Union(parts?));
        } else if let Some(key) = KEY.captures(inside) {
            self.steps.extend(steps(&format!(".{}", &key[1]))?);
        } else {
            self.steps.push(Step::Slice(slice(inside)?));
        }
        Ok(())
    }

    fn filter(&mut self) -> Result<(), String> {
        let inside = self.filter_text()?;
        if self.next() != Some(']') {
            return Err("unclosed array expect ]".into());
        }
        let filter = match COMPARISON.captures(inside) {
            None => Filter {
                left: steps(inside)?,
                compare: None,
            },
            Some(parts) => Filter {
                left: steps(&parts[1])?,
                compare: Some((parts[2].to_owned(), steps(&parts[3])?)),
            },
        };
        self.steps.push(Step::Filter(filter));
        Ok(())
    }

    /// Everything up to the closing parenthesis outside of quotes.
    fn filter_text(&mut self) -> Result<&'a str, String> {
        let begin = self.at;
        let mut quote = None;
        let mut closed = false;
        let mut before = '\0';
        loop {
            match (self.next(), quote) {
                (None | Some('\n'), _) => return Err("unterminated filter".into()),
                (Some(c @ ('"' | '\'')), None) => quote = Some(c),
                (Some(c), Some(q)) if c == q && before != '\\' => closed = true,
                (Some(')'), quote) if quote.is_some() == closed => {
                    return Ok(&self.text[begin..self.at - 1]);
                }
                _ => {}
            }
            before = self.text[..self.at].chars().next_back().unwrap_or('\0');
        }
    }

    fn quoted(&mut self, quote: char) -> Result<(), String> {
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated quoted string".into()),
                Some(c) if c == quote => break,
                Some('\\') => text.extend(self.next().map(unescape)),
                Some(c) => text.push(c),
            }
        }
        self.steps.push(Step::Literal(Value::String(text)));
        Ok(())
    }

    fn number(&mut self, first: char) -> Result<(), String> {
        let text = format!(
            "{first}{}",
            self.take_while(|c| c == '.' || c.is_ascii_digit())
        );
        let number = text
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| text.parse::<f64>().map(Value::from));
        self.steps.push(Step::Literal(
            number.map_err(|_| format!("cannot parse number {text}"))?,
        ));
        Ok(())
    }

    fn word(&mut self, first: char) {
        let word = format!("{first}{}", self.take_while(|c| !is_terminator(c)));
        self.steps.push(match word.as_str() {
            "true" => Step::Literal(Value::Bool(true)),
            "false" => Step::Literal(Value::Bool(false)),
            _ => Step::Word(word),
        });
    }
}

fn slice(text: &str) -> Result<Slice, String> {
    let parts = SLICE
        .captures(text)
        .ok_or_else(|| format!("invalid array index {text}"))?;
    let number = |i: usize| match parts.get(i).map(|m| m.as_str().trim_start_matches(':')) {
        None | Some("") => Ok(None),
        Some(digits) => digits
            .parse::<i64>()
            .map(Some)
            .map_err(|_| format!("array index {digits} is not a number")),
    };
    let start = number(1)?;
    let end = number(2)?;
    let step = number(3)?;
    let single = parts.get(2).is_none();
    let end = if single {
        Some(start.unwrap_or(0).saturating_add(1))
    } else {
        end
    };
    Ok(Slice {
        start,
        end,
        single,
        step,
    })
}

fn unescape(c: char) -> char {
    match c {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        c => c,
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphabetic() || c.is_numeric()
}

fn is_terminator(c: char) -> bool {
    matches!(
        c,
        ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}'
    )
}
