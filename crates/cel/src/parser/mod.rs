//! The parser: from tokens to a tree.
//! In: the text of an expression. Out: its tree with macros expanded, and the offset of each node;
//! or the errors of the text.
//! Guarantees: text, nesting and number of nodes are limited, also after macro expansion; no tree
//! is deeper than [`TREE_MAX`].

mod ast_builder; // nodes of macros
mod macros; // macro expansion
mod operands; // names, literals, calls, lists, maps
mod operators; // operators by precedence

pub(crate) use ast_builder::AstBuilder;

use crate::{
    ast::{Call, Expr, Id, Kind},
    lexer::{self, Lexeme, Token},
    source::{Issues, Offset, Source},
};

use self::{operands::is_operand, operators::binary_operator};

/// The longest expression, in code points. Kubernetes has the same limit.
const LENGTH_MAX: usize = 100_000;
/// How deep one kind of syntax may nest. Kubernetes has the same limit.
pub(crate) const DEPTH_MAX: usize = 250;
/// How deep the tree may be once macros are expanded.
pub(crate) const TREE_MAX: usize = 1000;
/// How many nodes a tree may have: more than the longest expression needs, unless macros multiply
/// it.
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
/// The errors of its syntax.
pub(crate) fn parse(text: &str) -> Result<Parsed, Issues> {
    let source = Source::new(text);
    let mut issues = Issues::new(source.clone());
    let length = text.chars().count();
    if length > LENGTH_MAX {
        issues.report(
            None,
            format!("expression code point size exceeds limit: size: {length}, limit {LENGTH_MAX}"),
        );
        return Err(issues);
    }
    let tokens = lexer::tokens(text, &mut issues);
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        issues,
        places: Vec::new(),
        depths: Vec::new(),
        nesting: Nesting::default(),
    };
    match parser.start() {
        Ok(expr) if parser.issues.is_empty() => {
            let depth = parser.depths[expr.id as usize].tree;
            Ok(Parsed {
                expr,
                depth,
                places: parser.places,
                source,
            })
        }
        _ => Err(parser.issues),
    }
}

/// Parsing stops; the reason is among the issues.
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
    /// As Kubernetes counts it: conditions, comparisons, sums, selections, calls of methods and
    /// indexes.
    syntax: usize,
    /// All nodes.
    tree: usize,
}

pub(crate) struct Parser<'a> {
    tokens: &'a [Lexeme],
    at: usize,
    issues: Issues,
    /// The offset of each node.
    places: Vec<Offset>,
    /// How deep the tree below each node is. As long as `places`.
    depths: Vec<Depth>,
    nesting: Nesting,
}

impl Parser<'_> {
    fn peek(&self) -> &Lexeme {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn peek_at(&self, ahead: usize) -> Token {
        self.tokens
            .get(self.at + ahead)
            .map_or(Token::End, |lexeme| lexeme.token)
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek().token, Token::Sign(s) if s == sign)
    }

    /// Moves on if the next token is `sign`, and returns its position.
    fn take(&mut self, sign: &str) -> Option<Offset> {
        let at = self.peek().at;
        self.is(sign).then(|| {
            self.at += 1;
            at
        })
    }

    fn report(&mut self, at: Option<Offset>, message: impl Into<String>) {
        self.issues.report(at, message);
    }

    fn syntax_error(&mut self, message: String) -> Stop {
        let at = self.peek().at;
        self.issues
            .report(Some(at), format!("Syntax error: {message}"));
        Stop
    }

    /// Demands `sign`. One token too many or too few is reported as such.
    fn expect(&mut self, sign: &'static str) -> Result<Offset, Stop> {
        if let Some(at) = self.take(sign) {
            return Ok(at);
        }
        let found = self.peek().text.clone();
        let follows = match sign {
            ":" => is_operand(self.peek().token),
            _ => {
                binary_operator(self.peek().token).is_some()
                    || matches!(self.peek().token, Token::End | Token::Sign("." | "[" | "?"))
            }
        };
        Err(self.syntax_error(if self.peek_at(1) == Token::Sign(sign) {
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

    /// The offset of a node.
    fn place(&self, id: Id) -> Offset {
        self.places[id as usize]
    }

    /// Creates a node, and fails when the tree gets too deep or too large.
    fn node(&mut self, id: Id, kind: Kind) -> Result<Expr, Stop> {
        let mut below = Depth::default();
        let expr = Expr { id, kind };
        let mut add = |child: &Expr| {
            let depth = self.depths[child.id as usize];
            below = Depth {
                syntax: below.syntax.max(depth.syntax),
                tree: below.tree.max(depth.tree),
            };
        };
        match &expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Message(message) => message.fields.iter().for_each(|field| add(&field.value)),
            Kind::Select(select) => add(&select.operand),
            Kind::Call(call) => call
                .target
                .as_deref()
                .into_iter()
                .chain(&call.args)
                .for_each(add),
            Kind::List(items) => items.iter().for_each(|item| add(&item.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                add(&entry.key);
                add(&entry.value);
            }),
            Kind::Comprehension(fold) => {
                [
                    &fold.range,
                    &fold.init,
                    &fold.condition,
                    &fold.step,
                    &fold.result,
                ]
                .into_iter()
                .for_each(add);
            }
        }
        self.set_depth(
            id,
            Depth {
                syntax: below.syntax,
                tree: below.tree + 1,
            },
        )?;
        self.reserve(0)?;
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
        self.set_depth(
            expr.id,
            Depth {
                syntax: depth.syntax + 1,
                ..depth
            },
        )?;
        Ok(expr)
    }

    /// Fails if the tree would have too many nodes.
    fn reserve(&mut self, nodes: usize) -> Result<(), Stop> {
        if self.places.len() + nodes < NODES_MAX {
            return Ok(());
        }
        self.report(
            None,
            format!("expression size exceeds limit: {NODES_MAX} nodes"),
        );
        Err(Stop)
    }

    fn start(&mut self) -> Result<Expr, Stop> {
        let expr = self.expression()?;
        if self.peek().token == Token::End {
            return Ok(expr);
        }
        let kind = if self.peek_at(1) == Token::End {
            "extraneous"
        } else {
            "mismatched"
        };
        let found = self.peek().text.clone();
        Err(self.syntax_error(format!("{kind} input '{found}' expecting <EOF>")))
    }

    fn deeper(&mut self, rule: fn(&mut Nesting) -> &mut usize) -> Result<(), Stop> {
        *rule(&mut self.nesting) += 1;
        if *rule(&mut self.nesting) > DEPTH_MAX {
            self.report(
                None,
                format!("expression recursion limit exceeded: {DEPTH_MAX}"),
            );
            return Err(Stop);
        }
        Ok(())
    }

    fn global_call(&mut self, id: Id, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.node(
            id,
            Kind::Call(Call {
                function: function.into(),
                target: None,
                args,
            }),
        )
    }

    /// A call that may be that of a macro.
    fn call(
        &mut self,
        id: Id,
        function: String,
        target: Option<Expr>,
        args: Vec<Expr>,
    ) -> Result<Expr, Stop> {
        match macros::find(&function, target.is_some(), args.len()) {
            Some(expand) => expand(&mut AstBuilder::new(self, id), target, args),
            None => self.node(
                id,
                Kind::Call(Call {
                    function,
                    target: target.map(Box::new),
                    args,
                }),
            ),
        }
    }
}
