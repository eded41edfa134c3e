//! Matches requests with configurations: rules, selectors and match conditions.

use super::{
    evaluation::{Evaluation, Inputs},
    request::{Operation, Request},
};
use crate::admission_config::{Criteria, MatchConditions, RuleTarget};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

/// The version of the resource that criteria match a request in; `None` if they do not. `targets`
/// are those of the request. Mirrors `ShouldCallHook` and `Matches` up to match conditions.
///
/// # Errors
/// 404 for a namespace that does not exist and whose labels a selector needs.
pub(super) fn matched(
    request: &Request<'_>,
    criteria: &Criteria,
    targets: &[RuleTarget<'_>],
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<Option<usize>, ApiError> {
    // Options of connections have no metadata, and are selected by no selector.
    let labelled = object.filter(|_| request.operation() != Operation::Connect);
    let labels = labelled
        .into_iter()
        .chain(old)
        .map(|object| &object.meta.labels);
    if !criteria.may_match(request.operation().name(), labels) {
        return Ok(None);
    }
    let Some(at) = criteria.matched(targets) else {
        return Ok(None);
    };
    if !criteria.selects_namespaces() || request.is_cluster_scoped() {
        return Ok(Some(at));
    }
    let selected = match object {
        Some(object) if request.writes_namespace() => {
            criteria.selects_namespace(&object.meta.labels)
        }
        _ => {
            let name = request.namespace_name(object.or(old));
            let namespace = request.find_namespace(name)?;
            criteria.selects_namespace(&namespace.meta.labels)
        }
    };
    Ok(selected.then_some(at))
}

/// The result of evaluating match conditions for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conditions {
    Met,
    /// One of them is false.
    Unmet,
    /// None is false, and some cannot be evaluated.
    Failed(String),
}

/// The cost budget of the match conditions of one webhook or policy.
const BUDGET: u64 = 2_500_000;

/// Mirrors `matcher.Match`, without the failure policy.
pub(super) fn check_conditions(conditions: &MatchConditions, inputs: &Inputs) -> Conditions {
    let evaluation = Evaluation::new(inputs, &[]);
    let mut budget = BUDGET;
    let mut errors = Vec::new();
    for expression in &conditions.0 {
        match evaluation.run(expression, &mut budget) {
            Err(out_of_budget) => return Conditions::Failed(out_of_budget.to_string()),
            Ok(Err(why)) => errors.push(why),
            Ok(Ok(bellerophon_cel::Value::Bool(false))) => return Conditions::Unmet,
            Ok(Ok(_)) => {}
        }
    }
    match errors.as_slice() {
        [] => Conditions::Met,
        [one] => Conditions::Failed(one.clone()),
        many => Conditions::Failed(format!("[{}]", many.join(", "))),
    }
}
