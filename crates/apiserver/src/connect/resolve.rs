//! Resolves the names of pods, services and nodes to locations.
//! In: a name, and the stored objects. Out: a location without path and query.
//!
//! Mirrors `GetConnectionInfo`, `validateContainer`, and `ResourceLocation` in the registries of
//! pods, services and nodes.

use std::{net::IpAddr, sync::Arc};

use bellerophon_apimachinery::{
    error::{ApiError, GroupResource},
    json_ext::JsonExt,
};
use bellerophon_codec::object::Object;
use bellerophon_storage::ObjectKey;

use super::{
    Dialer,
    location::{Location, Scheme},
};
use crate::{
    api::Api,
    auth::{Lookup, Source},
};

/// The port of a kubelet that reports none.
const KUBELET_PORT: u16 = 10250;

/// The addresses of a Node at which its kubelet is looked for, most preferred first.
const KUBELET_ADDRESSES: [&str; 2] = ["InternalIP", "ExternalIP"];

/// `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`. Mirrors `SplitSchemeNamePort`.
#[derive(Debug, PartialEq, Eq)]
struct SchemeNamePort<'a> {
    scheme: Scheme,
    name: &'a str,
    port: &'a str,
}

impl<'a> SchemeNamePort<'a> {
    fn parse(id: &'a str) -> Option<Self> {
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => return None,
        };
        let scheme = Scheme::parse(scheme)?;
        (!name.is_empty()).then_some(Self { scheme, name, port })
    }
}

/// Finds locations by the stored objects.
#[derive(Clone, Copy)]
pub(super) struct Locations<'a> {
    pub(super) api: &'a Api,
    pub(super) dialer: &'a dyn Dialer,
    pub(super) namespace: &'a str,
}

