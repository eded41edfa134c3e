//! Conversion between autoscaling/v1 and v2: fields that v1 does not have are annotations there.
//! In: an autoscaler of v1. Out: the stored v2 object, and the reverse.
//! Guarantees: conversion in both directions is lossless; the annotations are never stored.
//! Mirrors the conversion of annotations in `pkg/apis/autoscaling/v1/conversion.go`.

use bellerophon_apimachinery::json_ext::{JsonDefaults, JsonExt};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{complete_status, default_metrics};
use crate::kinds::StoredAs;

/// `autoscaling/v1` is stored as `autoscaling/v2`.
pub const STORED_AS_V2: StoredAs = StoredAs {
    group: "autoscaling",
    version: "v2",
    plural: "horizontalpodautoscalers",
    to_storage,
    from_storage,
};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The annotations of v1 for fields of v2.
pub(super) const ANNOTATIONS: [&str; 4] = [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR];

/// One field of a metric: its name in version 1, its path in version 2, and what version 1 writes
/// when it is not set.
type Column = (&'static str, &'static [&'static str], Option<&'static str>);

/// The sources of a metric's target, by the name of the source.
const SPECS: &[(&str, &[Column])] = &[
    (
        "object",
        &[
            ("target", &["describedObject"], None),
            ("metricName", &["metric", "name"], Some("")),
            ("targetValue", &["target", "value"], Some("0")),
            ("selector", &["metric", "selector"], None),
            ("averageValue", &["target", "averageValue"], None),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", &["metric", "name"], Some("")),
            ("targetAverageValue", &["target", "averageValue"], Some("0")),
            ("selector", &["metric", "selector"], None),
        ],
    ),
    (
        "resource",
        &[
            ("name", &["name"], Some("")),
            (
                "targetAverageUtilization",
                &["target", "averageUtilization"],
                None,
            ),
            ("targetAverageValue", &["target", "averageValue"], None),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", &["name"], Some("")),
            (
                "targetAverageUtilization",
                &["target", "averageUtilization"],
                None,
            ),
            ("targetAverageValue", &["target", "averageValue"], None),
            ("container", &["container"], Some("")),
        ],
    ),
    (
        "external",
        &[
            ("metricName", &["metric", "name"], Some("")),
            ("metricSelector", &["metric", "selector"], None),
            ("targetValue", &["target", "value"], None),
            ("targetAverageValue", &["target", "averageValue"], None),
        ],
    ),
];

/// The sources of a metric's current value.
const STATUSES: &[(&str, &[Column])] = &[
    (
        "object",
        &[
            ("target", &["describedObject"], None),
            ("metricName", &["metric", "name"], Some("")),
            ("currentValue", &["current", "value"], Some("0")),
            ("selector", &["metric", "selector"], None),
            ("averageValue", &["current", "averageValue"], None),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", &["metric", "name"], Some("")),
            (
                "currentAverageValue",
                &["current", "averageValue"],
                Some("0"),
            ),
            ("selector", &["metric", "selector"], None),
        ],
    ),
    (
        "resource",
        &[
            ("name", &["name"], Some("")),
            (
                "currentAverageUtilization",
                &["current", "averageUtilization"],
                None,
            ),
            (
                "currentAverageValue",
                &["current", "averageValue"],
                Some("0"),
            ),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", &["name"], Some("")),
            (
                "currentAverageUtilization",
                &["current", "averageUtilization"],
                None,
            ),
            (
                "currentAverageValue",
                &["current", "averageValue"],
                Some("0"),
            ),
            ("container", &["container"], Some("")),
        ],
    ),
    (
        "external",
        &[
            ("metricName", &["metric", "name"], Some("")),
            ("metricSelector", &["metric", "selector"], None),
            ("currentValue", &["current", "value"], Some("0")),
            ("currentAverageValue", &["current", "averageValue"], None),
        ],
    ),
];

/// Which half of a metric is converted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The target value.
    Target,
    /// The current value.
    Current,
}

impl Side {
    fn sources(self) -> &'static [(&'static str, &'static [Column])] {
        match self {
            Self::Target => SPECS,
            Self::Current => STATUSES,
        }
    }
}

