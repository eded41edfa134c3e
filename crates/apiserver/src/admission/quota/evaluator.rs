//! Which quota resources an object uses, and how much of each.
//! Mirrors `pkg/quota/v1/evaluator/core` and the object count evaluator.

use super::{pod, resources::Resources};
use crate::registry::Resource;
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_apimachinery::quantity::Quantity;
use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;

/// Virtual resources, which are not stored and not counted. Mirrors `DefaultIgnoredResources`,
/// without those that are not namespaced: no quota counts them.
const IGNORED: &[(&str, &str)] = &[
    ("", "bindings"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("", "events"),
    ("events.k8s.io", "events"),
];

/// The resources that had a name in quotas before `count/` was introduced.
const ALIASES: &[&str] = &[
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "secrets",
];

/// The part of a resource name that names a storage class.
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

const CLAIMS: &str = "persistentvolumeclaims";
const REQUESTS_STORAGE: &str = "requests.storage";

/// How objects of a resource are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evaluator {
    Pods,
    Services,
    Claims,
    /// By their number, under these names.
    Count(Vec<String>),
}

impl Evaluator {
    /// The evaluator of a resource; `None` for those that quotas ignore.
    pub(super) fn of(resource: &Resource) -> Option<Self> {
        let group = resource.group.as_str();
        let plural = resource.plural.as_str();
        Some(match (group, plural) {
            _ if IGNORED.contains(&(group, plural)) => return None,
            ("", "pods") => Self::Pods,
            ("", "services") => Self::Services,
            ("", CLAIMS) => Self::Claims,
            ("", _) => {
                let alias = ALIASES.contains(&plural).then(|| plural.to_owned());
                let count = format!("count/{plural}");
                Self::Count(alias.into_iter().chain([count]).collect())
            }
            _ => Self::Count(vec![format!("count/{plural}.{group}")]),
        })
    }

    /// Whether a write can change what is used.
    pub(super) fn handles(&self, subresource: &str, object: &Object, old: Option<&Object>) -> bool {
        match (self, subresource, old) {
            (Self::Pods, "", Some(old)) => pod::is_terminating(old) != pod::is_terminating(object),
            (Self::Pods, "resize", old) => old.is_some(),
            (Self::Claims, "status", Some(old)) => claim_needs_replenish(object, old),
            (Self::Services | Self::Claims, "", _) => true,
            (Self::Pods | Self::Count(_), "", None) => true,
            _ => false,
        }
    }

    /// The resources of a quota that this evaluator counts.
    pub(super) fn matching<'h>(&self, hard: &'h Resources) -> Vec<&'h str> {
        hard.names()
            .filter(|resource| match self {
                Self::Pods => pod::is_pod_resource(resource),
                Self::Services => [
                    "count/services",
                    "services",
                    "services.nodeports",
                    "services.loadbalancers",
                ]
                .contains(resource),
                Self::Claims => is_claim_resource(resource),
                Self::Count(names) => names.iter().any(|name| name == resource),
            })
            .collect()
    }

    /// Validates that an object sets the resources that a quota restricts.
    ///
    /// # Errors
    /// The missing resources.
    pub(super) fn check_constraints(
        &self,
        required: &[&str],
        object: &Object,
    ) -> Result<(), String> {
        match self {
            Self::Pods => pod::check_constraints(required, object),
            _ => Ok(()),
        }
    }

    /// The usage of an object.
    pub(super) fn usage(&self, object: &Object, now: Time) -> Resources {
        match self {
            Self::Pods => pod::usage(object, now),
            Self::Services => service_usage(object),
            Self::Claims => claim_usage(object),
            Self::Count(names) => {
                let mut usage = Resources::default();
                for name in names {
                    usage.insert(name.as_str(), Quantity::ONE);
                }
                usage
            }
        }
    }
}

