//! Rights, written as short as they are read: `allow(READ, "apps", "deployments")`.
//! Holds: no wildcard can be written.

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::Operator;

/// Sets of verbs that belong together.
pub struct Rights;

impl Rights {
    /// What an informer does.
    pub const CACHE: &[&str] = &["list", "watch"];
}

/// A rule that allows these verbs on one kind of resource; subresources are named `resource/part`.
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

/// Everything an operator may do wherever it works: its own rights, and telling people what it did.
pub fn rights_of(operator: &Operator) -> Vec<PolicyRule> {
    let own = (operator.rights)();
    let told = (!own.is_empty()).then(|| allow(&["create", "patch"], "events.k8s.io", "events"));
    own.into_iter().chain(told).collect()
}

/// What a copy of an operator may do where its lease is: hold that one, and make it the first time.
pub fn lease_rights(operator: &Operator) -> Vec<PolicyRule> {
    let leases = |verbs: &[&str]| allow(verbs, "coordination.k8s.io", "leases");
    vec![
        leases(&["create"]),
        PolicyRule {
            resource_names: Some(vec![operator.name.to_owned()]),
            ..leases(&["get", "update"])
        },
    ]
}
