//! Service selectors: the services affected by a change of a pod or node.
//!
//! Input: changed pods and nodes, cached services. Output: keys of services to enqueue.
//! Guarantees: a change that does not affect an endpoint enqueues nothing.

use std::collections::BTreeMap;

use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;

use super::pods::{is_ready, is_terminal};

const ZONE: &str = "topology.kubernetes.io/zone";

/// The selector of a service; `None` for `ExternalName` and for a service without a selector, whose
/// endpoints are not managed by these controllers.
pub(super) fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service
        .spec
        .as_ref()
        .filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    spec.selector
        .as_ref()
        .filter(|selector| !selector.is_empty())
}

/// Whether a selector matches the labels of a pod.
pub(super) fn matches(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    selector
        .iter()
        .all(|(key, value)| pod.labels().get(key) == Some(value))
}

/// The services whose selector matches a pod. Mirrors getServicesForPod.
pub(super) fn services_for_pod(services: &Lister<Service>, pod: &Pod) -> Vec<ObjectKey> {
    let services = services.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default());
    let selecting = services
        .iter()
        .filter(|service| selector(service).is_some_and(|selector| matches(selector, pod)));
    selecting
        .map(|service| ObjectKey::from_object(&**service))
        .collect()
}

/// The services of all pods on a node.
pub(super) fn services_for_node(
    services: &Lister<Service>,
    pods_by_node: &Index<Pod>,
    node: &Node,
) -> Vec<ObjectKey> {
    let pods = pods_by_node.get(&node.name_any());
    // Several pods of a node usually belong to the same service.
    let mut keys: Vec<_> = pods
        .iter()
        .flat_map(|pod| services_for_pod(services, pod))
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

/// Updates of a pod that affect its endpoints. Mirrors podEndpointsChanged.
pub(super) fn pod_endpoints_changed() -> Predicate<Pod> {
    Predicate::on_update(|old: &Pod, new: &Pod| {
        let node_and_hostname = |pod: &Pod| {
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
        // A terminating pod stays an endpoint with another condition, so the change has to be
        // delivered.
        let is_terminating = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        old.metadata.labels != new.metadata.labels
            || is_ready(old) != is_ready(new)
            || is_terminal(old) != is_terminal(new)
            || is_terminating(old) != is_terminating(new)
            || addresses(old) != addresses(new)
            || node_and_hostname(old) != node_and_hostname(new)
    })
}

/// Updates of a node that change its zone.
pub(super) fn node_zone_changed() -> Predicate<Node> {
    Predicate::on_update(|old: &Node, new: &Node| zone(old) != zone(new))
}
