//! Usage of quota resources by objects. Mirrors `pkg/quota/v1/evaluator/core`.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodAffinityTerm, PodSpec, ResourceQuota,
    ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::amounts::Amounts;
use crate::quantity;

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const CLAIMS: &str = "persistentvolumeclaims";
const REQUESTS_STORAGE: &str = "requests.storage";

/// Whether pods are counted under a resource.
pub(super) fn is_pod_resource(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "count/pods",
        "pods",
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    NAMES.contains(&name)
        || name.starts_with("hugepages-")
        || name.strip_prefix("requests.").is_some_and(|name| {
            name.starts_with("hugepages-")
                || name.starts_with("deviceclass.resource.kubernetes.io/")
                || is_extended(name)
        })
}

/// Whether services are counted under a resource.
pub(super) fn is_service_resource(name: &str) -> bool {
    [
        "count/services",
        "services",
        "services.nodeports",
        "services.loadbalancers",
    ]
    .contains(&name)
}

/// Whether claims are counted under a resource.
pub(super) fn is_claim_resource(name: &str) -> bool {
    let plain = [CLAIMS, REQUESTS_STORAGE];
    name == "count/persistentvolumeclaims"
        || plain.contains(&name)
        || name
            .split_once(STORAGE_CLASS)
            .is_some_and(|(_, rest)| plain.contains(&rest))
}

/// The resource whose objects are counted under a name, `deployments.apps`; `None` if they have an
/// evaluator.
pub(super) fn counted_resource(name: &str) -> Option<&str> {
    const OLD: &[&str] = &[
        "configmaps",
        "resourcequotas",
        "replicationcontrollers",
        "secrets",
    ];
    if is_pod_resource(name) || is_service_resource(name) || is_claim_resource(name) {
        return None;
    }
    name.strip_prefix("count/")
        .or_else(|| OLD.contains(&name).then_some(name))
}

fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// Whether a pod may still use compute resources.
pub(super) fn is_counted(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Failed" | "Succeeded"))
}

/// What a pod uses. Mirrors PodUsageFunc: one that has ended is counted as an object only.
pub(super) fn of_pod(pod: &Pod, now: Timestamp) -> Amounts {
    let mut usage = Amounts::default();
    usage.insert_count("count/pods", 1);
    if !is_counted(pod) || is_stuck(pod, now) {
        return usage;
    }
    usage.insert_count("pods", 1);
    let Some(spec) = &pod.spec else {
        return usage;
    };
    let requests = pod_resources(spec, Kind::Requests);
    let limits = pod_resources(spec, Kind::Limits);
    for (name, sum) in &requests {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {
                usage.insert(name.as_str(), sum);
                usage.insert(format!("requests.{name}"), sum);
            }
            name if name.starts_with("hugepages-") => {
                usage.insert(name, sum);
                usage.insert(format!("requests.{name}"), sum);
            }
            name if is_extended(name)
                || name.starts_with("deviceclass.resource.kubernetes.io/") =>
            {
                usage.insert(format!("requests.{name}"), sum);
            }
            _ => {}
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(sum) = limits.get(name) {
            usage.insert(format!("limits.{name}"), sum);
        }
    }
    usage
}

/// Whether the grace period of a terminating pod is over: its node may be lost.
fn is_stuck(pod: &Pod, now: Timestamp) -> bool {
    let metadata = &pod.metadata;
    let (Some(deletion), Some(seconds)) = (
        &metadata.deletion_timestamp,
        metadata.deletion_grace_period_seconds,
    ) else {
        return false;
    };
    let end = deletion
        .0
        .saturating_add(SignedDuration::from_secs(seconds));
    end.is_ok_and(|end| now > end)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Requests,
    Limits,
}

type Quantities = BTreeMap<String, Quantity>;

