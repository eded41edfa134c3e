//! Webhook configurations and admission policies: defaults and validation.
//! Guarantees: a stored configuration has expressions that compile.

mod authorizer; // authorizer in expressions
mod expressions; // variables, types and functions of expressions
mod policy; // policies and their bindings
mod rules; // which requests are matched
mod schema_shape; // the CEL shape of a published kind
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
