//! Regular expressions in Go's syntax, matched by Rust's engine in linear time.
//! In: the pattern of a schema or an expression. Out: whether a string matches, or the errors of
//! the pattern with Go's messages.
//! Guarantees: a compiled pattern takes at most [`PROGRAM_BYTES_MAX`], all patterns of a
//! [`PatternSet`] at most [`SET_BYTES_MAX`]; the differences between the dialects are listed at
//! [`Translation`].

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};
use regex_automata::meta;

/// How much memory one compiled pattern may take.
const PROGRAM_BYTES_MAX: usize = 4 << 20;

/// How much memory the compiled patterns of a [`PatternSet`] may take together.
const SET_BYTES_MAX: usize = 64 << 20;

/// Go's ceiling for `x{n}`.
const REPEAT_MAX: u32 = 1000;

/// A regular expression in Go's dialect, compiled or with its error.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text as it was written; messages show it.
    pub source: String,
    compiled: Result<meta::Regex, String>,
}

/// Compiles the patterns of one schema: equal ones once, and all of them within a memory limit.
///
/// # Examples
/// ```
/// use bellerophon_cel::PatternSet;
///
/// let mut patterns = PatternSet::default();
/// assert!(patterns.compile("^[a-z]+$").is_match("abc"));
/// ```
#[derive(Debug, Default)]
pub struct PatternSet {
    compiled: HashMap<String, Pattern>,
    program_bytes: usize,
}

impl PatternSet {
    /// Compiles a pattern. An invalid one is kept with its error. A pattern over the memory limit
    /// of the set is invalid, and is not compiled.
    pub fn compile(&mut self, source: &str) -> Pattern {
        if let Some(pattern) = self.compiled.get(source) {
            return pattern.clone();
        }
        let bytes_left = SET_BYTES_MAX.saturating_sub(self.program_bytes);
        let compiled = compile_program(source, PROGRAM_BYTES_MAX.min(bytes_left));
        self.program_bytes += match &compiled {
            Ok(program) => program.memory_usage(),
            // A program that became too large took the time of the largest one.
            Err(BuildError::TooLarge) => PROGRAM_BYTES_MAX,
            Err(BuildError::Syntax(_)) => 0,
        };
        let pattern = Pattern {
            source: source.to_owned(),
            compiled: compiled.map_err(|error| error.in_go(source)),
        };
        self.compiled.insert(source.to_owned(), pattern.clone());
        pattern
    }
}

impl Pattern {
    /// The errors of the pattern, with the messages of Go.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.compiled.as_ref().err().map(String::as_str)
    }

    /// Whether the pattern matches in `text`; an invalid pattern matches nowhere.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.compiled
            .as_ref()
            .is_ok_and(|regex| regex.is_match(text))
    }
}

/// Why a pattern does not compile.
enum BuildError {
    /// Its errors, with the messages of Go.
    Syntax(String),
    /// The program exceeds its memory limit.
    TooLarge,
}

impl BuildError {
    /// The error of `regexp.Compile`.
    fn in_go(self, source: &str) -> String {
        let problem = match self {
            Self::Syntax(problem) => problem,
            Self::TooLarge => in_go(source, "exceeds size limit"),
        };
        format!("error parsing regexp: {problem}")
    }
}

/// Compiles the pattern of a schema. The engines that allocate more than the program while they
/// match are off: a schema may have thousands of patterns, each with its own memory for that.
fn compile_program(source: &str, bytes_max: usize) -> Result<meta::Regex, BuildError> {
    let translated = Translation::of(source).map_err(BuildError::Syntax)?;
    if bytes_max == 0 {
        return Err(BuildError::TooLarge);
    }
    let config = meta::Config::new()
        .nfa_size_limit(Some(bytes_max))
        .hybrid(false)
        .dfa(false);
    meta::Builder::new()
        .configure(config)
        .build(&translated)
        .map_err(|error| match error.syntax_error() {
            Some(syntax) => BuildError::Syntax(in_go(source, &syntax.to_string())),
            None => BuildError::TooLarge,
        })
}

/// Compiles a pattern.
///
/// # Errors
/// Its errors, with the messages of Go.
pub(crate) fn compile(source: &str) -> Result<Regex, String> {
    compile_within(source, PROGRAM_BYTES_MAX)
}

