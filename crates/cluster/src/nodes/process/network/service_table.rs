//! The table of Services: which endpoints serve which port.
//!
//! In: Services and EndpointSlices. Out: the ports of Services with their ready endpoints, and the
//! names of Services with their addresses.
//! Guarantees: endpoints are those that kube-proxy would use on a single node.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon_process_runtime::relay::Backends;
use k8s_openapi::api::core::v1::{self, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// The Service of the API server.
const API_SERVER_NAMESPACE: &str = "default";
const API_SERVER: &str = "kubernetes";

/// The label of the Service of a slice.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The default timeout of `sessionAffinity: ClientIP`.
const AFFINITY_SECONDS: i32 = 10_800;

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TablePort {
    pub(super) port: u16,
    pub(super) node_port: Option<u16>,
    pub(super) backends: Backends,
}

/// A Service with its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableService {
    pub(super) key: ObjectKey,
    /// Empty for a headless Service.
    pub(super) cluster_ips: Vec<IpAddr>,
    /// TCP ports.
    pub(super) ports: Vec<TablePort>,
    pub(super) udp_ports: Vec<TablePort>,
    /// The addresses of the ready endpoints of a headless Service, with the host names of their
    /// pods. With `publishNotReadyAddresses`, all endpoints are ready.
    pub(super) headless: BTreeSet<(IpAddr, Option<String>)>,
    /// The ports of the endpoints of a headless Service.
    headless_ports: BTreeSet<u16>,
}

impl TableService {
    pub(super) fn is_api_server(&self) -> bool {
        self.key.namespace() == Some(API_SERVER_NAMESPACE) && self.key.name() == API_SERVER
    }
}

/// The Services of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceTable {
    pub(super) services: Vec<TableService>,
    /// Endpoints that are no pods, and may be dialed from the host.
    pub(super) outside: HashSet<SocketAddr>,
}

impl ServiceTable {
    pub(super) fn new(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> Self {
        let mut by_service: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in slices {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL));
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            if let Some(service) = service {
                let key = (namespace, service.as_str());
                by_service.entry(key).or_default().push(slice);
            }
        }
        let mut table = Self::default();
        for service in services {
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let slices = by_service.get(&(namespace, name));
            table.add(service, slices.map_or(&[], Vec::as_slice));
        }
        table.services.sort_by(|a, b| a.key.cmp(&b.key));
        table
    }

    fn add(&mut self, service: &Service, slices: &[&EndpointSlice]) {
        let Some(spec) = &service.spec else { return };
        if spec.type_.as_deref() == Some("ExternalName") {
            return;
        }
        let mut added = TableService {
            key: ObjectKey::from_object(service),
            cluster_ips: cluster_ips(spec),
            ports: Vec::new(),
            udp_ports: Vec::new(),
            headless: BTreeSet::new(),
            headless_ports: BTreeSet::new(),
        };
        let is_api_server = added.is_api_server();
        if added.cluster_ips.is_empty() {
            added.headless = headless_addresses(slices);
            added.headless_ports = slice_ports(slices);
        } else {
            for port in spec.ports.iter().flatten() {
                let ports = match port.protocol.as_deref() {
                    None | Some("TCP") => &mut added.ports,
                    Some("UDP") => &mut added.udp_ports,
                    Some(_) => continue,
                };
                let Ok(number) = u16::try_from(port.port) else {
                    continue;
                };
                let endpoints = self.endpoints(port, slices, is_api_server);
                ports.push(TablePort {
                    port: number,
                    node_port: port.node_port.and_then(|port| u16::try_from(port).ok()),
                    backends: Backends {
                        endpoints,
                        affinity: affinity(spec),
                    },
                });
            }
        }
        self.services.push(added);
    }

    /// The ready endpoints of a port; those that terminate and still serve if none is ready, as
    /// kube-proxy has it.
    fn endpoints(
        &mut self,
        port: &v1::ServicePort,
        slices: &[&EndpointSlice],
        is_api_server: bool,
    ) -> Vec<SocketAddr> {
        let mut ready = BTreeSet::new();
        let mut terminating = BTreeSet::new();
        for slice in slices {
            let ports = slice.ports.iter().flatten();
            let name = port.name.as_deref().unwrap_or_default();
            let mut ports = ports.filter(|it| it.name.as_deref().unwrap_or_default() == name);
            let number = ports.next().and_then(|it| it.port);
            let Some(number) = number.and_then(|port| u16::try_from(port).ok()) else {
                continue;
            };
            for endpoint in slice.endpoints.iter().flatten() {
                for ip in addresses(endpoint) {
                    let address = SocketAddr::new(ip, number);
                    let is_outside = !is_pod(endpoint) && (is_api_server || is_dialable(ip));
                    if is_outside {
                        self.outside.insert(address);
                    }
                    if is_ready(endpoint) {
                        ready.insert(address);
                    } else if is_serving(endpoint) {
                        terminating.insert(address);
                    }
                }
            }
        }
        if ready.is_empty() { terminating } else { ready }
            .into_iter()
            .collect()
    }

    /// The ports on which pods must be able to connect.
    pub(super) fn ports(&self) -> BTreeSet<u16> {
        let ports = self.services.iter().flat_map(|service| &service.ports);
        let own = ports.clone().map(|port| port.port);
        let node_ports = ports.clone().filter_map(|port| port.node_port);
        let targets = ports.flat_map(|port| &port.backends.endpoints);
        let headless = self.services.iter().flat_map(|it| &it.headless_ports);
        own.chain(node_ports)
            .chain(targets.map(SocketAddr::port))
            .chain(headless.copied())
            .collect()
    }

    /// The addresses of Services at which pods send datagrams.
    pub(super) fn udp_addresses(&self) -> BTreeSet<SocketAddr> {
        let addresses = self.services.iter().flat_map(|service| {
            let ports = service.udp_ports.iter().map(|port| port.port);
            ports.flat_map(|port| {
                let ips = service.cluster_ips.iter();
                ips.map(move |ip| SocketAddr::new(*ip, port))
            })
        });
        addresses.collect()
    }

    /// The table with the addresses at which programs without namespaces reach Services and pods.
    /// Services and endpoints without such an address are not in it.
    pub(super) fn with_addresses(
        &self,
        service_ip: impl Fn(&ObjectKey) -> Option<IpAddr>,
        pod_ip: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Self {
        let services = self.services.iter().map(|service| {
            let has_cluster_ip = !service.cluster_ips.is_empty();
            let ip = service_ip(&service.key).filter(|_| has_cluster_ip);
            let headless = service.headless.iter();
            let headless = headless.filter_map(|(ip, name)| Some((pod_ip(*ip)?, name.clone())));
            TableService {
                cluster_ips: ip.into_iter().collect(),
                headless: headless.collect(),
                ..service.clone()
            }
        });
        Self {
            services: services.collect(),
            outside: self.outside.clone(),
        }
    }
}

