//! Metrics of an autoscaler: the replicas that each metric proposes.
//!
//! In: the metrics of the spec and the pods of the target. Out: the largest proposal, and the
//! current values for the status. Mirrors computeReplicasForMetrics.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec, MetricStatus, MetricTarget,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use super::metrics_client::MetricsClient;
use super::replica_calculator::{Proposal, ReplicaCalculator, ResourceMetric, Target, Tolerances};
use super::status::metric_status;
use crate::quantity::{approximate_value, milli_value};

/// The tolerance of an autoscaler that sets none (`--horizontal-pod-autoscaler-tolerance`).
const TOLERANCE: f64 = 0.1;

/// A target and its pods.
pub(super) struct ScaleTarget<'a> {
    pub(super) selector: &'a str,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) replicas: i32,
}

/// Why a metric has no proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricError {
    /// The reason of the condition and of the event.
    pub(super) reason: &'static str,
    /// The message of the event, and of the condition after a prefix.
    pub(super) message: String,
    /// What failed, before the message.
    context: String,
}

/// The outcome of all metrics.
#[derive(Debug, Default)]
pub(super) struct Computed {
    /// The largest proposal, and the description of its metric.
    pub(super) proposal: Option<(i32, String)>,
    /// One entry per metric; that of a failed one is empty.
    pub(super) statuses: Vec<MetricStatus>,
    /// The failed metrics.
    pub(super) errors: Vec<MetricError>,
}

impl Computed {
    /// Whether nothing can be done: no metric has a value, or some have none and the others would
    /// scale down.
    pub(super) fn has_failed(&self, current: i32) -> bool {
        let is_scale_down = |(replicas, _): &(i32, String)| *replicas < current;
        match &self.proposal {
            None => true,
            Some(proposal) => !self.errors.is_empty() && is_scale_down(proposal),
        }
    }

    /// The message about the failed metrics; `None` if there are none.
    pub(super) fn error(&self) -> Option<String> {
        let first = self.errors.first()?;
        Some(format!(
            "invalid metrics ({} invalid out of {}), first error is: {}: {}",
            self.errors.len(),
            self.statuses.len(),
            first.context,
            first.message
        ))
    }
}

/// Computes the proposals of all metrics.
pub(super) async fn compute_replicas(
    client: &MetricsClient,
    hpa: &HorizontalPodAutoscaler,
    spec: &HorizontalPodAutoscalerSpec,
    target: &ScaleTarget<'_>,
    now: Timestamp,
) -> Computed {
    let calculator = ReplicaCalculator {
        pods: target.pods,
        current_replicas: target.replicas,
        tolerances: tolerances(spec),
        now,
    };
    let namespace = hpa.namespace().unwrap_or_default();
    let source = MetricSource {
        client,
        namespace: &namespace,
        selector: target.selector,
        calculator,
    };
    let mut computed = Computed::default();
    for metric in spec.metrics.iter().flatten() {
        match source.compute(metric).await {
            Ok((proposal, description)) => {
                computed.statuses.push(metric_status(metric, &proposal));
                let is_larger = |(replicas, _): &(i32, String)| proposal.replicas > *replicas;
                if computed.proposal.as_ref().is_none_or(is_larger) {
                    computed.proposal = Some((proposal.replicas, description));
                }
            }
            Err(error) => {
                computed.statuses.push(MetricStatus::default());
                computed.errors.push(error);
            }
        }
    }
    computed
}

/// Mirrors tolerancesForHpa.
fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    let scale_down = behavior.and_then(|it| it.scale_down.as_ref()?.tolerance.as_ref());
    let scale_up = behavior.and_then(|it| it.scale_up.as_ref()?.tolerance.as_ref());
    Tolerances {
        scale_down: scale_down.map_or(TOLERANCE, approximate_value),
        scale_up: scale_up.map_or(TOLERANCE, approximate_value),
    }
}

/// Computes the proposal of one metric.
struct MetricSource<'a> {
    client: &'a MetricsClient,
    namespace: &'a str,
    selector: &'a str,
    calculator: ReplicaCalculator<'a>,
}

