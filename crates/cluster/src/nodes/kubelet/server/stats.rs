//! `/stats/summary`: what a kubelet knows of the resource usage of its pods.
//!
//! The fields are those of upstream's `stats/v1alpha1`. Usage of CPU, memory, network and volumes
//! is not measured, and left out.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::logs::container_status;

#[derive(Serialize)]
pub(super) struct Summary<'a> {
    node: NodeStats<'a>,
    pods: Vec<PodStats<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStats<'a> {
    node_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Time>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStats<'a> {
    pod_ref: PodReference<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<&'a Time>,
    containers: Vec<ContainerStats<'a>>,
}

#[derive(Serialize)]
struct PodReference<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStats<'a> {
    name: &'a str,
    start_time: &'a Time,
}

impl<'a> Summary<'a> {
    /// The summary of a node that booted at that time, if it is known.
    pub(super) fn new(node: &'a str, booted_at: Option<Timestamp>, pods: &'a [Arc<Pod>]) -> Self {
        Self {
            node: NodeStats {
                node_name: node,
                start_time: booted_at.map(Time),
            },
            pods: pods.iter().map(|pod| PodStats::new(pod)).collect(),
        }
    }
}

impl<'a> PodStats<'a> {
    fn new(pod: &'a Pod) -> Self {
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        Self {
            pod_ref: PodReference {
                name: text(&pod.metadata.name),
                namespace: text(&pod.metadata.namespace),
                uid: text(&pod.metadata.uid),
            },
            start_time: pod
                .status
                .as_ref()
                .and_then(|status| status.start_time.as_ref()),
            containers: containers
                .filter_map(|container| ContainerStats::new(pod, &container.name))
                .collect(),
        }
    }
}

impl<'a> ContainerStats<'a> {
    /// The statistics of a running container.
    fn new(pod: &'a Pod, name: &'a str) -> Option<Self> {
        let state = container_status(pod, name)?.state.as_ref()?;
        Some(Self {
            name,
            start_time: state.running.as_ref()?.started_at.as_ref()?,
        })
    }
}
