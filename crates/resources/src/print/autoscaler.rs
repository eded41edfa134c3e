//! Autoscalers of both versions, and the `Scale` subresource.
//! Guarantees: an autoscaling/v1 object is converted to autoscaling/v2 before it is printed.
//! Mirrors `printHorizontalPodAutoscaler` in `pkg/printers/internalversion`.

use bellerophon_apimachinery::table_column::Column;
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
};

const METRICS_ANNOTATION: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS_ANNOTATION: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
/// Metrics that are printed; the rest are counted.
const METRICS_SHOWN_MAX: usize = 2;

pub(super) static HORIZONTAL_POD_AUTOSCALER: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Reference", descriptions::AUTOSCALER_REFERENCE),
        Column::text("Targets", descriptions::AUTOSCALER_TARGETS),
        Column::text("MinPods", descriptions::AUTOSCALER_MIN_PODS),
        Column::text("MaxPods", descriptions::AUTOSCALER_MAX_PODS),
        Column::text("Replicas", descriptions::AUTOSCALER_REPLICAS),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            format!(
                "{}/{}",
                object.text("spec.scaleTargetRef.kind"),
                object.text("spec.scaleTargetRef.name")
            )
            .into(),
            targets(&metrics(object), &current_metrics(object)).into(),
            object.scalar_or("spec.minReplicas", "<unset>").into(),
            object.int("spec.maxReplicas").into(),
            object.int("status.currentReplicas").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static SCALE: Printer = Printer {
    columns: &[
        Column::NAME_WITHOUT_FORMAT,
        Column::integer("Desired", "How many instances are wanted."),
        Column::integer("Available", "How many instances were last seen."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.int("spec.replicas").into(),
            object.int("status.replicas").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

/// The metrics: v2's list, or v1's annotation followed by its CPU target.
fn metrics(object: &Object) -> Vec<Value> {
    if !is_v1(object) {
        return object.list("spec.metrics").to_vec();
    }
    let mut metrics = annotated(object, METRICS_ANNOTATION).unwrap_or_default();
    if let Some(percent) = object.field("spec.targetCPUUtilizationPercentage") {
        metrics.push(json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "averageUtilization": percent } } }));
    }
    metrics
}

/// The current metrics, in the order of the metrics.
fn current_metrics(object: &Object) -> Vec<Value> {
    if !is_v1(object) {
        return object.list("status.currentMetrics").to_vec();
    }
    annotated(object, CURRENT_METRICS_ANNOTATION).unwrap_or_else(|| {
        let percent = object.field("status.currentCPUUtilizationPercentage").into_iter();
        percent
            .map(|percent| json!({ "type": "Resource", "resource": { "name": "cpu", "current": { "averageUtilization": percent } } }))
            .collect()
    })
}

fn is_v1(object: &Object) -> bool {
    object.api_version == "autoscaling/v1"
}

/// The metrics of v1's annotation, as in v2; `None` when there is no such annotation or it is
/// invalid.
fn annotated(object: &Object, annotation: &str) -> Option<Vec<Value>> {
    let metrics: Vec<Value> =
        serde_json::from_str(object.meta.annotations.get(annotation)?).ok()?;
    Some(metrics.iter().map(as_v2).collect())
}

fn as_v2(metric: &Value) -> Value {
    let type_ = metric.text("type");
    let Some(source) = metric.field(section(type_)) else {
        return json!({ "type": type_ });
    };
    let first = |names: [&str; 2]| names.into_iter().find_map(|name| source.field(name));
    let target = json!({
        "value": source.field("targetValue"),
        "averageValue": first(["targetAverageValue", "averageValue"]),
        "averageUtilization": source.field("targetAverageUtilization"),
    });
    let current = json!({
        "value": source.field("currentValue"),
        "averageValue": first(["currentAverageValue", "averageValue"]),
        "averageUtilization": source.field("currentAverageUtilization"),
    });
    json!({ "type": type_, section(type_): { "name": source.field("name"), "target": target, "current": current } })
}

/// Where a metric of this type keeps its particulars.
fn section(type_: &str) -> &str {
    match type_ {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => "",
    }
}

fn targets(metrics: &[Value], current: &[Value]) -> String {
    if metrics.is_empty() {
        return "<none>".into();
    }
    let shown: Vec<String> = metrics
        .iter()
        .enumerate()
        .take(METRICS_SHOWN_MAX)
        .map(|(index, metric)| target(metric, current.get(index)))
        .collect();
    match metrics.len().saturating_sub(METRICS_SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} + {more} more...", shown.join(", ")),
    }
}