fn from_storage(autoscaler: &mut Object) {
    autoscaler.api_version = "autoscaling/v1".into();
    drop_annotations(autoscaler);
    let spec = autoscaler.section("spec");
    let metrics = spec.remove("metrics").unwrap_or_default();
    let behavior = spec.remove("behavior");
    let (cpu, others): (Vec<&Value>, Vec<&Value>) = metrics
        .as_array()
        .into_iter()
        .flatten()
        .partition(|m| is_cpu_utilization(m, "target"));
    if let Some(cpu) = cpu.first() {
        spec.insert(
            "targetCPUUtilizationPercentage".into(),
            cpu["resource"]["target"]["averageUtilization"].clone(),
        );
    }
    let status = autoscaler.section("status");
    let current = status.remove("currentMetrics").unwrap_or_default();
    let conditions = status.remove("conditions").unwrap_or_default();
    let current: Vec<&Value> = current.as_array().into_iter().flatten().collect();
    if let Some(cpu) = current.iter().rfind(|m| is_cpu_utilization(m, "current")) {
        status.insert(
            "currentCPUUtilizationPercentage".into(),
            cpu["resource"]["current"]["averageUtilization"].clone(),
        );
    }
    status.default_to("currentReplicas", 0);
    let mut annotate = |name: &str, list: Vec<String>| {
        if !list.is_empty() {
            autoscaler
                .meta
                .annotations
                .insert(name.into(), format!("[{}]", list.join(",")));
        }
    };
    annotate(
        METRICS,
        others
            .iter()
            .map(|m| encode(&to_v1(m, Side::Target)))
            .collect(),
    );
    annotate(
        CURRENT_METRICS,
        current
            .iter()
            .map(|m| encode(&to_v1(m, Side::Current)))
            .collect(),
    );
    annotate(
        CONDITIONS,
        conditions
            .as_array()
            .into_iter()
            .flatten()
            .map(encode)
            .collect(),
    );
    if let Some(behavior) = behavior {
        autoscaler
            .meta
            .annotations
            .insert(BEHAVIOR.into(), encode_behavior(&behavior));
    }
}

fn to_storage(autoscaler: &mut Object) {
    autoscaler.api_version = "autoscaling/v2".into();
    let read = |name: &str| {
        autoscaler
            .meta
            .annotations
            .get(name)
            .and_then(|text| serde_json::from_str::<Value>(text).ok())
    };
    let list = |name: &str| read(name).and_then(|value| value.as_array().cloned());
    let others = list(METRICS).unwrap_or_default();
    let current = list(CURRENT_METRICS);
    let conditions = list(CONDITIONS);
    let behavior = read(BEHAVIOR)
        .map(|value| uncapitalised(&value))
        .filter(|value| value.as_object().is_some_and(|b| !b.is_empty()));
    drop_annotations(autoscaler);
    let spec = autoscaler.section("spec");
    let mut metrics: Vec<Value> = others.iter().map(|m| from_v1(m, Side::Target)).collect();
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
        metrics.push(
            json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}),
        );
    }
    spec.insert(
        "metrics".into(),
        if metrics.is_empty() {
            default_metrics()
        } else {
            metrics.into()
        },
    );
    if let Some(behavior) = behavior {
        spec.insert("behavior".into(), behavior);
    }
    let status = autoscaler.section("status");
    let percent = status.remove("currentCPUUtilizationPercentage");
    let from_percent =
        percent.map(|p| vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": p}}})]);
    let from_annotation =
        current.map(|list| list.iter().map(|m| from_v1(m, Side::Current)).collect());
    if let Some(metrics) = from_annotation.or(from_percent) {
        status.insert("currentMetrics".into(), metrics.into());
    }
    if let Some(conditions) = conditions {
        status.insert("conditions".into(), conditions.into());
    }
    complete_status(status);
}

fn drop_annotations(autoscaler: &mut Object) {
    [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR]
        .iter()
        .for_each(|name| {
            autoscaler.meta.annotations.remove(*name);
        });
}

/// Whether v1 has a field for the metric.
fn is_cpu_utilization(metric: &Value, side: &str) -> bool {
    let resource = metric.field("resource");
    let cpu = metric.text("type") == "Resource" && resource.text("name") == "cpu";
    cpu && resource.field(side).get_set("averageUtilization").is_some()
}

fn to_v1(metric: &Value, side: Side) -> Value {
    let mut converted = Map::new();
    converted.insert("type".into(), metric.field("type").clone());
    for (source, columns) in side.sources() {
        let Some(from) = metric.get_set(source) else {
            continue;
        };
        let fields = columns.iter().filter_map(|(name, path, zero)| {
            let value = path
                .iter()
                .try_fold(from, |value, step| value.get_set(step))
                .cloned();
            value
                .or_else(|| zero.map(Value::from))
                .map(|value| ((*name).to_owned(), value))
        });
        converted.insert((*source).into(), Value::Object(fields.collect()));
    }
    converted.into()
}

fn from_v1(metric: &Value, side: Side) -> Value {
    let mut converted = Map::new();
    converted.insert("type".into(), metric.field("type").clone());
    for (source, columns) in side.sources() {
        let Some(from) = metric.get_set(source) else {
            continue;
        };
        let mut target = Map::new();
        for (name, path, _) in *columns {
            let Some(value) = from.get_set(name) else {
                continue;
            };
            let (last, parents) = path.split_last().expect("every path has a step");
            let place = parents
                .iter()
                .fold(&mut target, |map, step| map.map_at(step));
            place.insert((*last).into(), value.clone());
        }
        if side == Side::Target {
            settle_target(source, target.map_at("target"));
        }
        converted.insert((*source).into(), target.into());
    }
    converted.into()
}

