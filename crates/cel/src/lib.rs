//! The Common Expression Language of Kubernetes: parser, type checker, cost estimation, and
//! evaluation with limits.
//!
//! Validation rules of custom resources and admission policies are written in CEL. This crate
//! implements the language and the functions that Kubernetes adds to it. It depends on no other
//! crate of this repository: requests, definitions and servers are unknown to it, and what
//! expressions may refer to is a parameter ([`Environment`]).
//!
//! ```
//! use bellerophon_cel::{Environment, Type, Value};
//!
//! let environment = Environment::kubernetes().with_variable("replicas", Type::Int);
//! let program = environment.compile("replicas > 0 && replicas < 10").expect("a sound expression");
//! let evaluation = program.evaluate(&[Value::Int(3)], 1_000_000);
//! assert!(matches!(evaluation.value, Ok(Value::Bool(true))));
//! ```
//!
//! Every resource of an expression is limited: text, nesting and number of nodes when it is parsed,
//! cost and memory when it is evaluated. No stage recurses deeper than the tree, whose depth is
//! limited too; a deep one is evaluated on a separate stack.

mod ast; // the tree
mod check; // type checking
mod cost_model; // cost of calls
mod environment; // functions, variables and types
mod estimate; // cost estimation
mod eval; // failures and meters
mod function; // declarations
mod json; // values as JSON
mod lexer; // text to tokens
mod library; // the functions themselves
mod literals; // errors in literals
mod overload; // which overload fits
mod parser; // tokens to tree
mod pattern; // regular expressions as Go writes them
mod plan; // tree to program
mod program; // from text to a program
mod run; // evaluation of a plan
mod shape; // schemas of data
mod source; // text and issues
mod stack; // stacks for deep expressions
mod time; // timestamps and durations as text
mod types; // types of expressions
mod unescape; // escapes of literals
mod unify; // unification of types
mod value; // values

pub use cost_model::{CostModel, Range};
pub use environment::{Environment, MessageType};
pub use eval::{Failure, Meter};
pub use function::{Functions, Overload, Run};
pub use pattern::{Pattern, PatternSet};
pub use program::{CompileError, Program, check_grammar};
pub use run::Evaluation;
pub use shape::{Field, ListOrder, Shape, ShapeKind, escape, is_identifier, unescape};
pub use source::Issues;
pub use types::Type;
pub use value::{Key, LazyFields, List, Map, Message, Opaque, Text, Value, data::view};
