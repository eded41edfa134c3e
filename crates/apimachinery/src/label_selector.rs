//! Label selectors: `app=web,tier in (front,back),!legacy`.
//! Guarantees: grammar and error messages are those of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    field::{FieldError, Path},
    names,
};

/// A list of requirements that must all hold; none selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// The sentence Kubernetes answers with.
    pub fn parse(text: &str) -> Result<Self, String> {
        Parser {
            tokens: tokens(text),
            at: 0,
        }
        .selector()
    }

    /// Whether there is no requirement.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements
            .iter()
            .all(|r| r.matches(labels.get(&r.key)))
    }
}

impl Requirement {
    fn new(key: &str, operator: &Token, values: BTreeSet<String>) -> Result<Self, String> {
        let mut errors = Vec::new();
        let key_errors = names::qualified_name(key);
        if !key_errors.is_empty() {
            errors.push(FieldError::invalid("key", key, &key_errors.join("; ")));
        }
        let path = Path::field("values");
        let mut number = 0;
        if matches!(operator, Token::Above | Token::Below) {
            for (i, value) in values.iter().enumerate() {
                match value.parse() {
                    Ok(n) => number = n,
                    Err(_) => errors.push(FieldError::invalid(
                        path.index(i),
                        value,
                        "for 'Gt', 'Lt' operators, the value must be an integer",
                    )),
                }
            }
        }
        for (i, value) in values.iter().enumerate() {
            let value_errors = names::label_value(value);
            if !value_errors.is_empty() {
                errors.push(FieldError::invalid(
                    path.index(i).key(key),
                    value,
                    &value_errors.join("; "),
                ));
            }
        }
        match errors.as_slice() {
            [] => {}
            [one] => return Err(one.to_string()),
            many => {
                return Err(format!(
                    "[{}]",
                    many.iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                ));
            }
        }
        let test = match operator {
            Token::NotEquals | Token::NotIn => Test::NotIn(values),
            Token::Above => Test::Above(number),
            Token::Below => Test::Below(number),
            _ => Test::In(values),
        };
        Ok(Self {
            key: key.to_owned(),
            test,
        })
    }

    fn matches(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|v| values.contains(v)),
            Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Test::Above(limit) => number().is_some_and(|n| n > *limit),
            Test::Below(limit) => number().is_some_and(|n| n < *limit),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Above,
    Below,
    NotEquals,
    Open,
    In,
    NotIn,
    Word,
}

const SYMBOLS: [(&str, Token); 9] = [
    (")", Token::Close),
    (",", Token::Comma),
    ("!", Token::Not),
    ("==", Token::DoubleEquals),
    ("=", Token::Equals),
    (">", Token::Above),
    ("<", Token::Below),
    ("!=", Token::NotEquals),
    ("(", Token::Open),
];

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

/// The separators of tokens. Other white space is part of a token, and makes it invalid.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Tokens with their texts, ended by [`Token::End`].
fn tokens(text: &str) -> Vec<(Token, String)> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(is_space);
        let Some(first) = rest.chars().next() else {
            break;
        };
        let (token, len) = if is_symbol(first) {
            // The longest symbol wins; a single character always is one.
            let two = rest
                .get(..2)
                .and_then(|s| SYMBOLS.iter().find(|(symbol, _)| *symbol == s));
            let (symbol, token) = two
                .or_else(|| {
                    SYMBOLS
                        .iter()
                        .find(|(s, _)| rest.starts_with(*s) && s.len() == 1)
                })
                .expect("every symbol character is a symbol");
            (token.clone(), symbol.len())
        } else {
            let len = rest
                .find(|c: char| is_symbol(c) || is_space(c))
                .unwrap_or(rest.len());
            let token = match &rest[..len] {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Word,
            };
            (token, len)
        };
        out.push((token, rest[..len].to_owned()));
        rest = &rest[len..];
    }
    out.push((Token::End, String::new()));
    out
}

struct Parser {
    tokens: Vec<(Token, String)>,
    at: usize,
}

impl Parser {
    /// The next token; where a value is expected, `in` and `notin` are identifiers.
    fn peek(&self) -> (Token, String) {
        let (token, text) = self.tokens[self.at].clone();
        (
            if matches!(token, Token::In | Token::NotIn) {
                Token::Word
            } else {
                token
            },
            text,
        )
    }

