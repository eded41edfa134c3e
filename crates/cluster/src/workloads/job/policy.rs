//! Policies of a Job: what a failed pod means, and when enough has succeeded.
//!
//! In: rules, a failed pod or succeeded indexes. Out: what follows.
//! Holds: the first rule that matches decides; without one a failure counts.

use k8s_openapi::api::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, SuccessPolicy,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::indexes::Indexes;

/// What a failed pod means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It counts towards the limits.
    Count,
    /// It does not.
    Ignore,
    /// Its index has failed.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// Judges a failed pod.
pub(super) fn meaning(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Meaning {
    for (index, rule) in policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        let which = || format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let found = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => exited(pod, codes).map(|(container, code)| {
                format!(
                    "Container {container} for pod {} failed with exit code {code} matching {} rule at index {index}",
                    which(),
                    rule.action
                )
            }),
            (None, Some(patterns)) => {
                let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
                let matching = conditions.iter().find(|condition| {
                    let status = |wanted: Option<&str>| wanted.unwrap_or("True") == condition.status;
                    patterns.iter().any(|pattern| pattern.type_ == condition.type_ && status(pattern.status.as_deref()))
                });
                matching.map(|condition| {
                    format!("Pod {} has condition {} matching {} rule at index {index}", which(), condition.type_, rule.action)
                })
            }
            (None, None) => None,
        };
        let Some(message) = found else { continue };
        match rule.action.as_str() {
            "Ignore" => return Meaning::Ignore,
            "FailIndex" => return Meaning::FailIndex,
            "Count" => return Meaning::Count,
            "FailJob" => return Meaning::FailJob(message),
            _ => {}
        }
    }
    Meaning::Count
}

/// The first container that ended with an error the rule names, main containers first.
fn exited<'a>(
    pod: &'a Pod,
    rule: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let containers = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten();
    let matches = |container: &&ContainerStatus| {
        rule.container_name
            .as_ref()
            .is_none_or(|name| *name == container.name)
    };
    let code = |container: &'a ContainerStatus| {
        Some((
            container.name.as_str(),
            container.state.as_ref()?.terminated.as_ref()?.exit_code,
        ))
    };
    let listed = |code: i32| match rule.operator.as_str() {
        "In" => rule.values.contains(&code),
        "NotIn" => !rule.values.contains(&code),
        _ => false,
    };
    containers
        .filter(matches)
        .filter_map(code)
        .find(|(_, code)| *code != 0 && listed(*code))
}

/// Which rule says that enough has succeeded.
pub(super) fn success(
    policy: Option<&SuccessPolicy>,
    succeeded: &Indexes,
    completions: i32,
) -> Option<String> {
    let rules = policy?.rules.iter().enumerate();
    let met =
        rules.into_iter().find(
            |(_, rule)| match (&rule.succeeded_indexes, rule.succeeded_count) {
                (Some(indexes), count) => {
                    let required = Indexes::parse(indexes, completions);
                    required.len() > 0
                        && required.common(succeeded) >= count.unwrap_or(required.len())
                }
                (None, Some(count)) => succeeded.len() >= count && succeeded.len() > 0,
                (None, None) => false,
            },
        );
    met.map(|(index, _)| format!("Matched rules at index {index}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workloads::test_objects::pod;

    fn failed(code: i32) -> Pod {
        let status = json!({ "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": code } } });
        pod("p")
            .phase("Failed")
            .condition("DisruptionTarget", "True", 0)
            .container(serde_json::from_value(status).unwrap())
            .build()
    }

    #[test]
    fn first_matching_rule_decides() {
        let codes = |action: &str, operator: &str, values: &[i32]| json!({ "action": action, "onExitCodes": { "operator": operator, "values": values } });
        let disrupted =
            json!({ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] });
        let fail = Meaning::FailJob("Container main for pod default/p failed with exit code 42 matching FailJob rule at index 0".into());
        for (rules, expected) in [
            (json!([]), Meaning::Count),
            (json!([codes("FailJob", "In", &[42])]), fail),
            (json!([codes("FailJob", "In", &[1])]), Meaning::Count),
            (json!([codes("Ignore", "NotIn", &[1])]), Meaning::Ignore),
            (json!([codes("FailIndex", "In", &[42])]), Meaning::FailIndex),
            (
                json!([disrupted, codes("FailJob", "In", &[42])]),
                Meaning::Ignore,
            ),
            (
                json!([codes("Count", "In", &[42]), disrupted]),
                Meaning::Count,
            ),
            (
                json!([{ "action": "FailJob", "onExitCodes": { "containerName": "other", "operator": "In", "values": [42] } }]),
                Meaning::Count,
            ),
        ] {
            let policy: PodFailurePolicy =
                serde_json::from_value(json!({ "rules": rules })).unwrap();
            assert_eq!(meaning(Some(&policy), &failed(42)), expected, "{rules}");
        }
    }

    #[test]
    fn enough_is_what_a_rule_says() {
        for (rules, succeeded, met) in [
            (json!([{ "succeededCount": 2 }]), "0,5", true),
            (json!([{ "succeededCount": 2 }]), "5", false),
            (json!([{ "succeededIndexes": "0" }]), "0,3", true),
            (json!([{ "succeededIndexes": "0-2" }]), "0,2", false),
            (
                json!([{ "succeededIndexes": "0-2", "succeededCount": 2 }]),
                "0,2",
                true,
            ),
            (json!([{ "succeededIndexes": "99" }]), "0-9", false),
        ] as [(Value, &str, bool); 6]
        {
            let policy: SuccessPolicy = serde_json::from_value(json!({ "rules": rules })).unwrap();
            assert_eq!(
                success(Some(&policy), &Indexes::parse(succeeded, 10), 10).is_some(),
                met,
                "{rules} {succeeded}"
            );
        }
    }
}
