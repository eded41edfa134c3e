//! Subsets: the endpoints of a service in the older form, all in one object.
//!
//! In: a service and its pods. Out: subsets of addresses that share their ports.
//! Holds: at most [`ADDRESSES_MAX`] addresses, ready ones first; the same pods give the same subsets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Pod, Service};

use super::pods::{self, Family};

/// How many addresses the object has at most, as upstream.
pub(super) const ADDRESSES_MAX: usize = 1000;

/// The annotation of an object that has fewer addresses than there are.
pub(super) const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

/// Subsets, and whether something was left out.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Subsets {
    pub(super) subsets: Vec<EndpointSubset>,
    pub(super) truncated: bool,
}

/// An address with the ports it has, ready or not.
struct Place {
    address: EndpointAddress,
    ready: bool,
    ports: Vec<EndpointPort>,
}

/// The subsets of a service.
pub(super) fn of<'a>(service: &Service, pods: impl Iterator<Item = &'a Pod>) -> Subsets {
    let mut places: Vec<_> = pods.filter_map(|pod| place(service, pod)).collect();
    places.sort_by(|a, b| order(&a.address).cmp(&order(&b.address)));
    let truncated = places.len() > ADDRESSES_MAX;
    if truncated {
        // Who takes traffic is worth more than who may take some later.
        places.sort_by_key(|place| !place.ready);
        places.truncate(ADDRESSES_MAX);
        places.sort_by(|a, b| order(&a.address).cmp(&order(&b.address)));
    }
    let mut subsets: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    for Place {
        address,
        ready,
        ports,
    } in places
    {
        let subset = subsets.entry(format!("{ports:?}")).or_default();
        subset.ports = Some(ports).filter(|ports| !ports.is_empty());
        let side = if ready {
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        side.get_or_insert_default().push(address);
    }
    Subsets {
        subsets: subsets.into_values().collect(),
        truncated,
    }
}

fn order(address: &EndpointAddress) -> (&str, Option<&str>) {
    (
        &address.ip,
        address
            .target_ref
            .as_ref()
            .and_then(|target| target.uid.as_deref()),
    )
}

fn place(service: &Service, pod: &Pod) -> Option<Place> {
    let publishes = pods::publishes_not_ready(service);
    let going = pod.metadata.deletion_timestamp.is_some();
    if pods::has_ended(pod) || (going && !publishes) {
        return None;
    }
    let family = Family::of(service).first().copied().unwrap_or(Family::V4);
    let ip = pods::addresses(pod).find(|ip| Family::of_address(*ip) == family)?;
    let ready = publishes || pods::is_ready(pod);
    // One that will never run again is not waited for.
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
    let mut ports: Vec<_> = pods::ports(service, pod).into_iter().map(older).collect();
    let wants_ports = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()));
    if ports.is_empty() && (wants_ports || !pods::is_headless(service)) {
        return None;
    }
    ports.sort_by(|a, b| (&a.name, a.port, &a.protocol).cmp(&(&b.name, b.port, &b.protocol)));
    let address = EndpointAddress {
        ip: ip.to_string(),
        hostname: pods::hostname(service, pod),
        node_name: pods::node_name(pod),
        target_ref: Some(pods::reference(pod)),
    };
    Some(Place {
        address,
        ready,
        ports,
    })
}

fn older(port: k8s_openapi::api::discovery::v1::EndpointPort) -> EndpointPort {
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
        let spec = json!({"clusterIP": "10.0.0.9", "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]});
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a"}, "spec": spec}))
            .unwrap()
    }

    fn pod(number: usize, ready: bool, port: u16) -> Pod {
        let container = json!({"name": "c", "ports": [{"name": "http", "containerPort": port}]});
        serde_json::from_value(json!({
            "metadata": {"name": format!("p{number}"), "namespace": "a", "uid": format!("u{number:04}")},
            "spec": {"nodeName": "n", "containers": [container]},
            "status": {"phase": "Running", "podIPs": [{"ip": format!("10.1.{}.{}", number / 250, number % 250 + 1)}],
                       "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        }))
        .unwrap()
    }

    /// `ports: ready/not ready` of each subset.
    fn told(made: &Subsets) -> Vec<String> {
        let count = |side: &Option<Vec<EndpointAddress>>| side.as_ref().map_or(0, Vec::len);
        let told = |subset: &EndpointSubset| {
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
        made.subsets.iter().map(told).collect()
    }

    #[test]
    fn addresses_are_grouped_by_their_ports() {
        let pods = [pod(1, true, 8080), pod(2, false, 8080), pod(3, true, 9090)];
        assert_eq!(
            told(&of(&service(), pods.iter())),
            ["[8080]: 1/1", "[9090]: 1/0"]
        );
        let again = [pod(3, true, 9090), pod(2, false, 8080), pod(1, true, 8080)];
        assert_eq!(
            of(&service(), pods.iter()),
            of(&service(), again.iter()),
            "in whichever order they come"
        );
        let mut headless = service();
        let spec = headless.spec.as_mut().unwrap();
        spec.cluster_ip = Some("None".into());
        spec.ports = None;
        assert_eq!(told(&of(&headless, pods.iter())), ["[]: 2/1"]);
    }

    #[test]
    fn ready_addresses_are_kept_when_there_are_too_many() {
        let pods: Vec<_> = (0..1200)
            .map(|number| pod(number, number % 2 == 0, 8080))
            .collect();
        let made = of(&service(), pods.iter());
        assert_eq!(told(&made), vec!["[8080]: 600/400".to_owned()]);
        assert!(made.truncated);
    }
}
