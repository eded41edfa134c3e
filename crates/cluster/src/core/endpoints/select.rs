//! Selection: which pods belong to which services.
//!
//! In: pods and nodes that changed, services as cached. Out: keys of services to look at.
//! Holds: a change that no endpoint shows wakes nobody.

use std::collections::BTreeMap;

use bellerophon::{Lister, ObjectKey, Predicate};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;

use super::pods::{has_ended, is_ready};
use crate::index::BY_NODE;

const ZONE: &str = "topology.kubernetes.io/zone";

/// The labels that pods of a service have; `None` if others say what its endpoints are.
pub(super) fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service
        .spec
        .as_ref()
        .filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    spec.selector
        .as_ref()
        .filter(|selector| !selector.is_empty())
}

/// Whether a pod is one of a service in its namespace.
pub(super) fn selects(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    selector
        .iter()
        .all(|(key, value)| pod.labels().get(key) == Some(value))
}

/// The services that a pod belongs to.
pub(super) fn services_of(services: &Lister<Service>, pod: &Pod) -> Vec<ObjectKey> {
    let near = services.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default());
    let own = near
        .iter()
        .filter(|service| selector(service).is_some_and(|selector| selects(selector, pod)));
    own.map(|service| ObjectKey::of(&**service)).collect()
}

/// The services of all pods on a node.
pub(super) fn services_on(
    services: &Lister<Service>,
    pods: &Lister<Pod>,
    node: &Node,
) -> Vec<ObjectKey> {
    let there = pods.by_index(BY_NODE, &node.name_any()).unwrap_or_default();
    let mut keys: Vec<_> = there
        .iter()
        .flat_map(|pod| services_of(services, pod))
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The zone of a node.
pub(super) fn zone(node: &Node) -> Option<String> {
    node.labels()
        .get(ZONE)
        .filter(|zone| !zone.is_empty())
        .cloned()
}

/// Changes of a pod that an endpoint shows.
pub(super) fn of_pods() -> Predicate<Pod> {
    Predicate::changed(|old: &Pod, new: &Pod| {
        let place = |pod: &Pod| {
            pod.spec.as_ref().map(|spec| {
                (
                    spec.node_name.clone(),
                    spec.hostname.clone(),
                    spec.subdomain.clone(),
                )
            })
        };
        let addresses = |pod: &Pod| {
            pod.status
                .as_ref()
                .map(|status| (status.pod_ip.clone(), status.pod_ips.clone()))
        };
        let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        old.metadata.labels != new.metadata.labels
            || (is_ready(old), has_ended(old), going(old))
                != (is_ready(new), has_ended(new), going(new))
            || addresses(old) != addresses(new)
            || place(old) != place(new)
    })
}

/// Changes of the zone of a node.
pub(super) fn of_nodes() -> Predicate<Node> {
    Predicate::changed(|old: &Node, new: &Node| zone(old) != zone(new))
}
