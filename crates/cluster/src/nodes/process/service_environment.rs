//! Environment variables of services, as `{NAME}_SERVICE_HOST` and Docker's links.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};

/// The service of the API server, whose variables every pod has.
const API_SERVER_NAMESPACE: &str = "default";
const API_SERVER: &str = "kubernetes";

/// The variables of the services that a pod sees, with the addresses of their ports if these are
/// not their own. Mirrors `getServiceEnvVarMap` and `FromServices`.
pub(super) fn service_environment(
    pod: &Pod,
    services: &[Arc<Service>],
    address: &PortAddress<'_>,
) -> BTreeMap<String, String> {
    let namespace = pod.metadata.namespace.as_deref();
    let has_links = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links)
        .unwrap_or(true);
    let mut env = BTreeMap::new();
    for service in services {
        let is_api_server = service.metadata.namespace.as_deref() == Some(API_SERVER_NAMESPACE)
            && service.metadata.name.as_deref() == Some(API_SERVER);
        let is_linked = has_links && service.metadata.namespace.as_deref() == namespace;
        // A service of the pod's namespace precedes that of the API server.
        if is_linked {
            env.extend(variables(service, address));
        } else if is_api_server {
            for (name, value) in variables(service, address) {
                env.entry(name).or_insert(value);
            }
        }
    }
    env
}

/// The address of a port of a service, if it is not its own.
pub(super) type PortAddress<'a> = dyn Fn(&Service, u16) -> Option<SocketAddr> + Send + Sync + 'a;

fn variables(service: &Service, address: &PortAddress<'_>) -> Vec<(String, String)> {
    let spec = service.spec.as_ref();
    let ip = spec.and_then(|spec| spec.cluster_ip.as_deref());
    let Some(ip) = ip.filter(|ip| !ip.is_empty() && *ip != "None") else {
        return Vec::new();
    };
    let ports = spec.and_then(|spec| spec.ports.as_deref());
    let Some(ports) = ports.filter(|ports| !ports.is_empty()) else {
        return Vec::new();
    };
    let name = variable_name(service.metadata.name.as_deref().unwrap_or_default());
    let address = |port: i32| {
        let found = u16::try_from(port)
            .ok()
            .and_then(|port| address(service, port));
        match found {
            Some(address) => (address.ip().to_string(), i32::from(address.port())),
            None => (ip.to_owned(), port),
        }
    };
    let (first_ip, first_port) = address(ports[0].port);
    let mut env = vec![
        (format!("{name}_SERVICE_HOST"), first_ip),
        (format!("{name}_SERVICE_PORT"), first_port.to_string()),
    ];
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let port_name = variable_name(port_name);
            let variable = format!("{name}_SERVICE_PORT_{port_name}");
            let (_, number) = address(port.port);
            env.push((variable, number.to_string()));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let (ip, number) = address(port.port);
        let url = format!("{}://{ip}:{number}", protocol.to_lowercase());
        if index == 0 {
            env.push((format!("{name}_PORT"), url.clone()));
        }
        let prefix = format!("{name}_PORT_{}_{}", port.port, protocol.to_uppercase());
        env.push((prefix.clone(), url));
        env.push((format!("{prefix}_PROTO"), protocol.to_lowercase()));
        env.push((format!("{prefix}_PORT"), number.to_string()));
        env.push((format!("{prefix}_ADDR"), ip));
    }
    env
}

/// Mirrors `makeEnvVariableName`.
fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_of_the_namespace_and_the_api_server_have_variables() {
        let service = |namespace: &str, name: &str, ip: &str| {
            let service = json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterIP": ip, "ports": [{"name": "http-x", "port": 80}]},
            });
            Arc::new(serde_json::from_value::<Service>(service).unwrap())
        };
        let services = [
            service("default", "kubernetes", "10.96.0.1"),
            service("shop", "web-api", "10.96.0.2"),
            service("shop", "headless", "None"),
            service("other", "other", "10.96.0.3"),
        ];
        let pod = |links: bool| {
            let pod = json!({
                "metadata": {"namespace": "shop"},
                "spec": {"containers": [], "enableServiceLinks": links},
            });
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let own = |_: &Service, _: u16| None;
        let env = service_environment(&pod(true), &services, &own);
        let expected = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("WEB_API_SERVICE_HOST", "10.96.0.2"),
            ("WEB_API_SERVICE_PORT", "80"),
            ("WEB_API_SERVICE_PORT_HTTP_X", "80"),
            ("WEB_API_PORT", "tcp://10.96.0.2:80"),
            ("WEB_API_PORT_80_TCP", "tcp://10.96.0.2:80"),
            ("WEB_API_PORT_80_TCP_ADDR", "10.96.0.2"),
            ("WEB_API_PORT_80_TCP_PORT", "80"),
            ("WEB_API_PORT_80_TCP_PROTO", "tcp"),
        ];
        for (name, value) in expected {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(env.len(), 16);
        let without_links = service_environment(&pod(false), &services, &own);
        assert_eq!(without_links.len(), 8);
        let relayed = |service: &Service, port: u16| {
            let is_web = service.metadata.name.as_deref() == Some("web-api");
            is_web.then(|| SocketAddr::from(([127, 1, 0, 9], port + 20_000)))
        };
        let env = service_environment(&pod(true), &services, &relayed);
        let expected = [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("WEB_API_SERVICE_HOST", "127.1.0.9"),
            ("WEB_API_SERVICE_PORT_HTTP_X", "20080"),
            ("WEB_API_PORT_80_TCP", "tcp://127.1.0.9:20080"),
            ("WEB_API_PORT_80_TCP_PORT", "20080"),
        ];
        for (name, value) in expected {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
}
