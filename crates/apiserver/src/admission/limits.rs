//! LimitRanges: default requests and limits of containers, and the minimum and maximum of a
//! namespace.
//! Guarantees: quantities compare as in Kubernetes: in thousandths, or in whole units where
//! thousandths would overflow.
//! Mirrors the plugin LimitRanger.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonDefaults, JsonExt},
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use bellerophon_storage::Scope;
use serde_json::Value;

use super::Admission;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Amounts up to this many units are printed in thousandths.
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Amounts by resource.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// Gives containers of a new pod the default requests and limits.
pub(super) fn fill(request: &Admission<'_>, pod: &mut Object) {
    if concerns(request) && request.attributes.resource.plural == "pods" {
        for range in ranges(request) {
            fill_from(&range, pod);
        }
    }
}

/// Refuses what is out of bounds.
///
/// # Errors
/// 403 with everything that one of the ranges does not allow.
pub(super) fn validate(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    if !concerns(request) {
        return Ok(());
    }
    for range in ranges(request) {
        let limits = range.body.field("spec").list("limits");
        let mut errors: Vec<String> = match request.attributes.resource.plural.as_str() {
            "pods" => limits
                .iter()
                .flat_map(|limit| validate_pod(limit, object))
                .collect(),
            _ => limits
                .iter()
                .flat_map(|limit| validate_claim(limit, object))
                .collect(),
        };
        let mut set = BTreeSet::new();
        errors.retain(|why| set.insert(why.clone()));
        match errors.as_slice() {
            [] => {}
            [one] => return Err(request.forbid(object, one.as_str())),
            many => return Err(request.forbid(object, format!("[{}]", many.join(", ")))),
        }
    }
    Ok(())
}

/// New pods, resized pods and claims count, unless they are terminating.
fn concerns(request: &Admission<'_>) -> bool {
    let counted = request.creates("", "pods")
        || request.writes_subresource("", "pods", "resize")
        || request.writes("", "persistentvolumeclaims");
    counted
        && request
            .old
            .is_none_or(|old| old.meta.deletion_timestamp.is_none())
}

fn ranges(request: &Admission<'_>) -> Vec<Object> {
    request.list(
        "/limitranges",
        Scope::Namespace(request.namespace().to_owned()),
    )
}

fn fill_from(range: &Object, pod: &mut Object) {
    let container_limits = || {
        range
            .body
            .field("spec")
            .list("limits")
            .iter()
            .filter(|limit| limit.text("type") == "Container")
    };
    let defaults = |field: &str| {
        container_limits()
            .flat_map(|limit| {
                limit
                    .entries(field)
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect::<Vec<_>>()
            })
            .collect::<BTreeMap<_, _>>()
    };
    let requests = defaults("defaultRequest");
    let limits = defaults("default");
    let mut set = Vec::new();
    for (list, kind) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        for container in pod.section("spec").maps_mut(list) {
            let name = container.text("name").to_owned();
            for (field, word, defaults) in [
                ("requests", "request", &requests),
                ("limits", "limit", &limits),
            ] {
                let resources = container.map_at("resources");
                let missing: Vec<&String> = defaults
                    .keys()
                    .filter(|k| !resources.field(field).has(k))
                    .collect();
                for resource in &missing {
                    resources
                        .map_at(field)
                        .insert((*resource).clone(), defaults[*resource].clone());
                }
                if !missing.is_empty() {
                    let list = missing
                        .iter()
                        .map(|s| s.as_str())
                        .collect::<Vec<_>>()
                        .join(", ");
                    set.push(format!("{list} {word} for {kind} {name}"));
                }
            }
        }
    }
    if !set.is_empty() {
        pod.meta.annotations.insert(
            ANNOTATION.to_owned(),
            format!("LimitRanger plugin set: {}", set.join("; ")),
        );
    }
}

fn validate_pod(limit: &Value, pod: &Object) -> Vec<String> {
    match limit.text("type") {
        "Container" => {
            let spec = pod.body.field("spec");
            let containers = spec
                .list("containers")
                .iter()
                .chain(spec.list("initContainers"));
            containers
                .flat_map(|c| {
                    validate_limit(
                        limit,
                        &amounts(c.field("resources"), "requests"),
                        &amounts(c.field("resources"), "limits"),
                    )
                })
                .collect()
        }
        "Pod" => validate_limit(
            limit,
            &pod_amounts(pod, "requests"),
            &pod_amounts(pod, "limits"),
        ),
        _ => Vec::new(),
    }
}

