//! The lexer: from text to tokens.
//! In: the text of an expression. Out: its tokens, and the characters that belong to none.
//! Guarantees: every token has its offset; the last one is the end of the text.

use crate::source::{Issues, Offset};

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// An operator or bracket, by its text.
    Sign(&'static str),
    Identifier,
    /// An identifier in backquotes.
    EscapedIdentifier,
    Int,
    Uint,
    Float,
    String,
    Bytes,
    End,
}

/// A token with its text.
#[derive(Clone, Debug)]
pub(crate) struct Lexeme {
    pub(crate) token: Token,
    pub(crate) text: String,
    pub(crate) at: Offset,
}

/// Longest first, so that the first match is the longest. The keywords among them are no
/// identifiers.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// Splits a text into tokens; what fits none is reported and skipped.
pub(crate) fn tokens(text: &str, issues: &mut Issues) -> Vec<Lexeme> {
    let chars: Vec<char> = text.chars().collect();
    let mut lexer = Lexer {
        chars: &chars,
        at: 0,
    };
    let mut found = Vec::new();
    while lexer.skip_blanks() {
        let begin = lexer.at;
        let lexeme = |token, end: usize| Lexeme {
            token,
            text: chars[begin..end].iter().collect(),
            at: offset(begin),
        };
        match lexer.token() {
            Ok(token) => found.push(lexeme(token, lexer.at)),
            Err(end) => {
                let text: String = chars[begin..end].iter().collect();
                issues.report(
                    Some(offset(begin)),
                    format!(
                        "Syntax error: token recognition error at: '{}'",
                        escaped(&text)
                    ),
                );
                lexer.at = end;
            }
        }
    }
    found.push(Lexeme {
        token: Token::End,
        text: "<EOF>".into(),
        at: offset(chars.len()),
    });
    found
}

