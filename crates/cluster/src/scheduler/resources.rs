//! Resource requests of pods and allocatable resources of nodes.
//!
//! In: `v1.ResourceList` maps of quantities. Out: CPU in milli-CPUs, everything else in base units.
//! Guarantees: values are rounded up; a quantity that cannot be parsed counts as zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{milli_value, value};

/// CPU request that scoring assumes for a container without one, in milli-CPUs
/// (upstream `DefaultMilliCPURequest`).
const DEFAULT_MILLI_CPU_REQUEST: i64 = 100;

/// Memory request that scoring assumes for a container without one, in bytes
/// (upstream `DefaultMemoryRequest`).
const DEFAULT_MEMORY_REQUEST: i64 = 200 * 1024 * 1024;

/// Amounts of compute resources. Mirrors the scheduler framework's `Resource`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    pub(crate) pods: i64,
    /// Extended resources, sorted by name.
    pub(crate) extended: Vec<(Arc<str>, i64)>,
}

/// CPU and memory requests of pods for scoring, with defaults for containers without requests.
/// Mirrors `NodeInfo.NonZeroRequested`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NonZeroRequests {
    pub(crate) milli_cpu: i64,
    /// In bytes.
    pub(crate) memory: i64,
}

impl NonZeroRequests {
    pub(crate) fn add(&mut self, other: Self) {
        self.milli_cpu += other.milli_cpu;
        self.memory += other.memory;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.milli_cpu -= other.milli_cpu;
        self.memory -= other.memory;
    }
}

type ResourceList = BTreeMap<String, Quantity>;

impl Resources {
    pub(crate) fn from_list(list: Option<&ResourceList>) -> Self {
        // The list is a BTreeMap, so extended resources are pushed in the order of their names,
        // which `extended` and `combine` rely on.
        let mut resources = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            match name.as_str() {
                "cpu" => resources.milli_cpu = milli_value(quantity),
                "memory" => resources.memory = value(quantity),
                "ephemeral-storage" => resources.ephemeral_storage = value(quantity),
                "pods" => resources.pods = value(quantity),
                _ => resources
                    .extended
                    .push((name.as_str().into(), value(quantity))),
            }
        }
        resources
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |a, b| a.saturating_add(b));
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.combine(other, |a, b| a.saturating_sub(b));
    }

    /// Keeps the larger amount of each resource. Mirrors `Resource.SetMaxResource`.
    fn set_max(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    /// The amount of an extended resource; zero if it is not listed.
    pub(crate) fn extended(&self, name: &str) -> i64 {
        self.extended
            .binary_search_by(|(known, _)| (**known).cmp(name))
            .map_or(0, |at| self.extended[at].1)
    }

    fn combine(&mut self, other: &Self, combine: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = combine(self.milli_cpu, other.milli_cpu);
        self.memory = combine(self.memory, other.memory);
        self.ephemeral_storage = combine(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = combine(self.pods, other.pods);
        for (name, amount) in &other.extended {
            match self.extended.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => self.extended[at].1 = combine(self.extended[at].1, *amount),
                Err(at) => self
                    .extended
                    .insert(at, (name.clone(), combine(0, *amount))),
            }
        }
    }
}

/// The resource requests of a pod. Mirrors `PodRequests` of the component helpers: pod-level
/// requests replace the sum of the containers' requests, and the overhead is added.
pub(crate) fn pod_requests(spec: &PodSpec) -> Resources {
    let mut requests = aggregate_container_requests(spec, container_requests);
    let pod_level = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let pod_level = Resources::from_list(pod_level);
    if pod_level.milli_cpu > 0 {
        requests.milli_cpu = pod_level.milli_cpu;
    }
    if pod_level.memory > 0 {
        requests.memory = pod_level.memory;
    }
    // The overhead comes on top of pod-level requests too.
    requests.add(&Resources::from_list(spec.overhead.as_ref()));
    requests
}

/// The CPU and memory requests of a pod for scoring, with defaults for containers without requests.
pub(crate) fn non_zero_requests(spec: &PodSpec) -> NonZeroRequests {
    let requests = aggregate_container_requests(spec, |container| {
        let mut requests = container_requests(container);
        // Mirrors GetNonzeroRequests: otherwise pods without requests would all be placed on one
        // node.
        if requests.milli_cpu == 0 {
            requests.milli_cpu = DEFAULT_MILLI_CPU_REQUEST;
        }
        if requests.memory == 0 {
            requests.memory = DEFAULT_MEMORY_REQUEST;
        }
        requests
    });
    NonZeroRequests {
        milli_cpu: requests.milli_cpu,
        memory: requests.memory,
    }
}

fn container_requests(container: &Container) -> Resources {
    Resources::from_list(
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    )
}

/// Mirrors `AggregateContainerRequests`: containers and sidecars run concurrently, so their
/// requests add up; an init container runs with the sidecars that started before it, so the
/// largest such sum is a lower bound.
fn aggregate_container_requests(
    spec: &PodSpec,
    requests_of: impl Fn(&Container) -> Resources,
) -> Resources {
    let mut total = Resources::default();
    let mut sidecars = Resources::default();
    let mut init_max = Resources::default();
    for container in &spec.containers {
        total.add(&requests_of(container));
    }
    for container in spec.init_containers.iter().flatten() {
        let mut requests = requests_of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            total.add(&requests);
            sidecars.add(&requests);
            init_max.set_max(&sidecars);
        } else {
            requests.add(&sidecars);
            init_max.set_max(&requests);
        }
    }
    total.set_max(&init_max);
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_requests_are_the_maximum_of_containers_and_init_containers() {
        let container = |cpu: &str| {
            let requests = json!({"cpu": cpu, "example.com/gpu": "1"});
            json!({"name": "c", "resources": {"requests": requests}})
        };
        let sidecar = |cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            json!({"name": "s", "restartPolicy": "Always", "resources": resources})
        };
        for (case, spec, milli_cpu, gpus) in [
            (
                "containers",
                json!({"containers": [container("1"), container("2")]}),
                3000,
                2,
            ),
            (
                "larger init container",
                json!({"containers": [container("1")], "initContainers": [container("5")]}),
                5000,
                1,
            ),
            (
                "sidecar",
                json!({"containers": [container("1")], "initContainers": [sidecar("2")]}),
                3000,
                1,
            ),
            (
                "init container after a sidecar",
                json!({
                    "containers": [container("1")],
                    "initContainers": [sidecar("2"), container("3")],
                }),
                5000,
                1,
            ),
            (
                "init container before a sidecar",
                json!({
                    "containers": [container("1")],
                    "initContainers": [container("3"), sidecar("2")],
                }),
                3000,
                1,
            ),
            (
                "overhead",
                json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}),
                1250,
                1,
            ),
            (
                "pod-level requests",
                json!({"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}),
                4000,
                1,
            ),
        ] {
            let requests = pod_requests(&serde_json::from_value(spec).unwrap());
            assert_eq!(requests.milli_cpu, milli_cpu, "{case}");
            assert_eq!(requests.extended("example.com/gpu"), gpus, "{case}");
        }
        let best_effort: PodSpec =
            serde_json::from_value(json!({"containers": [{"name": "a"}, {"name": "b"}]})).unwrap();
        let expected = NonZeroRequests {
            milli_cpu: 200,
            memory: 400 * 1024 * 1024,
        };
        assert_eq!(non_zero_requests(&best_effort), expected);
    }
}
