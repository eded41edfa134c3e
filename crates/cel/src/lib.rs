//! The Common Expression Language as Kubernetes speaks it: parsed, type-checked, with estimated
//! cost, and evaluated within bounds.
//!
//! Validation rules of custom resources and admission policies are written in CEL. This crate knows
//! the language and the functions that Kubernetes adds to it; it knows nothing of requests,
//! definitions or servers. It is a crate of its own so that this stays so: the API server depends
//! on it, it depends on nothing of this repository, and what it may refer to is a parameter
//! ([`Environment`]).
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
//! Nothing an expression says can take more than its share: text, nesting and number of nodes are
//! bounded when it is parsed, cost and memory when it runs. No stage recurses deeper than the tree,
//! whose depth is bounded too; a deep one gets a stack of its own.

mod ast; // the tree
mod check; // types
mod cost_model; // what calls cost
mod environment; // what may be referred to
mod estimate; // what an expression may cost
mod eval; // failures and meters
mod function; // declarations
mod json; // values as JSON
mod lexer; // text to tokens
mod library; // the functions themselves
mod literals; // mistakes in literals
mod overload; // which overload fits
mod parser; // tokens to tree
mod pattern; // regular expressions as Go writes them
mod plan; // tree to program
mod program; // from text to a program
mod run; // running a plan
mod shape; // what is known of data
mod source; // text and issues
mod stack; // stacks for deep expressions
mod time; // moments and spans as text
mod types; // types of expressions
mod unescape; // what literals mean
mod unify; // which types fit
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
