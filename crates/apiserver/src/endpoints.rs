//! Ready endpoints of Services: there is no kube-proxy between this server and cluster IPs.
//! Mirrors `ResolveEndpoint` of `apiserver/pkg/util/proxy`.

use std::net::{IpAddr, SocketAddr};

use crate::{
    api::Api,
    webhook_client::{Destination, WebhookAddress, WebhookClient},
};
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_storage::ObjectKey;
use bellerophon_storage::Range;
use bellerophon_storage::Scope;

/// The label that names the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A ready endpoint of a port of a Service, chosen at random.
///
/// # Errors
/// Why there is none.
pub(crate) fn ready_endpoint(
    api: &Api,
    namespace: &str,
    name: &str,
    port: i64,
) -> Result<(IpAddr, i64), String> {
    let service =
        service(api, namespace, name).ok_or_else(|| format!("service {name:?} not found"))?;
    let kind = service.str_at("spec.type");
    if !matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort") {
        return Err(format!("unsupported service type {kind:?}"));
    }
    let missing = || format!("no service port {port} found for service {name:?}");
    let port_name = port_name(&service, port).ok_or_else(missing)?;
    let endpoints: Vec<_> = endpoint_slices(api, namespace, name)
        .iter()
        .flat_map(|slice| ready_endpoints(slice, &port_name))
        .collect();
    let chosen = api.entropy.below(endpoints.len() as u64) as usize;
    endpoints
        .get(chosen)
        .copied()
        .ok_or_else(|| format!("no endpoints available for service {name:?}"))
}

/// The Service of that name.
pub(crate) fn service(api: &Api, namespace: &str, name: &str) -> Option<Object> {
    let stored = api
        .store
        .get("/services", &ObjectKey::new(namespace, name))?;
    Some(stored.encoded.decode())
}

/// The name of the port of a Service with this number.
pub(crate) fn port_name(service: &Object, number: i64) -> Option<String> {
    let mut ports = service.body.field("spec").list("ports").iter();
    let port = ports.find(|port| port.number("port") == number)?;
    Some(port.text("name").to_owned())
}

/// The EndpointSlices of a Service.
pub(crate) fn endpoint_slices(api: &Api, namespace: &str, service: &str) -> Vec<Object> {
    let range = Range::all_of(Scope::Namespace(namespace.to_owned()));
    let listing = api
        .store
        .list("discovery.k8s.io/endpointslices", &range, None)
        .expect("the newest state is always kept");
    listing
        .objects
        .iter()
        .filter(|slice| {
            let name = slice.attributes.labels.get(SERVICE_NAME);
            name.map(String::as_str) == Some(service)
        })
        .map(|slice| slice.encoded.decode())
        .collect()
}

/// The ready endpoints of a slice that serve a port.
pub(crate) fn ready_endpoints(slice: &Object, port_name: &str) -> Vec<(IpAddr, i64)> {
    let mut ports = slice.body.list("ports").iter();
    let port = ports.find(|port| port.text("name") == port_name && port.has("port"));
    let Some(port) = port.map(|port| port.number("port")) else {
        return Vec::new();
    };
    let endpoints = slice.body.list("endpoints").iter();
    endpoints
        .filter(|endpoint| endpoint.field("conditions").field("ready") != &serde_json::json!(false))
        .filter_map(|endpoint| endpoint.texts("addresses").next()?.parse().ok())
        .map(|ip| (ip, port))
        .collect()
}

/// Where a webhook is dialed.
pub(crate) fn webhook_address(api: &Api, client: &WebhookClient) -> WebhookAddress {
    match &client.destination {
        Destination::Service {
            namespace,
            name,
            port,
        } => match ready_endpoint(api, namespace, name, *port) {
            Ok((ip, port)) => {
                let port = u16::try_from(port).unwrap_or_default();
                WebhookAddress::Socket(SocketAddr::new(ip, port))
            }
            Err(why) => WebhookAddress::Unresolved(why),
        },
        Destination::Host { host, port } => WebhookAddress::of_host(host, *port),
    }
}
