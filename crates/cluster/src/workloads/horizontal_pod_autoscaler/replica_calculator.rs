//! Replica calculator: the number of replicas that brings a metric to its target.
//!
//! In: the pods of a target, their metrics, the current number of replicas. Out: the proposed
//! number of replicas and the current value of the metric. Mirrors upstream's ReplicaCalculator.
//! Guarantees: pods that are not ready or have no metric never increase a scale-up or a scale-down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::ResourceExt;

use super::super::pods::{Phase, condition, has_deletion_timestamp, phase, saturating_add};
use crate::quantity::milli_value;
use crate::scheduler::pod_requests;

/// CPU samples of a pod that is not ready are ignored for this long after its start
/// (`--horizontal-pod-autoscaler-cpu-initialization-period`).
const CPU_INITIALIZATION_PERIOD: Duration = Duration::from_secs(300);

/// A pod that became unready this shortly after its start has never been ready
/// (`--horizontal-pod-autoscaler-initial-readiness-delay`).
const INITIAL_READINESS_DELAY: Duration = Duration::from_secs(30);

/// The metric of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodMetric {
    pub(super) timestamp: Timestamp,
    pub(super) window: Duration,
    /// In thousandths.
    pub(super) value: i64,
}

/// Metrics by name of the pod.
pub(super) type PodMetrics = BTreeMap<String, PodMetric>;

/// By how much the ratio of usage and target may differ from 1 without a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub(super) scale_down: f64,
    pub(super) scale_up: f64,
}

impl Tolerances {
    /// Mirrors isWithin.
    fn contain(self, usage_ratio: f64) -> bool {
        1.0 - self.scale_down <= usage_ratio && usage_ratio <= 1.0 + self.scale_up
    }
}

/// The target value of a resource metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Percent of the requests.
    Utilization(i32),
    /// Thousandths per pod.
    AverageValue(i64),
}

/// A resource of the pods, or of one of their containers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceMetric<'a> {
    pub(super) resource: &'a str,
    pub(super) container: Option<&'a str>,
}

/// The result for one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Percent of the requests; `None` for a target that is an average value.
    pub(super) utilization: Option<i32>,
    /// Thousandths per pod.
    pub(super) average_value: i64,
}

/// Calculates replicas of one target at one time.
pub(super) struct ReplicaCalculator<'a> {
    /// The pods that the selector of the target matches.
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) current_replicas: i32,
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

impl ReplicaCalculator<'_> {
    /// The replicas for a resource metric. Mirrors GetResourceReplicas and
    /// calcPlainMetricReplicas.
    ///
    /// # Errors
    /// The message for the condition: no pods, no metrics, or containers without requests.
    pub(super) fn resource_replicas(
        &self,
        mut metrics: PodMetrics,
        metric: ResourceMetric<'_>,
        target: Target,
    ) -> Result<Proposal, String> {
        if self.pods.is_empty() {
            let message = "no pods returned by selector while calculating replica count";
            return Err(message.to_owned());
        }
        let groups = self.group_pods(&metrics, metric.resource);
        let is_counted = |pod: &String| {
            !groups.ignored.contains(pod.as_str()) && !groups.unready.contains(pod.as_str())
        };
        metrics.retain(|pod, _| is_counted(pod));
        if metrics.is_empty() {
            let message = "did not receive metrics for targeted pods (pods might be unready)";
            return Err(message.to_owned());
        }
        let requests = match target {
            Target::Utilization(_) => self.requests(metric)?,
            Target::AverageValue(_) => BTreeMap::new(),
        };
        let usage = usage(&metrics, &requests, target)?;
        let proposal = |replicas| Proposal {
            replicas,
            utilization: usage.utilization,
            average_value: usage.average_value,
        };
        let unchanged = proposal(self.current_replicas);
        let scale_up_with_unready = !groups.unready.is_empty() && usage.ratio > 1.0;
        if !scale_up_with_unready && groups.missing.is_empty() {
            if self.tolerances.contain(usage.ratio) {
                return Ok(unchanged);
            }
            return Ok(proposal(ceiling(usage.ratio * groups.ready as f64)));
        }
        let assume = |value| PodMetric {
            timestamp: self.now,
            window: Duration::ZERO,
            value,
        };
        // Missing pods use everything on a scale-down and nothing on a scale-up, so that they damp
        // the change.
        for pod in &groups.missing {
            let value = if usage.ratio < 1.0 {
                fallback_usage(target, requests.get(*pod).copied())
            } else if usage.ratio > 1.0 {
                0
            } else {
                continue;
            };
            metrics.insert((*pod).to_owned(), assume(value));
        }
        if scale_up_with_unready {
            let unready = groups.unready.iter();
            metrics.extend(unready.map(|pod| ((*pod).to_owned(), assume(0))));
        }
        let assumed = self::usage(&metrics, &requests, target)?;
        let reverses = (usage.ratio < 1.0 && assumed.ratio > 1.0)
            || (usage.ratio > 1.0 && assumed.ratio < 1.0);
        if reverses || self.tolerances.contain(assumed.ratio) {
            return Ok(unchanged);
        }
        let replicas = ceiling(assumed.ratio * metrics.len() as f64);
        // Replicas that exist without a pod would otherwise reverse the direction.
        let reverses = (assumed.ratio < 1.0 && replicas > self.current_replicas)
            || (assumed.ratio > 1.0 && replicas < self.current_replicas);
        Ok(if reverses {
            unchanged
        } else {
            proposal(replicas)
        })
    }

    /// Mirrors groupPods.
    fn group_pods(&self, metrics: &PodMetrics, resource: &str) -> PodGroups<'_> {
        let mut groups = PodGroups::default();
        for pod in self.pods {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            if has_deletion_timestamp(pod) || phase(pod) == Phase::Failed {
                groups.ignored.insert(name);
            } else if phase(pod) == Phase::Pending {
                groups.unready.insert(name);
            } else if let Some(metric) = metrics.get(name) {
                if resource == "cpu" && self.is_unready(pod, metric) {
                    groups.unready.insert(name);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(name);
            }
        }
        groups
    }

    /// Whether the CPU sample of a pod is that of its start.
    fn is_unready(&self, pod: &Pod, metric: &PodMetric) -> bool {
        let status = pod.status.as_ref();
        let start = status.and_then(|status| status.start_time.as_ref());
        let (Some(ready), Some(start)) = (condition(pod, "Ready"), start) else {
            return true;
        };
        let transition = ready.last_transition_time.as_ref();
        let transition = transition.map_or(Timestamp::MIN, |time| time.0);
        let is_false = ready.status == "False";
        if saturating_add(start.0, CPU_INITIALIZATION_PERIOD) > self.now {
            is_false || metric.timestamp < saturating_add(transition, metric.window)
        } else {
            is_false && saturating_add(start.0, INITIAL_READINESS_DELAY) > transition
        }
    }

    /// The requests of the pods in thousandths, by name. Mirrors calculateRequests.
    fn requests(&self, metric: ResourceMetric<'_>) -> Result<BTreeMap<String, i64>, String> {
        let requests = self.pods.iter().map(|pod| {
            let request = pod_request(pod, metric)?;
            Ok((pod.name_any(), request))
        });
        requests.collect()
    }
}