/// Mirrors PodRequests and PodLimits.
fn pod_resources(spec: &PodSpec, kind: Kind) -> Quantities {
    let of = |container: &Container| {
        let resources = container.resources.as_ref();
        let map = resources.and_then(|resources| match kind {
            Kind::Requests => resources.requests.clone(),
            Kind::Limits => resources.limits.clone(),
        });
        map.unwrap_or_default()
    };
    let mut total = Quantities::new();
    for container in &spec.containers {
        add(&mut total, &of(container));
    }
    let mut sidecars = Quantities::new();
    let mut initializing = Quantities::new();
    for container in spec.init_containers.iter().flatten() {
        let mut running = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &running);
            add(&mut sidecars, &running);
            running.clone_from(&sidecars);
        } else {
            add(&mut running, &sidecars);
        }
        raise(&mut initializing, &running);
    }
    raise(&mut total, &initializing);
    let own = spec.resources.as_ref().and_then(|resources| match kind {
        Kind::Requests => resources.requests.as_ref(),
        Kind::Limits => resources.limits.as_ref(),
    });
    for (name, quantity) in own.into_iter().flatten() {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            total.insert(name.clone(), quantity.clone());
        }
    }
    for (name, quantity) in spec.overhead.iter().flatten() {
        let is_limited = total
            .get(name)
            .is_some_and(|limit| quantity::milli_value(limit) != 0);
        if kind == Kind::Requests || is_limited {
            add(
                &mut total,
                &Quantities::from([(name.clone(), quantity.clone())]),
            );
        }
    }
    total
}

fn add(total: &mut Quantities, more: &Quantities) {
    for (name, quantity) in more {
        let mut sum = Amounts::default();
        if let Some(before) = total.get(name) {
            sum.insert(name.as_str(), before);
        }
        sum.insert(name.as_str(), quantity);
        total.extend(sum.only(&Quantities::from([(name.clone(), quantity.clone())])));
    }
}

fn raise(total: &mut Quantities, others: &Quantities) {
    for (name, quantity) in others {
        let is_more = total
            .get(name)
            .is_none_or(|most| quantity::milli_value(quantity) > quantity::milli_value(most));
        if is_more {
            total.insert(name.clone(), quantity.clone());
        }
    }
}

/// What a service uses, by the node ports that it will have.
pub(super) fn of_service(service: &Service) -> Amounts {
    let mut usage = Amounts::default();
    usage.insert_count("count/services", 1);
    usage.insert_count("services", 1);
    let Some(spec) = &service.spec else {
        return usage;
    };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let explicit = ports.iter().filter(|port| port.node_port.unwrap_or(0) != 0);
    match spec.type_.as_deref() {
        Some("NodePort") => usage.insert_count("services.nodeports", ports.len()),
        Some("LoadBalancer") => {
            usage.insert_count("services.loadbalancers", 1);
            let count = if spec.allocate_load_balancer_node_ports == Some(false) {
                explicit.count()
            } else {
                ports.len()
            };
            usage.insert_count("services.nodeports", count);
        }
        _ => {}
    }
    usage
}

/// What a claim uses, also by its storage class.
pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Amounts {
    let mut usage = Amounts::default();
    usage.insert_count(CLAIMS, 1);
    usage.insert_count("count/persistentvolumeclaims", 1);
    let annotations = claim.metadata.annotations.as_ref();
    let class = annotations
        .and_then(|all| all.get("volume.beta.kubernetes.io/storage-class"))
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref())
        .filter(|class| !class.is_empty());
    if let Some(class) = class {
        usage.insert_count(format!("{class}{STORAGE_CLASS}{CLAIMS}"), 1);
    }
    let requested = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let allocated = claim
        .status
        .as_ref()
        .and_then(|status| status.allocated_resources.as_ref()?.get("storage"));
    let Some(requested) = requested else {
        return usage;
    };
    let storage = match allocated {
        Some(allocated) if quantity::value(allocated) > quantity::value(requested) => allocated,
        _ => requested,
    };
    usage.insert(REQUESTS_STORAGE, storage);
    if let Some(class) = class {
        usage.insert(format!("{class}{STORAGE_CLASS}{REQUESTS_STORAGE}"), storage);
    }
    usage
}

/// The scopes of a quota as requirements.
fn requirements(quota: &ResourceQuota) -> Vec<ScopedResourceSelectorRequirement> {
    let spec = quota.spec.as_ref();
    let plain = spec
        .and_then(|spec| spec.scopes.clone())
        .unwrap_or_default();
    let selected = spec
        .and_then(|spec| spec.scope_selector.as_ref()?.match_expressions.clone())
        .unwrap_or_default();
    let plain = plain
        .into_iter()
        .map(|scope| ScopedResourceSelectorRequirement {
            operator: "Exists".into(),
            scope_name: scope,
            values: None,
        });
    plain.chain(selected).collect()
}

