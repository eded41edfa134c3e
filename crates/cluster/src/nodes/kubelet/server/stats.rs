//! `/stats/summary`: what a kubelet knows of the resource usage of its pods.
//!
//! The fields are those of upstream's `stats/v1alpha1`. CPU and memory of a node and of a pod are
//! the sums of their containers. Usage of network and volumes is not measured, and left out.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::usage::{ContainerUsage, Sample};

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
    #[serde(flatten)]
    usage: UsageStats,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStats<'a> {
    pod_ref: PodReference<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<&'a Time>,
    containers: Vec<ContainerStats<'a>>,
    #[serde(flatten)]
    usage: UsageStats,
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
    start_time: Time,
    #[serde(flatten)]
    usage: UsageStats,
}

/// The usage of containers; empty if none of them has a sample.
#[derive(Clone, Default, Serialize)]
struct UsageStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStats>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct CpuStats {
    time: Time,
    usage_nano_cores: u64,
    usage_core_nano_seconds: u64,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemoryStats {
    time: Time,
    working_set_bytes: u64,
}

/// A pod and its running containers.
pub(super) type PodUsage<'a> = (&'a Pod, Vec<ContainerUsage<'a>>);

impl<'a> Summary<'a> {
    /// The summary of a node that booted at that time, if it is known.
    pub(super) fn new(
        node: &'a str,
        booted_at: Option<Timestamp>,
        pods: &'a [PodUsage<'a>],
    ) -> Self {
        let containers = pods.iter().flat_map(|(_, containers)| containers);
        Self {
            node: NodeStats {
                node_name: node,
                start_time: booted_at.map(Time),
                usage: UsageStats::sum(containers),
            },
            pods: pods.iter().map(PodStats::new).collect(),
        }
    }
}

impl<'a> PodStats<'a> {
    fn new((pod, containers): &'a PodUsage<'a>) -> Self {
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
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
            containers: containers.iter().map(ContainerStats::new).collect(),
            usage: UsageStats::sum(containers),
        }
    }
}

impl<'a> ContainerStats<'a> {
    fn new(usage: &ContainerUsage<'a>) -> Self {
        Self {
            name: &usage.container.name,
            start_time: Time(usage.started_at),
            usage: UsageStats::sum([usage]),
        }
    }
}

impl UsageStats {
    fn sum<'a>(containers: impl IntoIterator<Item = &'a ContainerUsage<'a>>) -> Self {
        let samples = containers.into_iter().filter_map(|usage| usage.sample);
        let Some(sum) = Sample::sum(samples) else {
            return Self::default();
        };
        Self {
            cpu: Some(CpuStats {
                time: Time(sum.taken_at),
                usage_nano_cores: sum.nano_cores,
                usage_core_nano_seconds: sum.cpu_nanos_total,
            }),
            memory: Some(MemoryStats {
                time: Time(sum.taken_at),
                working_set_bytes: sum.memory_working_set,
            }),
        }
    }
}