/// Line breaks would tear the message apart.
fn escaped(text: &str) -> String {
    text.replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn offset(at: usize) -> Offset {
    Offset::try_from(at).unwrap_or(Offset::MAX)
}

struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Skips what separates tokens; false at the end of the text.
    fn skip_blanks(&mut self) -> bool {
        loop {
            match self.peek(0) {
                Some('\t' | ' ' | '\r' | '\n' | '\u{c}') => self.at += 1,
                Some('/') if self.peek(1) == Some('/') => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                next => return next.is_some(),
            }
        }
    }

    /// Moves behind the next token, or returns the end of what fits no token.
    fn token(&mut self) -> Result<Token, usize> {
        let begin = self.at;
        if let Some(token) = self.text_literal()? {
            return Ok(token);
        }
        let Some(first) = self.peek(0) else {
            return Ok(Token::End);
        };
        if first.is_ascii_alphabetic() || first == '_' {
            self.skip_while(|c| c.is_ascii_alphanumeric() || c == '_');
            let text: String = self.chars[begin..self.at].iter().collect();
            return Ok(WORDS
                .iter()
                .find(|word| **word == text)
                .map_or(Token::Identifier, |word| Token::Sign(word)));
        }
        if first.is_ascii_digit()
            || (first == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit()))
        {
            return Ok(self.number());
        }
        if first == '`' {
            return self.escaped_identifier();
        }
        let sign = SIGNS.iter().find(|sign| {
            sign.chars()
                .enumerate()
                .all(|(i, c)| self.peek(i) == Some(c))
        });
        match sign {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            // The first half of `==`, `&&` or `||` takes the character behind it along.
            None if matches!(first, '=' | '&' | '|') => Err((begin + 2).min(self.chars.len())),
            None => Err(begin + 1),
        }
    }

    fn skip_while(&mut self, fits: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&fits) {
            self.at += 1;
        }
    }

    fn number(&mut self) -> Token {
        let digits = |c: char| c.is_ascii_digit();
        if self.peek(0) == Some('0')
            && self.peek(1) == Some('x')
            && self.peek(2).is_some_and(|c| c.is_ascii_hexdigit())
        {
            self.at += 2;
            self.skip_while(|c| c.is_ascii_hexdigit());
            return self.uint_or_int();
        }
        self.skip_while(digits);
        let mut token = Token::Int;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(digits) {
            self.at += 1;
            self.skip_while(digits);
            token = Token::Float;
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(digits) {
                self.at += 1 + sign;
                self.skip_while(digits);
                token = Token::Float;
            }
        }
        if token == Token::Int {
            self.uint_or_int()
        } else {
            token
        }
    }

    fn uint_or_int(&mut self) -> Token {
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            return Token::Uint;
        }
        Token::Int
    }

    fn escaped_identifier(&mut self) -> Result<Token, usize> {
        let begin = self.at;
        self.at += 1;
        self.skip_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '));
        if self.at > begin + 1 && self.peek(0) == Some('`') {
            self.at += 1;
            return Ok(Token::EscapedIdentifier);
        }
        let end = (self.at + 1).min(self.chars.len());
        self.at = begin;
        Err(end)
    }

    /// A string or bytes, if one begins here.
    fn text_literal(&mut self) -> Result<Option<Token>, usize> {
        let begin = self.at;
        let bytes = matches!(self.peek(0), Some('b' | 'B'));
        let raw = matches!(self.peek(usize::from(bytes)), Some('r' | 'R'));
        let prefix = usize::from(bytes) + usize::from(raw);
        let Some(quote @ ('"' | '\'')) = self.peek(prefix) else {
            return Ok(None);
        };
        let open = begin + prefix;
        let tripled = (0..3).all(|i| self.chars.get(open + i) == Some(&quote));
        if tripled && let Some(end) = end_of_triple(self.chars, open + 3, quote, raw) {
            self.at = end;
        } else {
            match end_of_single(self.chars, open + 1, quote, raw) {
                Ok(end) => self.at = end,
                // With a prefix in front, the prefix is read as an identifier.
                Err(_) if prefix > 0 => return Ok(None),
                Err(end) => return Err(end),
            }
        }
        Ok(Some(if bytes { Token::Bytes } else { Token::String }))
    }
}

/// Behind the closing quote, or behind the last character that could still have been part of the
/// string.
fn end_of_single(chars: &[char], mut at: usize, quote: char, raw: bool) -> Result<usize, usize> {
    loop {
        match chars.get(at) {
            None => return Err(chars.len()),
            Some(c) if *c == quote => return Ok(at + 1),
            Some('\n' | '\r') => return Err(at + 1),
            Some('\\') if !raw => at = end_of_escape(chars, at)?,
            Some(_) => at += 1,
        }
    }
}

fn end_of_triple(chars: &[char], mut at: usize, quote: char, raw: bool) -> Option<usize> {
    loop {
        if (0..3).all(|i| chars.get(at + i) == Some(&quote)) {
            return Some(at + 3);
        }
        match chars.get(at)? {
            '\\' if !raw => at = end_of_escape(chars, at).ok()?,
            _ => at += 1,
        }
    }
}

fn end_of_escape(chars: &[char], at: usize) -> Result<usize, usize> {
    let fits = |n: usize, ok: fn(char) -> bool| match (0..n)
        .find(|i| !chars.get(at + 2 + i).copied().is_some_and(ok))
    {
        None => Ok(at + 2 + n),
        Some(invalid) => Err((at + 3 + invalid).min(chars.len())),
    };
    match chars.get(at + 1) {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(at + 2),
        Some('x' | 'X') => fits(2, |c| c.is_ascii_hexdigit()),
        Some('u') => fits(4, |c| c.is_ascii_hexdigit()),
        Some('U') => fits(8, |c| c.is_ascii_hexdigit()),
        Some('0'..='3') => fits(2, |c| ('0'..='7').contains(&c)),
        _ => Err((at + 2).min(chars.len())),
    }
}
