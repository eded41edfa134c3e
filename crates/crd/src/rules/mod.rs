//! Validation rules of custom resources: `x-kubernetes-validations`.
//! In: schemas with rules, and objects. Out: the errors of either, with the messages of Kubernetes.
//! Guarantees: a rule is compiled once for each version of a definition. The language is
//! implemented by the crate `bellerophon-cel`.

mod compile; // compiled rules
mod cost; // cost limits
mod field_path; // fieldPath of rules
mod library; // functions for quantities and formats
#[cfg(test)]
mod recorded; // recorded results of kube-apiserver
mod run; // evaluation of rules
mod shape; // shapes of schemas
mod validate_rules; // validation of rules

pub(super) use run::{RULE_BUDGET, Ratchet, RuleTree};
pub(super) use validate_rules::{Suppress, validate, validate_surface};