impl Locations<'_> {
    /// A pod.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn pod(&self, name: &str) -> Result<Arc<Object>, ApiError> {
        self.api
            .get(Source::Pod, self.namespace, name)
            .ok_or_else(|| not_found("pods", name))
    }

    /// The kubelet of a node, without path and query. Mirrors `GetConnectionInfo`, with `http`
    /// instead of `https`.
    ///
    /// # Errors
    /// There is no such node, or it has no address.
    pub(super) fn kubelet(&self, node_name: &str) -> Result<Location, ApiError> {
        let node = self.api.get(Source::Node, "", node_name);
        let node = node.ok_or_else(|| not_found("nodes", node_name))?;
        let status = node.body.field("status");
        let addresses = status.list("addresses");
        let ip = KUBELET_ADDRESSES.iter().find_map(|preferred| {
            let of_type = addresses.iter().find(|a| a.text("type") == *preferred)?;
            of_type.text("address").parse().ok()
        });
        let Some(ip) = ip else {
            let known: Vec<String> = addresses
                .iter()
                .map(|address| format!("{{{} {}}}", address.text("type"), address.text("address")))
                .collect();
            return Err(ApiError::Unnamed(format!(
                "no preferred addresses found; known addresses: [{}]",
                known.join(" ")
            )));
        };
        let endpoint = status.field("daemonEndpoints").field("kubeletEndpoint");
        let port = match endpoint.number("Port") {
            port if port > 0 => port,
            _ => KUBELET_PORT.into(),
        };
        Ok(Location {
            scheme: Scheme::Http,
            ip,
            port: port.to_string(),
            path: String::new(),
            query: String::new(),
            tls: None,
        })
    }

    /// Where `nodes/proxy` sends requests: the kubelet, or another port of the node.
    ///
    /// # Errors
    /// There is no such node, or its address may not be proxied to.
    pub(super) fn node_proxy(&self, id: &str) -> Result<Location, ApiError> {
        let wanted = SchemeNamePort::parse(id);
        let wanted = wanted.ok_or_else(|| invalid_request("node", id))?;
        let kubelet = self.kubelet(wanted.name)?;
        self.check_proxied(kubelet.ip)?;
        if wanted.port.is_empty() || wanted.port == kubelet.port {
            return Ok(kubelet);
        }
        Ok(Location {
            scheme: wanted.scheme,
            port: wanted.port.to_owned(),
            ..kubelet
        })
    }

    /// Where `pods/proxy` sends requests: the named port, or the first port of the pod.
    ///
    /// # Errors
    /// There is no such pod, or its address may not be proxied to.
    pub(super) fn pod_proxy(&self, id: &str) -> Result<Location, ApiError> {
        let wanted = SchemeNamePort::parse(id);
        let wanted = wanted.ok_or_else(|| invalid_request("pod", id))?;
        let pod = self.pod(wanted.name)?;
        let port = match wanted.port {
            "" => first_port(&pod).map_or_else(String::new, |port| port.to_string()),
            port => port.to_owned(),
        };
        let addresses = pod.body.field("status").list("podIPs");
        let ip = addresses.first().map_or("", |address| address.text("ip"));
        let ip = ip.parse().map_err(|_| address_not_allowed())?;
        self.check_proxied(ip)?;
        Ok(Location {
            scheme: wanted.scheme,
            ip,
            port,
            path: String::new(),
            query: String::new(),
            tls: None,
        })
    }

    fn check_proxied(&self, ip: IpAddr) -> Result<(), ApiError> {
        if self.dialer.may_proxy_to(ip) {
            Ok(())
        } else {
            Err(address_not_allowed())
        }
    }

    /// Where `services/proxy` sends requests: a ready endpoint, chosen at random.
    ///
    /// # Errors
    /// There is no such service or port, or it has no endpoint that is a pod.
    pub(super) fn service_proxy(&self, id: &str) -> Result<Location, ApiError> {
        let wanted = SchemeNamePort::parse(id);
        let wanted = wanted.ok_or_else(|| invalid_request("service", id))?;
        let name = wanted.name;
        let port_name = match wanted.port.parse::<i64>() {
            Ok(number) => self.port_name(name, number)?,
            Err(_) => wanted.port.to_owned(),
        };
        let endpoints = self.read("/endpoints", name);
        let endpoints = endpoints.ok_or_else(|| not_found("endpoints", name))?;
        let subsets = endpoints.body.list("subsets");
        if subsets.is_empty() {
            return Err(no_endpoints(name));
        }
        for subset in self.starting_anywhere(subsets) {
            let ports = subset.list("ports").iter();
            for port in ports.filter(|port| port.text("name") == port_name) {
                let addresses = subset.list("addresses");
                let mut addresses = self.starting_anywhere(addresses);
                let Some(address) = addresses.find(|address| self.is_of_pod(address)) else {
                    continue;
                };
                let Ok(ip) = address.text("ip").parse() else {
                    continue;
                };
                return Ok(Location {
                    scheme: wanted.scheme,
                    ip,
                    port: port.number("port").to_string(),
                    path: String::new(),
                    query: String::new(),
                    tls: None,
                });
            }
        }
        Err(no_endpoints(id))
    }

    /// The name of the port of a service with this number.
    fn port_name(&self, service: &str, number: i64) -> Result<String, ApiError> {
        let stored = self.read("/services", service);
        let stored = stored.ok_or_else(|| not_found("services", service))?;
        let mut ports = stored.body.field("spec").list("ports").iter();
        let port = ports.find(|port| port.number("port") == number);
        let port = port.ok_or_else(|| {
            ApiError::Unavailable(format!(
                "no service port {number} found for service {service:?}"
            ))
        })?;
        Ok(port.text("name").to_owned())
    }

    /// Whether an address of Endpoints is the one of a pod in the same namespace: a user that may
    /// write Endpoints must not reach any address through the API server. Mirrors `isValidAddress`.
    fn is_of_pod(&self, address: &serde_json::Value) -> bool {
        let target = address.field("targetRef");
        if target.text("namespace") != self.namespace {
            return false;
        }
        let pod = self
            .api
            .get(Source::Pod, self.namespace, target.text("name"));
        pod.is_some_and(|pod| {
            let mut ips = pod.body.field("status").list("podIPs").iter();
            ips.any(|ip| ip.text("ip") == address.text("ip"))
        })
    }

    fn starting_anywhere<'a, T>(&self, items: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let start = self.api.entropy.below(items.len() as u64) as usize;
        let (before, after) = items.split_at(start);
        after.iter().chain(before)
    }

    fn read(&self, collection: &str, name: &str) -> Option<Object> {
        let key = ObjectKey::new(self.namespace, name);
        let stored = self.api.store.get(collection, &key)?;
        Some(stored.encoded.decode())
    }
}

