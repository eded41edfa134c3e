//! Decodes JSON to a tree, in one pass over the bytes.
//! In: a body. Out: a [`Node`] that borrows from it, or the error Go's decoder would give.
//! Guarantees: nesting and the number of objects are limited; invalid UTF-8 is replaced as Go does;
//! only text with errors is read twice.

use std::borrow::Cow;

use bellerophon_apimachinery::field::go_quote;

use super::{DEPTH_MAX, Members, Node, OBJECTS_MAX};

/// Reads one JSON value that fills all of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Result<Node<'_>, String> {
    let mut scanner = Scanner {
        bytes,
        text: std::str::from_utf8(bytes).ok(),
        at: 0,
        depth: 0,
        objects: 0,
    };
    let node = scanner.value()?;
    match scanner.next_byte() {
        None => Ok(node),
        Some(_) => Err(scanner.errors("after top-level value")),
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    /// The same bytes when all of them are UTF-8.
    text: Option<&'a str>,
    at: usize,
    depth: usize,
    /// Objects with members so far.
    objects: usize,
}

impl<'a> Scanner<'a> {
    fn value(&mut self) -> Result<Node<'a>, String> {
        match self.next_byte() {
            Some(b'"') => self.string().map(Node::String),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true", Node::Bool(true)),
            Some(b'f') => self.literal("false", Node::Bool(false)),
            Some(b'n') => self.literal("null", Node::Null),
            _ => Err(self.errors("looking for beginning of value")),
        }
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Node<'a>, String>,
    ) -> Result<Node<'a>, String> {
        if self.depth == DEPTH_MAX {
            return Err(self.errors("exceeded max depth"));
        }
        self.depth += 1;
        self.at += 1;
        let node = read(self)?;
        self.depth -= 1;
        Ok(node)
    }

    fn array(&mut self) -> Result<Node<'a>, String> {
        let mut items = Vec::new();
        if self.next_byte() == Some(b']') {
            self.at += 1;
            return Ok(Node::Array(items));
        }
        loop {
            items.push(self.value()?);
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.errors("after array element")),
            }
        }
        self.at += 1;
        Ok(Node::Array(items))
    }

    fn object(&mut self) -> Result<Node<'a>, String> {
        let mut members: Members<'a> = Vec::new();
        if self.next_byte() == Some(b'}') {
            self.at += 1;
            return Ok(Node::Object(members));
        }
        self.objects += 1;
        if self.objects > OBJECTS_MAX {
            return Err(format!("exceeded max objects of {OBJECTS_MAX}"));
        }
        loop {
            if self.next_byte() != Some(b'"') {
                return Err(self.errors("looking for beginning of object key string"));
            }
            let key = self.string()?;
            if self.next_byte() != Some(b':') {
                return Err(self.errors("after object key"));
            }
            self.at += 1;
            let value = self.value()?;
            members.push((key, value));
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.errors("after object key:value pair")),
            }
        }
        self.at += 1;
        Ok(Node::Object(members))
    }

    /// Reads a string from its opening quote on.
    fn string(&mut self) -> Result<Cow<'a, str>, String> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(0x20..) => self.at += 1,
                _ => return Err(self.errors("in string literal")),
            }
        }
        let end = self.at;
        self.at += 1;
        let text = match self.text {
            Some(text) => Cow::Borrowed(&text[start..end]),
            None => repair(&self.bytes[start..end]),
        };
        Ok(if escaped {
            Cow::Owned(unescape(&text))
        } else {
            text
        })
    }

    fn escape(&mut self) -> Result<(), String> {
        self.at += 1;
        match self.bytes.get(self.at) {
            Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
            Some(b'u') => {
                for _ in 0..4 {
                    self.at += 1;
                    if !self.bytes.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                        return Err(self.error_inside("in \\u hexadecimal character escape"));
                    }
                }
                self.at += 1;
            }
            _ => return Err(self.error_inside("in string escape code")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Node<'a>, String> {
        let start = self.at;
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        match self.bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.error_inside("in numeric literal")),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at])
            .expect("digits, signs and letters are ASCII");
        Ok(Node::Number(text.into()))
    }

    fn some_digits(&mut self, place: &str) -> Result<(), String> {
        if !self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            return Err(self.error_inside(place));
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn literal(&mut self, word: &str, node: Node<'a>) -> Result<Node<'a>, String> {
        for expected in word.bytes() {
            if self.bytes.get(self.at) != Some(&expected) {
                return Err(self.error_inside(&format!(
                    "in literal {word} (expecting '{}')",
                    char::from(expected)
                )));
            }
            self.at += 1;
        }
        Ok(node)
    }

    /// The next byte that is no white space; it is not consumed.
    fn next_byte(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// The error for the byte that is next, between values.
    fn errors(&self, place: &str) -> String {
        match self.bytes.get(self.at) {
            None => "unexpected end of JSON input".to_owned(),
            Some(_) => self.error_inside(place),
        }
    }

    /// The error for the byte that is next inside a value, where Go takes the end of the input for
    /// a space.
    fn error_inside(&self, place: &str) -> String {
        format!(
            "invalid character {} {place}",
            quoted(self.bytes.get(self.at).copied().unwrap_or(b' '))
        )
    }
}

/// A byte in single quotes, as a character of that number.
fn quoted(byte: u8) -> String {
    match char::from(byte) {
        '\'' => r"'\''".to_owned(),
        '"' => "'\"'".to_owned(),
        c @ '\u{80}'..='\u{9f}' => format!(r"'\u{:04x}'", u32::from(c)),
        c => {
            let text = go_quote(c.encode_utf8(&mut [0; 4]));
            format!("'{}'", &text[1..text.len() - 1])
        }
    }
}

/// Every byte that is not part of a UTF-8 character becomes a replacement character.
fn repair(bytes: &[u8]) -> Cow<'_, str> {
    let mut chunks = bytes.utf8_chunks();
    if let (Some(first), None) = (chunks.next(), chunks.next())
        && first.invalid().is_empty()
    {
        return Cow::Borrowed(first.valid());
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// Resolves the escapes of a string whose escapes are known to be well formed. A surrogate without
/// its other half is replaced.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(slash) = rest.find('\\') {
        out.push_str(&rest[..slash]);
        let escape = rest.as_bytes()[slash + 1];
        rest = &rest[slash + 2..];
        match escape {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let (c, used) = unicode(rest);
                out.push(c);
                rest = &rest[used..];
            }
            other => out.push(char::from(other)),
        }
    }
    out.push_str(rest);
    out
}