    fn take(&mut self) -> (Token, String) {
        let next = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        next
    }

    fn take_operator(&mut self) -> (Token, String) {
        let next = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        next
    }

    fn selector(mut self) -> Result<LabelSelector, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Not, _) => {
                    requirements.push(
                        self.requirement()
                            .map_err(|e| format!("unable to parse requirement: {e}"))?,
                    );
                    match self.take() {
                        (Token::End, _) => break,
                        (Token::Comma, _) => match self.peek() {
                            (Token::Word | Token::Not, _) => {}
                            (_, text) => {
                                return Err(format!(
                                    "found '{text}', expected: identifier after ','"
                                ));
                            }
                        },
                        (_, text) => {
                            return Err(format!(
                                "found '{text}', expected: ',' or 'end of string'"
                            ));
                        }
                    }
                }
                (Token::End, _) => break,
                (_, text) => {
                    return Err(format!(
                        "found '{text}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
        }
        Ok(LabelSelector { requirements })
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let errors = names::qualified_name(&key);
        if !errors.is_empty() {
            return Err(FieldError::invalid("<nil>", &key, &errors.join("; ")).to_string());
        }
        if negated {
            return Ok(Requirement {
                key,
                test: Test::Absent,
            });
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(Requirement {
                key,
                test: Test::Exists,
            });
        }
        let (operator, text) = self.take_operator();
        let values = match operator {
            Token::In | Token::NotIn => self.values()?,
            Token::Equals
            | Token::DoubleEquals
            | Token::NotEquals
            | Token::Above
            | Token::Below => self.exact_value()?,
            _ => {
                return Err(format!(
                    "found '{text}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        };
        Requirement::new(&key, &operator, values)
    }

    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        let (token, text) = self.take();
        if token != Token::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        match self.peek() {
            (Token::Word | Token::Comma, _) => {
                let values = self.words()?;
                match self.take() {
                    (Token::Close, _) => Ok(values),
                    (_, text) => Err(format!("found '{text}', expected: ')'")),
                }
            }
            (Token::Close, _) => {
                self.take();
                Ok(BTreeSet::new())
            }
            (_, text) => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    fn words(&mut self) -> Result<BTreeSet<String>, String> {
        let mut values = BTreeSet::new();
        loop {
            match self.take() {
                (Token::Word, word) => {
                    values.insert(word);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, text) => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.insert(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.take();
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                (_, text) => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
    }

    fn exact_value(&mut self) -> Result<BTreeSet<String>, String> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([String::new()]));
        }
        match self.take() {
            (Token::Word, word) => Ok(BTreeSet::from([word])),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> Result<bool, String> {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        LabelSelector::parse(selector).map(|s| s.matches(&labels))
    }

    #[test]
    fn every_operator_selects_as_kubernetes_does() {
        let web = [("app", "web"), ("rank", "3")];
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,rank=3", true),
            ("app!=web", false),
            ("tier!=front", true),
            ("app in (web,db)", true),
            ("app notin (web)", false),
            ("tier notin (a)", true),
            ("tier in ()", false),
            ("app", true),
            ("!app", false),
            ("!tier", true),
            ("rank>2", true),
            ("rank<3", false),
            ("tier>1", false),
            ("in=x", false),
            ("app=", false),
            ("x in (,a)", false),
        ] {
            assert_eq!(selects(selector, &web), Ok(expected), "{selector}");
        }
    }

    #[test]
    fn invalid_selectors_have_the_messages_of_kubernetes() {
        for (selector, message) in [
            (
                "app===x",
                "unable to parse requirement: found '=', expected: identifier",
            ),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "app in x",
                "unable to parse requirement: found 'x' expected: '('",
            ),
            (
                "a in",
                "unable to parse requirement: found '' expected: '('",
            ),
            (
                "rank>high",
                "unable to parse requirement: values[0]: Invalid value: \"high\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            (
                ",",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("a,", "found '', expected: identifier after ','"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ] {
            assert_eq!(
                LabelSelector::parse(selector),
                Err(message.to_owned()),
                "{selector}"
            );
        }
    }
}
