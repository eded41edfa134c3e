//! The abstract syntax tree of an expression, with macros expanded.
//! The parser creates the nodes; the type checker, the cost estimator and the planner read them.
//! Guarantees: every node has a unique id; the tree is at most a few times
//! [`crate::parser::DEPTH_MAX`] deep.

use std::sync::Arc;

/// The identity of a node; also the index of its place in the text.
pub(crate) type Id = u32;

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

/// The kind of a node.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Literal),
    /// A variable or the name of a type.
    Ident(String),
    Select(Select),
    Call(Call),
    List(Vec<Item>),
    Map(Vec<Entry>),
    /// A message: its type and fields.
    Message(Message),
    Comprehension(Box<Comprehension>),
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// `operand.field`, or `has(operand.field)`.
#[derive(Clone, Debug)]
pub(crate) struct Select {
    pub(crate) operand: Box<Expr>,
    pub(crate) field: String,
    /// Whether this is a presence test (`has`).
    pub(crate) test: bool,
}

/// A call; operators are calls with names such as `_+_`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) target: Option<Box<Expr>>,
    pub(crate) args: Vec<Expr>,
}

/// An item of a list, or an optional one that is left out when it has no value.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// An entry of a map, or an optional one that is left out when it has no value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// `Type{field: value}`.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The name of the type, as it is written.
    pub(crate) name: String,
    pub(crate) fields: Vec<MessageField>,
}

/// A field of a message, or an optional one that is left out when it has no value.
#[derive(Clone, Debug)]
pub(crate) struct MessageField {
    /// The place of the name.
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// The comprehension that every macro over lists and maps is expanded to.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    /// The item of a list or key of a map; its index when there is a second variable.
    pub(crate) var: String,
    /// The variable of the list item or map value in a comprehension of two variables.
    pub(crate) var2: Option<String>,
    pub(crate) accumulator: String,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Comprehension {
    /// Whether this only binds a name to a value, without an iteration.
    pub(crate) fn is_binding(&self) -> bool {
        let nothing = matches!(&self.range.kind, Kind::List(items) if items.is_empty());
        let never = matches!(self.condition.kind, Kind::Literal(Literal::Bool(false)));
        nothing && never && self.accumulator != ACCUMULATOR_OF_OLD
    }
}

/// The variable in which macros build their result; no source text can name it.
pub(crate) const ACCUMULATOR: &str = "@result";
/// Its former name; still rejected as an iteration variable.
pub(crate) const ACCUMULATOR_OF_OLD: &str = "__result__";

/// The names of operators.
pub(crate) mod operator {
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const NOT_EQUALS: &str = "_!=_";
    pub(crate) const LESS: &str = "_<_";
    pub(crate) const LESS_EQUALS: &str = "_<=_";
    pub(crate) const GREATER: &str = "_>_";
    pub(crate) const GREATER_EQUALS: &str = "_>=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const SUBTRACT: &str = "_-_";
    pub(crate) const MULTIPLY: &str = "_*_";
    pub(crate) const DIVIDE: &str = "_/_";
    pub(crate) const MODULO: &str = "_%_";
    pub(crate) const IN: &str = "@in";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPTIONAL_INDEX: &str = "_[?_]";
    pub(crate) const OPTIONAL_SELECT: &str = "_?._";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub(crate) const MAP_INSERT: &str = "cel.@mapInsert";
}

impl Expr {
    /// Calls `visit` on this node and all below it, parents first.
    pub(crate) fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Message(message) => message
                .fields
                .iter()
                .for_each(|field| field.value.walk(visit)),
            Kind::Select(select) => select.operand.walk(visit),
            Kind::Call(call) => call
                .target
                .as_deref()
                .into_iter()
                .chain(&call.args)
                .for_each(|e| e.walk(visit)),
            Kind::List(items) => items.iter().for_each(|item| item.value.walk(visit)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.walk(visit);
                entry.value.walk(visit);
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
                .for_each(|e| e.walk(visit));
            }
        }
    }

    /// `a.b.c` when the node consists of names joined by dots.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select(select) if !select.test => Some(format!(
                "{}.{}",
                select.operand.qualified_name()?,
                select.field
            )),
            _ => None,
        }
    }
}