fn service_usage(service: &Object) -> Resources {
    let spec = service.body.field("spec");
    let ports = spec.list("ports");
    let explicit = ports.iter().filter(|port| port.number("nodePort") != 0);
    let is_suppressed = *spec.field("allocateLoadBalancerNodePorts") == false;
    let (node_ports, load_balancers) = match spec.text("type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if is_suppressed => (explicit.count(), 1),
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    let mut usage = Resources::default();
    usage.insert("count/services", Quantity::ONE);
    usage.insert("services", Quantity::ONE);
    usage.insert("services.nodeports", Quantity::count(node_ports));
    usage.insert("services.loadbalancers", Quantity::count(load_balancers));
    usage
}

fn is_claim_resource(resource: &str) -> bool {
    let plain = [CLAIMS, REQUESTS_STORAGE];
    resource == "count/persistentvolumeclaims"
        || plain.contains(&resource)
        || resource
            .split_once(STORAGE_CLASS)
            .is_some_and(|(_, rest)| plain.contains(&rest))
}

fn claim_usage(claim: &Object) -> Resources {
    let class = claim
        .meta
        .annotations
        .get("volume.beta.kubernetes.io/storage-class")
        .map_or_else(|| claim.str_at("spec.storageClassName"), String::as_str);
    let mut usage = Resources::default();
    usage.insert(CLAIMS, Quantity::ONE);
    usage.insert("count/persistentvolumeclaims", Quantity::ONE);
    let storage = claim_storage(claim);
    if let Some(storage) = storage {
        usage.insert(REQUESTS_STORAGE, storage);
    }
    if !class.is_empty() {
        usage.insert(format!("{class}{STORAGE_CLASS}{CLAIMS}"), Quantity::ONE);
        if let Some(storage) = storage {
            usage.insert(format!("{class}{STORAGE_CLASS}{REQUESTS_STORAGE}"), storage);
        }
    }
    usage
}

/// The requested storage in whole bytes, or what is allocated if that is more.
fn claim_storage(claim: &Object) -> Option<Quantity> {
    let requested = Quantity::of(claim.at("spec.resources.requests.storage")?)?;
    let allocated = claim
        .at("status.allocatedResources.storage")
        .and_then(Quantity::of);
    let storage = allocated.map_or(requested, |allocated| requested.max(allocated));
    Some(storage.rounded_up())
}

/// Mirrors `RequiresQuotaReplenish`.
fn claim_needs_replenish(claim: &Object, old: &Object) -> bool {
    let allocated = |claim: &Object| {
        let storage = claim.at("status.allocatedResources.storage");
        storage.and_then(Quantity::of)
    };
    allocated(claim) != allocated(old) || attributes_classes(claim) != attributes_classes(old)
}

/// The VolumeAttributesClasses that a claim has, had or will have.
pub(super) fn attributes_classes(claim: &Object) -> std::collections::BTreeSet<&str> {
    let paths = [
        "spec.volumeAttributesClassName",
        "status.currentVolumeAttributesClassName",
        "status.modifyVolumeStatus.targetVolumeAttributesClassName",
    ];
    let names = paths.iter().map(|path| claim.str_at(path));
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_support::object;

    fn used(evaluator: &Evaluator, value: Value) -> Value {
        let now = Time::parse("2026-01-02T03:04:05Z").expect("a time");
        evaluator.usage(&object(value), now).to_value()
    }

    #[test]
    fn services_count_the_node_ports_they_will_have() {
        let service = |spec: Value| used(&Evaluator::Services, json!({ "spec": spec }));
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30001}]);
        let cases = [
            (json!({"ports": ports}), "0", "0"),
            (json!({"type": "NodePort", "ports": ports}), "2", "0"),
            (json!({"type": "LoadBalancer", "ports": ports}), "2", "1"),
            (
                json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}),
                "1",
                "1",
            ),
        ];
        for (spec, node_ports, load_balancers) in cases {
            let usage = service(spec.clone());
            assert_eq!(usage["services.nodeports"], node_ports, "{spec}");
            assert_eq!(usage["services.loadbalancers"], load_balancers, "{spec}");
            assert_eq!(usage["count/services"], "1");
        }
    }

    #[test]
    fn claims_count_whole_bytes_also_by_storage_class() {
        let usage = used(
            &Evaluator::Claims,
            json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1.5"}}},
                "status": {"allocatedResources": {"storage": "1"}}}),
        );
        let expected = json!({
            "count/persistentvolumeclaims": "1",
            "persistentvolumeclaims": "1",
            "requests.storage": "2",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            "gold.storageclass.storage.k8s.io/requests.storage": "2",
        });
        assert_eq!(usage, expected);
        let expanding = used(
            &Evaluator::Claims,
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"allocatedResources": {"storage": "2Gi"}}}),
        );
        assert_eq!(expanding["requests.storage"], "2Gi");
    }
}
