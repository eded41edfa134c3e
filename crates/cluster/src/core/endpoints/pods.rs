//! Pods as endpoints: which pods of a service take traffic, where, and how well.
//!
//! In: a service, a pod, the zone of its node. Out: an endpoint and the ports it is reached on.
//! Holds: a pod that has ended, or has no address, is no endpoint; one that ends is, and says so.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

/// A family of addresses, which a slice has exactly one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// The families of a service.
    pub(super) fn of(service: &Service) -> Vec<Self> {
        let spec = service.spec.as_ref();
        let families: Vec<_> = spec
            .and_then(|spec| spec.ip_families.as_ref())
            .into_iter()
            .flatten()
            .collect();
        let mut families: Vec<_> = families
            .into_iter()
            .map(|family| if family == "IPv6" { Self::V6 } else { Self::V4 })
            .collect();
        if families.is_empty() {
            families.push(Self::V4);
        }
        families
    }

    /// The family of an address.
    pub(super) fn of_address(address: IpAddr) -> Self {
        if address.is_ipv6() {
            Self::V6
        } else {
            Self::V4
        }
    }

    /// How slices name it.
    pub(super) fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Whether the pod says that it can take traffic.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the pod has ended for good.
pub(super) fn has_ended(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

/// The addresses of a pod, in the order in which it has them.
pub(super) fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new().into_iter();
    };
    let many = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let first = status
        .pod_ip
        .as_deref()
        .into_iter()
        .filter(|_| status.pod_ips.is_none());
    many.chain(first)
        .filter_map(|ip| ip.parse().ok())
        .collect::<Vec<_>>()
        .into_iter()
}

/// The pod as an endpoint of a service; `None` if it takes no traffic in this family.
pub(super) fn endpoint(
    service: &Service,
    pod: &Pod,
    zone: Option<String>,
    family: Family,
) -> Option<Endpoint> {
    let addresses: Vec<_> = addresses(pod)
        .filter(|ip| Family::of_address(*ip) == family)
        .map(|ip| ip.to_string())
        .collect();
    if addresses.is_empty() || has_ended(pod) {
        return None;
    }
    let serving = is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(publishes_not_ready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: node_name(pod),
        target_ref: Some(reference(pod)),
        zone,
        ..Endpoint::default()
    })
}

/// The ports of a service as this pod has them: a named port may be another number in every pod, or missing.
pub(super) fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let found = ports.into_iter().filter_map(|port| {
        Some(EndpointPort {
            app_protocol: port.app_protocol.clone(),
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number(port, pod)?),
            protocol: port.protocol.clone(),
        })
    });
    found.collect()
}

fn number(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars = spec
                .init_containers
                .iter()
                .flatten()
                .filter(|container| container.restart_policy.as_deref() == Some("Always"));
            let mut ports = spec
                .containers
                .iter()
                .chain(sidecars)
                .flat_map(|container| container.ports.iter().flatten());
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let named = ports.find(|p| {
                p.name.as_ref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            named.map(|port| port.container_port)
        }
    }
}

/// Whether a service wants traffic to go to pods that are not ready.
pub(super) fn publishes_not_ready(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses)
        .unwrap_or_default()
}

/// Whether a service has no address of its own.
pub(super) fn is_headless(service: &Service) -> bool {
    let address = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        .unwrap_or_default();
    matches!(address, "" | "None")
}

/// The name under which a pod of a headless service is found.
pub(super) fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let name = spec
        .hostname
        .clone()
        .filter(|hostname| !hostname.is_empty())?;
    (spec.subdomain == service.metadata.name
        && pod.metadata.namespace == service.metadata.namespace)
        .then_some(name)
}

/// The node of a pod.
pub(super) fn node_name(pod: &Pod) -> Option<String> {
    pod.spec
        .as_ref()?
        .node_name
        .clone()
        .filter(|name| !name.is_empty())
}

/// The pod, for those who look at an endpoint.
pub(super) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.namespace(),
        name: pod.metadata.name.clone(),
        uid: pod.uid(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a"}, "spec": spec}))
            .unwrap()
    }

    fn pod(changes: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "a", "uid": "u"},
            "spec": {"nodeName": "n", "hostname": "h", "subdomain": "web", "containers": [
                {"name": "c", "ports": [{"name": "http", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]}
            ]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}], "conditions": [{"type": "Ready", "status": "True"}]}
        });
        json_patch(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    fn json_patch(to: &mut Value, changes: Value) {
        match (to, changes) {
            (Value::Object(to), Value::Object(changes)) => {
                changes.into_iter().for_each(|(key, value)| {
                    json_patch(to.entry(key).or_insert(Value::Null), value)
                });
            }
            (to, changes) => *to = changes,
        }
    }

    #[test]
    fn conditions_tell_ready_serving_and_terminating_apart() {
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let plain = service(json!({}));
        let publishing = service(json!({"publishNotReadyAddresses": true}));
        for (service, changes, wanted) in [
            (&plain, json!({}), Some((true, true, false))),
            (&plain, not_ready.clone(), Some((false, false, false))),
            (&plain, going.clone(), Some((false, true, true))),
            (&publishing, not_ready, Some((true, false, false))),
            (&publishing, going, Some((true, true, true))),
            (&plain, json!({"status": {"phase": "Failed"}}), None),
            (&plain, json!({"status": {"podIPs": []}}), None),
        ] {
            let made = endpoint(service, &pod(changes.clone()), Some("z".into()), Family::V4);
            let told = made.as_ref().and_then(|made| made.conditions.clone());
            assert_eq!(
                told.map(|c| (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap())),
                wanted,
                "{changes}"
            );
            if let Some(made) = made {
                assert_eq!(made.addresses.as_slice(), &["10.1.0.1".to_owned()][..]);
                assert_eq!(made.hostname.as_deref(), Some("h"));
                assert_eq!(made.node_name.as_deref(), Some("n"));
                assert_eq!(made.zone.as_deref(), Some("z"));
            }
        }
        let six = endpoint(&plain, &pod(json!({})), None, Family::V6).unwrap();
        assert_eq!(six.addresses, ["fd00::1"]);
    }

    #[test]
    fn ports_are_found_by_name_in_each_pod() {
        let port = |target: Value| json!({"ports": [{"name": "x", "port": 80, "protocol": "TCP", "targetPort": target}]});
        for (spec, wanted) in [
            (port(json!(9090)), vec![9090]),
            (port(json!("http")), vec![8080]),
            (port(json!("dns")), vec![]),
            (port(json!("none")), vec![]),
            (port(json!(null)), vec![80]),
            (json!({"clusterIP": "None"}), vec![]),
        ] {
            let found: Vec<_> = ports(&service(spec.clone()), &pod(json!({})))
                .into_iter()
                .filter_map(|port| port.port)
                .collect();
            assert_eq!(found, wanted, "{spec}");
        }
    }
}
