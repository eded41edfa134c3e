//! The errors of an autoscaler.
//! Mirrors `ValidateHorizontalPodAutoscaler` in `pkg/apis/autoscaling/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use crate::kinds::validation;

const WINDOW_MAX_SECONDS: i64 = 3600;
const PERIOD_MAX_SECONDS: i64 = 1800;
const METRIC_TYPES: &[&str] = &[
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];

pub(super) fn autoscaler(autoscaler: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = autoscaler.body.field("spec");
    let min = spec.int("minReplicas");
    let max = spec.int("maxReplicas").unwrap_or_default();
    if let Some(min) = min.filter(|min| *min < 1) {
        out.push(FieldError::invalid(
            at.child("minReplicas"),
            min,
            "must be greater than or equal to 1",
        ));
    }
    match max {
        0 => out.push(FieldError::required(
            at.child("maxReplicas"),
            "must be set and greater than 0",
        )),
        max if max < 0 => out.push(FieldError::invalid(
            at.child("maxReplicas"),
            max,
            "must be greater than or equal to 1",
        )),
        _ => {}
    }
    if min.is_some_and(|min| max < min) {
        out.push(FieldError::invalid(
            at.child("maxReplicas"),
            max,
            "must be greater than or equal to `minReplicas`",
        ));
    }
    let target = spec.field("scaleTargetRef");
    let core_is_fine = target.text("kind") == "ReplicationController";
    reference(&at.child("scaleTargetRef"), target, core_is_fine, out);
    metrics(&at.child("metrics"), spec.list("metrics"), min, out);
    let behavior = at.child("behavior");
    for side in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec.field("behavior").get_set(side) {
            scaling_rules(&behavior.child(side), rules, out);
        }
    }
}

pub(super) fn status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("status");
    for name in ["currentReplicas", "desiredReplicas"] {
        validation::not_negative(
            &at.child(name),
            new.body.field("status").int(name).unwrap_or_default(),
            out,
        );
    }
}

fn reference(at: &Path, reference: &Value, core_is_fine: bool, out: &mut Vec<FieldError>) {
    for name in ["kind", "name"] {
        match reference.text(name) {
            "" => out.push(FieldError::required(at.child(name), "")),
            text => validation::named(&at.child(name), text, names::path_segment(text), out),
        }
    }
    let version = reference.text("apiVersion");
    let at = at.child("apiVersion");
    if version.matches('/').count() > 1 {
        out.push(FieldError::invalid(
            at,
            version,
            &format!("unexpected GroupVersion string: {version}"),
        ));
    } else if !core_is_fine && !version.contains('/') {
        out.push(FieldError::invalid(
            at,
            version,
            "apiVersion must specify API group",
        ));
    }
}

fn metrics(at: &Path, metrics: &[Value], min: Option<i64>, out: &mut Vec<FieldError>) {
    for (i, metric) in metrics.iter().enumerate() {
        validate_metric(&at.index(i), metric, out);
    }
    let from_outside = metrics
        .iter()
        .any(|m| ["Object", "External"].contains(&m.text("type")));
    if min == Some(0) && !from_outside {
        out.push(FieldError::forbidden(at, "must specify at least one Object or External metric to support scaling to zero replicas"));
    }
}

fn validate_metric(at: &Path, metric: &Value, out: &mut Vec<FieldError>) {
    let kind = metric.text("type");
    if kind.is_empty() {
        out.push(FieldError::required(
            at.child("type"),
            "must specify a metric source type",
        ));
    }
    validation::one_of(&at.child("type"), kind, METRIC_TYPES, out);
    const SOURCES: [&str; 5] = [
        "object",
        "external",
        "pods",
        "resource",
        "containerResource",
    ];
    let present: Vec<&str> = SOURCES
        .into_iter()
        .filter(|s| metric.get_set(s).is_some())
        .collect();
    if let Some(first) = present.first() {
        validate_source(&at.child(first), first, metric.field(first), out);
    }
    let expected = SOURCES
        .into_iter()
        .find(|s| s.eq_ignore_ascii_case(kind) && METRIC_TYPES.contains(&kind));
    match expected {
        Some(expected) if !present.contains(&expected) => {
            out.push(FieldError::required(
                at.child(expected),
                "must populate information for the given metric source",
            ));
        }
        Some(_) => {}
        // Kubernetes reports the type a second time here.
        None => out.push(FieldError::not_supported(
            at.child("type"),
            kind,
            METRIC_TYPES,
        )),
    }
    if present.len() != 1 {
        for extra in present.iter().filter(|s| Some(**s) != expected) {
            out.push(FieldError::forbidden(
                at.child(extra),
                "must populate the given metric source only",
            ));
        }
    }
}

fn validate_source(at: &Path, kind: &str, source: &Value, out: &mut Vec<FieldError>) {
    match kind {
        "object" => reference(
            &at.child("describedObject"),
            source.field("describedObject"),
            true,
            out,
        ),
        "resource" | "containerResource" if source.text("name").is_empty() => {
            out.push(FieldError::required(
                at.child("name"),
                "must specify a resource name",
            ));
        }
        _ => {}
    }
    if kind == "containerResource" {
        match source.text("container") {
            "" => out.push(FieldError::required(
                at.child("container"),
                "must specify a container",
            )),
            name => validation::named(&at.child("container"), name, names::dns_label(name), out),
        }
    }
    if ["object", "external", "pods"].contains(&kind) {
        let at = at.child("metric");
        match source.field("metric").text("name") {
            "" => out.push(FieldError::required(
                at.child("name"),
                "must specify a metric name",
            )),
            name => validation::named(&at.child("name"), name, names::path_segment(name), out),
        }
    }
    let at = at.child("target");
    let target = source.field("target");
    validate_target(&at, target, out);
    needed_values(&at, kind, target, out);
}

