//! Validation rules of custom resources: what a definition may say in `x-kubernetes-validations`,
//! and what objects must hold to.
//! In: schemas with rules, and objects. Out: the errors with either, with the message of
//! Kubernetes.
//! Guarantees: a rule is compiled once for each version of a definition; the language itself is the
//! crate `bellerophon-cel`'s.

mod compile; // a rule, ready to run
mod cost; // what rules may cost
mod field_path; // paths that rules blame
mod library; // functions that only the server can offer
#[cfg(test)]
mod recorded; // what kube-apiserver says
mod run; // rules at work
mod shape; // what expressions know of data
mod validate_rules; // what a definition may say

pub(super) use run::{RULE_BUDGET, Ratchet, RuleTree};
pub(super) use validate_rules::{Suppress, validate, validate_surface};
