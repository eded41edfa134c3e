//! Pod failure policy and success policy of a Job.
//!
//! Input: rules, a failed pod or succeeded indexes. Output: the action of the first matching rule.
//! Default of the pod failure policy: `Count`.

use k8s_openapi::api::batch::v1::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, SuccessPolicy,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;

use super::indexes::CompletionIndexes;

/// Action of the pod failure policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailurePolicyAction {
    /// The failure counts towards the back-off limit.
    Count,
    /// The failure does not count.
    Ignore,
    /// The pod's index fails.
    FailIndex,
    /// The Job fails with this message.
    FailJob(String),
}

/// The action for a failed pod. Mirrors matchPodFailurePolicy.
pub(super) fn match_pod_failure_policy(
    policy: Option<&PodFailurePolicy>,
    pod: &Pod,
) -> FailurePolicyAction {
    let key = || format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    for (index, rule) in policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        let action = &rule.action;
        let matched = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => match_on_exit_codes(pod, codes).map(|(container, code)| {
                format!(
                    "Container {container} for pod {} failed with exit code {code} matching \
                     {action} rule at index {index}",
                    key()
                )
            }),
            (None, Some(patterns)) => match_on_pod_conditions(pod, patterns).map(|condition| {
                format!(
                    "Pod {} has condition {} matching {action} rule at index {index}",
                    key(),
                    condition.type_
                )
            }),
            (None, None) => None,
        };
        let Some(message) = matched else { continue };
        match rule.action.as_str() {
            "Ignore" => return FailurePolicyAction::Ignore,
            "FailIndex" => return FailurePolicyAction::FailIndex,
            "Count" => return FailurePolicyAction::Count,
            "FailJob" => return FailurePolicyAction::FailJob(message),
            _ => {}
        }
    }
    FailurePolicyAction::Count
}

/// The first condition of the pod that matches a pattern. Mirrors matchOnPodConditions.
fn match_on_pod_conditions<'a>(
    pod: &'a Pod,
    patterns: &[PodFailurePolicyOnPodConditionsPattern],
) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| {
        patterns.iter().any(|pattern| {
            pattern.type_ == condition.type_
                && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })
}

/// The first container with a matching exit code other than 0, containers before init containers.
/// Mirrors matchOnExitCodes.
fn match_on_exit_codes<'a>(
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
    let matches_operator = |code: i32| match rule.operator.as_str() {
        "In" => rule.values.contains(&code),
        "NotIn" => !rule.values.contains(&code),
        _ => false,
    };
    containers
        .filter(matches)
        .filter_map(code)
        .find(|(_, code)| *code != 0 && matches_operator(*code))
}

/// The message of the first success policy rule that is met. Mirrors matchSuccessPolicy.
pub(super) fn match_success_policy(
    policy: Option<&SuccessPolicy>,
    succeeded: &CompletionIndexes,
    completions: i32,
) -> Option<String> {
    let rules = policy?.rules.iter().enumerate();
    let met =
        rules.into_iter().find(
            |(_, rule)| match (&rule.succeeded_indexes, rule.succeeded_count) {
                (Some(indexes), count) => {
                    let required = CompletionIndexes::parse(indexes, completions);
                    required.len() > 0
                        && required.intersection_len(succeeded) >= count.unwrap_or(required.len())
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
        let status = json!({
            "name": "main",
            "image": "",
            "imageID": "",
            "ready": false,
            "restartCount": 0,
            "state": { "terminated": { "exitCode": code } },
        });
        pod("p")
            .phase("Failed")
            .condition("DisruptionTarget", "True", 0)
            .container(serde_json::from_value(status).unwrap())
            .build()
    }

    #[test]
    fn first_matching_rule_decides() {
        let codes = |action: &str, operator: &str, values: &[i32]| {
            json!({
                "action": action,
                "onExitCodes": { "operator": operator, "values": values },
            })
        };
        let disrupted =
            json!({ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] });
        let fail = FailurePolicyAction::FailJob(
            "Container main for pod default/p failed with exit \
            code 42 matching FailJob rule at index 0"
                .into(),
        );
        for (rules, expected) in [
            (json!([]), FailurePolicyAction::Count),
            (json!([codes("FailJob", "In", &[42])]), fail),
            (
                json!([codes("FailJob", "In", &[1])]),
                FailurePolicyAction::Count,
            ),
            (
                json!([codes("Ignore", "NotIn", &[1])]),
                FailurePolicyAction::Ignore,
            ),
            (
                json!([codes("FailIndex", "In", &[42])]),
                FailurePolicyAction::FailIndex,
            ),
            (
                json!([disrupted, codes("FailJob", "In", &[42])]),
                FailurePolicyAction::Ignore,
            ),
            (
                json!([codes("Count", "In", &[42]), disrupted]),
                FailurePolicyAction::Count,
            ),
            (
                json!([
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": "other",
                            "operator": "In",
                            "values": [42],
                        },
                    },
                ]),
                FailurePolicyAction::Count,
            ),
        ] {
            let policy: PodFailurePolicy =
                serde_json::from_value(json!({ "rules": rules })).unwrap();
            assert_eq!(
                match_pod_failure_policy(Some(&policy), &failed(42)),
                expected,
                "{rules}"
            );
        }
    }

    #[test]
    fn success_policy_rule_requires_indexes_or_count() {
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
                match_success_policy(Some(&policy), &CompletionIndexes::parse(succeeded, 10), 10)
                    .is_some(),
                met,
                "{rules} {succeeded}"
            );
        }
    }
}
