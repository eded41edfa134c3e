//! RBAC rules of operators.
//!
//! Guarantee: no rule has a wildcard.

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::Operator;

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
