//! Webhook configurations and admission policies: which requests they see, and what they are
//! completed to.
//! Guarantees: expressions are only checked to be there; compiling them is another stage.

mod policy; // policies and their bindings
mod rules; // which requests are matched
mod webhook; // webhook configurations

pub(crate) use policy::{
    MUTATING_POLICY, MUTATING_POLICY_BINDING, VALIDATING_POLICY, VALIDATING_POLICY_BINDING,
};
pub(crate) use webhook::{MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS};
