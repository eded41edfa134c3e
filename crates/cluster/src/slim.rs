//! What the loops read of pods; a cache of tens of thousands keeps nothing else.
//!
//! In: a pod as the server tells it. Out: the same without managed fields, mounts, and volumes that are no claims.
//! Holds: nothing here is ever written back: loops patch what they change.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

/// Drops what no loop reads, and the room that decoding left for more.
pub(crate) fn slim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(is_claim);
        }
        spec.volumes = spec.volumes.take().filter(|volumes| !volumes.is_empty());
        spec.containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
            .for_each(slim_container);
        shrink(&mut spec.volumes);
        shrink(&mut spec.tolerations);
    }
    if let Some(status) = &mut pod.status {
        shrink(&mut status.conditions);
        shrink(&mut status.container_statuses);
    }
}

fn is_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

fn slim_container(container: &mut Container) {
    container.volume_mounts = None;
    shrink(&mut container.ports);
}

fn shrink<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_stay_and_other_volumes_go() {
        let pod = |volumes: serde_json::Value, mounts: serde_json::Value| {
            let container = json!({"name": "c", "image": "i", "volumeMounts": mounts});
            serde_json::from_value::<Pod>(json!({"metadata": {"name": "a"}, "spec": {"volumes": volumes, "containers": [container]}}))
                .expect("a pod")
        };
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}});
        let own = json!({"name": "scratch", "ephemeral": {}});
        let token = json!({"name": "token", "projected": {"sources": []}});
        let mut slimmed = pod(
            json!([token, claim, own]),
            json!([{"name": "token", "mountPath": "/t"}]),
        );
        slim(&mut slimmed);
        assert_eq!(slimmed, pod(json!([claim, own]), json!(null)));
        let mut slimmed = pod(json!([token]), json!(null));
        slim(&mut slimmed);
        assert_eq!(slimmed, pod(json!(null), json!(null)));
    }
}