fn validate_target(at: &Path, target: &Value, out: &mut Vec<FieldError>) {
    let kind = target.text("type");
    if kind.is_empty() {
        out.push(FieldError::required(
            at.child("type"),
            "must specify a metric target type",
        ));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        out.push(FieldError::invalid(
            at.child("type"),
            kind,
            "must be either Utilization, Value, or AverageValue",
        ));
    }
    for name in ["value", "averageValue"] {
        if let Some(amount) = target
            .get_set(name)
            .and_then(Quantity::of)
            .filter(|amount| amount.sign() != 1)
        {
            out.push(FieldError::invalid(
                at.child(name),
                &amount,
                "must be positive",
            ));
        }
    }
    if let Some(utilization) = target.int("averageUtilization").filter(|u| *u < 1) {
        out.push(FieldError::invalid(
            at.child("averageUtilization"),
            utilization,
            "must be greater than 0",
        ));
    }
}

/// Each source needs one of two targets, and some bear only one.
fn needed_values(at: &Path, kind: &str, target: &Value, out: &mut Vec<FieldError>) {
    let has = |name: &str| target.get_set(name).is_some();
    let (neither, both) = match kind {
        "object" => (
            (
                "averageValue",
                "must set either a target value or averageValue",
            ),
            None,
        ),
        "external" => (
            (
                "averageValue",
                "must set either a target value for metric or a per-pod target",
            ),
            Some((
                "value",
                "may not set both a target value for metric and a per-pod target",
            )),
        ),
        "pods" => (
            (
                "averageValue",
                "must specify a positive target averageValue",
            ),
            None,
        ),
        _ => (
            (
                "averageUtilization",
                "must set either a target raw value or a target utilization",
            ),
            Some((
                "averageValue",
                "may not set both a target raw value and a target utilization",
            )),
        ),
    };
    let alternative = match kind {
        "object" | "external" => "value",
        "pods" => "averageValue",
        _ => "averageUtilization",
    };
    if !has(alternative) && !has("averageValue") {
        out.push(FieldError::required(at.child(neither.0), neither.1));
    }
    if let Some((name, why)) = both.filter(|_| has(alternative) && has("averageValue")) {
        out.push(FieldError::forbidden(at.child(name), why));
    }
}

fn scaling_rules(at: &Path, rules: &Value, out: &mut Vec<FieldError>) {
    if let Some(window) = rules.int("stabilizationWindowSeconds") {
        let at = at.child("stabilizationWindowSeconds");
        if window < 0 {
            out.push(FieldError::invalid(
                at,
                window,
                "must be greater than or equal to zero",
            ));
        } else if window > WINDOW_MAX_SECONDS {
            out.push(FieldError::invalid(
                at,
                window,
                &format!("must be less than or equal to {WINDOW_MAX_SECONDS}"),
            ));
        }
    }
    if let Some(policy) = rules.field("selectPolicy").as_str() {
        validation::one_of(
            &at.child("selectPolicy"),
            policy,
            &["Disabled", "Max", "Min"],
            out,
        );
    }
    let all = at.child("policies");
    if rules.is_empty_at("policies") {
        out.push(FieldError::required(
            all,
            "must specify at least one Policy",
        ));
    }
    for (i, policy) in rules.list("policies").iter().enumerate() {
        let at = all.index(i);
        validation::one_of(
            &at.child("type"),
            policy.text("type"),
            &["Percent", "Pods"],
            out,
        );
        let value = policy.int("value").unwrap_or_default();
        let period = policy.int("periodSeconds").unwrap_or_default();
        if value <= 0 {
            out.push(FieldError::invalid(
                at.child("value"),
                value,
                "must be greater than zero",
            ));
        }
        if period <= 0 {
            out.push(FieldError::invalid(
                at.child("periodSeconds"),
                period,
                "must be greater than zero",
            ));
        } else if period > PERIOD_MAX_SECONDS {
            out.push(FieldError::invalid(
                at.child("periodSeconds"),
                period,
                &format!("must be less than or equal to {PERIOD_MAX_SECONDS}"),
            ));
        }
    }
    if let Some(tolerance) = rules
        .get_set("tolerance")
        .and_then(Quantity::of)
        .filter(|t| t.sign() < 0)
    {
        out.push(FieldError::invalid(
            at.child("tolerance"),
            &tolerance,
            validation::NOT_NEGATIVE,
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::kinds::{autoscaling::AUTOSCALER, test_support::refused};

    #[test]
    fn limits_are_checked() {
        refused(
            &AUTOSCALER,
            json!({"spec": {"scaleTargetRef": {"kind": "", "name": ""}, "maxReplicas": 0}}),
            &[
                "spec.maxReplicas: Required value: must be set and greater than 0",
                "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
                "spec.scaleTargetRef.kind: Required value",
                "spec.scaleTargetRef.name: Required value",
                "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
            ],
        );
        let kinds = r#"Unsupported value: "Disk": supported values: "ContainerResource", "External", "Object", "Pods", "Resource""#;
        refused(
            &AUTOSCALER,
            json!({"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 6, "maxReplicas": 5,
                "metrics": [{"type": "Resource"}, {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}, {"type": "Disk"}],
                "behavior": {"scaleUp": {"stabilizationWindowSeconds": 4000, "policies": [{"type": "Percent", "value": 0, "periodSeconds": 0}]}}}}),
            &[
                "spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`",
                "spec.metrics[0].resource: Required value: must populate information for the given metric source",
                "spec.metrics[1].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
                &format!("spec.metrics[2].type: {kinds}"),
                &format!("spec.metrics[2].type: {kinds}"),
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
                "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 0: must be greater than zero",
            ],
        );
    }
}
