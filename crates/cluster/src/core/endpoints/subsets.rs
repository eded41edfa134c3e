//! Subsets of an Endpoints object.
//!
//! Input: a service and its pods. Output: subsets of addresses with equal ports.
//! Guarantees: at most [`MAX_CAPACITY`] addresses, ready ones preferred; the result does not depend
//! on the order of the pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Pod, Service};

use super::pods::{self, IpFamily};

/// Maximum number of addresses of an Endpoints object, as upstream (maxCapacity).
pub(super) const MAX_CAPACITY: usize = 1000;

/// Annotation of Endpoints from which addresses were left out.
pub(super) const OVER_CAPACITY_ANNOTATION: &str = "endpoints.kubernetes.io/over-capacity";

/// Subsets, and whether addresses were left out.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Subsets {
    pub(super) subsets: Vec<EndpointSubset>,
    pub(super) truncated: bool,
}

/// Address, readiness and ports of a pod.
struct PodAddress {
    address: EndpointAddress,
    ready: bool,
    ports: Vec<EndpointPort>,
}

/// The subsets of a service. Mirrors RepackSubsets and truncateEndpoints.
pub(super) fn build<'a>(service: &Service, pods: impl Iterator<Item = &'a Pod>) -> Subsets {
    let mut addresses: Vec<_> = pods.filter_map(|pod| pod_address(service, pod)).collect();
    addresses.sort_by(|a, b| sort_key(&a.address).cmp(&sort_key(&b.address)));
    let truncated = addresses.len() > MAX_CAPACITY;
    if truncated {
        // Ready addresses are kept before not-ready ones.
        addresses.sort_by_key(|address| !address.ready);
        addresses.truncate(MAX_CAPACITY);
        addresses.sort_by(|a, b| sort_key(&a.address).cmp(&sort_key(&b.address)));
    }
    let mut subsets: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    for PodAddress {
        address,
        ready,
        ports,
    } in addresses
    {
        // Mirrors RepackSubsets: addresses with equal ports share a subset.
        let subset = subsets.entry(format!("{ports:?}")).or_default();
        subset.ports = Some(ports).filter(|ports| !ports.is_empty());
        let list = if ready {
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        list.get_or_insert_default().push(address);
    }
    Subsets {
        subsets: subsets.into_values().collect(),
        truncated,
    }
}

fn sort_key(address: &EndpointAddress) -> (&str, Option<&str>) {
    (
        &address.ip,
        address
            .target_ref
            .as_ref()
            .and_then(|target| target.uid.as_deref()),
    )
}

/// The address of a pod in the Endpoints of a service; `None` if it is left out. Mirrors
/// ShouldPodBeInEndpoints and podToEndpointAddressForService.
fn pod_address(service: &Service, pod: &Pod) -> Option<PodAddress> {
    let publish_not_ready = pods::publishes_not_ready(service);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    if pods::is_terminal(pod) || (terminating && !publish_not_ready) {
        return None;
    }
    let family = IpFamily::of(service)
        .first()
        .copied()
        .unwrap_or(IpFamily::V4);
    let ip = pods::addresses(pod).find(|ip| IpFamily::of_address(*ip) == family)?;
    let ready = publish_not_ready || pods::is_ready(pod);
    // A succeeded pod that is not restarted will not become ready.
    let restarts = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref())
        != Some("Never");
    if !ready
        && !restarts
        && pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Succeeded")
    {
        return None;
    }
    let mut ports: Vec<_> = pods::ports(service, pod)
        .into_iter()
        .map(to_endpoints_port)
        .collect();
    let has_ports = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()));
    // Mirrors syncService: only a headless service without ports publishes addresses without ports.
    if ports.is_empty() && (has_ports || !pods::is_headless(service)) {
        return None;
    }
    ports.sort_by(|a, b| (&a.name, a.port, &a.protocol).cmp(&(&b.name, b.port, &b.protocol)));
    let address = EndpointAddress {
        ip: ip.to_string(),
        hostname: pods::hostname(service, pod),
        node_name: pods::node_name(pod),
        target_ref: Some(pods::reference(pod)),
    };
    Some(PodAddress {
        address,
        ready,
        ports,
    })
}

fn to_endpoints_port(port: k8s_openapi::api::discovery::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        app_protocol: port.app_protocol,
        name: port.name.filter(|name| !name.is_empty()),
        port: port.port.unwrap_or_default(),
        protocol: port.protocol,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Service {
        let spec = json!({
            "clusterIP": "10.0.0.9",
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        });
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a"}, "spec": spec}))
            .unwrap()
    }

    fn pod(number: usize, ready: bool, port: u16) -> Pod {
        let container = json!({"name": "c", "ports": [{"name": "http", "containerPort": port}]});
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("p{number}"),
                "namespace": "a",
                "uid": format!("u{number:04}"),
            },
            "spec": {"nodeName": "n", "containers": [container]},
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": format!("10.1.{}.{}", number / 250, number % 250 + 1)}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        }))
        .unwrap()
    }

    /// `ports: ready/not ready` of each subset.
    fn summary(built: &Subsets) -> Vec<String> {
        let count =
            |addresses: &Option<Vec<EndpointAddress>>| addresses.as_ref().map_or(0, Vec::len);
        let line = |subset: &EndpointSubset| {
            let ports: Vec<_> = subset
                .ports
                .iter()
                .flatten()
                .map(|port| port.port)
                .collect();
            format!(
                "{ports:?}: {}/{}",
                count(&subset.addresses),
                count(&subset.not_ready_addresses)
            )
        };
        built.subsets.iter().map(line).collect()
    }

    #[test]
    fn addresses_are_grouped_by_ports() {
        let pods = [pod(1, true, 8080), pod(2, false, 8080), pod(3, true, 9090)];
        assert_eq!(
            summary(&build(&service(), pods.iter())),
            ["[8080]: 1/1", "[9090]: 1/0"]
        );
        let reversed = [pod(3, true, 9090), pod(2, false, 8080), pod(1, true, 8080)];
        assert_eq!(
            build(&service(), pods.iter()),
            build(&service(), reversed.iter()),
            "independent of the order of the pods"
        );
        let mut headless = service();
        let spec = headless.spec.as_mut().unwrap();
        spec.cluster_ip = Some("None".into());
        spec.ports = None;
        assert_eq!(summary(&build(&headless, pods.iter())), ["[]: 2/1"]);
    }

    #[test]
    fn truncation_prefers_ready_addresses() {
        let pods: Vec<_> = (0..1200)
            .map(|number| pod(number, number % 2 == 0, 8080))
            .collect();
        let built = build(&service(), pods.iter());
        assert_eq!(summary(&built), vec!["[8080]: 600/400".to_owned()]);
        assert!(built.truncated);
    }
}
