//! Operands: names, literals, calls, lists, maps, and what follows them.
//! In: tokens. Out: nodes, or an error with the expected tokens.

use crate::{
    ast::{Entry, Expr, Item, Kind, Literal, Message, MessageField, Select, operator},
    lexer::{Lexeme, Token},
    source::Offset,
    unescape,
};

use super::{Parser, Stop};

const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// The first tokens of an operand, in the order in which messages list them.
const OPERAND: [&str; 15] = [
    "'['",
    "'{'",
    "'('",
    "'.'",
    "'-'",
    "'!'",
    "'true'",
    "'false'",
    "'null'",
    "NUM_FLOAT",
    "NUM_INT",
    "NUM_UINT",
    "STRING",
    "BYTES",
    "IDENTIFIER",
];

impl Parser<'_> {
    pub(super) fn member(&mut self) -> Result<Expr, Stop> {
        let mut expr = self.primary()?;
        loop {
            let part = if let Some(at) = self.take(".") {
                self.after_dot(expr, at)?
            } else if let Some(at) = self.take("[") {
                let id = self.id(at);
                let name = if self.take("?").is_some() {
                    operator::OPTIONAL_INDEX
                } else {
                    operator::INDEX
                };
                if name == operator::INDEX && !is_operand(self.peek().token) {
                    return Err(self.operand_missing(&["'?'"]));
                }
                let index = self.expression()?;
                self.expect("]")?;
                self.global_call(id, name, vec![expr, index])?
            } else {
                return Ok(expr);
            };
            expr = self.level(part)?;
        }
    }

    /// `.field`, `.?field` or `.method(…)`.
    fn after_dot(&mut self, operand: Expr, at: Offset) -> Result<Expr, Stop> {
        let optional = self.take("?").is_some();
        let name = self.peek().clone();
        match name.token {
            Token::Identifier => self.at += 1,
            Token::EscapedIdentifier => {
                self.report(Some(name.at), "unsupported syntax: '`'");
                self.at += 1;
            }
            Token::Sign("true" | "false" | "null") => {
                return Err(self.syntax_error(format!(
                    "mismatched input '{}' expecting IDENTIFIER",
                    name.text
                )));
            }
            Token::End => {
                return Err(self.syntax_error("no viable alternative at input '.'".into()));
            }
            _ => {
                return Err(
                    self.syntax_error(format!("no viable alternative at input '.{}'", name.text))
                );
            }
        }
        if optional {
            let id = self.id(at);
            let literal = self.id(name.at);
            let field = self.node(literal, Kind::Literal(Literal::String(name.text.into())))?;
            return self.global_call(id, operator::OPTIONAL_SELECT, vec![operand, field]);
        }
        if let Some(open) = self.take("(") {
            let id = self.id(open);
            let args = self.arguments()?;
            return self.call(id, name.text, Some(operand), args);
        }
        let id = self.id(at);
        self.node(
            id,
            Kind::Select(Select {
                operand: Box::new(operand),
                field: name.text,
                test: false,
            }),
        )
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, Stop> {
        let mut args = Vec::new();
        if self.take(")").is_some() {
            return Ok(args);
        }
        if !is_operand(self.peek().token) {
            return Err(self.operand_missing(&["')'"]));
        }
        args.push(self.expression()?);
        while self.take(",").is_some() {
            args.push(self.expression()?);
        }
        self.expect(")")?;
        Ok(args)
    }

    fn primary(&mut self) -> Result<Expr, Stop> {
        let lexeme = self.peek().clone();
        match lexeme.token {
            Token::Sign("(") => {
                self.at += 1;
                let expr = self.expression()?;
                self.expect(")")?;
                Ok(expr)
            }
            Token::Sign("[") => self.list(),
            Token::Sign("{") => self.map(),
            Token::Sign(".") | Token::Identifier => self.named(),
            Token::Sign("-") | Token::Sign("true" | "false" | "null") => self.literal(),
            Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => {
                self.literal()
            }
            _ if is_operand(self.peek_at(1)) && lexeme.token != Token::End => {
                let stop = self.operand_missing(&[]);
                self.at += 1;
                // One extra token is reported and skipped, as in Kubernetes, but the expression
                // fails.
                self.primary().and(Err(stop))
            }
            _ => Err(self.operand_missing(&[])),
        }
    }

    /// Reports the expected tokens: the beginnings of operands and `more`.
    fn operand_missing(&mut self, more: &[&'static str]) -> Stop {
        let order = ["'['", "'{'", "'('", "')'", "'.'", "'-'", "'!'", "'?'"];
        let mut expected: Vec<&str> = order
            .into_iter()
            .filter(|sign| OPERAND.contains(sign) || more.contains(sign))
            .collect();
        expected.extend(OPERAND.iter().filter(|sign| !order.contains(sign)));
        let found = self.peek().text.clone();
        let after = self.peek_at(1);
        let too_many = self.peek().token != Token::End
            && (is_operand(after) || (more.contains(&"')'") && after == Token::Sign(")")));
        let kind = if too_many { "extraneous" } else { "mismatched" };
        self.syntax_error(format!(
            "{kind} input '{found}' expecting {{{}}}",
            expected.join(", ")
        ))
    }

    /// A variable, a call, or a message: everything that begins with a name.
    fn named(&mut self) -> Result<Expr, Stop> {
        let begin = self.peek().at;
        let dot = if self.take(".").is_some() { "." } else { "" };
        let name = self.peek().clone();
        if name.token != Token::Identifier {
            return Err(self.syntax_error(format!(
                "mismatched input '{}' expecting IDENTIFIER",
                name.text
            )));
        }
        if let Some(length) = self.message_name() {
            let text: String = self.tokens[self.at..self.at + length]
                .iter()
                .map(|lexeme| lexeme.text.as_str())
                .collect();
            self.at += length;
            return self.message(format!("{dot}{text}"));
        }
        self.at += 1;
        let open = self.take("(");
        if RESERVED.contains(&name.text.as_str()) {
            self.report(Some(begin), format!("reserved identifier: {}", name.text));
        }
        let text = format!("{dot}{}", name.text);
        match open {
            None => {
                let id = self.id(name.at);
                self.node(id, Kind::Ident(text))
            }
            Some(open) => {
                let id = self.id(open);
                let args = self.arguments()?;
                self.call(id, text, None, args)
            }
        }
    }

    /// How many tokens make up the name of a message that begins here.
    fn message_name(&self) -> Option<usize> {
        let mut length = 1;
        while self.peek_at(length) == Token::Sign(".")
            && self.peek_at(length + 1) == Token::Identifier
        {
            length += 2;
        }
        (self.peek_at(length) == Token::Sign("{")).then_some(length)
    }

    fn message(&mut self, name: String) -> Result<Expr, Stop> {
        let at = self.expect("{")?;
        let id = self.id(at);
        let mut fields = Vec::new();
        while !self.is("}") {
            let optional = self.take("?").is_some();
            if !matches!(
                self.peek().token,
                Token::Identifier | Token::EscapedIdentifier
            ) {
                let found = self.peek().text.clone();
                return Err(self.syntax_error(format!("mismatched input '{found}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}")));
            }
            let written = self.peek().text.clone();
            self.at += 1;
            let colon = self.expect(":")?;
            let field = self.id(colon);
            let value = self.expression()?;
            fields.push(MessageField {
                id: field,
                name: written.trim_matches('`').to_owned(),
                value,
                optional,
            });
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}")?;
        self.node(id, Kind::Message(Message { name, fields }))
    }

    fn list(&mut self) -> Result<Expr, Stop> {
        let at = self.expect("[")?;
        let id = self.id(at);
        let mut items = Vec::new();
        while !self.is("]") {
            let optional = self.take("?").is_some();
            items.push(Item {
                value: self.expression()?,
                optional,
            });
            if self.take(",").is_none() {
                break;
            }
            if self.is(",") {
                return Err(self.syntax_error("mismatched input ',' expecting ']'".into()));
            }
        }
        self.close("]")?;
        self.node(id, Kind::List(items))
    }

    fn map(&mut self) -> Result<Expr, Stop> {
        let at = self.expect("{")?;
        let id = self.id(at);
        let mut entries = Vec::new();
        while !self.is("}") {
            let optional = self.take("?").is_some();
            let key = self.expression()?;
            let colon = self.expect(":")?;
            self.id(colon);
            entries.push(Entry {
                key,
                value: self.expression()?,
                optional,
            });
            if self.take(",").is_none() {
                break;
            }
            if self.is(",") {
                return Err(self.syntax_error("mismatched input ',' expecting '}'".into()));
            }
        }
        self.close("}")?;
        self.node(id, Kind::Map(entries))
    }

    /// The end of a list or map, where a comma could have followed as well.
    fn close(&mut self, sign: &'static str) -> Result<(), Stop> {
        if self.take(sign).is_some() {
            return Ok(());
        }
        let found = self.peek().text.clone();
        let kind = if self.peek_at(1) == Token::Sign(sign) {
            "extraneous"
        } else {
            "mismatched"
        };
        Err(self.syntax_error(format!(
            "{kind} input '{found}' expecting {{'{sign}', ','}}"
        )))
    }

    fn literal(&mut self) -> Result<Expr, Stop> {
        let at = self.peek().at;
        let minus = if self.take("-").is_some() { "-" } else { "" };
        let lexeme = self.peek().clone();
        if !minus.is_empty() && !matches!(lexeme.token, Token::Int | Token::Float) {
            return Err(self.syntax_error(format!(
                "no viable alternative at input '-{}'",
                if lexeme.token == Token::End {
                    ""
                } else {
                    &lexeme.text
                }
            )));
        }
        self.at += 1;
        let value = match literal_value(&lexeme, minus) {
            Ok(value) => value,
            Err(problem) => {
                self.report(Some(at), problem);
                Literal::Null
            }
        };
        let id = self.id(at);
        self.node(id, Kind::Literal(value))
    }
}

/// Whether an operand may begin with a token.
pub(super) fn is_operand(token: Token) -> bool {
    match token {
        Token::Identifier
        | Token::Int
        | Token::Uint
        | Token::Float
        | Token::String
        | Token::Bytes => true,
        Token::Sign(sign) => matches!(
            sign,
            "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null"
        ),
        Token::EscapedIdentifier | Token::End => false,
    }
}

fn literal_value(lexeme: &Lexeme, minus: &str) -> Result<Literal, &'static str> {
    let text = lexeme.text.as_str();
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    Ok(match lexeme.token {
        Token::Int => Literal::Int(
            i64::from_str_radix(&format!("{minus}{digits}"), radix)
                .map_err(|_| "invalid int literal")?,
        ),
        Token::Uint => Literal::Uint(
            u64::from_str_radix(&digits[..digits.len() - 1], radix)
                .map_err(|_| "invalid uint literal")?,
        ),
        Token::Float => {
            let number: f64 = format!("{minus}{text}")
                .parse()
                .map_err(|_| "invalid double literal")?;
            Literal::Double(if number.is_finite() {
                number
            } else {
                return Err("invalid double literal");
            })
        }
        Token::String => Literal::String(unescape::string(text)?.into()),
        Token::Bytes => Literal::Bytes(unescape::bytes(&text[1..])?.into()),
        Token::Sign("true") => Literal::Bool(true),
        Token::Sign("false") => Literal::Bool(false),
        _ => Literal::Null,
    })
}
