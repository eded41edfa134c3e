//! What a pod uses of the quota resources of pods. Mirrors `pkg/quota/v1/evaluator/core/pods.go`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::resources::Resources;
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_apimachinery::quantity::Quantity;
use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::qos_class;

const RESOURCES: &[&str] = &[
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];

/// Each container must set what a quota restricts of these. Mirrors `validationSet`.
const REQUIRED: &[&str] = &[
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

const HUGE_PAGES: &str = "hugepages-";
const REQUESTS: &str = "requests.";
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// Whether pods are counted under a quota resource. Mirrors `MatchingResources`.
pub(super) fn is_pod_resource(resource: &str) -> bool {
    let requested = resource.strip_prefix(REQUESTS);
    RESOURCES.contains(&resource)
        || resource.starts_with(HUGE_PAGES)
        || requested.is_some_and(|name| {
            name.starts_with(HUGE_PAGES) || name.starts_with(DEVICE_CLASS) || !is_native(resource)
        })
}

/// Mirrors `IsNativeResource`.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// Whether the time that the pod may be active is limited.
pub(super) fn is_terminating(pod: &Object) -> bool {
    pod.at("spec.activeDeadlineSeconds")
        .and_then(Value::as_i64)
        .is_some_and(|seconds| seconds >= 0)
}

/// Mirrors `GetPodQOS`: the class of the status counts, where there is one.
pub(super) fn is_best_effort(pod: &Object) -> bool {
    let class = match pod.str_at("status.qosClass") {
        "" => qos_class(pod.body.field("spec")),
        class => class,
    };
    class == "BestEffort"
}

pub(super) fn has_cross_namespace_affinity(pod: &Object) -> bool {
    let crosses = |term: &Value| !term.is_empty_at("namespaces") || term.has("namespaceSelector");
    let affinity = pod.body.field("spec").field("affinity");
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = affinity.field(kind);
        let required = terms.list("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = terms.list("preferredDuringSchedulingIgnoredDuringExecution");
        let weighted = preferred.iter().map(|term| term.field("podAffinityTerm"));
        required.iter().chain(weighted).any(crosses)
    })
}

