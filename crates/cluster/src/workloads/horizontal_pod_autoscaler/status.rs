//! Status of an autoscaler: conditions and current metrics.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
    MetricSpec, MetricStatus, MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replica_calculator::Proposal;
use crate::quantity::{binary_from_millis, from_millis};

/// The types of conditions.
pub(super) const ABLE_TO_SCALE: &str = "AbleToScale";
pub(super) const SCALING_ACTIVE: &str = "ScalingActive";
pub(super) const SCALING_LIMITED: &str = "ScalingLimited";

/// Sets a condition. Mirrors setConditionInList: the transition time changes with the status only.
pub(super) fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    type_: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let position = conditions.iter().position(|it| it.type_ == type_);
    let position = position.unwrap_or_else(|| {
        conditions.push(HorizontalPodAutoscalerCondition {
            type_: type_.to_owned(),
            ..HorizontalPodAutoscalerCondition::default()
        });
        conditions.len() - 1
    });
    let condition = &mut conditions[position];
    let value = if is_true { "True" } else { "False" };
    if condition.status != value {
        condition.status = value.to_owned();
        condition.last_transition_time = Some(Time(whole_seconds(now)));
    }
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
}

/// `metav1.Time` has whole seconds. The status is compared with the one that was read.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The current value of a resource metric.
pub(super) fn metric_status(spec: &MetricSpec, proposal: &Proposal) -> MetricStatus {
    let current = |resource: &str| MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(quantity(resource, proposal.average_value)),
        value: None,
    };
    MetricStatus {
        type_: spec.type_.clone(),
        resource: spec.resource.as_ref().map(|source| ResourceMetricStatus {
            current: current(&source.name),
            name: source.name.clone(),
        }),
        container_resource: spec.container_resource.as_ref().map(|source| {
            ContainerResourceMetricStatus {
                container: source.container.clone(),
                current: current(&source.name),
                name: source.name.clone(),
            }
        }),
        ..MetricStatus::default()
    }
}

/// Mirrors buildQuantity: memory has binary suffixes, as in `metrics.k8s.io`.
fn quantity(resource: &str, millis: i64) -> Quantity {
    if resource == "memory" {
        binary_from_millis(millis)
    } else {
        from_millis(millis)
    }
}