/// The character of the four digits `text` starts with, together with a second half that follows,
/// and how many bytes that takes.
fn unicode(text: &str) -> (char, usize) {
    let unit =
        |text: &str| u32::from_str_radix(text.get(..4).unwrap_or_default(), 16).unwrap_or_default();
    let first = unit(text);
    if let (0xd800..0xdc00, Some(second)) = (first, text[4..].strip_prefix("\\u").map(unit))
        && (0xdc00..0xe000).contains(&second)
    {
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
            10,
        );
    }
    (
        char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER),
        4,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn value(text: &[u8]) -> Result<Value, String> {
        parse(text)?.into_value(&mut Vec::new())
    }

    #[test]
    fn valid_json_is_decoded() {
        let cases = [
            (
                r#" {"a": [1, -2.5e1, true, false, null, "x"], "b": {}} "#,
                json!({"a": [1, -25, true, false, null, "x"], "b": {}}),
            ),
            (
                r#""tab\t \u00e9 \ud83d\ude00 \ud83d! \/ \"""#,
                json!("tab\t é 😀 \u{fffd}! / \""),
            ),
            ("[]", json!([])),
            ("0", json!(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text.as_bytes()), Ok(expected), "{text}");
        }
        assert_eq!(value(b"\"a\xff\xfeb\""), Ok(json!("a\u{fffd}\u{fffd}b")));
    }

    #[test]
    fn malformed_json_has_the_messages_of_go() {
        let cases = [
            ("", "unexpected end of JSON input"),
            (r#"{"kind":"ConfigMap","#, "unexpected end of JSON input"),
            (r#"{"a": "#, "unexpected end of JSON input"),
            (
                "not json at all",
                "invalid character 'o' in literal null (expecting 'u')",
            ),
            (
                "tru",
                "invalid character ' ' in literal true (expecting 'e')",
            ),
            (
                "[1.",
                "invalid character ' ' after decimal point in numeric literal",
            ),
            ("\"\\", "invalid character ' ' in string escape code"),
            ("\"abc", "unexpected end of JSON input"),
            (
                "falze",
                "invalid character 'z' in literal false (expecting 's')",
            ),
            (
                "{a: 1}",
                "invalid character 'a' looking for beginning of object key string",
            ),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (
                r#"{"a":1 "b":2}"#,
                "invalid character '\"' after object key:value pair",
            ),
            ("[1 2]", "invalid character '2' after array element"),
            (
                "[1,]",
                "invalid character ']' looking for beginning of value",
            ),
            ("{} x", "invalid character 'x' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            ("-x", "invalid character 'x' in numeric literal"),
            (
                "1.x",
                "invalid character 'x' after decimal point in numeric literal",
            ),
            (
                "1e+x",
                "invalid character 'x' in exponent of numeric literal",
            ),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            (r#""\x""#, "invalid character 'x' in string escape code"),
            (
                r#""\u12g4""#,
                "invalid character 'g' in \\u hexadecimal character escape",
            ),
            (
                "'a'",
                r"invalid character '\'' looking for beginning of value",
            ),
        ];
        for (text, why) in cases {
            assert_eq!(value(text.as_bytes()), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(value(deep(DEPTH_MAX).as_bytes()).is_ok());
        assert_eq!(
            value(deep(DEPTH_MAX + 1).as_bytes()),
            Err("invalid character '[' exceeded max depth".to_owned())
        );
    }
}
