//! Encodes JSON values as YAML, as Go's library does.
//! In: a value. Out: text that reads back as the same value, in YAML 1.1 as well as 1.2.
//! Guarantees: keys are in the order of that library, where `a2` is before `a10`; text is quoted
//! only where a parser would read another type; lines are folded at a space behind column 80.

use std::cmp::Ordering;

use bellerophon_codec::decode;
use serde_json::{Map, Value};

/// Lines longer than this are folded at their next single space.
const WIDTH: usize = 80;

/// Longer keys are written on their own line, behind `?`.
const SIMPLE_KEY_MAX: usize = 128;

/// How far a level is indented.
const STEP: usize = 2;

/// The YAML of a value, with a newline at its end.
pub(super) fn to_yaml(value: &Value) -> String {
    let mut writer = Writer {
        out: String::new(),
        column: 0,
    };
    match value {
        Value::Object(map) if !map.is_empty() => writer.mapping(map, 0, true),
        Value::Array(items) if !items.is_empty() => writer.sequence(items, 0, true),
        other => writer.leaf(other, STEP),
    }
    writer.out.push('\n');
    writer.out
}

struct Writer {
    out: String,
    /// Characters since the last newline.
    column: usize,
}

/// Whether a scalar may spread over lines.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Allowed,
    Forbidden,
}

impl Writer {
    /// `begun` is whether the first key continues the current line.
    fn mapping(&mut self, map: &Map<String, Value>, indent: usize, mut begun: bool) {
        let mut members: Vec<(&String, &Value)> = map.iter().collect();
        members.sort_by(|(a, _), (b, _)| natural(a, b));
        for (key, value) in members {
            if !std::mem::take(&mut begun) {
                self.line(indent);
            }
            if key.len() > SIMPLE_KEY_MAX || key.contains(is_break) {
                self.put("? ");
                self.text(key, indent + STEP, Breaks::Allowed);
                self.line(indent);
            } else {
                self.text(key, indent + STEP, Breaks::Forbidden);
            }
            self.put(":");
            match value {
                Value::Object(map) if !map.is_empty() => self.mapping(map, indent + STEP, false),
                // Items stand right below the key.
                Value::Array(items) if !items.is_empty() => self.sequence(items, indent, false),
                leaf => {
                    self.put(" ");
                    self.leaf(leaf, indent + STEP);
                }
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize, mut begun: bool) {
        for item in items {
            if !std::mem::take(&mut begun) {
                self.line(indent);
            }
            self.put("- ");
            match item {
                Value::Object(map) if !map.is_empty() => self.mapping(map, indent + STEP, true),
                Value::Array(items) if !items.is_empty() => {
                    self.sequence(items, indent + STEP, true)
                }
                leaf => self.leaf(leaf, indent + STEP),
            }
        }
    }

    fn leaf(&mut self, value: &Value, indent: usize) {
        match value {
            Value::String(text) => self.text(text, indent, Breaks::Allowed),
            Value::Object(_) => self.put("{}"),
            Value::Array(_) => self.put("[]"),
            scalar => self.put(&scalar.to_string()),
        }
    }

    fn text(&mut self, text: &str, indent: usize, breaks: Breaks) {
        let styles = ScalarStyles::of(text);
        let ambiguous = !decode::is_plain_text(text);
        if text.contains('\n') && styles.literal && breaks == Breaks::Allowed {
            self.literal(text, indent);
        } else if text.contains('\n') || ambiguous || !styles.single_quoted {
            self.double_quoted(text, indent, breaks);
        } else if styles.plain {
            self.folded(text, indent, breaks);
        } else {
            self.put("'");
            self.folded(&text.replace('\'', "''"), indent, breaks);
            self.put("'");
        }
    }

    /// A literal block.
    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put(&STEP.to_string());
        }
        match text.strip_suffix('\n') {
            None => self.put("-"),
            Some(rest) if rest.is_empty() || rest.ends_with('\n') => self.put("+"),
            Some(_) => {}
        }
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.line(if line.is_empty() { 0 } else { indent });
            self.put(line);
        }
    }

    /// Plain text, or the text between single quotes.
    fn folded(&mut self, text: &str, indent: usize, breaks: Breaks) {
        let mut before = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let alone = c == ' '
                && before.is_some_and(|b| b != ' ')
                && chars.peek().is_some_and(|next| *next != ' ');
            if alone && breaks == Breaks::Allowed && self.column > WIDTH {
                self.line(indent);
            } else {
                self.push(c);
            }
            before = Some(c);
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, breaks: Breaks) {
        self.put("\"");
        let mut before = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if !is_printable(c) || is_break(c) || matches!(c, '"' | '\\') {
                self.escape(c);
            } else if c == ' '
                && before.is_some_and(|b| b != ' ')
                && chars.peek().is_some()
                && breaks == Breaks::Allowed
                && self.column > WIDTH
            {
                self.line(indent);
                if chars.peek() == Some(&' ') {
                    self.put("\\");
                }
            } else {
                self.push(c);
            }
            before = Some(c);
        }
        self.put("\"");
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '\0' => '0',
            '\u{7}' => 'a',
            '\u{8}' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\u{b}' => 'v',
            '\u{c}' => 'f',
            '\r' => 'r',
            '\u{1b}' => 'e',
            '"' | '\\' => c,
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            _ => {
                let code = u32::from(c);
                return match code {
                    0..=0xFF => self.put(&format!("\\x{code:02X}")),
                    0x100..=0xFFFF => self.put(&format!("\\u{code:04X}")),
                    _ => self.put(&format!("\\U{code:08X}")),
                };
            }
        };
        self.push('\\');
        self.push(short);
    }

    fn line(&mut self, indent: usize) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    fn put(&mut self, text: &str) {
        text.chars().for_each(|c| self.push(c));
    }

    fn push(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }
}