/// Addresses outside of the host; an endpoint must not give access to what only the host reaches.
fn is_dialable(ip: IpAddr) -> bool {
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

fn cluster_ips(spec: &v1::ServiceSpec) -> Vec<IpAddr> {
    let all = spec.cluster_ips.iter().flatten();
    let first = spec.cluster_ip.iter();
    let ips: BTreeSet<IpAddr> = first.chain(all).filter_map(|ip| ip.parse().ok()).collect();
    ips.into_iter().collect()
}

fn is_tcp(protocol: &Option<String>) -> bool {
    protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
}

fn affinity(spec: &v1::ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let client_ip = config.and_then(|config| config.client_ip.as_ref());
    let seconds = client_ip
        .and_then(|client_ip| client_ip.timeout_seconds)
        .unwrap_or(AFFINITY_SECONDS);
    Some(Duration::from_secs(
        u64::try_from(seconds).unwrap_or_default(),
    ))
}

fn headless_addresses(slices: &[&EndpointSlice]) -> BTreeSet<(IpAddr, Option<String>)> {
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| is_ready(endpoint));
    ready
        .flat_map(|endpoint| {
            let name = endpoint.hostname.clone();
            addresses(endpoint).map(move |ip| (ip, name.clone()))
        })
        .collect()
}

fn slice_ports(slices: &[&EndpointSlice]) -> BTreeSet<u16> {
    let ports = slices.iter().flat_map(|slice| slice.ports.iter().flatten());
    let tcp = ports.filter(|port| is_tcp(&port.protocol));
    tcp.filter_map(|port| u16::try_from(port.port?).ok())
        .collect()
}

fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = IpAddr> {
    let addresses = endpoint.addresses.iter();
    addresses.filter_map(|address| address.parse().ok())
}

fn is_pod(endpoint: &Endpoint) -> bool {
    let target = endpoint.target_ref.as_ref();
    target.is_some_and(|target| target.kind.as_deref() == Some("Pod"))
}

/// A missing condition is interpreted as ready.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|it| it.ready).unwrap_or(true)
}