fn validate_claim(limit: &Value, claim: &Object) -> Vec<String> {
    if limit.text("type") != "PersistentVolumeClaim" {
        return Vec::new();
    }
    let requests = amounts(claim.body.field("spec").field("resources"), "requests");
    let below = bounds(limit, "min").filter_map(|b| below_min(&b, &requests, &Amounts::new()));
    let above = bounds(limit, "max").filter_map(|b| match requests.get(b.resource) {
        None => Some(format!("{}.  No request is specified", b.head("maximum"))),
        Some(request) if b.exceeded_by(*request) => {
            Some(format!("{}, but request is {request}", b.head("maximum")))
        }
        Some(_) => None,
    });
    below.chain(above).collect()
}

fn validate_limit(limit: &Value, requests: &Amounts, limits: &Amounts) -> Vec<String> {
    let below = bounds(limit, "min").filter_map(|b| below_min(&b, requests, limits));
    let above = bounds(limit, "max").filter_map(|b| above_max(&b, requests, limits));
    let apart =
        bounds(limit, "maxLimitRequestRatio").filter_map(|b| too_far_apart(&b, requests, limits));
    below.chain(above).chain(apart).collect()
}

/// One bound of a range: `maximum cpu usage per Container is 2`.
struct Bound<'a> {
    kind: &'a str,
    resource: &'a str,
    amount: Quantity,
}

impl Bound<'_> {
    fn head(&self, word: &str) -> String {
        format!(
            "{word} {} usage per {} is {}",
            self.resource, self.kind, self.amount
        )
    }

    fn exceeded_by(&self, amount: Quantity) -> bool {
        let (amount, bound) = comparable(amount, self.amount);
        amount > bound
    }

    fn missed_by(&self, amount: Quantity) -> bool {
        let (amount, bound) = comparable(amount, self.amount);
        amount < bound
    }
}

fn bounds<'a>(limit: &'a Value, field: &str) -> impl Iterator<Item = Bound<'a>> {
    let kind = limit.text("type");
    limit
        .field(field)
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(move |(resource, amount)| {
            Some(Bound {
                kind,
                resource,
                amount: Quantity::of(amount)?,
            })
        })
}

fn comparable(a: Quantity, b: Quantity) -> (i64, i64) {
    if a.value() <= MILLI_MAX && b.value() <= MILLI_MAX {
        (a.milli_value(), b.milli_value())
    } else {
        (a.value(), b.value())
    }
}

fn below_min(bound: &Bound<'_>, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let head = bound.head("minimum");
    match (requests.get(bound.resource), limits.get(bound.resource)) {
        (None, _) => Some(format!("{head}.  No request is specified")),
        (Some(request), _) if bound.missed_by(*request) => {
            Some(format!("{head}, but request is {request}"))
        }
        (_, Some(limit)) if bound.missed_by(*limit) => {
            Some(format!("{head}, but limit is {limit}"))
        }
        _ => None,
    }
}

fn above_max(bound: &Bound<'_>, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let head = bound.head("maximum");
    match (limits.get(bound.resource), requests.get(bound.resource)) {
        (None, _) => Some(format!("{head}.  No limit is specified")),
        (Some(limit), _) if bound.exceeded_by(*limit) => {
            Some(format!("{head}, but limit is {limit}"))
        }
        (_, Some(request)) if bound.exceeded_by(*request) => {
            Some(format!("{head}, but request is {request}"))
        }
        _ => None,
    }
}

fn too_far_apart(bound: &Bound<'_>, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let head = format!(
        "{} max limit to request ratio per {} is {}",
        bound.resource, bound.kind, bound.amount
    );
    let some = |amounts: &Amounts| {
        amounts
            .get(bound.resource)
            .copied()
            .filter(|amount| amount.sign() != 0)
    };
    let Some(request) = some(requests) else {
        return Some(format!(
            "{head}, but no request is specified or request is 0"
        ));
    };
    let Some(limit) = some(limits) else {
        return Some(format!("{head}, but no limit is specified or limit is 0"));
    };
    let (limit, request) = comparable(limit, request);
    let ratio = limit as f64 / request as f64;
    (ratio * 1000.0 > bound.amount.milli_value() as f64)
        .then(|| format!("{head}, but provided ratio is {ratio:.6}"))
}

