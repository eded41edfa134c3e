//! Changed fields of a pod status, and their strategic merge patch.
//!
//! In: the pod with its current status, the generated status. Out: the fields that differ, and the
//! body of the patch.

use bellerophon::kinds::encode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;

/// The fields of the generated status that differ from the current one; `None` if none does.
pub(super) fn changed_fields(pod: &Pod, mut generated: PodStatus) -> Option<PodStatus> {
    let empty = PodStatus::default();
    let current = pod.status.as_ref().unwrap_or(&empty);
    clear_if_equal(&current.phase, &mut generated.phase);
    clear_if_equal(&current.host_ip, &mut generated.host_ip);
    clear_if_equal(&current.host_ips, &mut generated.host_ips);
    clear_if_equal(&current.pod_ip, &mut generated.pod_ip);
    clear_if_equal(&current.pod_ips, &mut generated.pod_ips);
    clear_if_equal(
        &current.observed_generation,
        &mut generated.observed_generation,
    );
    clear_if_equal(&current.reason, &mut generated.reason);
    clear_if_equal(&current.message, &mut generated.message);
    // The start time never changes.
    if current.start_time.is_some() {
        generated.start_time = None;
    }
    clear_if_statuses_equal(
        &current.container_statuses,
        &mut generated.container_statuses,
    );
    clear_if_statuses_equal(
        &current.init_container_statuses,
        &mut generated.init_container_statuses,
    );
    clear_if_statuses_equal(
        &current.ephemeral_container_statuses,
        &mut generated.ephemeral_container_statuses,
    );
    let conditions: Vec<_> = generated
        .conditions
        .take()
        .into_iter()
        .flatten()
        .filter(|generated| {
            !current
                .conditions
                .iter()
                .flatten()
                .any(|current| conditions_equal(current, generated))
        })
        .collect();
    generated.conditions = Some(conditions).filter(|conditions| !conditions.is_empty());
    (generated != empty).then_some(generated)
}

fn clear_if_equal<T: PartialEq>(current: &Option<T>, generated: &mut Option<T>) {
    if generated == current {
        *generated = None;
    }
}

fn clear_if_statuses_equal(
    current: &Option<Vec<ContainerStatus>>,
    generated: &mut Option<Vec<ContainerStatus>>,
) {
    if let (Some(current), Some(statuses)) = (current, &*generated)
        && current.len() == statuses.len()
        && current
            .iter()
            .zip(statuses)
            .all(|(current, generated)| container_statuses_equal(current, generated))
    {
        *generated = None;
    }
}

/// The changed fields as the body of a strategic merge patch. Conditions are merged field by field,
/// so a reason or message that was removed is set to null.
///
/// # Errors
/// The fields cannot be encoded.
pub(super) fn strategic_merge_patch(
    pod: &Pod,
    changed: PodStatus,
) -> Result<Value, serde_json::Error> {
    let patched = Pod {
        metadata: ObjectMeta {
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        status: Some(changed),
        ..Pod::default()
    };
    let mut body: Value = serde_json::from_slice(&encode(&patched)?)?;
    let current: Vec<_> = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .collect();
    // A null would remove all conditions.
    let conditions = body.pointer_mut("/status/conditions");
    let conditions = conditions.and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let Some(current) = current
            .iter()
            .find(|current| condition["type"] == current.type_)
        else {
            continue;
        };
        for (field, value) in [("reason", &current.reason), ("message", &current.message)] {
            if value.is_some() && condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    Ok(body)
}

/// Whether two conditions are equal apart from their times.
fn conditions_equal(current: &PodCondition, generated: &PodCondition) -> bool {
    current.type_ == generated.type_
        && current.status == generated.status
        && current.reason == generated.reason
        && current.message == generated.message
        && current.observed_generation == generated.observed_generation
}

/// Whether two container statuses are equal once the API server has truncated times to seconds. An
/// empty last state equals an absent one.
fn container_statuses_equal(current: &ContainerStatus, generated: &ContainerStatus) -> bool {
    // Without the truncation every sync would find a difference and write the status again.
    let mut generated = generated.clone();
    for state in [&mut generated.state, &mut generated.last_state]
        .into_iter()
        .flatten()
    {
        if let Some(running) = &mut state.running {
            truncate_to_seconds(&mut running.started_at);
        }
        if let Some(terminated) = &mut state.terminated {
            truncate_to_seconds(&mut terminated.started_at);
            truncate_to_seconds(&mut terminated.finished_at);
        }
    }
    let last_state = |status: &ContainerStatus| {
        status
            .last_state
            .clone()
            .filter(|state| *state != ContainerState::default())
    };
    // The API server returns an empty lastState as an empty object.
    let last_states_equal = last_state(current) == last_state(&generated);
    generated.last_state.clone_from(&current.last_state);
    last_states_equal && *current == generated
}

fn truncate_to_seconds(time: &mut Option<Time>) {
    if let Some(time) = time
        && let Ok(truncated) = Timestamp::from_second(time.0.as_second())
    {
        time.0 = truncated;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patch_without_conditions_keeps_those_of_the_pod() {
        // Such a patch used to have `conditions: null`, which removed all of them.
        let condition = json!({"type": "Ready", "status": "True"});
        let pod = json!({"metadata": {"uid": "1"}, "status": {"conditions": [condition]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        let changed = PodStatus {
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        };
        let body = strategic_merge_patch(&pod, changed).expect("a patch");
        assert_eq!(body["status"], json!({"phase": "Running"}));
    }
}