fn is_serving(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|it| it.serving).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Arc<Service> {
        let service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        Arc::new(serde_json::from_value(service).expect("a Service"))
    }

    fn slice(port: u16, endpoints: Value) -> Arc<EndpointSlice> {
        let slice = json!({
            "metadata": {
                "name": "web-1", "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port}],
            "endpoints": endpoints,
        });
        Arc::new(serde_json::from_value(slice).expect("an EndpointSlice"))
    }

    fn pod_endpoint(ip: &str, conditions: Value) -> Value {
        let target = json!({"kind": "Pod", "name": "a"});
        json!({"addresses": [ip], "conditions": conditions, "targetRef": target})
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn port_has_its_ready_endpoints() {
        let spec = json!({
            "clusterIP": "10.0.0.9", "sessionAffinity": "ClientIP",
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        });
        let endpoints = json!([
            pod_endpoint("10.1.0.2", json!({"ready": true})),
            pod_endpoint("10.1.0.3", json!({"ready": false, "serving": true})),
        ]);
        let table = ServiceTable::new(&[service(spec)], &[slice(8080, endpoints)]);
        let expected = TablePort {
            port: 80,
            node_port: Some(30080),
            backends: Backends {
                endpoints: vec![address("10.1.0.2:8080")],
                affinity: Some(Duration::from_secs(10_800)),
            },
        };
        assert_eq!(table.services[0].ports, [expected]);
        assert_eq!(table.ports(), BTreeSet::from([80, 8080, 30080]));
        assert!(table.outside.is_empty());
    }

    #[test]
    fn udp_ports_are_apart_from_tcp_ports() {
        let spec = json!({"clusterIP": "10.0.0.9", "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "http", "port": 53, "protocol": "TCP"},
            {"name": "sctp", "port": 54, "protocol": "SCTP"},
        ]});
        let endpoints = json!([pod_endpoint("10.1.0.2", json!({"ready": true}))]);
        let table = ServiceTable::new(&[service(spec)], &[slice(8080, endpoints)]);
        let numbers =
            |ports: &[TablePort]| -> Vec<u16> { ports.iter().map(|port| port.port).collect() };
        assert_eq!(numbers(&table.services[0].ports), [53]);
        assert_eq!(numbers(&table.services[0].udp_ports), [53]);
        let addresses = table.udp_addresses();
        assert_eq!(addresses, BTreeSet::from([address("10.0.0.9:53")]));
    }

    #[test]
    fn terminating_endpoints_serve_if_no_other_is_ready() {
        let spec = json!({"clusterIP": "10.0.0.9", "ports": [{"name": "http", "port": 80}]});
        let endpoints = json!([
            pod_endpoint("10.1.0.2", json!({"ready": false, "serving": false})),
            pod_endpoint("10.1.0.3", json!({"ready": false, "serving": true})),
        ]);
        let table = ServiceTable::new(&[service(spec)], &[slice(8080, endpoints)]);
        let endpoints = &table.services[0].ports[0].backends.endpoints;
        assert_eq!(*endpoints, [address("10.1.0.3:8080")]);
    }

    #[test]
    fn headless_service_has_the_names_of_its_pods() {
        let spec = json!({"clusterIP": "None", "ports": [{"name": "http", "port": 80}]});
        let mut endpoint = pod_endpoint("10.1.0.2", json!({"ready": true}));
        endpoint["hostname"] = json!("web-0");
        let table = ServiceTable::new(&[service(spec)], &[slice(80, json!([endpoint]))]);
        let service = &table.services[0];
        let ip = IpAddr::from([10, 1, 0, 2]);
        assert_eq!(
            service.headless,
            BTreeSet::from([(ip, Some("web-0".to_owned()))])
        );
        assert!(service.ports.is_empty());
        assert_eq!(table.ports(), BTreeSet::from([80]));
        let listened = IpAddr::from([127, 1, 0, 2]);
        let translated = table.with_addresses(|_| None, |it| (it == ip).then_some(listened));
        let expected = BTreeSet::from([(listened, Some("web-0".to_owned()))]);
        assert_eq!(translated.services[0].headless, expected);
    }

    #[test]
    fn only_endpoints_outside_of_the_host_are_dialed_by_it() {
        let spec = json!({"clusterIP": "10.0.0.9", "ports": [{"name": "http", "port": 80}]});
        let endpoints = json!([
            {"addresses": ["127.0.0.1"]},
            {"addresses": ["192.0.2.7"]},
            pod_endpoint("10.1.0.2", json!({})),
        ]);
        let table = ServiceTable::new(&[service(spec)], &[slice(22, endpoints)]);
        assert_eq!(table.outside, HashSet::from([address("192.0.2.7:22")]));
    }
}
