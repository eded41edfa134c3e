//! Decodes string and bytes literals.
//! In: the literal with its quotes and prefix. Out: its text or bytes.
//! Guarantees: a literal that the lexer accepts fails only on escapes that name no character.

/// The text of a string literal.
///
/// # Errors
/// The errors of an escape, with the messages of kube-apiserver.
pub(crate) fn string(literal: &str) -> Result<String, &'static str> {
    let (body, raw) = body(literal);
    if raw || !body.contains('\\') {
        return Ok(body);
    }
    let mut out = String::with_capacity(body.len());
    let mut rest = body.as_str();
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let (code, tail) = escape(after)?;
        out.push(char::from_u32(code.value).ok_or("invalid unicode code point")?);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// The bytes of a bytes literal, given without its `b`.
///
/// # Errors
/// The errors of an escape, with the messages of kube-apiserver.
pub(crate) fn bytes(literal: &str) -> Result<Vec<u8>, &'static str> {
    let (body, raw) = body(literal);
    if raw || !body.contains('\\') {
        return Ok(body.into_bytes());
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body.as_str();
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let (code, tail) = escape(after)?;
        if code.is_unicode {
            return Err("unable to unescape string");
        }
        out.push(u8::try_from(code.value).map_err(|_| "unable to unescape string")?);
        rest = tail;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// The text between the quotes, and whether it is raw. Line ends are always `\n`.
fn body(literal: &str) -> (String, bool) {
    let literal = literal.replace("\r\n", "\n").replace('\r', "\n");
    let raw = literal.starts_with(['r', 'R']);
    let quoted = if raw { &literal[1..] } else { literal.as_str() };
    let quotes = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\""))
    {
        3
    } else {
        1
    };
    (quoted[quotes..quoted.len() - quotes].to_owned(), raw)
}

struct Code {
    value: u32,
    /// Whether it was written as a code point, which is not allowed in bytes.
    is_unicode: bool,
}

/// Reads what follows a backslash.
fn escape(text: &str) -> Result<(Code, &str), &'static str> {
    const WRONG: &str = "unable to unescape string";
    let mut chars = text.chars();
    let first = chars.next().ok_or(WRONG)?;
    let plain = |value: char| {
        Ok((
            Code {
                value: value.into(),
                is_unicode: false,
            },
            &text[1..],
        ))
    };
    let number = |from: usize, digits: usize, radix: u32, is_unicode: bool| {
        let digits = text.get(from..from + digits).ok_or(WRONG)?;
        let value = u32::from_str_radix(digits, radix).map_err(|_| WRONG)?;
        Ok((Code { value, is_unicode }, &text[from + digits.len()..]))
    };
    match first {
        'a' => plain('\u{7}'),
        'b' => plain('\u{8}'),
        'f' => plain('\u{c}'),
        'n' => plain('\n'),
        'r' => plain('\r'),
        't' => plain('\t'),
        'v' => plain('\u{b}'),
        '\\' | '\'' | '"' | '`' | '?' => plain(first),
        'x' | 'X' => number(1, 2, 16, false),
        'u' => number(1, 4, 16, true),
        'U' => number(1, 8, 16, true),
        '0'..='3' => number(0, 3, 8, false),
        _ => Err(WRONG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_name_characters_and_bytes() {
        for (literal, text) in [
            (r"'a\n\x41\u00e9\U0001F600\101'", Ok("a\nAé😀A")),
            (r"r'a\n'", Ok(r"a\n")),
            ("'''a'b'''", Ok("a'b")),
            ("\"\"\"a\r\nb\"\"\"", Ok("a\nb")),
            (r"'\ud800'", Err("invalid unicode code point")),
            (r"''", Ok("")),
        ] {
            assert_eq!(string(literal), text.map(str::to_owned), "{literal}");
        }
        assert_eq!(bytes(r"'\xff\377é'"), Ok(vec![255, 255, 0xc3, 0xa9]));
        assert_eq!(bytes(r"'\u00e9'"), Err("unable to unescape string"));
    }
}
