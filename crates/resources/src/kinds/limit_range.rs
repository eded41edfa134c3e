//! LimitRanges: consistent minimums, maximums and defaults, each defaulted from the others.
//! Mirrors `ValidateLimitRange` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value};

use super::{Strategy, validation};

/// The strategy of LimitRanges. Mirrors `pkg/registry/core/limitrange`.
pub const LIMIT_RANGE: Strategy = Strategy {
    default,
    validate,
    create_on_update: true,
    ..Strategy::PLAIN
};

/// For containers: the default limit is the maximum, the default request is the limit, or else the
/// minimum.
fn default(range: &mut Object) {
    for item in range
        .section("spec")
        .maps_mut("limits")
        .filter(|item| item.text("type") == "Container")
    {
        for (from, to) in [
            ("max", "default"),
            ("default", "defaultRequest"),
            ("min", "defaultRequest"),
        ] {
            let Some(source) = item.get(from).and_then(Value::as_object).cloned() else {
                continue;
            };
            if source.is_empty() {
                continue;
            }
            item.default_to(to, Map::new());
            let target = item.map_mut(to).expect("made a map above");
            source
                .into_iter()
                .for_each(|(resource, amount)| target.default_to(&resource, amount));
        }
    }
}

fn validate(range: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("spec.limits");
    let mut types = BTreeSet::new();
    for (i, item) in range.body.field("spec").list("limits").iter().enumerate() {
        let at = all.index(i);
        let kind = item.text("type");
        type_name(&at.child("type"), kind, out);
        if !types.insert(kind) {
            out.push(FieldError::duplicate(at.child("type"), kind));
        }
        validate_item(&at, item, out);
    }
}

fn type_name(at: &Path, kind: &str, out: &mut Vec<FieldError>) {
    let errors = names::qualified_name(kind);
    if errors.is_empty()
        && !kind.contains('/')
        && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind)
    {
        out.push(FieldError::invalid(
            at,
            kind,
            "must be a standard limit type or fully qualified",
        ));
    }
    validation::named(at, kind, errors, out);
}

fn validate_item(at: &Path, item: &Value, out: &mut Vec<FieldError>) {
    let kind = item.text("type");
    let mut resources = BTreeSet::new();
    let mut named = |section: &'static str, out: &mut Vec<FieldError>| {
        let all = at.child(section);
        for (resource, _) in item.entries(section) {
            resource_name(&all.key(resource), kind, resource, out);
            resources.insert(resource.clone());
        }
    };
    named("max", out);
    named("min", out);
    for section in ["default", "defaultRequest"] {
        match kind {
            "Pod" if !item.is_empty_at(section) => {
                out.push(FieldError::forbidden(
                    at.child(section),
                    "may not be specified when `type` is 'Pod'",
                ));
            }
            "Pod" => {}
            _ => named(section, out),
        }
    }
    if kind == "PersistentVolumeClaim"
        && ["min", "max"]
            .iter()
            .all(|s| item.field(s).get("storage").is_none())
    {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        out.push(FieldError::required(at.child("limits"), why));
    }
    named("maxLimitRequestRatio", out);
    for resource in &resources {
        contradictions(at, item, resource, out);
    }
}

fn resource_name(at: &Path, kind: &str, resource: &str, out: &mut Vec<FieldError>) {
    validation::named(at, resource, names::qualified_name(resource), out);
    if !["Pod", "Container"].contains(&kind) {
        return;
    }
    let standard = ["cpu", "memory", "ephemeral-storage"].contains(&resource)
        || resource.starts_with("hugepages-");
    if !resource.contains('/') && !standard {
        out.push(FieldError::invalid(
            at,
            resource,
            "must be a standard resource for containers",
        ));
    } else if resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !validation::is_extended_resource(resource)
    {
        out.push(FieldError::invalid(
            at,
            resource,
            "doesn't follow extended resource name standard",
        ));
    }
}

