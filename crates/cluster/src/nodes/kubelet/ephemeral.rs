//! Ephemeral containers (`kubectl debug`).
//!
//! In: the ephemeral containers of a pod. Out: the fields that they share with containers; where the
//! runtime cannot run them, statuses with that reason, for which `kubectl debug` does not wait.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const REASON: &str = "ContainerCannotRun";
const MESSAGE: &str = "simulated pods run no ephemeral containers; \
                       start the cluster with `bellerophon up --runtime process`";
/// As of containers that cannot be started.
const EXIT_CODE: i32 = 128;

/// The fields of an ephemeral container that containers have. Validation allows no others, such as
/// probes and hooks.
pub(in crate::nodes) fn container(ephemeral: &EphemeralContainer) -> Container {
    let ephemeral = ephemeral.clone();
    Container {
        name: ephemeral.name,
        image: ephemeral.image,
        image_pull_policy: ephemeral.image_pull_policy,
        command: ephemeral.command,
        args: ephemeral.args,
        working_dir: ephemeral.working_dir,
        env: ephemeral.env,
        env_from: ephemeral.env_from,
        volume_mounts: ephemeral.volume_mounts,
        security_context: ephemeral.security_context,
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        tty: ephemeral.tty,
        termination_message_path: ephemeral.termination_message_path,
        termination_message_policy: ephemeral.termination_message_policy,
        ..Container::default()
    }
}

/// The statuses of all ephemeral containers of a pod that cannot run them; `None` if there are none.
pub(super) fn unsupported_statuses(pod: &Pod, now: Timestamp) -> Option<Vec<ContainerStatus>> {
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
        assert_eq!(
            unsupported_statuses(&Pod::default(), Timestamp::UNIX_EPOCH),
            None
        );
        let mut pod = pod(&["debugger"]);
        let first = unsupported_statuses(&pod, Timestamp::UNIX_EPOCH).unwrap();
        let state = first[0].state.clone().and_then(|state| state.terminated);
        let terminated = state.unwrap();
        assert_eq!(terminated.reason.as_deref(), Some(REASON));
        assert_eq!(terminated.message.as_deref(), Some(MESSAGE));
        // The status does not change with time.
        pod.status
            .get_or_insert_default()
            .ephemeral_container_statuses = Some(first.clone());
        assert_eq!(unsupported_statuses(&pod, Timestamp::MAX), Some(first));
    }
}