/// Whether a quota is about all objects.
pub(super) fn has_no_scopes(quota: &ResourceQuota) -> bool {
    requirements(quota).is_empty()
}

/// Whether a quota is about a pod.
pub(super) fn pod_is_in_scope(quota: &ResourceQuota, pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let is_terminating = spec
        .active_deadline_seconds
        .is_some_and(|seconds| seconds >= 0);
    let class = pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref());
    let is_best_effort = class == Some("BestEffort");
    requirements(quota)
        .iter()
        .all(|requirement| match requirement.scope_name.as_str() {
            "Terminating" => is_terminating,
            "NotTerminating" => !is_terminating,
            "BestEffort" => is_best_effort,
            "NotBestEffort" => !is_best_effort,
            "PriorityClass" => {
                let class = spec.priority_class_name.as_deref();
                selects(requirement, class.filter(|class| !class.is_empty()))
            }
            "CrossNamespacePodAffinity" => has_cross_namespace_affinity(spec),
            _ => false,
        })
}

/// Whether a quota is about a claim.
pub(super) fn claim_is_in_scope(quota: &ResourceQuota, claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let classes: Vec<&str> = [
        claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_attributes_class_name.as_deref()),
        status.and_then(|status| status.current_volume_attributes_class_name.as_deref()),
        status.and_then(|status| {
            let modification = status.modify_volume_status.as_ref()?;
            modification.target_volume_attributes_class_name.as_deref()
        }),
    ]
    .into_iter()
    .flatten()
    .filter(|class| !class.is_empty())
    .collect();
    requirements(quota).iter().all(|requirement| {
        requirement.scope_name == "VolumeAttributesClass"
            && if classes.is_empty() {
                selects(requirement, None)
            } else {
                classes
                    .iter()
                    .any(|class| selects(requirement, Some(class)))
            }
    })
}

fn selects(requirement: &ScopedResourceSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

fn has_cross_namespace_affinity(spec: &PodSpec) -> bool {
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces
            .as_ref()
            .is_some_and(|names| !names.is_empty())
            || term.namespace_selector.is_some()
    };
    let Some(affinity) = &spec.affinity else {
        return false;
    };
    let pod = &affinity.pod_affinity;
    let anti = &affinity.pod_anti_affinity;
    let required = pod
        .iter()
        .flat_map(|it| {
            it.required_during_scheduling_ignored_during_execution
                .iter()
        })
        .chain(anti.iter().flat_map(|it| {
            it.required_during_scheduling_ignored_during_execution
                .iter()
        }))
        .flatten();
    let preferred = pod
        .iter()
        .flat_map(|it| {
            it.preferred_during_scheduling_ignored_during_execution
                .iter()
        })
        .chain(anti.iter().flat_map(|it| {
            it.preferred_during_scheduling_ignored_during_execution
                .iter()
        }))
        .flatten();
    required.into_iter().any(crosses)
        || preferred
            .into_iter()
            .any(|it| crosses(&it.pod_affinity_term))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(pod: Value) -> String {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        of_pod(&serde_json::from_value(pod).unwrap(), now).shown()
    }

    #[test]
    fn pods_use_what_they_request_until_they_end() {
        let spec = json!({"overhead": {"cpu": "100m"}, "containers": [{"name": "c", "resources": {
            "requests": {"cpu": "500m", "example.com/gpu": "1"}, "limits": {"cpu": "1"}}}]});
        assert_eq!(
            shown(json!({ "spec": spec })),
            "count/pods=1 cpu=600m limits.cpu=1100m pods=1 requests.cpu=600m requests.example.com/gpu=1"
        );
        assert_eq!(
            shown(json!({"spec": spec, "status": {"phase": "Failed"}})),
            "count/pods=1"
        );
    }

    #[test]
    fn objects_with_rules_of_their_own_are_not_counted_by_number() {
        for (name, expected) in [
            ("count/deployments.apps", Some("deployments.apps")),
            ("configmaps", Some("configmaps")),
            ("count/pods", None),
            ("services", None),
            ("count/persistentvolumeclaims", None),
            ("requests.cpu", None),
        ] {
            assert_eq!(counted_resource(name), expected, "{name}");
        }
    }
}
