//! Builders of test objects.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

/// A pod in namespace `default`, created at second 0, with its name as uid.
pub(crate) fn pod(name: &str) -> PodBuilder {
    let mut pod = Pod {
        spec: Some(PodSpec::default()),
        status: Some(PodStatus::default()),
        ..Pod::default()
    };
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(name.into());
    pod.metadata.creation_timestamp = Some(at(0));
    PodBuilder(pod)
}

/// A time in seconds since the epoch.
pub(crate) fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

pub(crate) struct PodBuilder(Pod);

impl PodBuilder {
    pub(crate) fn build(self) -> Pod {
        self.0
    }

    pub(crate) fn cached(self) -> Arc<Pod> {
        Arc::new(self.0)
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }

    pub(crate) fn finalizer(mut self, name: &str) -> Self {
        self.0
            .metadata
            .finalizers
            .get_or_insert_default()
            .push(name.into());
        self
    }

    pub(crate) fn on(mut self, node: &str) -> Self {
        self.spec().node_name = Some(node.into());
        self
    }

    pub(crate) fn created(mut self, second: i64) -> Self {
        self.0.metadata.creation_timestamp = Some(at(second));
        self
    }

    pub(crate) fn owned_by(mut self, uid: &str) -> Self {
        let owner = OwnerReference {
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        self.0
            .metadata
            .owner_references
            .get_or_insert_default()
            .push(owner);
        self
    }

    pub(crate) fn deleting(mut self) -> Self {
        self.0.metadata.deletion_timestamp = Some(at(1));
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.status().phase = Some(phase.into());
        self
    }

    pub(crate) fn running(self) -> Self {
        self.phase("Running")
    }

    pub(crate) fn ready(self) -> Self {
        self.ready_since(0)
    }

    pub(crate) fn ready_since(self, second: i64) -> Self {
        self.condition("Ready", "True", second)
    }

    pub(crate) fn condition(mut self, type_: &str, status: &str, since: i64) -> Self {
        let condition = PodCondition {
            type_: type_.into(),
            status: status.into(),
            last_transition_time: Some(at(since)),
            ..PodCondition::default()
        };
        self.status()
            .conditions
            .get_or_insert_default()
            .push(condition);
        self
    }

    pub(crate) fn restarts(self, count: i32) -> Self {
        self.container(ContainerStatus {
            name: "main".into(),
            restart_count: count,
            ..ContainerStatus::default()
        })
    }

    pub(crate) fn container(mut self, status: ContainerStatus) -> Self {
        self.status()
            .container_statuses
            .get_or_insert_default()
            .push(status);
        self
    }

    fn spec(&mut self) -> &mut PodSpec {
        self.0.spec.get_or_insert_default()
    }

    fn status(&mut self) -> &mut PodStatus {
        self.0.status.get_or_insert_default()
    }
}
