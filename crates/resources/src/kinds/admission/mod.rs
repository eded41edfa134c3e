//! Webhook configurations and admission policies: which requests they see, and what they are
//! completed to.
//! Guarantees: a stored configuration has expressions that compile.

mod authorizer; // checks of what users may do, in expressions
mod expressions; // variables, types and functions of expressions
mod policy; // policies and their bindings
mod rules; // which requests are matched
mod schema_shape; // what expressions know of a published kind
mod type_check; // warnings about expressions that do not fit a kind
mod webhook; // webhook configurations

pub use authorizer::{Authorize, Authz, CheckedResource, Decision, Subject};
pub use expressions::{Compiler, Declared, Expression, Returns};
pub use policy::{
    MUTATING_POLICY, MUTATING_POLICY_BINDING, VALIDATING_POLICY, VALIDATING_POLICY_BINDING,
};
pub use schema_shape::kind_shape;
pub use type_check::{
    ExpressionWarning, GroupVersionKind, GroupVersionResource, KINDS_MAX, Params,
    PolicyExpressions, resources_to_check, type_check,
};
pub use webhook::{MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS};