/// The first port of the first container that has ports.
fn first_port(pod: &Object) -> Option<i64> {
    let mut containers = pod.body.field("spec").list("containers").iter();
    let port = containers.find_map(|container| container.list("ports").first())?;
    port.int("containerPort")
}

/// The container that a request is about: the named one, or the only one. Mirrors
/// `validateContainer`.
///
/// # Errors
/// There is no such container, or several and none is named.
pub(super) fn container<'a>(pod: &'a Object, wanted: &'a str) -> Result<&'a str, ApiError> {
    let name = &pod.meta.name;
    let spec = pod.body.field("spec");
    let names_of = |list: &str| {
        let containers = spec.list(list).iter();
        containers.map(|container| container.text("name"))
    };
    let mut all = names_of("initContainers")
        .chain(names_of("containers"))
        .chain(names_of("ephemeralContainers"));
    let why = match (wanted, spec.list("containers")) {
        ("", [only]) => return Ok(only.text("name")),
        ("", []) => format!("a container name must be specified for pod {name}"),
        ("", _) => {
            let all: Vec<&str> = all.collect();
            let all = all.join(" ");
            format!("a container name must be specified for pod {name}, choose one of: [{all}]")
        }
        (wanted, _) if all.any(|container| container == wanted) => return Ok(wanted),
        (wanted, _) => format!("container {wanted} is not valid for pod {name}"),
    };
    Err(ApiError::BadRequest(why))
}

fn not_found(resource: &str, name: &str) -> ApiError {
    ApiError::NotFound {
        resource: GroupResource::new("", resource),
        name: name.to_owned(),
    }
}

fn invalid_request(kind: &str, id: &str) -> ApiError {
    ApiError::BadRequest(format!("invalid {kind} request {id:?}"))
}

fn address_not_allowed() -> ApiError {
    ApiError::BadRequest("address not allowed".into())
}

fn no_endpoints(service: &str) -> ApiError {
    ApiError::Unavailable(format!("no endpoints available for service {service:?}"))
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::json;

    use super::*;

    #[test]
    fn container_is_named_unless_there_is_only_one() {
        let pod = |containers: &[&str]| {
            let containers: Vec<_> = containers
                .iter()
                .map(|name| json!({"name": name}))
                .collect();
            object(
                json!({"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "i"}], "containers": containers}}),
            )
        };
        let cases = [
            (&["a"][..], "", Ok("a")),
            (&["a"], "i", Ok("i")),
            (&["a"], "b", Err("container b is not valid for pod p")),
            (
                &["a", "b"],
                "",
                Err("a container name must be specified for pod p, choose one of: [i a b]"),
            ),
            (&[], "", Err("a container name must be specified for pod p")),
        ];
        for (containers, wanted, expected) in cases {
            let pod = pod(containers);
            let found = container(&pod, wanted);
            let expected = expected.map_err(|why: &str| ApiError::BadRequest(why.into()));
            assert_eq!(found, expected, "{containers:?} {wanted:?}");
        }
    }

    #[test]
    fn proxied_names_have_scheme_and_port() {
        for (id, expected) in [
            ("a", Some((Scheme::Http, "a", ""))),
            ("a:80", Some((Scheme::Http, "a", "80"))),
            ("a:web", Some((Scheme::Http, "a", "web"))),
            (":a:80", Some((Scheme::Http, "a", "80"))),
            ("https:a:80", Some((Scheme::Https, "a", "80"))),
            ("https:a:", Some((Scheme::Https, "a", ""))),
            ("ftp:a:80", None),
            (":", None),
            ("a:b:c:d", None),
        ] {
            let parsed = SchemeNamePort::parse(id);
            let parsed = parsed.map(|parsed| (parsed.scheme, parsed.name, parsed.port));
            assert_eq!(parsed, expected, "{id}");
        }
    }
}