/// `current/wanted` of one metric, with the resource's name where it is one.
fn target(metric: &Value, current: Option<&Value>) -> String {
    let type_ = metric.text("type");
    let section = section(type_);
    let empty = Value::Null;
    let wanted = metric.field(section).unwrap_or(&empty);
    let measured = current.and_then(|current| current.field(section));
    let name = wanted.text("name");
    let average = wanted.has("target.averageValue");
    let now = |field: &str| {
        measured.map_or_else(
            || "<unknown>".into(),
            |measured| measured.scalar_or(&format!("current.{field}"), "<nil>"),
        )
    };
    let now_if_known = |field: &str| {
        measured.map_or_else(
            || "<unknown>".into(),
            |measured| measured.scalar_or(&format!("current.{field}"), "<unknown>"),
        )
    };
    let goal = |field: &str| wanted.scalar_or(&format!("target.{field}"), "<nil>");
    match type_ {
        "External" | "Object" if average => format!(
            "{}/{} (avg)",
            now_if_known("averageValue"),
            goal("averageValue")
        ),
        "External" | "Object" => format!("{}/{}", now("value"), goal("value")),
        "Pods" => format!("{}/{}", now("averageValue"), goal("averageValue")),
        "Resource" | "ContainerResource" if average => {
            format!("{name}: {}/{}", now("averageValue"), goal("averageValue"))
        }
        "Resource" | "ContainerResource" => {
            let percent = |value: Option<&Value>, unknown: &str| {
                value.map_or_else(|| unknown.into(), |value| format!("{value}%"))
            };
            let used = percent(
                measured.and_then(|measured| measured.field("current.averageUtilization")),
                "<unknown>",
            );
            format!(
                "{name}: {used}/{}",
                percent(wanted.field("target.averageUtilization"), "<auto>")
            )
        }
        _ => "<unknown type>".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::printer::tests::check;

    #[test]
    fn targets_show_current_and_target_values() {
        let cpu = json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "averageUtilization": 70 } } });
        let memory = json!({ "type": "ContainerResource", "containerResource": { "name": "memory", "target": { "averageValue": "1Gi" } } });
        let queue =
            json!({ "type": "External", "external": { "target": { "averageValue": "30" } } });
        let hits = json!({ "type": "Object", "object": { "target": { "value": "10k" } } });
        let pods = json!({ "type": "Pods", "pods": { "target": { "averageValue": "5" } } });
        for (wanted, current, words) in [
            (json!([]), json!([]), "<none>"),
            (json!([cpu]), json!([]), "cpu: <unknown>/70%"),
            (
                json!([cpu]),
                json!([{ "resource": { "current": { "averageUtilization": 12 } } }]),
                "cpu: 12%/70%",
            ),
            (
                json!([memory, pods]),
                json!([{ "containerResource": { "current": { "averageValue": "300Mi" } } }]),
                "memory: 300Mi/1Gi, <unknown>/5",
            ),
            (
                json!([queue]),
                json!([{ "external": { "current": { "value": "7" } } }]),
                "<unknown>/30 (avg)",
            ),
            (
                json!([hits]),
                json!([{ "object": { "current": { "value": "7" } } }]),
                "7/10k",
            ),
            (
                json!([cpu, hits, queue, pods]),
                json!([]),
                "cpu: <unknown>/70%, <unknown>/10k + 2 more...",
            ),
            (json!([{ "type": "Astral" }]), json!([]), "<unknown type>"),
        ] {
            assert_eq!(
                targets(wanted.as_array().unwrap(), current.as_array().unwrap()),
                words
            );
        }
    }

    #[test]
    fn both_versions_print_the_same() {
        let reference = json!({ "kind": "Deployment", "name": "web" });
        let metrics = json!([{ "type": "Resource", "resource": { "name": "cpu", "target": { "averageUtilization": 70 } } }]);
        let cells = json!([
            "x",
            "Deployment/web",
            "cpu: <unknown>/70%",
            "2",
            5,
            0,
            "10m"
        ]);
        let v2 = json!({ "spec": { "scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 5, "metrics": metrics } });
        check(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            v2,
            cells.clone(),
        );
        let v1 = json!({ "spec": { "scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 5, "targetCPUUtilizationPercentage": 70 } });
        check("autoscaling/v1", "HorizontalPodAutoscaler", v1, cells);
    }

    #[test]
    fn metrics_kept_in_annotations_are_printed() {
        let annotations = json!({
            METRICS_ANNOTATION: r#"[{"type":"External","external":{"metricName":"q","targetAverageValue":"30"}}]"#,
            CURRENT_METRICS_ANNOTATION: r#"[{"type":"External","external":{"metricName":"q","currentValue":"0","currentAverageValue":"7"}}]"#,
        });
        let body = json!({ "metadata": { "annotations": annotations }, "spec": { "maxReplicas": 5, "targetCPUUtilizationPercentage": 70 } });
        check(
            "autoscaling/v1",
            "HorizontalPodAutoscaler",
            body,
            json!([
                "x",
                "/",
                "7/30 (avg), cpu: <unknown>/70%",
                "<unset>",
                5,
                0,
                "10m"
            ]),
        );
    }

    #[test]
    fn scales_show_wanted_and_seen() {
        check(
            "autoscaling/v1",
            "Scale",
            json!({ "spec": { "replicas": 3 }, "status": { "replicas": 2 } }),
            json!(["x", 3, 2, "10m"]),
        );
    }
}
