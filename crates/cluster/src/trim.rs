//! Cache transform for pods: drops the fields that no controller reads.
//!
//! Input: a pod from list or watch. Output: the pod without managed fields, volume mounts, and
//! volumes other than PersistentVolumeClaims and ephemeral volumes.
//! Guarantees: a trimmed pod is never written back; controllers patch the fields they change.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

/// Drops unread fields and the spare capacity that decoding left in the lists.
pub(crate) fn trim_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(is_claim);
        }
        spec.volumes = spec.volumes.take().filter(|volumes| !volumes.is_empty());
        spec.containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
            .for_each(trim_container);
        shrink_to_fit(&mut spec.volumes);
        shrink_to_fit(&mut spec.tolerations);
    }
    if let Some(status) = &mut pod.status {
        shrink_to_fit(&mut status.conditions);
        shrink_to_fit(&mut status.container_statuses);
    }
}

fn is_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

fn trim_container(container: &mut Container) {
    container.volume_mounts = None;
    shrink_to_fit(&mut container.ports);
}

fn shrink_to_fit<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_volumes_are_kept_and_others_dropped() {
        let pod = |volumes: serde_json::Value, mounts: serde_json::Value| {
            let container = json!({"name": "c", "image": "i", "volumeMounts": mounts});
            serde_json::from_value::<Pod>(json!({
                "metadata": {"name": "a"},
                "spec": {"volumes": volumes, "containers": [container]},
            }))
            .expect("a pod")
        };
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}});
        let ephemeral = json!({"name": "scratch", "ephemeral": {}});
        let token = json!({"name": "token", "projected": {"sources": []}});
        let mut trimmed = pod(
            json!([token, claim, ephemeral]),
            json!([{"name": "token", "mountPath": "/t"}]),
        );
        trim_pod(&mut trimmed);
        assert_eq!(trimmed, pod(json!([claim, ephemeral]), json!(null)));
        let mut trimmed = pod(json!([token]), json!(null));
        trim_pod(&mut trimmed);
        assert_eq!(trimmed, pod(json!(null), json!(null)));
    }
}