/// Like [`compile`], for a pattern that may take only so much memory.
pub(crate) fn compile_within(source: &str, bytes_max: usize) -> Result<Regex, String> {
    let translated = Translation::of(source).map_err(|e| format!("error parsing regexp: {e}"))?;
    RegexBuilder::new(&translated)
        .size_limit(bytes_max)
        .build()
        .map_err(|e| format!("error parsing regexp: {}", in_go(source, &e.to_string())))
}

/// The error with Go's message, as far as the two engines have the same errors.
fn in_go(source: &str, text: &str) -> String {
    let known = [
        ("unclosed character class", "missing closing ]"),
        ("unclosed group", "missing closing )"),
        ("unopened group", "unexpected )"),
        ("look-around", "invalid or unsupported Perl syntax"),
        ("flag", "invalid or unsupported Perl syntax"),
        (
            "invalid character class range",
            "invalid character class range",
        ),
        (
            "Unicode property not found",
            "invalid character class range",
        ),
        ("capture group name", "invalid named capture"),
        ("exceeds size limit", "expression too large"),
    ];
    let quoted = |at: &str| format!("`{at}`");
    if text.contains("repetition operator missing expression") {
        let operator = source
            .find(['*', '+', '?', '{'])
            .map_or("", |at| &source[at..=at]);
        return format!(
            "missing argument to repetition operator: {}",
            quoted(operator)
        );
    }
    match known.iter().find(|(ours, _)| text.contains(ours)) {
        Some((_, "missing closing ]")) => {
            format!(
                "missing closing ]: {}",
                quoted(source.rfind('[').map_or(source, |at| &source[at..]))
            )
        }
        Some((_, go)) => format!("{go}: {}", quoted(source)),
        None => format!("invalid or unsupported Perl syntax: {}", quoted(source)),
    }
}

/// Translates a pattern from Go's dialect to Rust's: `\d`, `\s`, `\w` and `\b` match ASCII only,
/// `\Q…\E` quotes, a bracket inside a class is a plain character, and the set operators `&&`, `--`
/// and `~~` do not exist.
struct Translation<'a> {
    source: &'a str,
    at: usize,
    out: String,
    in_class: bool,
}

