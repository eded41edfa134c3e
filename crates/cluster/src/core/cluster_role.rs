//! Cluster role aggregation: roles that are the sum of other roles.
//!
//! In: cluster roles. Out: the rules of those that name others by labels.
//! Holds: rules come in the order of the selectors, then of the names, each once.

use std::sync::Arc;

use bellerophon::{Controller, Failure, Lister, ObjectKey, Outcome, ReconcileResult, Request};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::core::{ParseExpressionError, Selector, SelectorExt};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::component::Component;
use crate::context::{Context, Loop};

/// The name of the loop, and the field manager of the rules it sets, as upstream.
const NAME: &str = "clusterrole-aggregation-controller";

/// The loop, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let roles = ctx.informer::<ClusterRole>();
    let client = ctx.client(Component::ControllerManager);
    let lister = roles.lister();
    let all = roles.lister();
    Controller::of(&roles)
        // Any role may be part of any sum, and there are few sums.
        .watches(&roles, move |_| sums(&all))
        .with_options(ctx.options(NAME, 1))
        .reconcile_with(move |request| reconcile(client.clone(), lister.clone(), request))
        .into()
}

fn sums(roles: &Lister<ClusterRole>) -> Vec<ObjectKey> {
    roles
        .list()
        .iter()
        .filter(|role| role.aggregation_rule.is_some())
        .map(|role| ObjectKey::of(&**role))
        .collect()
}

async fn reconcile(
    client: Client,
    roles: Lister<ClusterRole>,
    request: Request<ClusterRole>,
) -> ReconcileResult {
    let Some(role) = &request.object else {
        return Ok(Outcome::Done);
    };
    let Some(rules) = plan(role, &roles.list()).map_err(Failure::permanent)? else {
        return Ok(Outcome::Done);
    };
    let body = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": role.name_any() }, "rules": rules
    });
    let api = Api::<ClusterRole>::all(client);
    let answer = api
        .patch(
            &role.name_any(),
            &PatchParams::apply(NAME).force(),
            &Patch::Apply(&body),
        )
        .await?;
    request.writes().wrote(&answer);
    Ok(Outcome::Done)
}

/// The rules that a role should have; `None` if it is no sum or has them.
fn plan(
    role: &ClusterRole,
    roles: &[Arc<ClusterRole>],
) -> Result<Option<Vec<PolicyRule>>, ParseExpressionError> {
    let Some(sum) = &role.aggregation_rule else {
        return Ok(None);
    };
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in sum.cluster_role_selectors.iter().flatten() {
        let selector = Selector::try_from(selector.clone())?;
        let parts = roles.iter().filter(|part| {
            part.metadata.name != role.metadata.name && selector.matches(part.labels())
        });
        for rule in parts.flat_map(|part| part.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Ok((role.rules.as_deref().unwrap_or_default() != rules).then_some(rules))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::AggregationRule;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn rules(verbs: &str) -> Vec<PolicyRule> {
        verbs
            .chars()
            .map(|verb| PolicyRule {
                verbs: vec![verb.into()],
                ..PolicyRule::default()
            })
            .collect()
    }

    fn role(name: &str, label: &str, verbs: &str) -> Arc<ClusterRole> {
        let mut role = ClusterRole {
            rules: Some(rules(verbs)),
            ..ClusterRole::default()
        };
        role.metadata.name = Some(name.into());
        role.labels_mut().insert("to".into(), label.into());
        Arc::new(role)
    }

    fn sum(selected: &[&str], verbs: &str) -> ClusterRole {
        let selector = |label: &&str| LabelSelector {
            match_labels: Some([("to".to_owned(), (*label).to_owned())].into()),
            ..LabelSelector::default()
        };
        let rule = AggregationRule {
            cluster_role_selectors: Some(selected.iter().map(selector).collect()),
        };
        ClusterRole {
            aggregation_rule: Some(rule),
            ..ClusterRole::clone(&role("sum", "x", verbs))
        }
    }

    #[test]
    fn sum_has_each_rule_of_its_parts_once() {
        let roles = [
            role("a", "x", "gl"),
            role("b", "y", "lw"),
            role("c", "x", "gp"),
            Arc::new(sum(&["x"], "?")),
        ];
        for (selected, has, wanted) in [
            (&["x"][..], "", Some("glp")),
            (&["x"], "glp", None),
            (&["x"], "gpl", Some("glp")),
            (&["y", "x"], "", Some("lwgp")),
            (&["z"], "gl", Some("")),
            (&["z"], "", None),
        ] {
            let planned = plan(&sum(selected, has), &roles).unwrap();
            assert_eq!(planned, wanted.map(rules), "{selected:?} with {has}");
        }
        assert_eq!(plan(&roles[0], &roles).unwrap(), None, "no sum");
    }
}
