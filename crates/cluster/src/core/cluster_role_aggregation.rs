//! ClusterRole aggregation: sets the rules of ClusterRoles that have an `aggregationRule`.
//!
//! Input: all ClusterRoles. Output: server-side apply of `rules`.
//! Guarantees: rules are in the order of the selectors, then of the role names, without duplicates.

use std::sync::Arc;

use bellerophon::client::{Precondition, WriteOptions};
use bellerophon::prelude::*;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::ResourceExt;
use kube::core::{ParseExpressionError, Selector, SelectorExt};

/// Name of the controller and field manager of the rules, as upstream.
const NAME: &str = "clusterrole-aggregation-controller";

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    let roles = mgr.lister::<ClusterRole>();
    let all = roles.clone();
    mgr.controller::<ClusterRole>()
        // Mirrors enqueue: a change of any role enqueues every aggregated role.
        .watches::<ClusterRole>(move |_| aggregated_roles(&all))
        .name(NAME)
        .context(Arc::new(roles))
        .reconcile(reconcile);
}

fn aggregated_roles(roles: &Lister<ClusterRole>) -> Vec<ObjectKey> {
    roles
        .list()
        .iter()
        .filter(|role| role.aggregation_rule.is_some())
        .map(|role| ObjectKey::from_object(&**role))
        .collect()
}

async fn reconcile(
    roles: Arc<Lister<ClusterRole>>,
    req: Request<ClusterRole>,
) -> Result<Action, Error> {
    let Some(role) = req.object() else {
        return Ok(Action::await_change());
    };
    let Some(rules) = plan(role, &roles.list()).map_err(Error::permanent)? else {
        return Ok(Action::await_change());
    };
    let mut applied = ClusterRole {
        rules: Some(rules),
        ..ClusterRole::default()
    };
    applied.metadata.name = Some(role.name_any());
    // A deleted role is not created again.
    let as_aggregation = WriteOptions {
        field_manager: Some(NAME.to_owned()),
        precondition: Some(Precondition::Uid),
        ..WriteOptions::default()
    };
    req.client()
        .with_options(as_aggregation)
        .create_or_apply(Some(role), &applied)
        .await?;
    Ok(Action::await_change())
}

/// The aggregated rules of a role; `None` if it has no aggregation rule or has these rules already.
///
/// Mirrors syncClusterRole.
fn plan(
    role: &ClusterRole,
    roles: &[Arc<ClusterRole>],
) -> Result<Option<Vec<PolicyRule>>, ParseExpressionError> {
    let Some(aggregation_rule) = &role.aggregation_rule else {
        return Ok(None);
    };
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in aggregation_rule.cluster_role_selectors.iter().flatten() {
        let selector = Selector::try_from(selector.clone())?;
        let selected = roles.iter().filter(|other| {
            // As in syncClusterRole, a role does not aggregate itself: its rules would never
            // shrink.
            other.metadata.name != role.metadata.name && selector.matches(other.labels())
        });
        for rule in selected.flat_map(|other| other.rules.iter().flatten()) {
            // Mirrors ruleExists.
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

    fn aggregated(selected: &[&str], verbs: &str) -> ClusterRole {
        let selector = |label: &&str| LabelSelector {
            match_labels: Some([("to".to_owned(), (*label).to_owned())].into()),
            ..LabelSelector::default()
        };
        let rule = AggregationRule {
            cluster_role_selectors: Some(selected.iter().map(selector).collect()),
        };
        ClusterRole {
            aggregation_rule: Some(rule),
            ..ClusterRole::clone(&role("aggregated", "x", verbs))
        }
    }

    #[test]
    fn aggregated_role_has_each_selected_rule_once() {
        let roles = [
            role("a", "x", "gl"),
            role("b", "y", "lw"),
            role("c", "x", "gp"),
            Arc::new(aggregated(&["x"], "?")),
        ];
        for (selected, current, desired) in [
            (&["x"][..], "", Some("glp")),
            (&["x"], "glp", None),
            (&["x"], "gpl", Some("glp")),
            (&["y", "x"], "", Some("lwgp")),
            (&["z"], "gl", Some("")),
            (&["z"], "", None),
        ] {
            let planned = plan(&aggregated(selected, current), &roles).unwrap();
            assert_eq!(planned, desired.map(rules), "{selected:?} with {current}");
        }
        assert_eq!(
            plan(&roles[0], &roles).unwrap(),
            None,
            "no aggregation rule"
        );
    }
}