impl<'a> Translation<'a> {
    fn of(source: &'a str) -> Result<String, String> {
        let mut t = Self {
            source,
            at: 0,
            out: String::with_capacity(source.len() + 8),
            in_class: false,
        };
        while let Some(c) = t.next() {
            match c {
                '\\' => t.escape()?,
                '[' if !t.in_class => t.open_class(),
                '[' if t.rest().starts_with(':') => t.posix_class(),
                '[' => t.out.push_str("\\["),
                ']' if t.in_class => {
                    t.in_class = false;
                    t.out.push(']');
                }
                '&' | '~' if t.in_class => t.out.extend(['\\', c]),
                '-' if t.in_class && t.rest().starts_with('-') => t.out.push_str("\\-"),
                '{' if !t.in_class => t.repeat()?,
                c => t.out.push(c),
            }
        }
        Ok(t.out)
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// A class opens; `]` in the first place is a plain character.
    fn open_class(&mut self) {
        self.in_class = true;
        self.out.push('[');
        if self.rest().starts_with('^') {
            self.at += 1;
            self.out.push('^');
        }
        if self.rest().starts_with(']') {
            self.at += 1;
            self.out.push_str("\\]");
        }
    }

    /// `[:alpha:]` inside a class; any other text that begins so is a bracket.
    fn posix_class(&mut self) {
        match self.rest().find(":]") {
            Some(end) => {
                self.out.push('[');
                self.out.push_str(&self.rest()[..end + 2]);
                self.at += end + 2;
            }
            None => self.out.push_str("\\["),
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let Some(c) = self.next() else {
            return Err("trailing backslash at end of expression: ``".into());
        };
        match c {
            'd' => self.ascii("0-9", false),
            'D' => self.ascii("0-9", true),
            'w' => self.ascii("0-9A-Za-z_", false),
            'W' => self.ascii("0-9A-Za-z_", true),
            's' => self.ascii("\\t\\n\\x0C\\r ", false),
            'S' => self.ascii("\\t\\n\\x0C\\r ", true),
            'b' if !self.in_class => self.out.push_str("(?-u:\\b)"),
            'Q' if !self.in_class => self.quote(),
            '<' | '>' => self.out.push(c),
            'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'x' | 'p' | 'P' => self.out.extend(['\\', c]),
            'A' | 'z' | 'B' if !self.in_class => self.out.extend(['\\', c]),
            c if c.is_ascii_alphanumeric() => {
                return Err(format!("invalid escape sequence: `\\{c}`"));
            }
            c => {
                if c.is_ascii() {
                    self.out.push('\\');
                }
                self.out.push(c);
            }
        }
        Ok(())
    }

    fn ascii(&mut self, set: &str, negated: bool) {
        match (self.in_class, negated) {
            (true, false) => self.out.push_str(set),
            (_, true) => self.out.extend(["[^", set, "]"]),
            (false, false) => self.out.extend(["[", set, "]"]),
        }
    }

    fn quote(&mut self) {
        let (quoted, used) = match self.rest().find("\\E") {
            Some(end) => (&self.rest()[..end], end + 2),
            None => (self.rest(), self.rest().len()),
        };
        self.at += used;
        self.out.push_str(&regex::escape(quoted));
    }

    /// `{n,m}`, or a plain brace when it is no repetition.
    fn repeat(&mut self) -> Result<(), String> {
        let bounds = self
            .rest()
            .split_once('}')
            .map(|(inside, _)| inside)
            .filter(|i| is_repetition(i));
        let Some(inside) = bounds else {
            self.out.push_str("\\{");
            return Ok(());
        };
        let too_many = |n: &str| !n.is_empty() && n.parse::<u32>().map_or(true, |n| n > REPEAT_MAX);
        let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
        let reversed =
            matches!((low.parse::<u32>(), high.parse::<u32>()), (Ok(low), Ok(high)) if low > high);
        if too_many(low) || too_many(high) || reversed {
            return Err(format!("invalid repeat count: `{{{inside}}}`"));
        }
        self.out.extend(["{", inside, "}"]);
        self.at += inside.len() + 1;
        Ok(())
    }
}

fn is_repetition(inside: &str) -> bool {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    !low.is_empty() && digits(low) && digits(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(source: &str) -> Pattern {
        PatternSet::default().compile(source)
    }

    #[test]
    fn go_patterns_match_as_in_go() {
        for (source, text, found) in [
            (r"^[a-z]+(-[a-z]+)*$", "a-b", true),
            (r"^\d+$", "١٢", false),
            (r"^[\d.]+$", "1.2", true),
            (r"^[^\s]+$", "a b", false),
            (r"^[[a]+$", "[a", true),
            (r"^[]a]+$", "]a", true),
            (r"^[[:alpha:]]$", "x", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[--/]$", ".", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\<x\/y\_$", "<x/y_", true),
            (r"^a{b$", "a{b", true),
            (r"^a{2,3}$", "aaa", true),
            (r"\bé", "é", false),
        ] {
            let compiled = pattern(source);
            assert_eq!(compiled.problem(), None, "{source}");
            assert_eq!(compiled.is_match(text), found, "{source} on {text}");
        }
    }

    #[test]
    fn invalid_patterns_have_the_messages_of_go() {
        for (source, problem) in [
            ("[a", "missing closing ]: `[a`"),
            ("(a", "missing closing ): `(a`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a)", "unexpected ): `a)`"),
            (r"\1", r"invalid escape sequence: `\1`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("a\\", "trailing backslash at end of expression: ``"),
        ] {
            assert_eq!(
                pattern(source).problem(),
                Some(format!("error parsing regexp: {problem}").as_str()),
                "{source}"
            );
        }
        assert!(pattern("(?=a)").problem().is_some());
        assert!(
            pattern("((a{900}){900}){900}").problem().is_some(),
            "a huge program is refused"
        );
    }

    #[test]
    fn patterns_of_a_set_stay_within_its_memory_limit() {
        let mut patterns = PatternSet::default();
        let compile = |patterns: &mut PatternSet, n: usize| {
            patterns.compile(&format!("^(a{{1000}}){{10}}{n}$"))
        };
        let accepted = (0..1_000)
            .take_while(|n| compile(&mut patterns, *n).problem().is_none())
            .count();
        assert!(accepted > 10, "{accepted}");
        assert!(accepted < 1_000, "{accepted}");
        let last = compile(&mut patterns, 1_000);
        let problem = last.problem().expect("the set is full");
        assert!(problem.contains("expression too large"), "{problem}");
    }

    #[test]
    fn equal_patterns_of_a_set_are_compiled_once() {
        let mut patterns = PatternSet::default();
        for _ in 0..100_000 {
            assert_eq!(patterns.compile("^a{1000}$").problem(), None);
        }
    }
}
