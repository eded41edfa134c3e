//! Conversion of a pod to an endpoint of a service.
//!
//! Input: a service, a pod, the zone of its node. Output: an endpoint and its ports.
//! Rules: a terminal pod, or one without an address, is no endpoint; a terminating pod is one, with
//! the condition `terminating`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

/// IP family. All endpoints of a slice have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    /// The IP families of a service. Mirrors getAddressTypesForService.
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

    /// The IP family of an address.
    pub(super) fn of_address(address: IpAddr) -> Self {
        if address.is_ipv6() {
            Self::V6
        } else {
            Self::V4
        }
    }

    /// Its value in `EndpointSlice.addressType`.
    pub(super) fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Whether the pod has the condition `Ready`.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the pod's phase is `Succeeded` or `Failed`.
pub(super) fn is_terminal(pod: &Pod) -> bool {
    matches!(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    )
}

/// The addresses of a pod in the order of its status.
pub(super) fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new().into_iter();
    };
    let pod_ips = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let pod_ip = status
        .pod_ip
        .as_deref()
        .into_iter()
        .filter(|_| status.pod_ips.is_none());
    pod_ips
        .chain(pod_ip)
        .filter_map(|ip| ip.parse().ok())
        .collect::<Vec<_>>()
        .into_iter()
}

/// The endpoint of a pod in an IP family; `None` if it has none. Mirrors podToEndpoint.
pub(super) fn endpoint(
    service: &Service,
    pod: &Pod,
    zone: Option<String>,
    family: IpFamily,
) -> Option<Endpoint> {
    let addresses: Vec<_> = addresses(pod)
        .filter(|ip| IpFamily::of_address(*ip) == family)
        .map(|ip| ip.to_string())
        .collect();
    if addresses.is_empty() || is_terminal(pod) {
        return None;
    }
    // Mirrors podToEndpoint: `ready` is false for a terminating pod, so that proxies drain it,
    // while `serving` keeps its readiness for those that have no other endpoint.
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

/// The ports of a service in a pod. A named target port that the pod lacks is left out. Mirrors
/// getEndpointPorts.
pub(super) fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let found = ports.into_iter().filter_map(|port| {
        Some(EndpointPort {
            app_protocol: port.app_protocol.clone(),
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(find_port(port, pod)?),
            protocol: port.protocol.clone(),
        })
    });
    found.collect()
}

/// The target port number in a pod. Mirrors FindPort.
fn find_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            // Mirrors FindPort: ports of restartable init containers count too.
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

/// The service's `publishNotReadyAddresses`.
pub(super) fn publishes_not_ready(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses)
        .unwrap_or_default()
}

/// Whether a service has no cluster IP.
pub(super) fn is_headless(service: &Service) -> bool {
    let address = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        .unwrap_or_default();
    matches!(address, "" | "None")
}

/// The pod's hostname if its subdomain is the service. Mirrors ShouldSetHostname.
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

/// The node of a pod; `None` until it is scheduled.
pub(super) fn node_name(pod: &Pod) -> Option<String> {
    pod.spec
        .as_ref()?
        .node_name
        .clone()
        .filter(|name| !name.is_empty())
}

/// The `targetRef` of a pod's endpoint.
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
            "spec": {
                "nodeName": "n",
                "hostname": "h",
                "subdomain": "web",
                "containers": [
                    {
                        "name": "c",
                        "ports": [
                            {"name": "http", "containerPort": 8080},
                            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                        ],
                    },
                ],
            },
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        merge_json(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    fn merge_json(target: &mut Value, changes: Value) {
        match (target, changes) {
            (Value::Object(target), Value::Object(changes)) => {
                changes.into_iter().for_each(|(key, value)| {
                    merge_json(target.entry(key).or_insert(Value::Null), value)
                });
            }
            (target, changes) => *target = changes,
        }
    }

    #[test]
    fn endpoint_conditions_follow_pod_readiness_and_termination() {
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let terminating = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let plain = service(json!({}));
        let publishing = service(json!({"publishNotReadyAddresses": true}));
        for (service, changes, expected) in [
            (&plain, json!({}), Some((true, true, false))),
            (&plain, not_ready.clone(), Some((false, false, false))),
            (&plain, terminating.clone(), Some((false, true, true))),
            (&publishing, not_ready, Some((true, false, false))),
            (&publishing, terminating, Some((true, true, true))),
            (&plain, json!({"status": {"phase": "Failed"}}), None),
            (&plain, json!({"status": {"podIPs": []}}), None),
        ] {
            let endpoint = endpoint(
                service,
                &pod(changes.clone()),
                Some("z".into()),
                IpFamily::V4,
            );
            let conditions = endpoint.as_ref().and_then(|it| it.conditions.clone());
            assert_eq!(
                conditions.map(|c| (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap())),
                expected,
                "{changes}"
            );
            if let Some(endpoint) = endpoint {
                assert_eq!(endpoint.addresses.as_slice(), &["10.1.0.1".to_owned()][..]);
                assert_eq!(endpoint.hostname.as_deref(), Some("h"));
                assert_eq!(endpoint.node_name.as_deref(), Some("n"));
                assert_eq!(endpoint.zone.as_deref(), Some("z"));
            }
        }
        let ipv6 = endpoint(&plain, &pod(json!({})), None, IpFamily::V6).unwrap();
        assert_eq!(ipv6.addresses, ["fd00::1"]);
    }

    #[test]
    fn target_ports_are_resolved_by_number_or_name() {
        let port = |target: Value| {
            json!({
                "ports": [{"name": "x", "port": 80, "protocol": "TCP", "targetPort": target}],
            })
        };
        for (spec, expected) in [
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
            assert_eq!(found, expected, "{spec}");
        }
    }
}
