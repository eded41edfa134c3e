//! Validation rules of custom resources: what a definition may say in `x-kubernetes-validations`, and what objects must hold to.
//! In: schemas with rules, and objects. Out: what is wrong with either, in Kubernetes' words.
//! Holds: a rule is compiled once for each version of a definition; the language itself is the crate `bellerophon-cel`'s.

mod compile; // a rule, ready to run
mod cost; // what rules may cost
mod field_path; // paths that rules blame
mod judge; // what a definition may say
mod library; // functions that only the server can offer
#[cfg(test)]
mod recorded; // what the real server says
mod rule; // a rule as it is written
mod run; // rules at work
mod shape; // what expressions know of data

pub(super) use judge::{Suppress, check, check_surface};
pub(crate) use rule::Rule;
pub(super) use run::{RULE_BUDGET, Ratchet, RuleTree};