fn amounts(resources: &Value, field: &str) -> Amounts {
    resources
        .entries(field)
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::of(amount)?)))
        .collect()
}

/// The requests or limits of a pod: the sum over its containers and sidecars, or the largest init
/// container with the sidecars before it.
pub(super) fn pod_amounts(pod: &Object, field: &str) -> Amounts {
    let spec = pod.body.field("spec");
    let mut together = Amounts::new();
    for container in spec.list("containers") {
        add(&mut together, &amounts(container.field("resources"), field));
    }
    let mut sidecars = Amounts::new();
    let mut greatest = Amounts::new();
    for container in spec.list("initContainers") {
        let own = amounts(container.field("resources"), field);
        let mut running = own.clone();
        add(&mut running, &sidecars);
        if container.text("restartPolicy") == "Always" {
            add(&mut together, &own);
            sidecars.clone_from(&running);
        }
        raise(&mut greatest, &running);
    }
    raise(&mut together, &greatest);
    let whole = amounts(spec.field("resources"), field);
    together.extend(
        whole
            .into_iter()
            .filter(|(name, _)| ["cpu", "memory"].contains(&name.as_str())),
    );
    together
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        total
            .entry(name.clone())
            .and_modify(|t| *t = t.plus(*amount))
            .or_insert(*amount);
    }
}

fn raise(total: &mut Amounts, others: &Amounts) {
    for (name, amount) in others {
        total
            .entry(name.clone())
            .and_modify(|t| *t = (*t).max(*amount))
            .or_insert(*amount);
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_fill_what_containers_leave_out() {
        let range = object(
            json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]}}),
        );
        let mut pod = object(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}}),
        );
        fill_from(&range, &mut pod);
        assert_eq!(
            pod.body["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}})
        );
        assert_eq!(
            pod.body["spec"]["containers"][1]["resources"],
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}})
        );
        assert_eq!(
            pod.meta.annotations[ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; memory limit for container b"
        );
    }

    #[test]
    fn amounts_out_of_bounds_are_refused() {
        let cases = [
            (
                json!({"min": {"cpu": "1"}}),
                json!({}),
                "minimum cpu usage per Container is 1.  No request is specified",
            ),
            (
                json!({"min": {"cpu": "1"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "900m"}}),
                "minimum cpu usage per Container is 1, but limit is 900m",
            ),
            (
                json!({"max": {"cpu": "1"}}),
                json!({}),
                "maximum cpu usage per Container is 1.  No limit is specified",
            ),
            (
                json!({"max": {"cpu": "1"}}),
                json!({"limits": {"cpu": "1001m"}}),
                "maximum cpu usage per Container is 1, but limit is 1001m",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
                "",
            ),
        ];
        for (mut limit, resources, why) in cases {
            limit["type"] = "Container".into();
            let pod = object(json!({"spec": {"containers": [{"resources": resources}]}}));
            assert_eq!(
                validate_pod(&limit, &pod).join("; "),
                why,
                "{limit} {resources}"
            );
        }
    }

    #[test]
    fn pod_needs_its_greatest_moment() {
        let cpu = |amount: &str| json!({"resources": {"requests": {"cpu": amount}}});
        let mut sidecar = cpu("1");
        sidecar["restartPolicy"] = "Always".into();
        let pod = object(
            json!({"spec": {"containers": [cpu("1"), cpu("500m")], "initContainers": [sidecar, cpu("3")]}}),
        );
        assert_eq!(pod_amounts(&pod, "requests")["cpu"].to_string(), "4");
        let pod = object(
            json!({"spec": {"resources": {"requests": {"cpu": "7"}}, "containers": [cpu("1")]}}),
        );
        assert_eq!(pod_amounts(&pod, "requests")["cpu"].to_string(), "7");
    }
}