/// Refuses pods that leave open what a quota restricts. Mirrors `Constraints`.
pub(super) fn check_constraints(required: &[&str], pod: &Object) -> Result<(), String> {
    let spec = pod.body.field("spec");
    if has_pod_level_resources(spec, &["requests", "limits"]) {
        return Ok(());
    }
    let required: Vec<&str> = required
        .iter()
        .copied()
        .filter(|name| REQUIRED.contains(name))
        .collect();
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let containers = spec.list("containers").iter();
    for container in containers.chain(spec.list("initContainers")) {
        let resources = container.field("resources");
        let usage = compute_usage(
            &Resources::read(resources.field("requests")),
            &Resources::read(resources.field("limits")),
        );
        for name in required.iter().filter(|name| !usage.has(name)) {
            let names = missing.entry(name).or_default();
            names.insert(container.text("name"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(resource, names)| {
            let names: Vec<&str> = names.into_iter().collect();
            format!("{resource} for: {}", names.join(","))
        })
        .collect();
    Err(format!("must specify {}", parts.join("; ")))
}

/// The usage of a pod. Mirrors `PodUsageFunc`: one that has ended is counted as an object only.
pub(super) fn usage(pod: &Object, now: Time) -> Resources {
    let mut usage = Resources::default();
    if is_counted(pod, now) {
        usage = compute_usage(&requests(pod), &limits(pod));
    }
    usage.insert("count/pods", Quantity::ONE);
    usage
}

/// Mirrors `QuotaV1Pod`.
fn is_counted(pod: &Object, now: Time) -> bool {
    if ["Failed", "Succeeded"].contains(&pod.str_at("status.phase")) {
        return false;
    }
    match (
        pod.meta.deletion_timestamp,
        pod.meta.deletion_grace_period_seconds,
    ) {
        (Some(deletion), Some(seconds)) => now <= deletion.plus_seconds(seconds),
        _ => true,
    }
}

/// Mirrors `podComputeUsageHelper`.
fn compute_usage(requests: &Resources, limits: &Resources) -> Resources {
    let mut usage = Resources::default();
    usage.insert("pods", Quantity::ONE);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            usage.insert(name, request);
            usage.insert(format!("{REQUESTS}{name}"), request);
        }
        if let Some(limit) = limits.get(name) {
            usage.insert(format!("limits.{name}"), limit);
        }
    }
    for name in requests.names() {
        let Some(request) = requests.get(name) else {
            continue;
        };
        if name.starts_with(HUGE_PAGES) {
            usage.insert(name, request);
            usage.insert(format!("{REQUESTS}{name}"), request);
        }
        let is_extended = !is_native(name) && !name.starts_with(REQUESTS);
        if is_extended || name.starts_with(DEVICE_CLASS) {
            usage.insert(format!("{REQUESTS}{name}"), request);
        }
    }
    usage
}

/// Mirrors `PodRequests` with the resources of the status.
fn requests(pod: &Object) -> Resources {
    let mut total = container_resources(pod, "requests");
    let spec = pod.body.field("spec");
    set_pod_level(&mut total, spec, "requests");
    total.plus(&Resources::read(spec.field("overhead")))
}

/// Mirrors `PodLimits` with the resources of the status.
fn limits(pod: &Object) -> Resources {
    let mut total = container_resources(pod, "limits");
    let spec = pod.body.field("spec");
    set_pod_level(&mut total, spec, "limits");
    let limited = total.clone().without_zeros();
    total.plus(&Resources::read(spec.field("overhead")).only(&limited))
}

fn is_pod_level(name: &str) -> bool {
    ["cpu", "memory"].contains(&name) || name.starts_with(HUGE_PAGES)
}

fn has_pod_level_resources(spec: &Value, fields: &[&str]) -> bool {
    let resources = spec.field("resources");
    fields
        .iter()
        .flat_map(|field| resources.entries(field))
        .any(|(name, _)| is_pod_level(name))
}

fn set_pod_level(total: &mut Resources, spec: &Value, field: &str) {
    let own = Resources::read(spec.field("resources").field(field));
    for name in own.names().filter(|name| is_pod_level(name)) {
        if let Some(quantity) = own.get(name) {
            total.insert(name, quantity);
        }
    }
}

/// Containers and sidecars together, or the largest init container with the sidecars before it.
/// Mirrors `AggregateContainerRequests`.
fn container_resources(pod: &Object, field: &str) -> Resources {
    let spec = pod.body.field("spec");
    let mut total = Resources::default();
    for container in spec.list("containers") {
        total = total.plus(&effective(pod, "containerStatuses", container, field));
    }
    let mut sidecars = Resources::default();
    let mut initializing = Resources::default();
    for container in spec.list("initContainers") {
        let running = if container.text("restartPolicy") == "Always" {
            let own = effective(pod, "initContainerStatuses", container, field);
            total = total.plus(&own);
            sidecars = sidecars.plus(&own);
            sidecars.clone()
        } else {
            sidecars.plus(&Resources::read(container.field("resources").field(field)))
        };
        initializing.raise(&running);
    }
    total.raise(&initializing);
    total
}

/// The requests or limits of a container, or what is allocated until a resize is done. Mirrors
/// `determineEffectiveRequests` and `determineEffectiveLimits`.
fn effective(pod: &Object, statuses: &str, container: &Value, field: &str) -> Resources {
    let requested = Resources::read(container.field("resources").field(field));
    let status = pod.body.field("status");
    let own = status
        .list(statuses)
        .iter()
        .find(|status| status.text("name") == container.text("name"));
    let Some(own) = own.filter(|own| own.has("resources")) else {
        return requested;
    };
    let mut most = Resources::read(own.field("resources").field(field));
    if field == "requests" {
        most.raise(&Resources::read(own.field("allocatedResources")));
    }
    let is_infeasible = status.list("conditions").iter().any(|condition| {
        condition.text("type") == "PodResizePending" && condition.text("reason") == "Infeasible"
    });
    if !is_infeasible {
        most.raise(&requested);
    }
    most
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_support::object;

    fn used(pod: Value) -> Value {
        let now = Time::parse("2026-01-02T03:04:05Z").expect("a time");
        usage(&object(pod), now).to_value()
    }

    #[test]
    fn pod_uses_requests_limits_overhead_and_extended_resources() {
        let usage = used(json!({"spec": {
            "overhead": {"cpu": "100m", "memory": "1Mi"},
            "containers": [{"name": "a", "resources": {
                "requests": {"cpu": "500m", "hugepages-2Mi": "2Mi", "example.com/gpu": "2"},
                "limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}]}}));
        let expected = json!({
            "count/pods": "1", "pods": "1",
            "cpu": "2100m", "requests.cpu": "2100m", "limits.cpu": "1100m",
            "memory": "1Mi", "requests.memory": "1Mi",
            "hugepages-2Mi": "2Mi", "requests.hugepages-2Mi": "2Mi",
            "requests.example.com/gpu": "2",
        });
        assert_eq!(usage, expected);
    }

    #[test]
    fn pods_that_have_ended_count_as_objects_only() {
        let ended = json!({"count/pods": "1"});
        assert_eq!(used(json!({"status": {"phase": "Failed"}})), ended);
        let stuck = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:03:00Z", "deletionGracePeriodSeconds": 30}});
        assert_eq!(used(stuck), ended);
        let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:00Z", "deletionGracePeriodSeconds": 30}});
        assert_eq!(used(leaving), json!({"count/pods": "1", "pods": "1"}));
    }

    #[test]
    fn resized_container_counts_requested_and_allocated_resources() {
        let pod = |pending: &str| {
            json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "3"}}}]},
                "status": {"conditions": [{"type": "PodResizePending", "reason": pending}],
                    "containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "1"}},
                        "allocatedResources": {"cpu": "2"}}]}})
        };
        assert_eq!(used(pod("Deferred"))["requests.cpu"], "3");
        assert_eq!(used(pod("Infeasible"))["requests.cpu"], "2");
    }

    #[test]
    fn restricted_compute_resources_are_required_of_each_container() {
        let pod = object(json!({"spec": {
            "containers": [{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1"}}}]}}));
        let required = ["requests.cpu", "limits.memory", "pods", "ephemeral-storage"];
        assert_eq!(
            check_constraints(&required, &pod),
            Err("must specify limits.memory for: a,b; requests.cpu for: b,i".into())
        );
        let pod = object(
            json!({"spec": {"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "b"}]}}),
        );
        assert_eq!(check_constraints(&required, &pod), Ok(()));
    }

    #[test]
    fn quota_resources_of_pods_are_known_by_name() {
        for resource in [
            "pods",
            "count/pods",
            "requests.example.com/gpu",
            "hugepages-1Gi",
            "requests.hugepages-1Gi",
            "requests.deviceclass.resource.kubernetes.io/gpu",
        ] {
            assert!(is_pod_resource(resource), "{resource}");
        }
        for resource in [
            "services",
            "count/secrets",
            "requests.storage",
            "example.com/gpu",
        ] {
            assert!(!is_pod_resource(resource), "{resource}");
        }
    }
}