fn contradictions(at: &Path, item: &Value, resource: &str, out: &mut Vec<FieldError>) {
    let of = |section: &str| item.field(section).get(resource).and_then(Quantity::of);
    let pod = item.text("type") == "Pod";
    let min = of("min");
    let max = of("max");
    let ratio = of("maxLimitRequestRatio");
    let (limit, request) = if pod {
        (None, None)
    } else {
        (of("default"), of("defaultRequest"))
    };
    // Section blamed, the amount shown, then what is too great with its name, and what it exceeds
    // with its name.
    let rules = [
        ("min", &min, (&min, "min value"), (&max, "max value")),
        (
            "defaultRequest",
            &request,
            (&min, "min value"),
            (&request, "default request value"),
        ),
        (
            "defaultRequest",
            &request,
            (&request, "default request value"),
            (&max, "max value"),
        ),
        (
            "defaultRequest",
            &request,
            (&request, "default request value"),
            (&limit, "default limit value"),
        ),
        (
            "default",
            &min,
            (&min, "min value"),
            (&limit, "default value"),
        ),
        (
            "default",
            &max,
            (&limit, "default value"),
            (&max, "max value"),
        ),
    ];
    for (section, shown, (greater, greater_name), (lesser, lesser_name)) in rules {
        if let (Some(shown), Some(g), Some(l)) = (shown, greater, lesser)
            && g > l
        {
            let all = at.child(section);
            out.push(FieldError::invalid(
                all.key(resource),
                shown,
                &format!("{greater_name} {g} is greater than {lesser_name} {l}"),
            ));
        }
    }
    if let Some(ratio) = &ratio {
        validate_ratio(at, resource, ratio, min.as_ref(), max.as_ref(), out);
    }
    let overcommits = (!resource.contains('/') || resource.contains("kubernetes.io/"))
        && !resource.starts_with("hugepages-");
    if let (false, Some(limit), Some(request)) = (overcommits, &limit, &request)
        && limit != request
    {
        let why = format!(
            "default value {limit} must equal to defaultRequest value {request} in {resource}"
        );
        out.push(FieldError::invalid(
            at.child("defaultRequest").key(resource),
            request,
            &why,
        ));
    }
}

fn validate_ratio(
    at: &Path,
    resource: &str,
    ratio: &Quantity,
    min: Option<&Quantity>,
    max: Option<&Quantity>,
    out: &mut Vec<FieldError>,
) {
    let all = at.child("maxLimitRequestRatio");
    let at = all.key(resource);
    if ratio.milli_value() < 1000 {
        out.push(FieldError::invalid(
            at,
            ratio,
            &format!("ratio {ratio} is less than 1"),
        ));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let bound = max.milli_value() as f64 / min.milli_value() as f64;
        if ratio.milli_value() as f64 / 1000.0 > bound {
            out.push(FieldError::invalid(
                at,
                ratio,
                &format!("ratio {ratio} is greater than max/min = {bound:.6}"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn container_bounds_fill_each_other() {
        let item = json!({"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"memory": "16Mi"}, "default": {"cpu": "500m"}, "defaultRequest": {"memory": "64Mi"}});
        let (range, errors) = create(
            &LIMIT_RANGE,
            json!({"spec": {"limits": [item, {"type": "Pod", "max": {"memory": "4Gi"}}]}}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            range.body["spec"]["limits"][0]["default"],
            json!({"cpu": "500m", "memory": "1Gi"})
        );
        assert_eq!(
            range.body["spec"]["limits"][0]["defaultRequest"],
            json!({"cpu": "500m", "memory": "64Mi"})
        );
        assert_eq!(
            range.body["spec"]["limits"][1],
            json!({"type": "Pod", "max": {"memory": "4Gi"}})
        );
    }

    #[test]
    fn contradictions_are_refused() {
        refused(
            &LIMIT_RANGE,
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}, "default": {"cpu": "3"}, "defaultRequest": {"cpu": "4"}}]}}),
            &[
                r#"spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1"#,
                r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "4": default request value 4 is greater than max value 1"#,
                r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "4": default request value 4 is greater than default limit value 3"#,
                r#"spec.limits[0].default[cpu]: Invalid value: "1": default value 3 is greater than max value 1"#,
            ],
        );
        refused(
            &LIMIT_RANGE,
            json!({"spec": {"limits": [{"type": "Pod", "default": {"cpu": "1"}}, {"type": "Volume", "max": {"cpu": "1"}}, {"type": "PersistentVolumeClaim"}]}}),
            &[
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                r#"spec.limits[1].type: Invalid value: "Volume": must be a standard limit type or fully qualified"#,
                "spec.limits[2].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            ],
        );
    }
}
