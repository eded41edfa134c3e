//! Rights, written as short as they are read: `allow(READ, "apps", "deployments")`.
//! Holds: no wildcard can be written.

use k8s_openapi::api::rbac::v1::PolicyRule;

/// Sets of verbs that belong together.
pub struct Rights;

impl Rights {
    /// What an informer does.
    pub const CACHE: &[&str] = &["list", "watch"];
}

/// A rule that allows these verbs on one kind of resource; subresources are named `resource/part`.
pub fn allow(verbs: &[&str], group: &str, resource: &str) -> PolicyRule {
    debug_assert!([group, resource].iter().chain(verbs).all(|word| !word.contains('*')), "rules have no wildcards");
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}
