//! ResourceQuota admission: what a namespace may use.
//! In: a write and the quotas of its namespace. Out: the quotas with the usage that the write adds,
//! or a refusal.
//!
//! Guarantees: pure; `write/quota.rs` stores what is returned here by compare-and-swap, so that
//! concurrent writes never exceed a quota together. Usage only grows here: the quota controller
//! counts what is deleted.
//! Mirrors `k8s.io/apiserver/pkg/admission/plugin/resourcequota`.

mod evaluator; // which quota resources an object uses
mod pod; // compute resources of pods
mod resources; // lists of quantities
mod scopes; // which objects a quota is about

use serde_json::Value;

use self::{
    evaluator::Evaluator,
    resources::{Resources, names_of, print},
};
use super::{Admission, Attributes};
use crate::api::Api;
use bellerophon_apimachinery::error::ApiError;
use bellerophon_apimachinery::json_ext::JsonDefaults as _;
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;

/// The collection of ResourceQuotas.
pub(crate) const COLLECTION: &str = "/resourcequotas";

/// Whether a write can change the usage of a quota. Mirrors `Handles` of the evaluators.
pub(crate) fn concerns(attributes: &Attributes<'_>, object: &Object, old: Option<&Object>) -> bool {
    !attributes.namespace.is_empty()
        && attributes.resource.plural != "namespaces"
        && Evaluator::of(attributes.resource)
            .is_some_and(|evaluator| evaluator.handles(attributes.subresource, object, old))
}

/// The usage of the quotas after a write, by their place in `quotas`; those that it does not change
/// are left out.
///
/// # Errors
/// 403 for a write that a quota does not allow. Mirrors `CheckRequest`.
pub(crate) fn charge(
    api: &Api,
    attributes: &Attributes<'_>,
    quotas: &[Object],
    object: &Object,
    old: Option<&Object>,
) -> Result<Vec<(usize, Resources)>, ApiError> {
    let Some(evaluator) = Evaluator::of(attributes.resource) else {
        return Ok(Vec::new());
    };
    let request = Admission {
        api,
        attributes,
        old,
    };
    let now = api.clock.now();
    let mut interesting = Vec::new();
    for (index, quota) in quotas.iter().enumerate() {
        let hard = Resources::of(quota, "hard");
        let restricted = evaluator.matching(&hard);
        if restricted.is_empty() || !scopes::matches(quota, &evaluator, object) {
            continue;
        }
        let name = &quota.meta.name;
        if let Err(why) = evaluator.check_constraints(&restricted, object) {
            return Err(request.forbid(object, format!("failed quota: {name}: {why}")));
        }
        let used = Resources::of(quota, "used");
        if !restricted.iter().all(|resource| used.has(resource)) {
            let resources = names_of(&restricted);
            let why = format!("status unknown for quota: {name}, resources: {resources}");
            return Err(request.forbid(object, why));
        }
        interesting.push((index, hard, used));
    }
    if interesting.is_empty() {
        return Ok(Vec::new());
    }
    let usage = evaluator.usage(object, now);
    let negative = usage.negative();
    if !negative.is_empty() {
        let resources = names_of(&negative);
        let why = format!("quota usage is negative for resource(s): {resources}");
        return Err(request.forbid(object, why));
    }
    let mut charged = Vec::new();
    for (index, hard, used) in interesting {
        let quota = &quotas[index];
        let delta = match old {
            Some(old) if scopes::matches(quota, &evaluator, old) => {
                usage.increase_over(&evaluator.usage(old, now))
            }
            _ => usage.clone(),
        };
        let requested = delta.without_zeros().only(&hard);
        if requested.is_empty() {
            continue;
        }
        let new = used.plus(&requested);
        let exceeded: Vec<&str> = requested
            .names()
            .filter(|resource| new.exceeds(&hard, resource))
            .collect();
        // Mirrors checkRequest: a change of the status is counted and never refused.
        if !exceeded.is_empty() && attributes.subresource != "status" {
            let why = format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                quota.meta.name,
                print(&requested, &exceeded),
                print(&used, &exceeded),
                print(&hard, &exceeded),
            );
            return Err(request.forbid(object, why));
        }
        charged.push((index, new));
    }
    Ok(charged)
}

/// Sets the usage of a quota.
pub(crate) fn set_used(quota: &mut Object, used: &Resources) {
    let used: Value = used.to_value();
    quota.section("status").map_at("used");
    quota.section("status").insert("used".into(), used);
}

/// Whether the quota counts anything yet; those without a status restrict nothing.
pub(crate) fn is_enforced(quota: &Object) -> bool {
    !quota.body.field("status").is_empty_at("hard")
}
