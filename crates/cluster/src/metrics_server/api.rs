//! The types of `metrics.k8s.io/v1beta1`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::nodes::Sample;
use crate::quantity::{from_bytes, from_nanos};

pub(crate) const GROUP: &str = "metrics.k8s.io";
pub(crate) const VERSION: &str = "v1beta1";

/// Amounts by name of the resource: `cpu` and `memory`.
pub(crate) type ResourceList = BTreeMap<String, Quantity>;

/// The usage of a node.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct NodeMetrics {
    pub(crate) metadata: ObjectMeta,
    #[serde(flatten)]
    pub(crate) interval: Interval,
    pub(crate) usage: ResourceList,
}

/// The usage of the containers of a pod.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PodMetrics {
    pub(crate) metadata: ObjectMeta,
    #[serde(flatten)]
    pub(crate) interval: Interval,
    pub(crate) containers: Vec<ContainerMetrics>,
}

/// The usage of a container.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ContainerMetrics {
    pub(crate) name: String,
    pub(crate) usage: ResourceList,
}

/// When the usage was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Interval {
    /// The end of the window.
    pub(crate) timestamp: Time,
    /// A duration such as `15s`.
    window: String,
}

impl Interval {
    pub(super) fn of(sample: &Sample) -> Self {
        Self {
            timestamp: Time(sample.taken_at),
            window: format!("{:?}", sample.window),
        }
    }

    /// The length of the window; zero if it cannot be parsed.
    pub(crate) fn window(&self) -> Duration {
        let window = self.window.parse::<SignedDuration>();
        window.map_or(Duration::ZERO, |window| window.unsigned_abs())
    }

    pub(super) fn window_text(&self) -> &str {
        &self.window
    }
}

/// The usage in a sample. Mirrors `resourceUsage` of metrics-server.
pub(super) fn resource_usage(sample: &Sample) -> ResourceList {
    let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let cpu = from_nanos(amount(sample.nano_cores));
    let memory = from_bytes(amount(sample.memory_working_set));
    [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into()
}

/// A list of node or pod metrics.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct MetricsList<T> {
    pub(crate) items: Vec<T>,
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn usage_and_window_are_those_of_the_sample() {
        let sample = Sample {
            taken_at: Timestamp::UNIX_EPOCH,
            window: Duration::from_millis(15_250),
            nano_cores: 1_234_567_891,
            cpu_nanos_total: 0,
            memory_working_set: 200 << 20,
        };
        let usage = resource_usage(&sample);
        assert_eq!(usage["cpu"].0, "1234567891n");
        assert_eq!(usage["memory"].0, "200Mi");
        let interval = Interval::of(&sample);
        assert_eq!(interval.window_text(), "15.25s");
        assert_eq!(interval.window(), Duration::from_millis(15_250));
    }
}