impl MetricSource<'_> {
    /// The proposal of a metric, and its description. Mirrors computeReplicasForMetric.
    async fn compute(&self, metric: &MetricSpec) -> Result<(Proposal, String), MetricError> {
        if let Some(source) = &metric.resource {
            let resource = &source.name;
            let of_pods = ResourceMetric {
                resource,
                container: None,
            };
            let proposal = self.resource_metric(of_pods, &source.target).await;
            let proposal = proposal.map_err(|message| MetricError {
                reason: "FailedGetResourceMetric",
                message,
                context: format!("failed to get {resource} resource metric value"),
            })?;
            return Ok((proposal, description(resource, "resource", &source.target)));
        }
        if let Some(source) = &metric.container_resource {
            let of_container = ResourceMetric {
                resource: &source.name,
                container: Some(&source.container),
            };
            let proposal = self.resource_metric(of_container, &source.target).await;
            let proposal = proposal.map_err(|message| MetricError {
                reason: "FailedGetContainerResourceMetric",
                message,
                context: format!("failed to get {} container metric value", source.container),
            })?;
            let kind = "container resource";
            return Ok((proposal, description(&source.name, kind, &source.target)));
        }
        Err(self.unavailable_metric(metric))
    }

    /// Mirrors computeStatusForResourceMetricGeneric.
    async fn resource_metric(
        &self,
        metric: ResourceMetric<'_>,
        target: &MetricTarget,
    ) -> Result<Proposal, String> {
        let resource = metric.resource;
        let (value, measured) = match (&target.average_value, target.average_utilization) {
            (Some(value), _) => (Target::AverageValue(milli_value(value)), "usage"),
            (None, Some(percent)) => (Target::Utilization(percent), "utilization"),
            (None, None) => {
                let message = "invalid resource metric source: neither an average utilization \
                    target nor an average value (usage) target was set";
                return Err(message.to_owned());
            }
        };
        let failed = |why: String| format!("failed to get {resource} {measured}: {why}");
        let metrics = self
            .client
            .resource_metric(self.namespace, self.selector, resource, metric.container)
            .await;
        let metrics = metrics.map_err(|why| {
            failed(format!(
                "unable to get metrics for resource {resource}: {why}"
            ))
        })?;
        let proposal = self.calculator.resource_replicas(metrics, metric, value);
        proposal.map_err(failed)
    }

    /// The error of a metric that is not read, as upstream reports it without the API.
    fn unavailable_metric(&self, metric: &MetricSpec) -> MetricError {
        const CUSTOM: &str = "unable to fetch metrics from custom metrics API: \
            no custom metrics API (custom.metrics.k8s.io) registered";
        let namespace = self.namespace;
        if let Some(source) = &metric.pods {
            return MetricError {
                reason: "FailedGetPodsMetric",
                message: format!("unable to get metric {}: {CUSTOM}", source.metric.name),
                context: "failed to get pods metric value".to_owned(),
            };
        }
        if let Some(source) = &metric.object {
            let metric = &source.metric.name;
            let object = &source.described_object;
            let on = format!("{} {namespace}/{}", object.kind, object.name);
            let message = format!("unable to get metric {metric}: {on} {CUSTOM}");
            return MetricError {
                reason: "FailedGetObjectMetric",
                message,
                context: "failed to get object metric value".to_owned(),
            };
        }
        if let Some(source) = &metric.external {
            let name = &source.metric.name;
            let selector = selector_text(source.metric.selector.as_ref());
            let message = format!(
                "unable to get external metric {namespace}/{name}/{selector}: \
                 unable to fetch metrics from external metrics API: \
                 the server could not find the requested resource \
                 (get {name}.external.metrics.k8s.io)"
            );
            return MetricError {
                reason: "FailedGetExternalMetric",
                message,
                context: format!("failed to get {name} external metric value"),
            };
        }
        let type_ = &metric.type_;
        MetricError {
            reason: "InvalidMetricSourceType",
            message: format!("unknown metric source type {type_:?}"),
            context: "invalid metric".to_owned(),
        }
    }
}

/// The description of a metric in events.
fn description(resource: &str, kind: &str, target: &MetricTarget) -> String {
    if target.average_value.is_some() {
        format!("{resource} resource")
    } else {
        format!("{resource} {kind} utilization (percentage of request)")
    }
}

/// A selector as Go prints it.
fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "nil".to_owned();
    };
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels
        .map(|(key, value)| format!("{key}: {value},"))
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{}},}}"
    )
}