/// Pods by how their metrics count.
#[derive(Debug, Default)]
struct PodGroups<'a> {
    ready: usize,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    ignored: BTreeSet<&'a str>,
}

/// The request of a pod. Mirrors calculatePodLevelRequests and
/// calculatePodRequestsFromContainers.
fn pod_request(pod: &Pod, metric: ResourceMetric<'_>) -> Result<i64, String> {
    let ResourceMetric {
        resource,
        container,
    } = metric;
    let name = pod.name_any();
    let Some(spec) = &pod.spec else {
        return Ok(0);
    };
    if container.is_none() && has_pod_level_requests(spec) {
        let requests = pod_requests(spec);
        let request = match resource {
            "cpu" => requests.milli_cpu,
            "memory" => requests.memory.saturating_mul(1000),
            _ => requests.extended(resource).saturating_mul(1000),
        };
        if request == 0 {
            let message = format!("missing pod-level request for {resource} in Pod {name}");
            return Err(message);
        }
        return Ok(request);
    }
    let is_sidecar = |it: &&Container| it.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let mut sum = 0_i64;
    let mut found = false;
    for it in spec.containers.iter().chain(sidecars) {
        if container.is_some_and(|container| container != it.name) {
            continue;
        }
        found = true;
        let requests = it.resources.as_ref().and_then(|it| it.requests.as_ref());
        let request = requests.and_then(|it| it.get(resource)).ok_or_else(|| {
            format!(
                "missing request for {resource} in container {} of Pod {name}",
                it.name
            )
        })?;
        sum = sum.saturating_add(milli_value(request));
    }
    match container {
        Some(container) if !found => Err(format!("container {container} not found in Pod {name}")),
        _ => Ok(sum),
    }
}

/// Mirrors IsPodLevelRequestsSet.
fn has_pod_level_requests(spec: &PodSpec) -> bool {
    let requests = spec.resources.as_ref().and_then(|it| it.requests.as_ref());
    let mut names = requests
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    names.any(|name| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-"))
}

/// What a pod without a metric is assumed to use on a scale-down.
fn fallback_usage(target: Target, request: Option<i64>) -> i64 {
    match target {
        Target::Utilization(percent) => {
            let usage = i128::from(request.unwrap_or_default()) * i128::from(percent.max(100));
            i64::try_from(usage / 100).unwrap_or(i64::MAX)
        }
        Target::AverageValue(target) => target,
    }
}

/// The current value of a metric.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Usage divided by the target.
    ratio: f64,
    utilization: Option<i32>,
    average_value: i64,
}

/// Mirrors GetResourceUtilizationRatio and GetMetricUsageRatio.
fn usage(
    metrics: &PodMetrics,
    requests: &BTreeMap<String, i64>,
    target: Target,
) -> Result<Usage, String> {
    let mut total = 0_i128;
    let mut requested = 0_i128;
    let mut entries = 0_i128;
    for (pod, metric) in metrics {
        if let Target::Utilization(_) = target {
            // A metric of a pod that is not cached counts as extraneous.
            let Some(request) = requests.get(pod) else {
                continue;
            };
            requested += i128::from(*request);
        }
        total += i128::from(metric.value);
        entries += 1;
    }
    let average = |entries: i128| i64::try_from(total / entries.max(1)).unwrap_or(i64::MAX);
    match target {
        Target::Utilization(_) if requested == 0 => {
            Err("no metrics returned matched known pods".to_owned())
        }
        Target::Utilization(percent) => {
            let utilization = i32::try_from(total * 100 / requested).unwrap_or(i32::MAX);
            Ok(Usage {
                ratio: f64::from(utilization) / f64::from(percent),
                utilization: Some(utilization),
                average_value: average(entries),
            })
        }
        Target::AverageValue(target) => Ok(Usage {
            ratio: average(entries) as f64 / target as f64,
            utilization: None,
            average_value: average(entries),
        }),
    }
}

/// Rounds up to a number of replicas; `as` saturates.
fn ceiling(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

#[cfg(test)]
mod tests;
