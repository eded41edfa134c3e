//! Ephemeral containers, which are not supported.
//!
//! In: the ephemeral containers of a pod. Out: statuses that they cannot run, so that
//! `kubectl debug` does not wait for them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const REASON: &str = "ContainerCannotRun";
const MESSAGE: &str = "ephemeral containers are not supported by this node; use kubectl exec";
/// As of containers that cannot be started.
const EXIT_CODE: i32 = 128;

/// The statuses of all ephemeral containers; `None` if there are none.
pub(super) fn statuses(pod: &Pod, now: Timestamp) -> Option<Vec<ContainerStatus>> {
    let containers = pod.spec.as_ref()?.ephemeral_containers.as_ref()?;
    let current = pod.status.as_ref();
    let current = current.and_then(|status| status.ephemeral_container_statuses.as_ref());
    let find = |name: &str| {
        let mut statuses = current.into_iter().flatten();
        statuses.find(|status| status.name == name).cloned()
    };
    let status = |container: &EphemeralContainer| {
        find(&container.name).unwrap_or_else(|| cannot_run(container, now))
    };
    Some(containers.iter().map(status).collect())
}

fn cannot_run(container: &EphemeralContainer, now: Timestamp) -> ContainerStatus {
    let terminated = ContainerStateTerminated {
        exit_code: EXIT_CODE,
        reason: Some(REASON.to_owned()),
        message: Some(MESSAGE.to_owned()),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(names: &[&str]) -> Pod {
        let containers: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "image": "busybox"}))
            .collect();
        let spec = json!({"containers": [], "ephemeralContainers": containers});
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn ephemeral_container_is_terminated_with_a_reason() {
        assert_eq!(statuses(&Pod::default(), Timestamp::UNIX_EPOCH), None);
        let mut pod = pod(&["debugger"]);
        let first = statuses(&pod, Timestamp::UNIX_EPOCH).unwrap();
        let state = first[0].state.clone().and_then(|state| state.terminated);
        let terminated = state.unwrap();
        assert_eq!(terminated.reason.as_deref(), Some(REASON));
        assert_eq!(terminated.message.as_deref(), Some(MESSAGE));
        // The status does not change with time.
        pod.status
            .get_or_insert_default()
            .ephemeral_container_statuses = Some(first.clone());
        assert_eq!(statuses(&pod, Timestamp::MAX), Some(first));
    }
}
