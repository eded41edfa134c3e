//! From tokens to a tree.
//! In: the text of an expression. Out: its tree without macros, and where each node stands; or what is wrong with the text.
//! Holds: text, nesting and number of nodes are bounded, whatever macros multiply; no tree is deeper than [`TREE_MAX`].

use crate::{
    ast::{ACCUMULATOR, Call, Entry, Expr, Id, Item, Kind, Literal, Select, operator},
    lexer::{self, Lexeme, Token},
    macros,
    source::{Issues, Offset, Source},
    unescape,
};

/// The longest expression, in code points. Kubernetes has the same limit.
const LENGTH_MAX: usize = 100_000;
/// How deep one kind of syntax may nest. Kubernetes has the same limit.
pub(crate) const DEPTH_MAX: usize = 250;
/// How deep the tree may be once macros are expanded.
pub(crate) const TREE_MAX: usize = 1000;
/// How many nodes a tree may have: more than the longest expression needs, unless macros multiply it.
const NODES_MAX: usize = 200_000;

/// The tree of an expression.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) expr: Expr,
    /// How deep the tree is.
    pub(crate) depth: usize,
    places: Vec<Offset>,
    source: Source,
}

impl Parsed {
    pub(crate) fn place(&self, id: Id) -> Option<Offset> {
        self.places.get(id as usize).copied()
    }

    pub(crate) fn issues(&self) -> Issues {
        Issues::new(self.source.clone())
    }

    /// One more than the largest id.
    pub(crate) fn ids(&self) -> usize {
        self.places.len()
    }
}

/// Parses an expression.
///
/// # Errors
/// What is wrong with its syntax.
pub(crate) fn parse(text: &str) -> Result<Parsed, Issues> {
    let source = Source::new(text);
    let mut issues = Issues::new(source.clone());
    let length = text.chars().count();
    if length > LENGTH_MAX {
        issues.report(None, format!("expression code point size exceeds limit: size: {length}, limit {LENGTH_MAX}"));
        return Err(issues);
    }
    let tokens = lexer::tokens(text, &mut issues);
    let mut parser = Parser { tokens: &tokens, at: 0, issues, places: Vec::new(), depths: Vec::new(), nesting: Nesting::default() };
    match parser.start() {
        Ok(expr) if parser.issues.is_empty() => {
            let depth = parser.depths[expr.id as usize].tree;
            Ok(Parsed { expr, depth, places: parser.places, source })
        }
        _ => Err(parser.issues),
    }
}

/// Parsing cannot go on; the reason is among the issues.
pub(crate) struct Stop;

/// How many of each rule of the grammar are open.
#[derive(Default)]
struct Nesting {
    expressions: usize,
    relations: usize,
    sums: usize,
}

#[derive(Clone, Copy, Default)]
struct Depth {
    /// As Kubernetes counts it: conditions, comparisons, sums, selections, calls of methods and indexes.
    syntax: usize,
    /// All nodes.
    tree: usize,
}

pub(crate) struct Parser<'a> {
    tokens: &'a [Lexeme],
    at: usize,
    issues: Issues,
    /// Where each node stands.
    places: Vec<Offset>,
    /// How deep the tree below each node is. As long as `places`.
    depths: Vec<Depth>,
    nesting: Nesting,
}

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

/// What an operand may begin with, in the order in which messages list it.
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

/// Binary operators with the strength by which they bind; `||` and `&&` bind least.
fn binary_operator(token: Token) -> Option<(&'static str, u8)> {
    let Token::Sign(sign) = token else { return None };
    Some(match sign {
        "||" => (operator::OR, 1),
        "&&" => (operator::AND, 2),
        "<" => (operator::LESS, 3),
        "<=" => (operator::LESS_EQUALS, 3),
        ">=" => (operator::GREATER_EQUALS, 3),
        ">" => (operator::GREATER, 3),
        "==" => (operator::EQUALS, 3),
        "!=" => (operator::NOT_EQUALS, 3),
        "in" => (operator::IN, 3),
        "+" => (operator::ADD, 4),
        "-" => (operator::SUBTRACT, 4),
        "*" => (operator::MULTIPLY, 5),
        "/" => (operator::DIVIDE, 5),
        "%" => (operator::MODULO, 5),
        _ => return None,
    })
}

