//! RBAC rules of operators.
//!
//! Guarantee: no rule has a wildcard.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::{Value, json};

use crate::{Operator, json::to_json};

pub(crate) const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
pub(crate) const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// The verbs an informer needs.
pub const INFORMER_VERBS: &[&str] = &["list", "watch"];

/// A rule that allows these verbs on one resource. A subresource is written `resource/subresource`.
///
/// # Example
/// ```
/// use bellerophon_operator::{INFORMER_VERBS, allow};
///
/// let rule = allow(INFORMER_VERBS, "apps", "deployments");
/// assert_eq!(rule.verbs, ["list", "watch"]);
/// ```
pub fn allow(verbs: &[&str], group: &str, resource: &str) -> PolicyRule {
    debug_assert!(
        [group, resource]
            .iter()
            .chain(verbs)
            .all(|word| !word.contains('*')),
        "rules have no wildcards"
    );
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// The cluster-wide permissions of an operator: its own, and the one to record Events.
pub fn permissions_of(operator: &Operator) -> Vec<PolicyRule> {
    let mut rules = (operator.permissions)();
    // An operator without controllers records no Events.
    if !rules.is_empty() {
        rules.push(allow(&["create", "patch"], "events.k8s.io", "events"));
    }
    rules
}

/// The permissions of a replica in the namespace of its Lease: to create Leases, and to get and
/// update the operator's own.
pub fn lease_permissions(operator: &Operator) -> Vec<PolicyRule> {
    let leases = |verbs: &[&str]| allow(verbs, "coordination.k8s.io", "leases");
    vec![
        // RBAC cannot restrict `create` by resource name.
        leases(&["create"]),
        PolicyRule {
            resource_names: Some(vec![operator.name.to_owned()]),
            ..leases(&["get", "update"])
        },
    ]
}

/// The ClusterRole with the cluster-wide permissions of an operator, and its binding to a user, both
/// with the name of that user: for an operator that runs outside of the cluster.
///
/// # Example
/// ```
/// # use bellerophon_operator::{INFORMER_VERBS, Operator, Placement, RoleAggregation};
/// # use bellerophon_operator::{allow, user_permissions};
/// # const OPERATOR: Operator = Operator {
/// #     name: "observer",
/// #     summary: "",
/// #     crds: Vec::new,
/// #     permissions: || vec![allow(INFORMER_VERBS, "", "configmaps")],
/// #     admission_policies: Vec::new,
/// #     role_aggregation: RoleAggregation::View,
/// #     placement: Placement::Deployment,
/// #     feature_switches: &[],
/// #     webhooks: None,
/// #     setup: |_, _| {},
/// # };
/// let [role, binding] = user_permissions(&OPERATOR, "observer");
/// assert_eq!(role["rules"][0]["resources"][0], "configmaps");
/// assert_eq!(binding["subjects"][0]["kind"], "User");
/// ```
pub fn user_permissions(operator: &Operator, user: &str) -> [Value; 2] {
    let role = json!({
        "apiVersion": RBAC_VERSION, "kind": "ClusterRole",
        "metadata": {"name": user},
        "rules": to_rules(permissions_of(operator)),
    });
    let binding = json!({
        "apiVersion": RBAC_VERSION, "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": "User", "name": user}],
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": user},
    });
    [role, binding]
}

/// RBAC rules as JSON.
pub(crate) fn to_rules(rules: Vec<PolicyRule>) -> Value {
    let role = ClusterRole {
        rules: Some(rules),
        ..ClusterRole::default()
    };
    to_json(&role)["rules"].take()
}