/// Version 2 names the kind of target that version 1 only implies.
fn settle_target(source: &str, target: &mut Map<String, Value>) {
    let kind = match source {
        "resource" | "containerResource" if target.contains_key("averageUtilization") => {
            "Utilization"
        }
        "object" if !target.contains_key("averageValue") => "Value",
        "external" if target.contains_key("value") => "Value",
        _ => "AverageValue",
    };
    if source == "object" && kind == "AverageValue" && target.field("value") == "0" {
        target.remove("value");
    }
    target.insert("type".into(), kind.into());
}

/// The order in which Kubernetes writes the fields of version 1.
const ORDER: &[&str] = &[
    "type",
    "status",
    "lastTransitionTime",
    "reason",
    "message",
    "kind",
    "name",
    "apiVersion",
    "target",
    "metricName",
    "metricSelector",
    "targetAverageUtilization",
    "targetValue",
    "targetAverageValue",
    "currentAverageUtilization",
    "currentValue",
    "currentAverageValue",
    "selector",
    "averageValue",
    "container",
    "object",
    "pods",
    "resource",
    "containerResource",
    "external",
    "matchLabels",
    "matchExpressions",
];

/// JSON with the fields in that order, because clients compare annotations as text.
fn encode(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            fields.sort_by_key(|(name, _)| {
                ORDER.iter().position(|o| o == name).unwrap_or(ORDER.len())
            });
            let written = |(name, value): &(&String, &Value)| {
                let value = if *name == "matchLabels" {
                    value.to_string()
                } else {
                    encode(value)
                };
                format!("{name:?}:{value}")
            };
            format!(
                "{{{}}}",
                fields.iter().map(written).collect::<Vec<_>>().join(",")
            )
        }
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(encode).collect::<Vec<_>>().join(",")
        ),
        other => other.to_string(),
    }
}

/// Behaviour is written with the messages of Kubernetes' own code, with every field.
fn encode_behavior(behavior: &Value) -> String {
    let policy = |p: &Value| {
        format!(
            r#"{{"Type":{},"Value":{},"PeriodSeconds":{}}}"#,
            p.field("type"),
            p.number("value"),
            p.number("periodSeconds")
        )
    };
    let side = |name: &str| match behavior.get_set(name) {
        None => "null".to_owned(),
        Some(rules) => {
            let policies = rules.get_set("policies").map_or("null".to_owned(), |_| {
                format!(
                    "[{}]",
                    rules
                        .list("policies")
                        .iter()
                        .map(policy)
                        .collect::<Vec<_>>()
                        .join(",")
                )
            });
            format!(
                r#"{{"StabilizationWindowSeconds":{},"SelectPolicy":{},"Policies":{policies},"Tolerance":{}}}"#,
                rules.field("stabilizationWindowSeconds"),
                rules.field("selectPolicy"),
                rules.field("tolerance")
            )
        }
    };
    format!(
        r#"{{"ScaleUp":{},"ScaleDown":{}}}"#,
        side("scaleUp"),
        side("scaleDown")
    )
}

/// The same value with the first letter of every field in lower case and without nulls.
fn uncapitalised(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(name, v)| {
                let mut letters = name.chars();
                let name: String = letters
                    .next()
                    .into_iter()
                    .flat_map(char::to_lowercase)
                    .chain(letters)
                    .collect();
                (name, uncapitalised(v))
            })
            .collect(),
        Value::Array(items) => items.iter().map(uncapitalised).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::object;

    fn stored() -> Value {
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "b"}, "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}, "minReplicas": 2, "maxReplicas": 5, "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "500Mi"}}},
                {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "1k"}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "web", "target": {"type": "Utilization", "averageUtilization": 60}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}],
            "behavior": {"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
                "scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}},
            "status": {"desiredReplicas": 0, "currentMetrics": null}})
    }

    #[test]
    fn annotations_read_as_kubernetes_writes_them() {
        let mut autoscaler = object(stored());
        from_storage(&mut autoscaler);
        assert_eq!(
            autoscaler.meta.annotations[METRICS],
            r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"500Mi"}},{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"1k"}},{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":60,"container":"web"}}]"#
        );
        assert_eq!(
            autoscaler.meta.annotations[BEHAVIOR],
            r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":60}],"Tolerance":null}}"#
        );
        assert_eq!(
            autoscaler.at("spec.targetCPUUtilizationPercentage"),
            Some(&json!(70))
        );
        assert_eq!(
            autoscaler.body["status"],
            json!({"currentReplicas": 0, "desiredReplicas": 0})
        );
    }

    #[test]
    fn nothing_is_lost_on_the_way_and_back() {
        let mut autoscaler = object(stored());
        from_storage(&mut autoscaler);
        to_storage(&mut autoscaler);
        assert_eq!(autoscaler.to_value(), stored());
    }

    #[test]
    fn version_1_without_metrics_means_eighty_percent() {
        let mut autoscaler = object(json!({"spec": {"maxReplicas": 3}}));
        to_storage(&mut autoscaler);
        assert_eq!(autoscaler.at("spec.metrics"), Some(&default_metrics()));
    }
}