impl Parser<'_> {
    fn peek(&self) -> &Lexeme {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn peek_at(&self, ahead: usize) -> Token {
        self.tokens.get(self.at + ahead).map_or(Token::End, |lexeme| lexeme.token)
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek().token, Token::Sign(s) if s == sign)
    }

    /// Moves on if the next token is `sign`, and tells where it stood.
    fn take(&mut self, sign: &str) -> Option<Offset> {
        let at = self.peek().at;
        self.is(sign).then(|| {
            self.at += 1;
            at
        })
    }

    pub(crate) fn report(&mut self, at: Option<Offset>, message: impl Into<String>) {
        self.issues.report(at, message);
    }

    fn wrong(&mut self, message: String) -> Stop {
        let at = self.peek().at;
        self.issues.report(Some(at), format!("Syntax error: {message}"));
        Stop
    }

    /// Demands `sign`. One token too many or too few is told as such.
    fn expect(&mut self, sign: &'static str) -> Result<Offset, Stop> {
        if let Some(at) = self.take(sign) {
            return Ok(at);
        }
        let found = self.peek().text.clone();
        let follows = match sign {
            ":" => is_operand(self.peek().token),
            _ => binary_operator(self.peek().token).is_some() || matches!(self.peek().token, Token::End | Token::Sign("." | "[" | "?")),
        };
        Err(self.wrong(if self.peek_at(1) == Token::Sign(sign) {
            format!("extraneous input '{found}' expecting '{sign}'")
        } else if follows {
            format!("missing '{sign}' at '{found}'")
        } else {
            format!("mismatched input '{found}' expecting '{sign}'")
        }))
    }

    fn id(&mut self, at: Offset) -> Id {
        self.places.push(at);
        self.depths.push(Depth::default());
        Id::try_from(self.places.len() - 1).expect("nodes are counted before they are made")
    }

    /// Where a node stands.
    pub(crate) fn place(&self, id: Id) -> Offset {
        self.places[id as usize]
    }

    /// Makes a node, and refuses it when the tree gets too deep or too large.
    fn node(&mut self, id: Id, kind: Kind) -> Result<Expr, Stop> {
        let mut below = Depth::default();
        let expr = Expr { id, kind };
        let mut add = |child: &Expr| {
            let depth = self.depths[child.id as usize];
            below = Depth { syntax: below.syntax.max(depth.syntax), tree: below.tree.max(depth.tree) };
        };
        match &expr.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Message(_) => {}
            Kind::Select(select) => add(&select.operand),
            Kind::Call(call) => call.target.as_deref().into_iter().chain(&call.args).for_each(add),
            Kind::List(items) => items.iter().for_each(|item| add(&item.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                add(&entry.key);
                add(&entry.value);
            }),
            Kind::Fold(fold) => {
                [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result].into_iter().for_each(add);
            }
        }
        self.set_depth(id, Depth { syntax: below.syntax, tree: below.tree + 1 })?;
        self.room_for(0)?;
        Ok(expr)
    }

    fn set_depth(&mut self, id: Id, depth: Depth) -> Result<(), Stop> {
        if depth.syntax > DEPTH_MAX || depth.tree > TREE_MAX {
            self.report(None, "max recursion depth exceeded");
            return Err(Stop);
        }
        self.depths[id as usize] = depth;
        Ok(())
    }

    /// Counts a node as one level of syntax.
    fn level(&mut self, expr: Expr) -> Result<Expr, Stop> {
        let depth = self.depths[expr.id as usize];
        self.set_depth(expr.id, Depth { syntax: depth.syntax + 1, ..depth })?;
        Ok(expr)
    }

    /// Refuses to make more nodes than a tree may have.
    fn room_for(&mut self, nodes: usize) -> Result<(), Stop> {
        if self.places.len() + nodes < NODES_MAX {
            return Ok(());
        }
        self.report(None, format!("expression size exceeds limit: {NODES_MAX} nodes"));
        Err(Stop)
    }

    fn start(&mut self) -> Result<Expr, Stop> {
        let expr = self.expression()?;
        if self.peek().token == Token::End {
            return Ok(expr);
        }
        let kind = if self.peek_at(1) == Token::End { "extraneous" } else { "mismatched" };
        let found = self.peek().text.clone();
        Err(self.wrong(format!("{kind} input '{found}' expecting <EOF>")))
    }

    fn deeper(&mut self, rule: fn(&mut Nesting) -> &mut usize) -> Result<(), Stop> {
        *rule(&mut self.nesting) += 1;
        if *rule(&mut self.nesting) > DEPTH_MAX {
            self.report(None, format!("expression recursion limit exceeded: {DEPTH_MAX}"));
            return Err(Stop);
        }
        Ok(())
    }

    pub(crate) fn expression(&mut self) -> Result<Expr, Stop> {
        self.deeper(|n| &mut n.expressions)?;
        let expr = self.binary(1)?;
        let expr = match self.take("?") {
            None => expr,
            Some(at) => {
                let id = self.id(at);
                let yes = self.binary(1)?;
                self.expect(":")?;
                let no = self.expression()?;
                let chosen = self.global_call(id, operator::CONDITIONAL, vec![expr, yes, no])?;
                self.level(chosen)?
            }
        };
        self.nesting.expressions -= 1;
        Ok(expr)
    }

    fn binary(&mut self, weakest: u8) -> Result<Expr, Stop> {
        let (relations, sums) = (self.nesting.relations, self.nesting.sums);
        // The right side of a sum is no relation.
        if weakest <= 4 {
            self.deeper(|n| &mut n.relations)?;
        }
        self.deeper(|n| &mut n.sums)?;
        let mut left = self.unary()?;
        while let Some((name, strength)) = binary_operator(self.peek().token).filter(|(_, strength)| *strength >= weakest) {
            if strength <= 2 {
                left = self.logic(name, strength, left)?;
                continue;
            }
            let at = self.peek().at;
            self.at += 1;
            let id = self.id(at);
            let right = self.binary(strength + 1)?;
            let joined = self.global_call(id, name, vec![left, right])?;
            left = self.level(joined)?;
        }
        (self.nesting.relations, self.nesting.sums) = (relations, sums);
        Ok(left)
    }

    /// Many terms joined by `&&` or `||` become a tree that is as flat as it can be.
    fn logic(&mut self, name: &'static str, strength: u8, first: Expr) -> Result<Expr, Stop> {
        let (mut terms, mut ids) = (vec![Some(first)], Vec::new());
        while binary_operator(self.peek().token).is_some_and(|(next, _)| next == name) {
            let at = self.peek().at;
            self.at += 1;
            terms.push(Some(self.binary(strength + 1)?));
            ids.push(self.id(at));
        }
        self.balanced(name, &mut terms, &ids)
    }

    fn balanced(&mut self, name: &'static str, terms: &mut [Option<Expr>], ids: &[Id]) -> Result<Expr, Stop> {
        if let [only] = terms {
            return Ok(only.take().expect("every term is used once"));
        }
        let middle = ids.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let args = vec![self.balanced(name, left, &ids[..middle])?, self.balanced(name, right, &ids[middle + 1..])?];
        self.node(ids[middle], Kind::Call(Call { function: name.into(), target: None, args }))
    }

    fn unary(&mut self) -> Result<Expr, Stop> {
        for (sign, name) in [("!", operator::NOT), ("-", operator::NEGATE)] {
            let number_follows = matches!(self.peek_at(1), Token::Int | Token::Float);
            if !self.is(sign) || (sign == "-" && number_follows) {
                continue;
            }
            let at = self.peek().at;
            let mut count = 0;
            while self.take(sign).is_some() {
                count += 1;
            }
            if count % 2 == 0 {
                return self.member();
            }
            let id = self.id(at);
            let operand = self.member()?;
            return self.global_call(id, name, vec![operand]);
        }
        self.member()
    }

    fn member(&mut self) -> Result<Expr, Stop> {
        let mut expr = self.primary()?;
        loop {
            let part = if let Some(at) = self.take(".") {
                self.after_dot(expr, at)?
            } else if let Some(at) = self.take("[") {
                let id = self.id(at);
                let name = if self.take("?").is_some() { operator::OPTIONAL_INDEX } else { operator::INDEX };
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
                return Err(self.wrong(format!("mismatched input '{}' expecting IDENTIFIER", name.text)));
            }
            Token::End => return Err(self.wrong("no viable alternative at input '.'".into())),
            _ => return Err(self.wrong(format!("no viable alternative at input '.{}'", name.text))),
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
        self.node(id, Kind::Select(Select { operand: Box::new(operand), field: name.text, test: false }))
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
            Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => self.literal(),
            _ if is_operand(self.peek_at(1)) && lexeme.token != Token::End => {
                let stop = self.operand_missing(&[]);
                self.at += 1;
                // One token too many is told and skipped, as Kubernetes does, but nothing comes of the expression.
                self.primary().and(Err(stop))
            }
            _ => Err(self.operand_missing(&[])),
        }
    }

    /// Tells what could have stood here: the beginnings of operands and `more`.
    fn operand_missing(&mut self, more: &[&'static str]) -> Stop {
        let order = ["'['", "'{'", "'('", "')'", "'.'", "'-'", "'!'", "'?'"];
        let mut expected: Vec<&str> = order.into_iter().filter(|sign| OPERAND.contains(sign) || more.contains(sign)).collect();
        expected.extend(OPERAND.iter().filter(|sign| !order.contains(sign)));
        let found = self.peek().text.clone();
        let after = self.peek_at(1);
        let too_many = self.peek().token != Token::End && (is_operand(after) || (more.contains(&"')'") && after == Token::Sign(")")));
        let kind = if too_many { "extraneous" } else { "mismatched" };
        self.wrong(format!("{kind} input '{found}' expecting {{{}}}", expected.join(", ")))
    }

    /// A variable, a call, or a message: whatever begins with a name.
    fn named(&mut self) -> Result<Expr, Stop> {
        let begin = self.peek().at;
        let dot = if self.take(".").is_some() { "." } else { "" };
        let name = self.peek().clone();
        if name.token != Token::Identifier {
            return Err(self.wrong(format!("mismatched input '{}' expecting IDENTIFIER", name.text)));
        }
        if let Some(length) = self.message_name() {
            let text: String = self.tokens[self.at..self.at + length].iter().map(|lexeme| lexeme.text.as_str()).collect();
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
        while self.peek_at(length) == Token::Sign(".") && self.peek_at(length + 1) == Token::Identifier {
            length += 2;
        }
        (self.peek_at(length) == Token::Sign("{")).then_some(length)
    }

    /// The fields are read for their syntax only: no message type exists.
    fn message(&mut self, name: String) -> Result<Expr, Stop> {
        let at = self.expect("{")?;
        let id = self.id(at);
        while !self.is("}") {
            self.take("?");
            if !matches!(self.peek().token, Token::Identifier | Token::EscapedIdentifier) {
                let found = self.peek().text.clone();
                return Err(self.wrong(format!("mismatched input '{found}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}")));
            }
            self.at += 1;
            self.expect(":")?;
            self.expression()?;
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}")?;
        self.node(id, Kind::Message(name))
    }

    fn list(&mut self) -> Result<Expr, Stop> {
        let at = self.expect("[")?;
        let id = self.id(at);
        let mut items = Vec::new();
        while !self.is("]") {
            let optional = self.take("?").is_some();
            items.push(Item { value: self.expression()?, optional });
            if self.take(",").is_none() {
                break;
            }
            if self.is(",") {
                return Err(self.wrong("mismatched input ',' expecting ']'".into()));
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
            entries.push(Entry { key, value: self.expression()?, optional });
            if self.take(",").is_none() {
                break;
            }
            if self.is(",") {
                return Err(self.wrong("mismatched input ',' expecting '}'".into()));
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
        let kind = if self.peek_at(1) == Token::Sign(sign) { "extraneous" } else { "mismatched" };
        Err(self.wrong(format!("{kind} input '{found}' expecting {{'{sign}', ','}}")))
    }

    fn literal(&mut self) -> Result<Expr, Stop> {
        let at = self.peek().at;
        let minus = if self.take("-").is_some() { "-" } else { "" };
        let lexeme = self.peek().clone();
        if !minus.is_empty() && !matches!(lexeme.token, Token::Int | Token::Float) {
            return Err(
                self.wrong(format!("no viable alternative at input '-{}'", if lexeme.token == Token::End { "" } else { &lexeme.text }))
            );
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

    fn global_call(&mut self, id: Id, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.node(id, Kind::Call(Call { function: function.into(), target: None, args }))
    }

    /// A call that may be that of a macro.
    fn call(&mut self, id: Id, function: String, target: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Stop> {
        match macros::find(&function, target.is_some(), args.len()) {
            Some(expand) => expand(&mut Maker { parser: self, call: id }, target, args),
            None => self.node(id, Kind::Call(Call { function, target: target.map(Box::new), args })),
        }
    }
}

fn is_operand(token: Token) -> bool {
    match token {
        Token::Identifier | Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => true,
        Token::Sign(sign) => matches!(sign, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null"),
        Token::EscapedIdentifier | Token::End => false,
    }
}

fn literal_value(lexeme: &Lexeme, minus: &str) -> Result<Literal, &'static str> {
    let text = lexeme.text.as_str();
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    Ok(match lexeme.token {
        Token::Int => Literal::Int(i64::from_str_radix(&format!("{minus}{digits}"), radix).map_err(|_| "invalid int literal")?),
        Token::Uint => Literal::Uint(u64::from_str_radix(&digits[..digits.len() - 1], radix).map_err(|_| "invalid uint literal")?),
        Token::Float => {
            let number: f64 = format!("{minus}{text}").parse().map_err(|_| "invalid double literal")?;
            Literal::Double(if number.is_finite() { number } else { return Err("invalid double literal") })
        }
        Token::String => Literal::String(unescape::string(text)?.into()),
        Token::Bytes => Literal::Bytes(unescape::bytes(&text[1..])?.into()),
        Token::Sign("true") => Literal::Bool(true),
        Token::Sign("false") => Literal::Bool(false),
        _ => Literal::Null,
    })
}

/// Makes the nodes of a macro; all of them stand where the macro was called.
pub(crate) struct Maker<'a, 'p> {
    parser: &'a mut Parser<'p>,
    call: Id,
}

impl Maker<'_, '_> {
    pub(crate) fn make(&mut self, kind: Kind) -> Result<Expr, Stop> {
        let at = self.parser.place(self.call);
        let id = self.parser.id(at);
        self.parser.node(id, kind)
    }

    pub(crate) fn call(&mut self, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.make(Kind::Call(Call { function: function.into(), target: None, args }))
    }

    pub(crate) fn ident(&mut self, name: &str) -> Result<Expr, Stop> {
        self.make(Kind::Ident(name.into()))
    }

    pub(crate) fn accumulator(&mut self) -> Result<Expr, Stop> {
        self.ident(ACCUMULATOR)
    }

    pub(crate) fn literal(&mut self, literal: Literal) -> Result<Expr, Stop> {
        self.make(Kind::Literal(literal))
    }

    pub(crate) fn list(&mut self, values: Vec<Expr>) -> Result<Expr, Stop> {
        self.make(Kind::List(values.into_iter().map(|value| Item { value, optional: false }).collect()))
    }

    /// The same tree again, with nodes of its own.
    pub(crate) fn copy(&mut self, expr: &Expr) -> Result<Expr, Stop> {
        let mut nodes = 0;
        expr.walk(&mut |_| nodes += 1);
        self.parser.room_for(nodes)?;
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        Ok(copy)
    }

    fn renumber(&mut self, expr: &mut Expr) {
        let (at, depth) = (self.parser.place(expr.id), self.parser.depths[expr.id as usize]);
        expr.id = self.parser.id(at);
        self.parser.depths[expr.id as usize] = depth;
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Message(_) => {}
            Kind::Select(select) => self.renumber(&mut select.operand),
            Kind::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(|e| self.renumber(e)),
            Kind::List(items) => items.iter_mut().for_each(|item| self.renumber(&mut item.value)),
            Kind::Map(entries) => entries.iter_mut().for_each(|entry| {
                self.renumber(&mut entry.key);
                self.renumber(&mut entry.value);
            }),
            Kind::Fold(fold) => {
                let fold = &mut **fold;
                let children = [&mut fold.range, &mut fold.init, &mut fold.condition, &mut fold.step, &mut fold.result];
                children.into_iter().for_each(|e| self.renumber(e));
            }
        }
    }

    /// Reports what is wrong with an argument; something must stand in for the macro until parsing is through.
    pub(crate) fn refuse(&mut self, argument: &Expr, problem: impl Into<String>) -> Result<Expr, Stop> {
        let at = self.parser.place(argument.id);
        self.parser.report(Some(at), problem);
        self.literal(Literal::Null)
    }
}
