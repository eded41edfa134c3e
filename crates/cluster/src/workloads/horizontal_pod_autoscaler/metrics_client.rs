//! Metrics client: the resource metrics of pods, from `metrics.k8s.io`.
//!
//! Guarantees: errors have the messages of client-go, because they are shown in conditions and
//! events. Custom and external metrics are not read.

use kube::Client;
use kube::api::ListParams;
use kube::core::request::Request;

use super::replica_calculator::{PodMetric, PodMetrics};
use super::scale_client::message;
use crate::metrics_server::api::{self, GROUP, MetricsList, VERSION};
use crate::quantity::milli_value;

/// Reads metrics. Mirrors resourceMetricsClient.
pub(super) struct MetricsClient {
    pub(super) client: Client,
}

impl MetricsClient {
    /// The metrics of a resource of the pods that a selector matches, or of one container of them.
    /// Mirrors GetResourceMetric.
    ///
    /// # Errors
    /// The message for the condition.
    pub(super) async fn resource_metric(
        &self,
        namespace: &str,
        selector: &str,
        resource: &str,
        container: Option<&str>,
    ) -> Result<PodMetrics, String> {
        let failed =
            |why: String| format!("unable to fetch metrics from resource metrics API: {why}");
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pods");
        let request = Request::new(path).list(&ListParams::default().labels(selector));
        let request = request.map_err(|error| failed(error.to_string()))?;
        let list = self.client.request::<MetricsList<api::PodMetrics>>(request);
        let list = list.await;
        let list = list.map_err(|error| failed(message(&error, "get pods.metrics.k8s.io")))?;
        if list.items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        let metrics = list.items.iter().filter_map(|pod| {
            let name = pod.metadata.name.clone()?;
            let metric = PodMetric {
                timestamp: pod.interval.timestamp.0,
                window: pod.interval.window(),
                value: value(pod, resource, container)?,
            };
            Some((name, metric))
        });
        Ok(metrics.collect())
    }
}

/// The value of a pod in thousandths; `None` if a container has none. Mirrors getPodMetrics and
/// getContainerMetrics.
fn value(pod: &api::PodMetrics, resource: &str, container: Option<&str>) -> Option<i64> {
    let mut containers = pod.containers.iter();
    if let Some(name) = container {
        let container = containers.find(|container| container.name == name)?;
        return container.usage.get(resource).map(milli_value);
    }
    if pod.containers.is_empty() {
        return None;
    }
    containers.try_fold(0_i64, |sum, container| {
        let value = container.usage.get(resource).map(milli_value)?;
        Some(sum.saturating_add(value))
    })
}