/// The scalar styles in which a text can be written.
struct ScalarStyles {
    plain: bool,
    single_quoted: bool,
    literal: bool,
}

impl ScalarStyles {
    fn of(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let blank = |i: usize| {
            chars
                .get(i)
                .is_none_or(|c| matches!(c, ' ' | '\t') || is_break(*c))
        };
        let mut indicator = text.starts_with("---") || text.starts_with("...");
        let mut space_before_break = false;
        let mut break_before_space = false;
        for (i, c) in chars.iter().enumerate() {
            indicator |= match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"'
                | '%' | '@' | '`'
                    if i == 0 =>
                {
                    true
                }
                '?' | '-' if i == 0 => blank(i + 1),
                ':' => blank(i + 1),
                '#' => blank(i - 1),
                _ => false,
            };
            let before = i.checked_sub(1).map(|i| chars[i]);
            break_before_space |= *c == ' ' && before.is_some_and(is_break);
            space_before_break |= is_break(*c) && before == Some(' ');
        }
        let special = chars.iter().any(|c| !is_printable(*c));
        let breaks = chars.iter().any(|c| is_break(*c));
        let edges = [chars.first(), chars.last()]
            .into_iter()
            .flatten()
            .any(|c| *c == ' ' || is_break(*c));
        let odd = space_before_break || special;
        Self {
            plain: !(indicator || breaks || edges || odd),
            single_quoted: !(odd || break_before_space),
            literal: !(odd || chars.last() == Some(&' ')),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && c != '\u{feff}'
}

/// Letters as letters, numbers by their value, anything else before letters.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(i) = a.iter().zip(&b).position(|(a, b)| a != b) else {
        return a.len().cmp(&b.len());
    };
    match (a[i].is_alphabetic(), b[i].is_alphabetic()) {
        (true, true) => return a[i].cmp(&b[i]),
        (a, b) if a || b => return a.cmp(&b),
        _ => {}
    }
    // A zero counts only behind another digit: 10 and 1 differ in value, 01 and 1 in length.
    let behind_digits = a[..i]
        .iter()
        .rev()
        .take_while(|c| c.is_ascii_digit())
        .any(|c| *c != '0');
    let start = u64::from((a[i] == '0' || b[i] == '0') && behind_digits);
    let number = |text: &[char]| {
        let digits = text[i..].iter().map_while(|c| c.to_digit(10));
        digits.fold((start, 0), |(value, len), digit| {
            (value.wrapping_mul(10).wrapping_add(digit.into()), len + 1)
        })
    };
    number(&a).cmp(&number(&b)).then(a[i].cmp(&b[i]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_go_writes_them() {
        let long = "word ".repeat(20);
        let cases = [
            (
                json!({"a": {"b": 1, "c": [{"x": true, "y": null}, [1, [2]], "s", {}, []]}, "e": {}, "l": []}),
                "a:\n  b: 1\n  c:\n  - x: true\n    \"y\": null\n  - - 1\n    - - 2\n  - s\n  - {}\n  - []\ne: {}\nl: []\n".to_owned(),
            ),
            (
                json!({"f:data": {".": {}, "f:k": {}, "k:{\"name\":\"a\"}": {}}}),
                "f:data:\n  .: {}\n  f:k: {}\n  k:{\"name\":\"a\"}: {}\n".to_owned(),
            ),
            (json!({"a10": 1, "a2": 1, "b": 1, "A": 1, "-": 1}), "'-': 1\nA: 1\na2: 1\na10: 1\nb: 1\n".to_owned()),
            (
                json!(["yes", "1", "0x1f", "~", "", "2026-01-01T00:00:00Z", "1:30", "1.5e3", "v1"]),
                "- \"yes\"\n- \"1\"\n- \"0x1f\"\n- \"~\"\n- \"\"\n- \"2026-01-01T00:00:00Z\"\n- \"1:30\"\n- \"1.5e3\"\n- v1\n".to_owned(),
            ),
            (
                json!(["a: b", "a #b", "a#b", "it's", "'q'", "-", "- a", "-a", "@x", " x", "x ", "http://x:1/"]),
                "- 'a: b'\n- 'a #b'\n- a#b\n- it's\n- '''q'''\n- '-'\n- '- a'\n- -a\n- '@x'\n- ' x'\n- 'x '\n- http://x:1/\n".to_owned(),
            ),
            (
                json!(["x\ny\n", "x\ny", "x\n\n", "\n", " x\ny", "x \ny", "x\n y"]),
                "- |\n  x\n  y\n- |-\n  x\n  y\n- |+\n  x\n\n- |2+\n\n- |2-\n   x\n  y\n- \"x \\ny\"\n- |-\n  x\n   y\n".to_owned(),
            ),
            (
                json!(["tab\there", "alert\u{7}", "smile \u{1F600}", "é", "q\"\\\n "]),
                "- \"tab\\there\"\n- \"alert\\a\"\n- \"smile \\U0001F600\"\n- é\n- \"q\\\"\\\\\\n \"\n".to_owned(),
            ),
            (json!({"k": long.trim()}), format!("k: {}\n  {}\n", "word ".repeat(16).trim(), "word ".repeat(4).trim())),
            (json!({"k": "a\nb", "x\ny": 1}), "k: |-\n  a\n  b\n? |-\n  x\n  y\n: 1\n".to_owned()),
        ];
        for (value, want) in cases {
            assert_eq!(to_yaml(&value), want, "{value}");
        }
    }

    #[test]
    fn written_values_round_trip() {
        for text in [
            "",
            "null",
            "on",
            "1_000",
            "a: b",
            "x\n y\n\n",
            " lead",
            "tail ",
            "\u{85}",
            "'",
            "\"",
            "%a",
            "key: |",
            &"w ".repeat(200),
        ] {
            let value = json!({text: [text, {"k": text}]});
            let yaml = to_yaml(&value);
            let tree = decode::parse(yaml.as_bytes(), decode::Media::Yaml)
                .expect("YAML")
                .root;
            assert_eq!(
                tree.into_value(&mut Vec::new()).expect("a value"),
                value,
                "{text:?}"
            );
        }
    }
}
