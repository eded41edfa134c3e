//! Restart policies: `restartPolicy` of pods and containers, and `restartPolicyRules`.
//!
//! In: a container that has ended, its exit code. Out: whether it is restarted, alone or with all
//! containers of its pod.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

use super::super::runtime::ContainerType;

/// Whether a container that ended with that exit code is restarted.
pub(super) fn should_restart(
    container_type: ContainerType,
    container: &Container,
    pod: &Pod,
    exit_code: i32,
) -> bool {
    match container_type {
        // An ephemeral container runs once.
        ContainerType::Ephemeral => return false,
        // An init container is not restarted after success, whatever the policy.
        ContainerType::Init if exit_code == 0 => return false,
        _ => {}
    }
    container_should_restart(container, pod, exit_code)
}

/// Mirrors `ContainerShouldRestart`.
fn container_should_restart(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    let pod_policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref());
    let policy = match container.restart_policy.as_deref() {
        Some(_) if matching_rule(container, exit_code).is_some() => return true,
        Some(policy) => Some(policy),
        None => pod_policy,
    };
    match policy {
        Some("OnFailure") => exit_code != 0,
        Some("Never") => false,
        _ => true,
    }
}

/// Whether the end of a container restarts all containers of its pod.
pub(super) fn restarts_all_containers(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL_CONTAINERS)
}

/// Whether a container of the pod can restart all of them. Mirrors `AllContainersCouldRestart`.
pub(super) fn all_containers_could_restart(pod: &Pod) -> bool {
    let spec = pod.spec.iter();
    let mut containers = spec.flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    });
    containers.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == RESTART_ALL_CONTAINERS)
    })
}

const RESTART_ALL_CONTAINERS: &str = "RestartAllContainers";

/// The first rule that matches an exit code. Mirrors `FindMatchingContainerRestartRule`.
fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|exit_codes| {
            let is_listed = exit_codes
                .values
                .iter()
                .flatten()
                .any(|it| *it == exit_code);
            match exit_codes.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                _ => false,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(action: &str, operator: &str, values: &[i32]) -> Value {
        json!({"action": action, "exitCodes": {"operator": operator, "values": values}})
    }

    #[test]
    fn rules_precede_the_policy_of_the_container_and_of_the_pod() {
        let restart_42 = || json!([rule("Restart", "In", &[42])]);
        let cases = [
            (ContainerType::App, "Always", json!({}), 0, true),
            (ContainerType::App, "OnFailure", json!({}), 0, false),
            (ContainerType::App, "OnFailure", json!({}), 1, true),
            (ContainerType::App, "Never", json!({}), 1, false),
            (ContainerType::Init, "Always", json!({}), 0, false),
            (ContainerType::Init, "Always", json!({}), 1, true),
            (ContainerType::Ephemeral, "Always", json!({}), 1, false),
            (
                ContainerType::App,
                "Always",
                json!({"restartPolicy": "Never"}),
                1,
                false,
            ),
            (
                ContainerType::App,
                "Never",
                json!({"restartPolicy": "OnFailure"}),
                1,
                true,
            ),
            (
                ContainerType::Sidecar,
                "Never",
                json!({"restartPolicy": "Always"}),
                0,
                true,
            ),
            (
                ContainerType::App,
                "Never",
                json!({"restartPolicy": "Never", "restartPolicyRules": restart_42()}),
                42,
                true,
            ),
            (
                ContainerType::App,
                "Never",
                json!({"restartPolicy": "Never", "restartPolicyRules": restart_42()}),
                43,
                false,
            ),
            (
                ContainerType::Init,
                "Never",
                json!({
                    "restartPolicy": "Never",
                    "restartPolicyRules": [rule("Restart", "NotIn", &[42])],
                }),
                43,
                true,
            ),
        ];
        for (container_type, pod_policy, mut container, exit_code, expected) in cases {
            container["name"] = json!("app");
            let pod = json!({"spec": {"restartPolicy": pod_policy, "containers": [container]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let container = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(
                should_restart(container_type, container, &pod, exit_code),
                expected,
                "{container_type:?} {pod_policy} {container:?} {exit_code}"
            );
        }
    }

    #[test]
    fn first_matching_rule_decides_on_the_restart_of_all_containers() {
        let container = json!({
            "name": "app", "restartPolicy": "Never",
            "restartPolicyRules": [
                rule("Restart", "In", &[1]),
                rule("RestartAllContainers", "In", &[1, 2]),
            ],
        });
        let container: Container = serde_json::from_value(container).unwrap();
        for (exit_code, expected) in [(0, false), (1, false), (2, true)] {
            assert_eq!(restarts_all_containers(&container, exit_code), expected);
        }
    }
}
